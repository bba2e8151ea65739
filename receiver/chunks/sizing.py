"""From the files of a log to a `ChunkedLog`: read, plan, assemble; and what a saved state spares of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from receiver.chunks.assemble import assembled, cut
from receiver.chunks.chunked import ChunkedLog
from receiver.chunks.direct import layout_of, made_directly
from receiver.chunks.ingest import ingest, reports_of
from receiver.chunks.layers import Layer, can_split_queues, first_key_us, joined, moved, partitions_of
from receiver.chunks.parcels import Flow, Parcel
from receiver.chunks.plan import carry_us_of, plan_of
from receiver.chunks.slices import sliced
from receiver.chunks.state import Found, StateFolder, restored
from receiver.chunks.units import parcels_of, units_of
from receiver.chunks.values import Piece, Plan, Unit, UnitReport
from receiver.domains import DomainKey
from receiver.errors import SettingsError
from receiver.logs import ReadOptions
from receiver.logs.files import LogFile

__all__ = ["Sizes", "chunked_log"]

_LEAST_CHUNK_ROWS = 50_000
_TASKS_PER_CORE = 16
"""Enough that cores end at about the same time, and that thousands of small files aren't as many tasks."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """What a task holds at most, in receipts: they bound its memory."""

    chunk_rows: int = 1_000_000
    partition_rows: int = 1_000_000
    slice_rows: int = 500_000
    """Of the whole log, for verdicts; whoever writes them into one file holds so many too."""


def chunked_log(
    files: Sequence[LogFile],
    options: ReadOptions,
    key: DomainKey,
    *,
    start: Callable[[list[Parcel], int], Flow],
    cores: int,
    sizes: Sizes | None = None,
    with_verdicts: bool = False,
    state: StateFolder | None = None,
    note: Callable[[str], None] | None = None,
) -> ChunkedLog:
    """Read a log and cut it up. `start` makes a flow of parcels in so many tasks; `cores` work at once.

    `with_verdicts` keeps what it takes to tell the verdict on each receipt. Files that `state` has aren't read, and it
    is left to have all of them; `files` are what its `find_files` finds. `note` is told what the user should know of it.
    """
    making = _Making(options, key, start, cores, sizes or Sizes())
    if state is not None:
        if with_verdicts:
            raise SettingsError("verdicts take all receipts, and a state spares reading them", hint="leave one out")
        return _Growing(making, state, note or (lambda _text: None)).log(files)
    if not with_verdicts and (log := making.directly(files)):
        return log
    read = making.read(files)
    plan = making.plan(read)
    chunks = making.chunks(read, plan)
    slice_rows = min(making.chunk_rows(read.receipts), making.sizes.slice_rows)
    slices = sliced(read.pieces, plan, read.reports, read.units, slice_rows) if with_verdicts else None
    read.pieces.forget()
    return ChunkedLog(plan, read.reports, chunks, slices=slices)


class _Read(NamedTuple):
    """Files whose receipts are at hand, checked."""

    units: list[Unit]
    reports: list[UnitReport]
    pieces: Flow

    @property
    def receipts(self) -> int:
        return _receipts(self.reports)


def _receipts(reports: Sequence[UnitReport]) -> int:
    return sum(report.receipts for report in reports)


