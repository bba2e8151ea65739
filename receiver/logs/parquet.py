"""Parquet: reads only known columns, and checks them where Arrow's reader doesn't."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from receiver.errors import LogFormatError
from receiver.logs.columns import BATCH_ROWS, COLUMNS, LogBatch
from receiver.logs.options import ReadOptions, fields_of
from receiver.logs.rows import BatchMaker, RawRows
from receiver.logs.source import LogSource
from receiver.logs.writer import NamedFile

MAGIC = b"PAR1"
"""The first bytes of a Parquet file."""
_PIECE_ROWS = 1 << 10
"""Rows decoded at a time."""
_BATCH_BYTES = 32 << 20
"""Pieces are gathered up to so many bytes: limited only by rows, a batch of ids of 64 KB would take 4 GB."""
_CHUNK_BYTES = 1 << 20
"""Bytes of a column on disk that are held at a time."""

_REPETITIVE_BYTES = 2
"""The most bytes of a row in a column that is read as a dictionary."""

_INSTANT = pa.timestamp("us", "UTC")
_DAMAGED = (pa.ArrowException, OSError, UnicodeDecodeError)
"""Arrow's errors for a damaged file; the last is for the name of a column."""


class RowGroups(NamedTuple):
    """Adjacent row groups of a file."""

    first: int
    groups: int
    rows_before: int


def read_parquet(source: LogSource, options: ReadOptions, groups: RowGroups | None = None) -> Iterator[LogBatch]:
    """Rows of a Parquet log, or only those of `groups`. LINE is the number of the row in the file, from 1."""
    with _seekable(source) as file:
        try:
            yield from _batches(source, file, options, groups)
        except _DAMAGED as error:
            raise LogFormatError(source.name, f"can't be read as Parquet: {error}") from error


def group_sizes(file: Path) -> list[int]:
    """The number of rows of each row group, by the footer alone.

    Empty if it is no Parquet file, or can't be read: reading it will raise the error.
    """
    try:
        with file.open("rb") as opened:
            if opened.read(len(MAGIC)) != MAGIC:
                return []
            metadata = pq.read_metadata(opened)
            return [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
    except _DAMAGED:
        return []


@contextmanager
def _seekable(source: LogSource) -> Iterator[object]:
    """The log as a seekable file. A Parquet file is read from its end, so a compressed or piped one goes to a temporary file."""
    if source.path is not None:
        with source.path.open("rb") as plain:  # Arrow itself only opens paths in UTF-8
            yield plain
        return
    name = f"a temporary file in {tempfile.gettempdir()} (TMPDIR)"
    with tempfile.TemporaryFile() as opened, NamedFile(os.dup(opened.fileno()), "w+b", name) as file:
        for piece in source.pieces:
            file.write(piece)
        file.seek(0)
        yield file


def _batches(source: LogSource, file: object, options: ReadOptions, groups: RowGroups | None) -> Iterator[LogBatch]:
    # Reading ahead and decoding in Arrow's own threads has sometimes aborted the process at its end.
    with pq.ParquetFile(file, pre_buffer=False, buffer_size=_CHUNK_BYTES) as examined:
        schema, metadata = examined.schema_arrow, examined.metadata
        if groups is None:
            row_groups, before, rows_said = range(metadata.num_row_groups), 0, metadata.num_rows
        else:
            row_groups, before = range(groups.first, groups.first + groups.groups), groups.rows_before
            rows_said = sum(metadata.row_group(number).num_rows for number in row_groups)
        fields = fields_of(schema.names, options, source.name)
        names = {column: schema.names[field] for column, field in fields.items()}
        repetitive = [
            name
            for column, name in names.items()
            if COLUMNS[column].has_few_values
            and _is_text(schema.field(name).type)
            and _is_repetitive(examined, name, row_groups)
        ]
        leaves = map(examined.schema.column, range(len(examined.schema)))
        # Arrow reads them as times without zone, but Spark writes instants so, in UTC.
        of_96_bits = {leaf.path for leaf in leaves if leaf.physical_type == "INT96"}
        instants = [column for column, name in names.items() if name in of_96_bits]
    batches = BatchMaker(source.name, options)
    yield batches.batch(_raw(pa.RecordBatch.from_pylist([], schema=schema), names, instants, 1))
    read = 0
    with pq.ParquetFile(
        file,
        pre_buffer=False,
        buffer_size=_CHUNK_BYTES,
        read_dictionary=repetitive,
        coerce_int96_timestamp_unit=_INSTANT.unit,  # in nanoseconds, times after 2262 would come out as others
    ) as read_file:
        wanted = sorted(set(names.values()))
        pieces = read_file.iter_batches(_PIECE_ROWS, row_groups=row_groups, columns=wanted, use_threads=False)
        for record_batch in gathered(pieces):
            yield batches.batch(_raw(record_batch, names, instants, before + read + 1))
            read += len(record_batch)
            source.advanced(len(record_batch) / max(1, rows_said))
    if read != rows_said:
        raise LogFormatError(source.name, f"can't be read as Parquet: its footer says {rows_said:,} rows, not {read:,}")


def gathered(pieces: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Pieces joined to about `BATCH_ROWS` rows, or fewer if these are large."""
    held: list[pa.RecordBatch] = []
    rows, size_bytes = 0, 0
    for piece in pieces:
        held.append(piece)
        rows += len(piece)
        size_bytes += piece.nbytes
        if rows >= BATCH_ROWS or size_bytes >= _BATCH_BYTES:
            yield pa.concat_batches(held)
            held, rows, size_bytes = [], 0, 0
    if rows:
        yield pa.concat_batches(held)


def _is_repetitive(file: pq.ParquetFile, name: str, row_groups: Iterable[int]) -> bool:
    """Whether a column takes so few bytes that it must have few values. Otherwise Arrow would copy a large dictionary for each
    piece."""
    index, size_bytes, rows = file.metadata.schema.names.index(name), 0, 0
    for number in row_groups:
        # Reading a row raises an error if the footer is damaged, for which `column` alone would abort the process.
        next(file.iter_batches(1, row_groups=[number], columns=[name], use_threads=False), None)
        group = file.metadata.row_group(number)
        size_bytes += group.column(index).total_uncompressed_size
        rows += group.num_rows
    return size_bytes <= _REPETITIVE_BYTES * rows


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_binary(kind))


def _raw(record_batch: pa.RecordBatch, names: dict[str, str], instants: Iterable[str], first_row: int) -> RawRows:
    columns = {column: record_batch.column(name) for column, name in names.items()}
    columns |= {column: columns[column].cast(_INSTANT) for column in instants}
    return RawRows(columns, lambda row: first_row + row)
