"""An asynchronous driver as our statements need one: they run where SQLAlchemy awaits them, inside `run_sync`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from itertools import count
from typing import Any, Self

from sqlalchemy import Connection


class AwaitedDriver:
    """Stands for the driver's own connection, and for the one cursor that all statements share.

    While a statement waits, such as for a lock, the event loop goes on.
    """

    def __init__(self, connection: Connection) -> None:
        adapted: Any = connection.connection.dbapi_connection
        self._adapted = adapted
        self._connection = connection
        self._is_numbered = connection.dialect.paramstyle == "numeric_dollar"
        self._cursor = self._adapted.cursor()

    def cursor(self) -> Self:
        return self

    def execute(self, statement: str, values: Sequence[Any] = ()) -> Self:
        with self._noticing_loss():
            self._cursor.execute(self._written(statement), tuple(values))
        return self

    def executemany(self, statement: str, rows: Sequence[Sequence[Any]]) -> None:
        if not rows:
            return
        # SQLite's cursor keeps such a statement until it is closed. A connection that is closed before, as SQLAlchemy does
        # where a task is cancelled, would live on with its lock for as long as the cursor does.
        cursor = self._adapted.cursor()
        try:
            with self._noticing_loss():
                cursor.executemany(self._written(statement), rows)
        finally:
            cursor.close()

    def fetchone(self) -> Any:
        return self._cursor.fetchone()

    def fetchall(self) -> Sequence[Any]:
        rows: Sequence[Any] = self._cursor.fetchall()
        return rows

    @property
    def rowcount(self) -> int:
        return int(self._cursor.rowcount)

    @property
    def autocommit(self) -> bool:
        """Whether each statement is committed by itself; only a server's driver says so."""
        return bool(self._adapted.autocommit)

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is under way; only SQLite's driver says so."""
        return bool(self._adapted.driver_connection.in_transaction)

    @contextmanager
    def _noticing_loss(self) -> Iterator[None]:
        """Tell SQLAlchemy of a connection that is lost. By itself it notices that only by statements of its own.

        asyncpg rolls a lost connection back without an error, so the pool would give it out for ever.
        """
        try:
            yield
        except Exception as error:
            if self._connection.dialect.is_disconnect(error, self._adapted, None):  # type: ignore[arg-type]
                self._connection.invalidate(error)
            raise

    def _written(self, statement: str) -> str:
        return _numbered(statement) if self._is_numbered else statement


@lru_cache
def _numbered(statement: str) -> str:
    """The statement with `$1`, `$2` … in place of each `%s`: asyncpg's placeholders."""
    numbers = count(1)
    return re.sub("%s", lambda _: f"${next(numbers)}", statement)