@dataclass(frozen=True, slots=True)
class _Making:
    """How chunks are made."""

    options: ReadOptions
    key: DomainKey
    start: Callable[[list[Parcel], int], Flow]
    cores: int
    sizes: Sizes

    def directly(self, files: Sequence[LogFile]) -> ChunkedLog | None:
        """The log, where it was compacted and its layout allows; None of any other."""
        layout = layout_of(files, self.options, self.key)
        if layout is None or not layout.fits(chunk_rows := self.chunk_rows(layout.receipts)):
            return None
        plan, reports, chunks = made_directly(
            layout,
            self.options,
            self.key,
            start=self.start,
            chunk_rows=chunk_rows,
            partition_rows=self.sizes.partition_rows,
            tasks=self.cores,
        )
        return ChunkedLog(plan, reports, chunks)

    def read(self, files: Sequence[LogFile], before: Sequence[UnitReport] = ()) -> _Read:
        """`before` are the reports on what was read of the log before."""
        units = units_of(files, rows_per_unit=self.sizes.chunk_rows)
        tasks = min(len(units), self.cores * _TASKS_PER_CORE)
        pieces = self.start(parcels_of(units), tasks).map(ingest(self.options)).kept("Reading receipts")
        told = pieces.only(UnitReport.__name__).collect("Reading receipts")
        return _Read(units, reports_of(told, units, self.key, before), pieces)

    def chunk_rows(self, receipts: int) -> int:
        return min(self.sizes.chunk_rows, max(_LEAST_CHUNK_ROWS, -(-receipts // self.cores)))

    def plan(self, read: _Read, *, hash_seed: int | None = None) -> Plan:
        return plan_of(
            read.reports,
            read.units,
            self.key,
            chunk_rows=self.chunk_rows(read.receipts),
            partition_rows=self.sizes.partition_rows,
            tasks=self.cores,
            hash_seed=hash_seed,
        )

    def chunks(self, read: _Read, plan: Plan) -> Flow:
        if not plan.chunks:
            return self.start([], 1)
        cut_up = read.pieces.only(Piece.__name__).map(cut(plan))
        return cut_up.grouped(assembled(plan), plan.bundles).kept("Cutting into chunks")


@dataclass(frozen=True, slots=True)
class _Growing:
    """A log whose chunks a state has as far as it was read before."""

    making: _Making
    state: StateFolder
    note: Callable[[str], None]

    def log(self, files: Sequence[LogFile]) -> ChunkedLog:
        found = self.state.found(files, self.making.key, self.making.options)
        if found.refusal:
            found = self._refused(found, files)
        before = [self.state.load(saved) for saved in found.layers]
        read = self._read(found, before)
        if read and before and not _follows(read, before):
            read.pieces.forget()
            found = self._refused(found._replace(refusal="new receipts don't all come after the old ones"), files)
            before = []
            read = self._read(found, before)
        if found.gone:
            count = len(found.gone)
            files_are = "1 file is" if count == 1 else f"{count} files are"
            self.note(f"{files_are} gone, and taken from the state {self.state.path}")
        return self._joined(found, before, read)

    def _refused(self, found: Found, files: Sequence[LogFile]) -> Found:
        """Nothing is found. Never where something would be lost."""
        said = f"the state {self.state.path} can't be used: {found.refusal}"
        if found.gone:
            raise SettingsError(
                f"{said}; and files that only it has are gone, {found.gone[0]} for one",
                hint="for a state without them, name another folder",
            )
        self.note(f"{said}; everything is read anew")
        return found._replace(layers=[], new=list(files), refusal=None)

    def _read(self, found: Found, before: Sequence[Layer]) -> _Read | None:
        known = [report for layer in before for report in layer.reports]
        return self.making.read(found.new, known) if found.new else None

    def _joined(self, found: Found, before: list[Layer], read: _Read | None) -> ChunkedLog:
        """Make a layer of what was read, put all layers together, and leave them as the new state."""
        making, saved, layers = self.making, found.layers, before
        chunks: Flow | None = None
        if read:
            new = Layer(self._plan(read, before), read.units, read.reports)
            layers = [*before, new]
            chunks = making.chunks(read, new.plan)
            read.pieces.forget()
        receipts = sum(_receipts(layer.reports) for layer in layers)
        if len(layers) == 1 and chunks is not None:
            log = layers[0].plan, chunks
        else:
            plan, moves = joined(layers, chunk_rows=making.chunk_rows(receipts))
            parts = self.state.parts(found.layers)
            flow = making.start(parts, len(parts)).map(restored(plan, moves))
            if chunks is not None:
                flow = flow.plus(chunks.map(moved(plan, moves[-1])))
            log = plan, flow.kept("Reading the state")
        if chunks is not None:
            marks = [found.marks[file.name] for file in found.new]
            saved = [*saved, self.state.save(marks, layers[-1], chunks)]
            if not self.state.commit(saved, making.key, making.options):
                self.note(f"another run has replaced the state {self.state.path} meanwhile, so this one leaves none")
            if len(layers) > 1:
                chunks.forget()
        return ChunkedLog(log[0], [report for layer in layers for report in layer.reports], log[1])

    def _plan(self, read: _Read, before: Sequence[Layer]) -> Plan:
        making = self.making
        keeps_channels = can_split_queues(making.key)
        if not before:
            return replace(making.plan(read), keeps_channels=keeps_channels)
        receipts = read.receipts + sum(_receipts(layer.reports) for layer in before)
        partitions = partitions_of(before, receipts, partition_rows=making.sizes.partition_rows, tasks=making.cores)
        plan = making.plan(read, hash_seed=before[0].plan.hash_seed)
        return replace(plan, keeps_channels=keeps_channels, partitions=partitions)


def _follows(read: _Read, before: Sequence[Layer]) -> bool:
    """Whether all that was read comes after all that was read before."""
    first_us = first_key_us(read.reports, carry_us_of(read.reports, read.units))
    return first_us is None or first_us > max(report.last_us for layer in before for report in layer.reports)
