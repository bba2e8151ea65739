"""The rows that steps exchange: one dataclass for each kind of row, whose fields are its columns (see `arrow_rows`).

| word | meaning |
|---|---|
| unit | a file, or a part of one, that one task reads; receipts are numbered in it, unreadable rows aren't |
| piece | adjacent receipts of a unit, as they were read |
| chunk | a stretch of one domain's receipts, in the order of the log |
| task | works on the chunks that share its number |
| partition | has all receipts of its ids |
| row of a chunk | the index of a receipt with an id among those of its chunk, in order |
| linked receipt | a receipt whose id comes more than once in its domain |
| label | a number for the id of linked receipts: equal for receipts of one id and domain, different for all others |
| earlier receipt | a receipt of an earlier chunk that a chunk needs: the chunk refers to it, or has it from a tail |
| reference | from a chunk back to the newest receipt of an id and source before it, if the chunk has the id too |
| tail | the receipts that are still remembered when a chunk begins |
| replaced | of a receipt: its source has sent the id again |

A receipt is identified by its unit and its row there, until its chunk is put in order; then by its chunk and its row there.
Ids are digests (see `digests`). Other text stays text: each value has its own list of sources, because a single task would
have to number those of the whole log.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from receiver.domains import Channel
from receiver.simulate.shares import SectionReceipts
from receiver.steps.arrow_rows import changes

if TYPE_CHECKING:
    import numpy.typing as npt
    import pyarrow as pa

    from receiver.simulate.compiled import Flags, Int32s, Int64s

NEVER = 2**31 - 1
"""A chunk after all others."""


def _no_numbers() -> Int64s:
    return np.zeros(0, np.int64)


def _no_indices() -> Int32s:
    return np.zeros(0, np.int32)


@dataclass(frozen=True, slots=True)
class Unit:
    """The part of a log that one task reads. Units of one file are adjacent."""

    number: int
    file: int
    """The index of its file among the files. The rows of a file are in order. Files that follow each other (`LogFile.follows`)
    count as one.
    """
    path: bytes
    """The absolute path, in bytes: a path need not be text."""
    name: str
    """The name for errors."""
    first_group: int
    groups: int
    """The number of row groups of a Parquet file; 0: the whole file, of any format."""
    first_row: int
    """The number of the file's rows before the unit, so that errors can name the line."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Adjacent receipts of a unit, as read. A column that the log lacks is empty."""

    unit: int
    first_row: int
    """The row of its first receipt in the unit."""
    latest_us: int
    """The largest time in the unit before this piece; -1 for the unit's first piece."""
    received_at_us: Int64s
    id_high: Int64s
    """The digest of the id in two halves; both are 0 for a missing id."""
    id_low: Int64s
    unique_message_id: pa.Array
    """The ids' texts if verdicts are asked for, else empty."""
    source: Int32s
    """Indices of `sources`."""
    sources: list[str]
    channel: Int32s
    """The number of each receipt's channel; empty if there is only one."""
    channels: list[str]
    """The parts of each channel, channel by channel (see `channels_of`)."""
    redelivered_row: Int32s
    """The indices of the receipts here that are marked as redelivered."""
    digest_hash: npt.NDArray[np.uint64]
    """0 for a missing digest."""
    row_id: Int64s
    """The number of each row in a caller's frame; empty if that isn't asked for."""


@dataclass(slots=True)
class UnitReport:
    """The contents of a unit, for the plan: filled in as the unit is read."""

    unit: int
    file: str = ""
    """For a unit from a frame: its file, and the first and last row in it."""
    first_row: int = -1
    last_row: int = -1
    receipts: int = 0
    unchecked: int = 0
    skipped: int = 0
    redelivered: int = 0
    max_delivery_us: int = 0
    first_us: int = -1
    """The smallest time as read; -1 without receipts. The next field has the largest."""
    last_us: int = -1
    time_unit: str = ""
    """The unit of its numeric times; empty without any. The next field has the line of the first, or 0."""
    time_unit_line: int = 0
    columns_present: list[str] = field(default_factory=list)
    channels: list[str] = field(default_factory=list)
    """As in `Piece`."""
    receipts_by_channel: Int64s = field(default_factory=_no_numbers)
    sources: list[str] = field(default_factory=list)
    """Each source once for each channel to which it sent. The next column has the channel."""
    sources_channel: Int32s = field(default_factory=_no_indices)
    samples_channel: Int32s = field(default_factory=_no_indices)
    """Samples: one of every so many receipts of each channel. Three columns: channel, largest time of the unit up to the sample,
    row.
    """
    samples_latest_us: Int64s = field(default_factory=_no_numbers)
    samples_row: Int64s = field(default_factory=_no_numbers)
    status_lines: list[str] = field(default_factory=list)
    """JSON with the time at which each was logged, and its values."""
    problem: bytes = b""
    """The pickled `LogFormatError` of the unit; empty without an error."""


