"""Compacting a log: each row is read once, moves once, to the task of its domain and time, and is written in order.

Tasks write beside the place where the log will stand, under names that nobody else uses, so one that is tried again
does no harm. What counts is moved to its place at the end, and the folder appears whole or not at all.
"""

from __future__ import annotations

import json
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import groupby, pairwise
from operator import attrgetter
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from receiver.chunks.assemble import placing
from receiver.chunks.columns import changes, runs
from receiver.chunks.ingest import SAMPLE_ROWS, pieces_of, reports_of, status_lines_of
from receiver.chunks.parcels import Flow, Parcel, parcel_of, unpack
from receiver.chunks.plan import plan_of
from receiver.chunks.units import parcels_of, units_of
from receiver.chunks.values import Piece, Plan, Unit, UnitReport
from receiver.domains import DomainKey
from receiver.errors import OutputError, SettingsError
from receiver.logs import Batch, ReadOptions
from receiver.logs.columns import REQUIRED, SCHEMA
from receiver.logs.compacted import (
    BAD_ROWS,
    STATUS_LINES,
    DomainFiles,
    Manifest,
    PartFile,
    part_path,
    status_lines_text,
    write_manifest,
)
from receiver.logs.files import LogFile
from receiver.logs.output import naming
from receiver.logs.writer import open_table
from receiver.simulate.numbering import distinct, plain_text

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["ROWS_PER_FILE", "compact"]

ROWS_PER_FILE = 1_000_000
_GROUP_ROWS = 1 << 17
"""Of a row group: enough to compress well, few enough for tasks to share a file."""
_ATTEMPTS = "attempts"
_DAY_US = 86_400 * 1_000_000
_TRAVELLING = pa.schema(
    # Large, as the long ids of a bundle may have more than 2 GB.
    [field.with_type(pa.large_string()) if pa.types.is_string(field.type) else field for field in SCHEMA]
)


@dataclass(frozen=True, slots=True)
class _WholePiece(Piece):
    """A piece with every column of its receipts."""

    jms_timestamp_ms: npt.NDArray[np.int64]
    body_digest: pa.Array


@dataclass(frozen=True, slots=True)
class _BadRows:
    """The file that tells of a unit's unreadable rows."""

    unit: int
    file: str


@dataclass(frozen=True, slots=True)
class _Rows:
    """Receipts of a unit whose chunks are in one bundle, in order. Key: the bundle."""

    unit: int
    unit_row: int
    """Of the first one."""
    chunk: npt.NDArray[np.int32]
    key_us: npt.NDArray[np.int64]
    rows: bytes
    """In Arrow's stream format."""


@dataclass(frozen=True, slots=True)
class _Part:
    """A file that was written: receipts of one chunk and one day."""

    chunk: int
    place: int
    """Of its first row in the bundle."""
    day: int
    """Since the epoch."""
    rows: int
    latest_us: int
    """The largest time of its rows."""
    file: str


def compact(
    files: Sequence[LogFile],
    options: ReadOptions,
    key: DomainKey,
    folder: Path,
    *,
    start: Callable[[list[Parcel], int], Flow],
    rows_per_file: int = ROWS_PER_FILE,
    sample_rows: int = SAMPLE_ROWS,
) -> Manifest:
    """Write the receipts of a log, in order, to an empty folder that every task can write to.

    `options` are checked ones. A task holds about `rows_per_file` rows, and no file has more. Raises `LogFormatError`,
    `OutputError`, and `SettingsError` for what can't be meant, standard input among it.
    """
    if rows_per_file < 1:
        raise SettingsError(f"no file can hold {rows_per_file} rows", hint="1 or more")
    if any(file.path is None for file in files):
        raise SettingsError("standard input can't be shared by many tasks", hint="write it to a file first")
    if any("\ud800" <= letter <= "\udfff" for letter in key.text):
        raise SettingsError(f"the domain key {key.text!r} is no text in UTF-8", hint="name the domain in UTF-8")
    attempts = folder / _ATTEMPTS
    attempts.mkdir()
    units = units_of(files, rows_per_unit=rows_per_file)
    read = start(parcels_of(units), len(units)).map(partial(_read, options, attempts, sample_rows))
    read = read.kept("Reading receipts")
    told = read.only(UnitReport.__name__, _BadRows.__name__).collect("Reading receipts")
    reports = reports_of([parcel for parcel in told if parcel.kind == UnitReport.__name__], units, key)
    plan = plan_of(reports, units, key, chunk_rows=rows_per_file, partition_rows=rows_per_file)
    columns = _columns(reports)
    rows = read.only(_WholePiece.__name__).map(partial(_cut, plan, columns))
    written = rows.grouped(partial(_write, attempts, rows_per_file), plan.bundles).collect("Writing files")
    read.forget()
    with naming(folder):
        manifest = Manifest(
            domain_key=key.text,
            domains=_placed(folder, plan, [unpack(_Part, parcel.payload) for parcel in written]),
            columns=columns,
            receipts=sum(report.receipts for report in reports),
            skipped=sum(report.skipped for report in reports),
            status_lines=_write_status_lines(folder, reports),
            splits_a_queue=plan.looks_for_crossing,
        )
        if options.on_error == "skip":
            _write_bad_rows(folder, [unpack(_BadRows, each.payload) for each in told if each.kind == _BadRows.__name__])
        shutil.rmtree(attempts)
        write_manifest(folder, manifest)
    return manifest


