"""Files and folders that appear whole or not at all, and tables written to them as streams.

The old file or folder at a path stays until the new one is complete. A table is CSV, JSON Lines or Parquet, by the ending of the
file's name.

Text is written unchanged in every format: it is never trimmed, replaced or made harmless for a spreadsheet.
"""

from __future__ import annotations

import io
import json
import os
import secrets
import shutil
import stat
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from itertools import groupby
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq
import zstandard

from receiver.closing import sync_path, write_all
from receiver.errors import SettingsError, unwritable
from receiver.logs.columns import bytes_of

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, StrPath

UNFINISHED = ".receiver-"
"""The beginning of the name of a file or folder until it is complete."""

_Write = Callable[[pa.RecordBatch], None]
_Table = Callable[[IO[bytes], pa.Schema], AbstractContextManager[_Write]]
_Compression = Callable[[IO[bytes]], AbstractContextManager[Any]]

_JSON_ESCAPED = r'[\x00-\x1f"\\]'
_PIECE_BYTES = 1 << 27
"""The bytes of text in a piece: even if each byte becomes `\\u0000`, it stays below the 2 GiB of an Arrow text column."""


@contextmanager
def open_table(path: StrPath, schema: pa.Schema, *, unfinished: Path | None = None) -> Iterator[_Write]:
    """Yield a function that writes batches of `schema` to a table. The table replaces `path` if the block ends without an error
    (see `replacing`, also for `unfinished`).

    Columns may be text, dictionaries of text, integers, booleans and `timestamp[us, UTC]`, which becomes ISO 8601 text in CSV
    and JSON Lines. A missing text is empty in CSV. `SettingsError` for an unknown ending, `OutputError` if the file can't be
    written.
    """
    with table_to_begin(path, unfinished=unfinished) as begin:
        yield begin(schema)


@contextmanager
def table_to_begin(path: StrPath, *, unfinished: Path | None = None) -> Iterator[Callable[[pa.Schema], _Write]]:
    """A table whose columns are known only after the work: yield a function that begins it and returns what `open_table` yields.

    The file is made at once. The function is called once.
    """
    table, compressed = _format_of(path)
    with replacing(path, unfinished=unfinished) as file, ExitStack() as stack:
        sink = stack.enter_context(compressed(file))
        yield lambda schema: stack.enter_context(table(sink, schema))


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
def _json_lines(sink: IO[bytes], schema: pa.Schema) -> Iterator[_Write]:
    keys = [json.dumps(name, ensure_ascii=False) + ":" for name in schema.names]

    def write(batch: pa.RecordBatch) -> None:
        for piece in in_pieces(batch):
            parts: list[pa.Array | str] = ["{"]
            for key, column in zip(keys, piece.columns, strict=True):
                parts += [key, *_json_values(column), ","]
            sink.write(bytes_of(_joined([*parts[:-1], "}\n"], piece.num_rows)).data)

    yield write


def _joined(parts: Iterable[pa.Array | str], rows: int) -> pa.Array:
    """One text for each row. Parts that all rows share are joined first, because each part costs time in every row."""
    merged: list[pa.Array | str] = []
    for is_text, group in groupby(parts, lambda part: isinstance(part, str)):
        alike = list(group)
        merged += ["".join(alike)] if is_text else alike
    return pa.repeat(merged[0], rows) if len(merged) == 1 else pc.binary_join_element_wise(*merged, "")


@contextmanager
def _parquet(sink: IO[bytes], schema: pa.Schema) -> Iterator[_Write]:
    repetitive = [field.name for field in schema if pa.types.is_dictionary(field.type)]
    # Without Arrow's own schema, readers see plain text columns, whatever their type was here.
    with pq.ParquetWriter(sink, schema, compression="zstd", use_dictionary=repetitive, store_schema=False) as writer:
        yield writer.write_batch


@contextmanager
def _gzip(file: IO[bytes]) -> Iterator[IO[bytes]]:
    sink = _Gzipped(file)
    yield cast("IO[bytes]", sink)
    file.write(sink.compressor.flush())