def channels_of(value: Piece | UnitReport | Ids) -> list[Channel]:
    """The channels for the channel numbers of a value."""
    texts, parts = value.channels, len(Channel._fields)
    return [Channel(*texts[at : at + parts]) for at in range(0, len(texts), parts)]


def parts_of(channels: Iterable[Channel]) -> list[str]:
    """The column of channels, as `channels_of` reads it."""
    return list(chain.from_iterable(channels))


def channel_column(piece: Piece) -> Int32s:
    """The number of each receipt's channel, even if there is only one."""
    return piece.channel if len(piece.channel) else np.zeros(len(piece.received_at_us), np.int32)


@dataclass(frozen=True, slots=True)
class Ids:
    """The ids of a piece that go to one partition. Key: the partition."""

    unit: int
    chunk: Int32s
    """Receipts are grouped by chunk, and in order within a chunk. Those of `chunk[n]` end before index `chunk_end[n]`."""
    chunk_end: Int64s
    unit_row: Int32s
    key_us: Int64s
    """The keys by which receipts are ordered (see `CutPlan`)."""
    id_high: Int64s
    id_low: Int64s
    source: Int32s
    sources: list[str]
    digest_hash: npt.NDArray[np.uint64]
    """Empty if the log has no digests."""
    channel: Int32s
    """Empty unless the plan looks across domains."""
    channels: list[str]


@dataclass(frozen=True, slots=True)
class Latest:
    """The largest time of a piece's receipts with an id, by chunk. Goes to the driver."""

    chunk: Int32s
    latest_us: Int64s


@dataclass(frozen=True, slots=True)
class Links:
    """The linked receipts of one partition in one chunk. Key: the task."""

    chunk: int
    unit: Int32s
    unit_row: Int32s
    label: Int64s
    is_duplicate: Flags
    """Whether the id came before in the domain."""
    replaces: Flags
    """Whether the id came before from the same source."""
    next_in: Int32s
    """The chunk in which the receipt is replaced, or NEVER."""
    ref_at: Int32s
    """The indices of the receipts here to which later chunks refer, once for each such chunk."""
    ref_to: Int32s
    """The chunk that refers to the receipt."""


@dataclass(frozen=True, slots=True)
class TaskReceipts:
    """The receipts of a piece whose chunks are of one task. Key: the task."""

    unit: int
    chunk: Int32s
    """Receipts are grouped by chunk, as in `Ids`."""
    chunk_end: Int64s
    first_row: int
    """The row of the first receipt in the unit, if all are adjacent; otherwise `unit_row` has their rows."""
    unit_row: Int32s
    received_at_us: Int64s
    key_us: Int64s
    """Empty if all keys equal the times, as they do while no clock steps back."""
    source: Int32s
    sources: list[str]
    redelivered_row: Int32s
    """The indices of the receipts here that are marked as redelivered."""
    row_id: Int64s
    """As in `Piece`."""
    unchecked_row: Int32s
    """The indices of the receipts here that have no id."""