def _columns(reports: Iterable[UnitReport]) -> list[str]:
    present = {*REQUIRED, *(column for report in reports for column in report.columns_present)}
    return [column for column in SCHEMA.names if column in present]


def _read(options: ReadOptions, attempts: Path, sample_rows: int, parcels: Iterator[Parcel]) -> Iterator[Parcel]:
    """Each `Unit` becomes pieces, a report, and the file of its bad rows where they are skipped."""
    for parcel in parcels:
        unit = unpack(Unit, parcel.payload)
        if options.on_error == "stop":
            yield from _read_unit(unit, options, sample_rows)
            continue
        path = _attempt(attempts, "jsonl")
        with naming(path), path.open("w") as file:
            yield from _read_unit(unit, replace(options, on_skipped=partial(_tell, file)), sample_rows)
        yield parcel_of(unit.number, _BadRows(unit.number, path.name))


def _read_unit(unit: Unit, options: ReadOptions, sample_rows: int) -> Iterator[Parcel]:
    for value in pieces_of(unit, options, sample_rows=sample_rows, carry=_whole):
        yield parcel_of(unit.number, value)


def _attempt(attempts: Path, ending: str) -> Path:
    if not attempts.is_dir():
        raise OutputError(
            f"can't write {attempts}: a task can't see it", hint="name a folder at a path that every task sees"
        )
    return attempts / f"{secrets.token_hex(8)}.{ending}"


def _tell(file: IO[str], name: str, line: int, problem: str) -> None:
    file.write(json.dumps({"file": name, "line": line, "problem": problem}) + "\n")


def _whole(piece: Piece, batch: Batch) -> _WholePiece:
    absent_digest, absent_timestamp = pa.array([], pa.string()), np.zeros(0, np.int64)
    values = {field.name: getattr(piece, field.name) for field in fields(piece)}
    return _WholePiece(
        **values,
        jms_timestamp_ms=absent_timestamp if batch.jms_timestamp_ms is None else batch.jms_timestamp_ms,
        body_digest=absent_digest if batch.body_digest is None else plain_text(batch.body_digest),
    )


def _cut(plan: Plan, columns: Sequence[str], parcels: Iterator[Parcel]) -> Iterator[Parcel]:
    """Each `_WholePiece` becomes `_Rows`, one for each bundle that it has receipts of."""
    places = placing(plan)
    for parcel in parcels:
        piece = unpack(_WholePiece, parcel.payload)
        key_us, chunk = places(piece)
        rows = _table(piece, columns)
        bundles, bundle = distinct(plan.chunk_bundle[chunk])
        for number, each in enumerate(bundles.tolist()):
            some = np.flatnonzero(bundle == number)
            taken = _stream(rows if len(some) == len(bundle) else rows.take(pa.array(some)))
            yield parcel_of(each, _Rows(piece.unit, piece.first_row + int(some[0]), chunk[some], key_us[some], taken))


