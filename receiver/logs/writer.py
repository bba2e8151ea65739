"""Tables written as streams: CSV, JSON Lines or Parquet, told by the ending of the file's name.

Text stands exactly as it is in every format: nothing is trimmed, replaced or made harmless for a spreadsheet.
"""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq
import zstandard

from receiver.errors import SettingsError
from receiver.logs.arrow import bytes_of
from receiver.logs.output import replacing

if TYPE_CHECKING:
    from _typeshed import StrPath

__all__ = ["TableWriter", "in_pieces", "json_lines", "open_table", "table_to_begin"]

_Write = Callable[[pa.RecordBatch], None]
_Table = Callable[[IO[bytes], pa.Schema], AbstractContextManager[_Write]]
_Compression = Callable[[IO[bytes]], AbstractContextManager[Any]]

_JSON_ESCAPED = r'[\x00-\x1f"\\]'
_PIECE_BYTES = 1 << 27
"""Below the 2 GiB that one Arrow text column can hold, even when each byte becomes `\\u0000`."""


@dataclass(frozen=True, slots=True)
class TableWriter:
    """An open table; `write` appends a batch of the table's schema."""

    write: _Write


@contextmanager
def open_table(path: StrPath, schema: pa.Schema, *, unfinished: Path | None = None) -> Iterator[TableWriter]:
    """A table to write batches to; it takes the place of `path` when the block ends well (see `replacing`, also
    for `unfinished`).

    Columns are text, also as dictionaries, whole numbers, booleans and `timestamp[us, UTC]`, which becomes ISO 8601
    text in CSV and JSON Lines. A missing text is empty in CSV. `SettingsError` for an ending that names no format,
    `OutputError` where the file can't be written.
    """
    with table_to_begin(path, unfinished=unfinished) as begin:
        yield begin(schema)


@contextmanager
def table_to_begin(path: StrPath, *, unfinished: Path | None = None) -> Iterator[Callable[[pa.Schema], TableWriter]]:
    """As `open_table`, where the columns are known only after the work: the file is made at once, the table by the
    function, to be called once."""
    table, compressed = _format_of(path)
    with replacing(path, unfinished=unfinished) as file, ExitStack() as stack:
        sink = stack.enter_context(compressed(file)) if compressed else file
        yield lambda schema: TableWriter(stack.enter_context(table(sink, schema)))


@contextmanager
def _csv(sink: IO[bytes], schema: pa.Schema) -> Iterator[_Write]:
    no_rows = pa.RecordBatch.from_pylist([], schema)
    with pyarrow.csv.CSVWriter(sink, _csv_batch(no_rows).schema) as writer:

        def write(batch: pa.RecordBatch) -> None:
            for piece in in_pieces(batch):
                writer.write_batch(_csv_batch(piece))

        yield write


def _csv_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    # All text is quoted and none is missing, so no row can look like a blank line.
    columns = [_spelled(column) for column in batch.columns]
    filled = [column.fill_null("") if pa.types.is_string(column.type) else column for column in columns]
    return pa.record_batch(filled, names=batch.schema.names)


@contextmanager
def _json_lines(sink: IO[bytes], _schema: pa.Schema) -> Iterator[_Write]:
    def write(batch: pa.RecordBatch) -> None:
        for lines in json_lines(batch):
            sink.write(lines)

    yield write


def json_lines(batch: pa.RecordBatch) -> Iterator[memoryview]:
    """A batch of such columns as `open_table` takes as JSON Lines, in pieces of whole lines."""
    keys = [json.dumps(name, ensure_ascii=False) + ":" for name in batch.schema.names]
    for piece in in_pieces(batch):
        parts: list[pa.Array | str] = ["{"]
        for key, column in zip(keys, piece.columns, strict=True):
            parts += [key, *_json_values(column), ","]
        yield bytes_of(_joined([*parts[:-1], "}\n"], piece.num_rows)).data


def _joined(parts: Iterable[pa.Array | str], rows: int) -> pa.Array:
    """One text a row. Text that all rows have is put together first: each part costs its time for every row."""
    merged: list[pa.Array | str] = []
    for is_text, some in groupby(parts, lambda part: isinstance(part, str)):
        alike = list(some)
        merged += ["".join(alike)] if is_text else alike
    return pa.repeat(merged[0], rows) if len(merged) == 1 else pc.binary_join_element_wise(*merged, "")