@dataclass(frozen=True, slots=True)
class ChunkReceipts(SectionReceipts):
    """The receipts with an id of a chunk, in order; `as_read_us` is empty if none was clamped. Key: the task."""

    chunk: int
    number: Int64s
    """If verdicts are asked for, the `Piece.row_id`, or the receipt's number in the order of reading; else empty."""
    linked_row: Int32s
    """The linked receipts, ascending. The next two columns belong to them."""
    label: Int64s
    next_in: Int32s
    """The chunk in which the receipt is replaced, or NEVER."""
    ref_row: Int32s
    """The receipts to which later chunks refer, ascending, then by `ref_to`."""
    ref_to: Int32s
    window_needs: Int64s = field(default_factory=_no_numbers)
    """The window need of each duplicate, in order of receipt. `measuring` fills it in."""
    duplicates_in_first_half: int = 0
    """How many duplicates, from the first on, came in the first half of the log. `measuring` fills it in."""

    def again_in(self) -> Int32s:
        """For each receipt, the chunk in which its id comes next, from any source, or NEVER."""
        again_in = np.full(len(self.source), NEVER, np.int32)
        np.minimum.at(again_in, self.ref_row, self.ref_to)
        by_label = np.argsort(self.label, kind="stable")
        is_last_here = changes(self.label[by_label][::-1])[::-1]
        again_in[self.linked_row[by_label[~is_last_here]]] = self.chunk
        return again_in

    def dense_ids(self, earlier_label: Int64s) -> tuple[Int32s, int]:
        """Numbers from 0 for the ids of earlier receipts, followed by those of the chunk; and a bound above all numbers."""
        rows = len(self.source)
        labels = np.sort(np.concatenate([earlier_label, self.label]))
        labels = labels[changes(labels)]
        # A receipt that isn't linked has an id of its own, so its row can be the number.
        ids = np.arange(-len(earlier_label), rows, dtype=np.int32)
        ids[: len(earlier_label)] = rows + np.searchsorted(labels, earlier_label)
        ids[len(earlier_label) + self.linked_row] = rows + np.searchsorted(labels, self.label)
        return ids, rows + len(labels)


@dataclass(frozen=True, slots=True)
class SourceCounts:
    """Counts of a chunk, in all and for each source, from which `SourceTotals` are made. Go to the driver."""

    chunk: int
    receipts: int
    """Receipts with an id."""
    new_ids: int
    """Receipts whose id is new in the domain."""
    first_us: int
    """When the first receipt with an id came, -1 without any."""
    replaced_us: int
    """The time of the newest receipt that is replaced in this chunk, or -1."""
    sources: list[str]
    firsts: Int64s
    """For each source, the receipts whose id the source had not sent before."""
    lasts: Int64s
    """For each source, the receipts that are never replaced in the whole log."""
    again_in: Int32s
    """The chunks in which ids of its receipts come next, from any source; NEVER may be among them."""
    again: Int64s
    """How many of its receipts' ids come next in each chunk of `again_in`."""


@dataclass(frozen=True, slots=True)
class References:
    """Receipts of a chunk to which later chunks refer, once for each such chunk. Key: a hash of domain and source."""

    domain: int
    chunk: int
    sources: list[str]
    source: Int32s
    row: Int32s
    label: Int64s
    received_at_us: Int64s
    """Clamped."""
    to_chunk: Int32s
    """The chunk that refers to the receipt."""
    next_in: Int32s
    """The chunk in which the receipt is replaced, or NEVER."""
    lasts_within: Int64s
    """The `SourceCounts.lasts` of its source in its own chunk, up to and including this receipt."""
    alive_within: Int64s
    """The number of ids whose last receipt before `to_chunk` is this receipt or an earlier receipt of its chunk."""


@dataclass(frozen=True, slots=True)
class EarlierReceipts:
    """Earlier receipts that a chunk needs. Key: the chunk's task."""

    chunk: int
    from_chunk: Int32s
    row: Int32s
    """The receipt's row in `from_chunk`."""
    label: Int64s
    received_at_us: Int64s
    """Clamped."""
    source: Int32s
    sources: list[str]
    newer_ids: Int64s
    """How many different ids its source has sent after it, up to the chunk's begin; empty in a tail."""
    alive_within: Int64s
    """As in `References`; empty in a tail."""


@dataclass(frozen=True, slots=True)
class IdEnds:
    """Ids that span chunks: a row for the id's first receipt, and a row for its last. Key: the ids' partition."""

    chunk: int
    label: Int64s
    is_last: Flags
    new_before: Int64s
    """How many receipts before it in the chunk have ids that are new in the domain."""
    received_at_us: Int64s
    """Clamped."""


@dataclass(frozen=True, slots=True)
class Caught:
    """The numbers of receipts that are duplicates by verdict. Key: the task."""

    number: Int64s
    by_time: Flags
    """Whether only the time queue held the id."""
