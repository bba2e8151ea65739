"""Compacting a log: each row is read once, moves once, to the task of its domain and time, and is written in order.

Tasks write beside the place where the log will stand, under names that nobody else uses, so one that is tried again
does no harm. What counts is moved to its place at the end; a log appears, or grows, when its manifest is written.
"""

from __future__ import annotations

import json
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields, replace
from functools import partial
from itertools import groupby, pairwise
from operator import attrgetter
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from receiver.domains import DomainKey
from receiver.errors import OutputError, SettingsError
from receiver.logs import Batch, ReadOptions
from receiver.logs.columns import REQUIRED, SCHEMA
from receiver.logs.compacted import (
    BAD_ROWS,
    DomainFiles,
    Manifest,
    PartFile,
    committing,
    part_path,
    status_lines_text,
)
from receiver.logs.files import LogFile
from receiver.logs.output import naming
from receiver.logs.writer import open_table
from receiver.simulate.numbering import distinct, plain_text
from receiver.steps.columns import changes, runs
from receiver.steps.cut import chunks_of_pieces
from receiver.steps.plan import plan_of
from receiver.steps.read import SAMPLE_ROWS, Reading, pieces_of, read_unit, reports_of, status_lines_of, units_of
from receiver.steps.rows import Flow, Row
from receiver.steps.schemas import BadRows, Part, Piece, Plan, Unit, UnitReport, WholePiece, WholeRows, channel_of

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["ROWS_PER_FILE", "compact"]

ROWS_PER_FILE = 1_000_000
_GROUP_ROWS = 1 << 17
"""Of a row group: enough to compress well, few enough for tasks to share a file."""
_DAY_US = 86_400 * 1_000_000
_NO_DIGEST = bytes(16)


def compact(
    files: Sequence[LogFile],
    options: ReadOptions,
    key: DomainKey,
    folder: Path,
    *,
    start: Callable[[list[Row], int], Flow],
    before: Manifest | None = None,
    rows_per_file: int = ROWS_PER_FILE,
    sample_rows: int = SAMPLE_ROWS,
) -> Manifest:
    """Write the receipts of a log, in order, to a folder that every task can write to.

    It is empty, or the compacted log whose manifest is `before`, which grows; its receipts must come before all new ones of
    their domain. `options` are checked ones. A task holds about `rows_per_file` rows, and no file has more. Raises
    `LogFormatError`, `OutputError`, and `SettingsError` for what can't be meant, standard input among it.
    """
    _check(files, key, before, rows_per_file)
    attempts = folder / f".attempts-{secrets.token_hex(8)}"
    with naming(folder):
        attempts.mkdir()
    try:
        units = units_of(files, rows_per_unit=rows_per_file)
        how = Reading(options, _NO_DIGEST, sample_rows=sample_rows)
        flow = start([Row(unit.number, unit) for unit in units], len(units))
        flow = flow.map(partial(_read, how, attempts), WholePiece, UnitReport, BadRows)
        read, told = flow.kept("Reading receipts", UnitReport, BadRows)
        reports = reports_of([each for each in told if isinstance(each, UnitReport)], units, key)
        bad = [each for each in told if isinstance(each, BadRows)]
        plan = plan_of(reports, units, key, chunk_rows=rows_per_file, partition_rows=rows_per_file)
        columns = _columns(reports)
        rows = read.only(WholePiece).map(partial(_cut, plan), WholeRows)
        writing = partial(_write, attempts, rows_per_file, columns)
        parts = rows.grouped(writing, plan.bundles, Part).collect("Writing files")
        read.forget()
        return _placed(
            folder,
            attempts,
            plan,
            reports=reports,
            parts=parts,
            columns=columns,
            before=before,
            bad=bad if options.on_error == "skip" else None,
        )
    finally:
        shutil.rmtree(attempts, ignore_errors=True)


def _check(files: Sequence[LogFile], key: DomainKey, before: Manifest | None, rows_per_file: int) -> None:
    if rows_per_file < 1:
        raise SettingsError(f"no file can hold {rows_per_file} rows", hint="1 or more")
    if any(file.path is None for file in files):
        raise SettingsError("standard input can't be shared by many tasks", hint="write it to a file first")
    if any("\ud800" <= letter <= "\udfff" for letter in key.text):
        raise SettingsError(f"the domain key {key.text!r} is no text in UTF-8", hint="name the domain in UTF-8")
    if before is not None and before.domain_key != key.text:
        raise SettingsError(
            f"the compacted log was made by the domain key {before.domain_key!r}, not {key.text!r}",
            hint=f"--domain {before.domain_key}",
        )