def _table(piece: _WholePiece, columns: Sequence[str]) -> pa.RecordBatch:
    """The receipts under a log's names; None in a column that their file lacks."""
    size = len(piece.received_at_us)
    values = {
        "received_at": piece.received_at_us,
        "unique_message_id": piece.unique_message_id,
        "message_source_id": _words(piece.sources, piece.source),
        "connection_id": _words(piece.connections, piece.channel),
        "destination": _words(piece.destinations, piece.channel),
        "receiver_id": _words(piece.receivers, piece.channel),
        "jms_redelivered": piece.redelivered,
        "jms_timestamp": piece.jms_timestamp_ms,
        "body_digest": piece.body_digest,
    }
    schema = pa.schema([_TRAVELLING.field(column) for column in columns])
    arrays = [
        pa.array(values[field.name]).cast(field.type) if len(values[field.name]) else pa.nulls(size, field.type)
        for field in schema
    ]
    return pa.record_batch(arrays, schema=schema)


def _words(names: Sequence[str], numbers: npt.NDArray[np.int32]) -> pa.Array:
    words = pa.array(names, pa.string()).dictionary_encode()  # a name may be there for several channels
    return pa.DictionaryArray.from_arrays(words.indices.take(pa.array(numbers)), words.dictionary)


def _stream(rows: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_batch(rows)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def _write(attempts: Path, rows_per_file: int, bundle: int, parcels: Iterator[Parcel]) -> Iterator[Parcel]:
    """The `_Rows` of a bundle become files in order, of one chunk and day each."""
    found = sorted((unpack(_Rows, parcel.payload) for parcel in parcels), key=lambda rows: (rows.unit, rows.unit_row))
    chunk = np.concatenate([rows.chunk for rows in found])
    key_us = np.concatenate([rows.key_us for rows in found])
    table = pa.concat_tables([pa.ipc.open_stream(rows.rows).read_all() for rows in found])
    table = table.unify_dictionaries().combine_chunks()
    del found
    order = np.lexsort((key_us, chunk))  # stable: what is equal stays by unit and row
    table, chunk, day = table.take(pa.array(order)), chunk[order], key_us[order] // _DAY_US
    received_at_us = table["received_at"].cast(pa.int64()).to_numpy()
    for first, last in _cuts(chunk, day, rows_per_file):
        path = _attempt(attempts, "parquet")
        with open_table(path, table.schema) as file:
            for batch in table.slice(first, last - first).to_batches(max_chunksize=_GROUP_ROWS):
                file.write(batch)
        latest_us = int(received_at_us[first:last].max())
        part = _Part(int(chunk[first]), first, int(day[first]), last - first, latest_us, path.name)
        yield parcel_of(bundle, part)


def _cuts(chunk: npt.NDArray[Any], day: npt.NDArray[Any], most: int) -> Iterator[tuple[int, int]]:
    """The rows of each file: of one chunk and day, in files of about the same size where they are too many for one."""
    for first, last in runs(changes(chunk) | changes(day)):
        files = -(-(last - first) // most)
        yield from pairwise(first + (last - first) * file // files for file in range(files + 1))


def _placed(folder: Path, plan: Plan, parts: Sequence[_Part]) -> list[DomainFiles]:
    """Move the files that count to their places, in order."""
    in_order = sorted(parts, key=lambda part: (part.chunk, part.place))
    numbered = groupby(enumerate(in_order), lambda each: int(plan.chunk_domain[each[1].chunk]))
    return [
        DomainFiles(plan.domains[domain], list(_moved(folder, plan.domains[domain], of_domain)))
        for domain, of_domain in numbered
    ]


def _moved(folder: Path, domain: str, parts: Iterable[tuple[int, _Part]]) -> Iterator[PartFile]:
    latest_us = -1
    for number, part in parts:
        latest_us = max(latest_us, part.latest_us)
        yield PartFile(_move(folder, domain, number, part), part.rows, latest_us)


def _move(folder: Path, domain: str, number: int, part: _Part) -> str:
    path = part_path(domain, np.datetime64(part.day, "D"), number)
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    (folder / _ATTEMPTS / part.file).rename(folder / path)
    return str(path)


def _write_status_lines(folder: Path, reports: Iterable[UnitReport]) -> int:
    lines = list(status_lines_of(reports))
    if lines:
        (folder / STATUS_LINES).write_bytes(status_lines_text(lines))
    return len(lines)


def _write_bad_rows(folder: Path, found: Sequence[_BadRows]) -> None:
    with (folder / BAD_ROWS).open("wb") as joined:
        for each in sorted(found, key=attrgetter("unit")):
            with (folder / _ATTEMPTS / each.file).open("rb") as file:
                shutil.copyfileobj(file, joined)