@contextmanager
def _parquet(sink: IO[bytes], schema: pa.Schema) -> Iterator[_Write]:
    repetitive = [field.name for field in schema if pa.types.is_dictionary(field.type)]
    # Without Arrow's own schema: a column of text is one to every reader, however it was held here.
    with pq.ParquetWriter(sink, schema, compression="zstd", use_dictionary=repetitive, store_schema=False) as writer:
        yield writer.write_batch


def _gzip(file: IO[bytes]) -> AbstractContextManager[Any]:
    # Neither name nor time in the header: equal tables are equal bytes.
    return gzip.GzipFile("", "wb", compresslevel=6, fileobj=file, mtime=0)


def _zstd(file: IO[bytes]) -> AbstractContextManager[Any]:
    return zstandard.ZstdCompressor().stream_writer(file, closefd=False)


_TABLES = {".csv": _csv, ".jsonl": _json_lines, ".ndjson": _json_lines}
_COMPRESSIONS = {"": None, ".gz": _gzip, ".zst": _zstd}
_FORMATS = {
    table_ending + ending: (table, compression)
    for ending, compression in _COMPRESSIONS.items()
    for table_ending, table in _TABLES.items()
} | {".parquet": (_parquet, None)}
"""Parquet compresses its own pages."""


def _format_of(path: StrPath) -> tuple[_Table, _Compression | None]:
    name = os.fspath(path).lower()
    for ending, found in _FORMATS.items():
        if name.endswith(ending):
            return found
    raise SettingsError(
        f"can't tell the format of {os.fspath(path)!r} by its ending", hint=f"one of {', '.join(_FORMATS)}"
    )


def _spelled(column: pa.Array) -> pa.Array:
    """The column as plain text, where it isn't a number or a boolean."""
    if pa.types.is_dictionary(column.type):
        return column.dictionary_decode()
    if not pa.types.is_timestamp(column.type):
        return column
    # Without its zone Arrow spells a time 30 times faster; the type has made sure that it is UTC.
    text = column.cast(pa.int64()).cast(pa.timestamp("us")).cast(pa.string())
    return pc.binary_join_element_wise(pc.binary_replace_slice(text, 10, 11, "T"), "Z", "")


def _json_values(column: pa.Array) -> list[pa.Array | str]:
    """The parts of a column's values as JSON, those that all rows have as text."""
    if column.null_count == len(column):
        return ["null"]
    if pa.types.is_dictionary(column.type):
        ends = pc.min_max(column.indices).as_py()
        if not column.null_count and ends["min"] == ends["max"]:
            return [json.dumps(column[0].as_py(), ensure_ascii=False)]
        words = _joined(_json_values(column.dictionary), len(column.dictionary))
        return [pa.DictionaryArray.from_arrays(column.indices, words).dictionary_decode().fill_null("null")]
    if pa.types.is_integer(column.type) or pa.types.is_boolean(column.type):
        return [column.cast(pa.string()).fill_null("null")]
    if not column.null_count:
        return ['"', _escaped(_spelled(column)), '"']
    return [pc.binary_join_element_wise('"', _escaped(_spelled(column)), '"', "").fill_null("null")]


def _escaped(column: pa.Array) -> pa.Array:
    special = pc.match_substring_regex(column, _JSON_ESCAPED)
    if not pc.any(special).as_py():
        return column
    escaped = [json.dumps(text, ensure_ascii=False)[1:-1] for text in column.filter(special).to_pylist()]
    return pc.replace_with_mask(column, special, pa.array(escaped, pa.string()))


def in_pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Parts of a batch, each of which has text that one Arrow column can hold."""
    if batch.num_rows <= 1 or sum(map(_spelled_bytes, batch.columns)) <= _PIECE_BYTES:
        yield batch
        return
    half = batch.num_rows // 2
    yield from in_pieces(batch.slice(0, half))
    yield from in_pieces(batch.slice(half))


def _spelled_bytes(column: pa.Array) -> int:
    """At most so many bytes of text, before any escapes."""
    if pa.types.is_dictionary(column.type):
        return len(column) * int(pc.max(pc.binary_length(column.dictionary)).as_py() or 0)
    return int(column.nbytes)
