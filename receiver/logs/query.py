"""A log in a database: streams the rows of a query, in its order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from decimal import Decimal
from functools import partial
from operator import add
from typing import Any, NamedTuple
from uuid import UUID

import pyarrow as pa
from sqlalchemy import CursorResult
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from receiver.errors import LogFormatError
from receiver.logs.columns import LogBatch
from receiver.logs.options import ReadOptions, fields_of
from receiver.logs.rows import BatchMaker, RawRows
from receiver.masking import masked
from receiver.store.databases import engine_to_read, store_error

_ROWS = 10_000
"""Rows that are held at a time."""
_QUERY_HINT = "such as SELECT at AS received_at, id AS unique_message_id FROM received ORDER BY at"


class Query(NamedTuple):
    address: str
    """The database's address, in SQLAlchemy's form."""
    sql: str

    @property
    def name(self) -> str:
        """The name for errors: the address without the password."""
        return masked(self.address)


def read_query(query: Query, options: ReadOptions) -> Iterator[LogBatch]:
    """The rows of a query. LINE is the number of the row, from 1.

    `LogFormatError` for a query that fails or lacks columns, `StoreError` for a database that can't be reached.
    """
    engine = engine_to_read(query.address)
    try:
        with engine.connect() as connection:
            streaming = connection.execution_options(stream_results=True, max_row_buffer=_ROWS, no_parameters=True)
            try:
                with streaming.exec_driver_sql(query.sql) as result:
                    yield from _batches(query.name, result, options)
            except (SQLAlchemyError, UnicodeEncodeError) as error:  # the latter for bytes that aren't UTF-8
                reason = getattr(error, "orig", None) or error
                raise LogFormatError(
                    query.name, f"the query fails: {' '.join(str(reason).split())}", hint=_QUERY_HINT
                ) from error
    except DBAPIError as error:
        raise store_error(error, query.address) from error
    finally:
        engine.dispose()


def _batches(name: str, result: CursorResult[Any], options: ReadOptions) -> Iterator[LogBatch]:
    if not result.returns_rows:
        raise LogFormatError(name, "the query gives no rows", hint=_QUERY_HINT)
    fields = fields_of(list(result.keys()), options, name)
    batches = BatchMaker(name, options)
    row = 1
    for rows in result.partitions(_ROWS):
        values = list(zip(*rows, strict=True))
        columns = {column: _array(values[index]) for column, index in fields.items()}
        yield batches.batch(RawRows(columns, partial(add, row)))
        row += len(rows)


def _array(values: Sequence[Any]) -> pa.Array:
    plain = [_plain(value) for value in values]
    try:
        return pa.array(plain)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):  # values of several types, as SQLite may give
        return pa.array([_as_bytes(value) for value in plain], pa.binary())


def _as_bytes(value: Any) -> bytes | None:
    return value if value is None or isinstance(value, bytes) else str(value).encode()


def _plain(value: Any) -> Any:
    """The value as text if Arrow has no exact type for it; bytes stay bytes."""
    if isinstance(value, Decimal | UUID):
        return str(value)
    return bytes(value) if isinstance(value, memoryview) else value