def _columns(reports: Iterable[UnitReport]) -> list[str]:
    present = {*REQUIRED, *(column for report in reports for column in report.columns_present)}
    return [column for column in SCHEMA.names if column in present]


def _read(how: Reading, attempts: Path, rows: Iterator[Row]) -> Iterator[Row]:
    """Each `Unit` becomes pieces, a report, and the file of its bad rows where they are skipped."""
    for row in rows:
        unit = row.value
        if how.options.on_error == "stop":
            yield from _read_unit(unit, how)
            continue
        path = _attempt(attempts, "jsonl")
        with naming(path), path.open("w") as file:
            yield from _read_unit(unit, replace(how, options=replace(how.options, on_skipped=partial(_tell, file))))
        yield Row(unit.number, BadRows(unit.number, path.name))


def _read_unit(unit: Unit, how: Reading) -> Iterator[Row]:
    for value in pieces_of(unit.number, read_unit(unit, how.options), how, _whole):
        yield Row(unit.number, value)


def _attempt(attempts: Path, ending: str) -> Path:
    if not attempts.is_dir():
        raise OutputError(
            f"can't write {attempts}: a task can't see it", hint="name a folder at a path that every task sees"
        )
    return attempts / f"{secrets.token_hex(8)}.{ending}"


def _tell(file: IO[str], name: str, line: int, problem: str) -> None:
    file.write(json.dumps({"file": name, "line": line, "problem": problem}) + "\n")


def _whole(piece: Piece, batch: Batch) -> WholePiece:
    no_texts = pa.array([], pa.string())
    return WholePiece(
        unit=piece.unit,
        first_row=piece.first_row,
        latest_us=piece.latest_us,
        received_at_us=piece.received_at_us,
        unique_message_id=plain_text(batch.unique_message_id),
        source=piece.source,
        sources=piece.sources,
        channel=channel_of(piece),
        connections=piece.connections,
        destinations=piece.destinations,
        receivers=piece.receivers,
        redelivered=np.zeros(0, np.bool_) if batch.jms_redelivered is None else batch.jms_redelivered,
        jms_timestamp_ms=np.zeros(0, np.int64) if batch.jms_timestamp_ms is None else batch.jms_timestamp_ms,
        body_digest=no_texts if batch.body_digest is None else plain_text(batch.body_digest),
    )


_PER_RECEIPT = (
    "received_at_us",
    "unique_message_id",
    "source",
    "channel",
    "redelivered",
    "jms_timestamp_ms",
    "body_digest",
)


def _cut(plan: Plan, rows: Iterator[Row]) -> Iterator[Row]:
    """Each `WholePiece` becomes `WholeRows`, one for each bundle that it has receipts of."""
    places = chunks_of_pieces(plan)
    for row in rows:
        piece: WholePiece = row.value
        key_us, chunk = places(piece)
        bundles, bundle = distinct(plan.chunk_bundle[chunk])
        for number, each in enumerate(bundles.tolist()):
            some = np.flatnonzero(bundle == number)
            cells = {field.name: getattr(piece, field.name) for field in fields(piece)}
            columns = {name: _taken(cells[name], some) for name in _PER_RECEIPT}
            first_row = piece.first_row + int(some[0])
            yield Row(
                each,
                WholeRows(**cells | columns | {"first_row": first_row}, chunk=chunk[some], key_us=key_us[some]),
            )


def _taken(column: Any, rows: npt.NDArray[np.int64]) -> Any:
    if not len(column):
        return column  # one that isn't there
    return column[rows] if isinstance(column, np.ndarray) else column.take(pa.array(rows))


def _table(rows: WholeRows, columns: Sequence[str]) -> pa.Table:
    """The receipts under a log's names; None in a column that their file lacks."""
    values = {
        "received_at": rows.received_at_us,
        "unique_message_id": rows.unique_message_id,
        "message_source_id": _words(rows.sources, rows.source),
        "connection_id": _words(rows.connections, rows.channel),
        "destination": _words(rows.destinations, rows.channel),
        "receiver_id": _words(rows.receivers, rows.channel),
        "jms_redelivered": rows.redelivered,
        "jms_timestamp": rows.jms_timestamp_ms,
        "body_digest": rows.body_digest,
    }
    # Texts are large while they travel, as the long ids of a bundle may have more than 2 GB.
    fields = [SCHEMA.field(column) for column in columns]
    fields = [field.with_type(pa.large_string()) if pa.types.is_string(field.type) else field for field in fields]
    size = len(rows.received_at_us)
    arrays = [
        pa.array(values[field.name]).cast(field.type) if len(values[field.name]) else pa.nulls(size, field.type)
        for field in fields
    ]
    return pa.table(arrays, schema=pa.schema(fields))