class _Gzipped(io.RawIOBase):
    """Compresses by gzip. Not a `GzipFile`: if its file fails, it keeps a buffer, of which Python 3.14 warns later."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        # 31: with gzip's header, but without name or time in it, so that equal tables have equal bytes.
        self.compressor = zlib.compressobj(6, wbits=31)

    def writable(self) -> bool:
        return True

    def write(self, data: ReadableBuffer, /) -> int:
        self._file.write(self.compressor.compress(data))
        return memoryview(data).nbytes


_TABLES = {".csv": _csv, ".jsonl": _json_lines, ".ndjson": _json_lines}
_COMPRESSIONS: dict[str, _Compression] = {
    "": nullcontext,
    ".gz": _gzip,
    ".zst": lambda file: zstandard.ZstdCompressor().stream_writer(file, closefd=False),
}
_FORMATS: dict[str, tuple[_Table, _Compression]] = {
    table_ending + ending: (table, compression)
    for ending, compression in _COMPRESSIONS.items()
    for table_ending, table in _TABLES.items()
} | {".parquet": (_parquet, nullcontext)}
"""Parquet compresses its own pages."""


def _format_of(path: StrPath) -> tuple[_Table, _Compression]:
    name = os.fspath(path).lower()
    for ending, known in _FORMATS.items():
        if name.endswith(ending):
            return known
    raise SettingsError(
        f"can't tell the format of {os.fspath(path)!r} by its ending", hint=f"one of {', '.join(_FORMATS)}"
    )


def _spelled(column: pa.Array) -> pa.Array:
    """The column as plain text, unless it has numbers or booleans."""
    if pa.types.is_dictionary(column.type):
        return column.dictionary_decode()
    if not pa.types.is_timestamp(column.type):
        return column
    # Arrow formats a time without zone 30 times faster; the type ensures that it is UTC.
    text = column.cast(pa.int64()).cast(pa.timestamp("us")).cast(pa.string())
    return pc.binary_join_element_wise(pc.binary_replace_slice(text, 10, 11, "T"), "Z", "")


def _json_values(column: pa.Array) -> list[pa.Array | str]:
    """The parts of a column's values in JSON; a part that all rows share is a `str`."""
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
    """Slices of a batch, each with no more text than an Arrow column can hold."""
    if batch.num_rows <= 1 or sum(map(_spelled_bytes, batch.columns)) <= _PIECE_BYTES:
        yield batch
        return
    half = batch.num_rows // 2
    yield from in_pieces(batch.slice(0, half))
    yield from in_pieces(batch.slice(half))


def _spelled_bytes(column: pa.Array) -> int:
    """An upper bound of a column's text in bytes, before escaping."""
    if pa.types.is_dictionary(column.type):
        return len(column) * int(pc.max(pc.binary_length(column.dictionary)).as_py() or 0)
    return int(column.nbytes)


@contextmanager
def replacing(path: StrPath, *, unfinished: Path | None = None) -> Iterator[IO[bytes]]:
    """A file to write bytes to. It replaces `path` if the block ends without an error.

    The file is made at once beside `path`, so a folder that can't be written is an `OutputError` before the work begins; a full
    disk is one later. Any exception, including Ctrl-C, leaves `path` as it was and removes the unfinished file. A link keeps its
    target. If `path` isn't a regular file (`/dev/null`, a pipe), it is written directly.

    `unfinished` is the file's path until then, in the same folder. No other process may write it; a file that a killed process
    left there is overwritten.
    """
    with naming(path):
        mode = Path(path).stat().st_mode if Path(path).exists() else None
        target = Path(os.path.realpath(path))  # unlike `resolve`, it accepts circular links
        # Renaming over a file doesn't need the right to write it, but its owner may rely on that right.
        if mode is not None and not os.access(target, os.W_OK):
            raise PermissionError(None, "it is read-only")
    if mode is not None and not stat.S_ISREG(mode):
        with NamedFile(Path(path), "wb", path) as file:
            yield file
        return
    opening = "xb" if unfinished is None else "wb"
    unfinished = unfinished or _beside(target)
    try:
        with NamedFile(unfinished, opening, path) as file:
            yield file
            with naming(path):
                os.fsync(file.fileno())
        with naming(path):
            if mode is not None:
                unfinished.chmod(stat.S_IMODE(mode))
            unfinished.replace(target)
    except BaseException:
        with suppress(OSError):  # the first error counts
            unfinished.unlink(missing_ok=True)
        raise


@contextmanager
def appearing(path: StrPath) -> Iterator[Path]:
    """A folder to fill. It appears at `path` if the block ends without an error; otherwise nothing has changed.

    The folder is made at once beside `path`. `SettingsError` if `path` exists, unless it is an empty folder; `OutputError` if the
    folder can't be made.
    """
    target = Path(os.path.realpath(path))
    with naming(path):
        if target.exists() and not (target.is_dir() and not any(target.iterdir())):
            raise SettingsError(
                f"{os.fspath(path)} is there already and isn't empty", hint="name a folder that isn't there yet"
            )
        if target.is_mount():
            raise SettingsError(f"{os.fspath(path)} is where a disk is mounted", hint="name a folder within it")
        unfinished = _beside(target)
        unfinished.mkdir()
    try:
        yield unfinished
        with naming(path):
            unfinished.replace(target)
            sync_path(target.parent)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)  # the first error counts
        raise


@contextmanager
def naming(path: StrPath) -> Iterator[None]:
    """Turn an `OSError` of the block into an `OutputError` that names the path."""
    try:
        yield
    except OSError as error:
        raise unwritable(os.fspath(path), error) from error


def _beside(target: Path) -> Path:
    # Not named after the target, whose name may have the maximum length.
    return target.with_name(f"{UNFINISHED}{secrets.token_hex(8)}.part")


class NamedFile(io.FileIO):
    """A file whose errors name the path that was asked for.

    Errors of writing are translated here, at the lowest level, because the block around also reads, and an error of reading isn't
    the output's fault. Unbuffered, because its users write large pieces.
    """

    def __init__(self, file: Path | int, mode: str, path: StrPath) -> None:
        self._path = path
        with naming(path):
            super().__init__(file, mode)

    def write(self, data: ReadableBuffer, /) -> int:
        view = memoryview(data).cast("B")
        with naming(self._path):
            write_all(super().write, view)
        return len(view)

    def close(self) -> None:
        with naming(self._path):
            super().close()