def _words(names: Sequence[str], numbers: npt.NDArray[np.int32]) -> pa.Array:
    words = pa.array(names, pa.string()).dictionary_encode()  # a name may be there for several channels
    return pa.DictionaryArray.from_arrays(words.indices.take(pa.array(numbers)), words.dictionary)


def _write(
    attempts: Path, rows_per_file: int, columns: Sequence[str], bundle: int, rows: Iterator[Row]
) -> Iterator[Row]:
    """The `WholeRows` of a bundle become files in order, of one chunk and day each."""
    found = sorted((row.value for row in rows), key=lambda some: (some.unit, some.first_row))
    chunk = np.concatenate([some.chunk for some in found])
    key_us = np.concatenate([some.key_us for some in found])
    table = pa.concat_tables([_table(some, columns) for some in found]).unify_dictionaries().combine_chunks()
    del found
    order = np.lexsort((key_us, chunk))  # stable: what is equal stays by unit and row
    table, chunk, key_us = table.take(pa.array(order)), chunk[order], key_us[order]
    day = key_us // _DAY_US
    received_at_us = table["received_at"].cast(pa.int64()).to_numpy()
    for first, last in _cuts(chunk, day, rows_per_file):
        path = _attempt(attempts, "parquet")
        with open_table(path, table.schema) as file:
            for batch in table.slice(first, last - first).to_batches(max_chunksize=_GROUP_ROWS):
                file.write(batch)
        yield Row(
            bundle,
            Part(
                chunk=int(chunk[first]),
                place=first,
                day=int(day[first]),
                rows=last - first,
                first_us=int(key_us[first]),
                latest_us=int(received_at_us[first:last].max()),
                file=path.name,
            ),
        )


def _cuts(chunk: npt.NDArray[Any], day: npt.NDArray[Any], most: int) -> Iterator[tuple[int, int]]:
    """The rows of each file: of one chunk and day, in files of about the same size where they are too many for one."""
    for first, last in runs(changes(chunk) | changes(day)):
        files = -(-(last - first) // most)
        yield from pairwise(first + (last - first) * file // files for file in range(files + 1))


def _placed(
    folder: Path,
    attempts: Path,
    plan: Plan,
    *,
    reports: Sequence[UnitReport],
    parts: Sequence[Part],
    columns: Sequence[str],
    before: Manifest | None,
    bad: Sequence[BadRows] | None,
) -> Manifest:
    """Move the files that count to their places, and write the manifest."""
    kept = {each.domain: each.files for each in before.domains} if before else {}
    in_order = sorted(parts, key=lambda part: (part.chunk, part.place))
    for domain, of_domain in groupby(in_order, lambda part: plan.domains[plan.chunk_domain[part.chunk]]):
        first_us = next(of_domain).first_us
        if domain in kept and first_us < kept[domain][-1].latest_us:
            raise SettingsError(
                f"new receipts of {domain!r} come before receipts that the compacted log has already",
                hint="compact all logs again, into another folder",
            )
    lines = list(status_lines_of(reports))
    with naming(folder), committing(folder, before) as commit:
        number = sum(len(files) for files in kept.values())
        for part in in_order:
            domain = plan.domains[plan.chunk_domain[part.chunk]]
            files = list(kept.get(domain, []))
            path = part_path(domain, np.datetime64(part.day, "D"), number)
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (attempts / part.file).rename(folder / path)
            latest_us = max(part.latest_us, files[-1].latest_us if files else -1)
            kept[domain] = [*files, PartFile(str(path), part.rows, latest_us)]
            number += 1
        if bad is not None:
            with (folder / BAD_ROWS).open("ab") as joined:
                for each in sorted(bad, key=attrgetter("unit")):
                    joined.write((attempts / each.file).read_bytes())
        manifest = Manifest(
            domain_key=plan.key,
            domains=[DomainFiles(domain, files) for domain, files in sorted(kept.items())],
            columns=[column for column in SCHEMA.names if column in {*columns, *(before.columns if before else ())}],
            receipts=sum(report.receipts for report in reports) + (before.receipts if before else 0),
            skipped=sum(report.skipped for report in reports) + (before.skipped if before else 0),
            status_lines=len(lines) + (before.status_lines if before else 0),
            splits_a_queue=plan.looks_for_crossing or bool(before and before.splits_a_queue),
        )
        return commit(manifest, status_lines_text(lines))
