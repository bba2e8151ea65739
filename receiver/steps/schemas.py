"""What the steps hand to each other: one dataclass per kind of row, whose fields are the columns (see `arrow_rows`).

A *unit* is a file, or a part of one: what one task reads. A *chunk* is a stretch of one domain's receipts in order. Each
chunk has a *task*, a number that it may share with other chunks: one task of Spark works on them together. A receipt is
known by its unit and its row there, until its chunk is put in order; then by its chunk and its row there, which is its
index among the chunk's receipts with an id. A *reference* leads from a chunk back to a receipt of an earlier one.

An id is a digest of 128 bits under a key that is drawn for each run. It goes to a *partition*, which has all receipts of
its ids. Other text stays text: each value has its own list of sources, since numbers for the whole log would have to be
handed out by one task.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from receiver.domains import PARTS, Channel

if TYPE_CHECKING:
    import numpy.typing as npt
    import pyarrow as pa

NEVER = 2**31 - 1
"""A chunk after all others."""


@dataclass(frozen=True, slots=True)
class Failure:
    """An error of the package's own, on its way from a task to the driver."""

    error: str
    """Its class."""
    location: str
    problem: str
    hint: str


@dataclass(frozen=True, slots=True)
class Unit:
    """What one task reads. Units of one file follow each other."""

    number: int
    file: int
    """The index of its file among the files; the rows of a file stand in their order. Files that follow each other
    (`LogFile.follows`) are one.
    """
    path: bytes
    """Absolute, as the file system has it: a path need not be text."""
    name: str
    """As errors name it."""
    first_group: int
    groups: int
    """Row groups of a Parquet file; 0: the whole file, of any format."""
    first_row: int
    """Rows of the file before it, so that errors can name the line."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Receipts of a unit that follow each other, as read. A column that the log lacks is empty."""

    unit: int
    first_row: int
    """The number of its first receipt in the unit: receipts are counted, unreadable rows aren't."""
    latest_us: int
    """The largest time of the unit before it, -1 at the unit's start."""
    received_at_us: npt.NDArray[np.int64]
    id_high: npt.NDArray[np.int64]
    """The digest of the id in two halves; both are 0 where the id is missing."""
    id_low: npt.NDArray[np.int64]
    unique_message_id: pa.Array
    """Only where verdicts are asked for, else empty."""
    source: npt.NDArray[np.int32]
    """Indices of `sources`."""
    sources: list[str]
    channel: npt.NDArray[np.int32]
    """Indices of the three lists of parts, which run in parallel; empty where they have one entry."""
    connections: list[str]
    destinations: list[str]
    receivers: list[str]
    redelivered_row: npt.NDArray[np.int32]
    """Which of these receipts are marked as redelivered."""
    digest_hash: npt.NDArray[np.uint64]
    """0 where the digest is missing."""
    row_id: npt.NDArray[np.int64]
    """The number of each row in a caller's frame; empty where nobody asks."""


@dataclass(frozen=True, slots=True)
class UnitReport:
    """What a unit holds, for the plan."""

    unit: int
    file: str
    """Of units that come from a frame: their file, and the first and last row in it."""
    first_row: int
    last_row: int
    receipts: int
    unchecked: int
    skipped: int
    redelivered: int
    max_delivery_us: int
    first_us: int
    """Smallest and largest time as read; -1 without receipts."""
    last_us: int
    time_unit: str
    """What its numeric times are in, and the line of the first; empty and 0 without any."""
    time_unit_line: int
    columns_present: list[str]
    connections: list[str]
    """The channels, as three parallel lists."""
    destinations: list[str]
    receivers: list[str]
    receipts_by_channel: npt.NDArray[np.int64]
    sources: list[str]
    """Once for each channel that it sent to; the next column has the channel."""
    sources_channel: npt.NDArray[np.int32]
    samples_channel: npt.NDArray[np.int32]
    """A sample: one of every so many receipts of each channel. Columns: its channel and its sort key, to which
    `CutPlan.carry_us` is still to be applied."""
    samples_latest_us: npt.NDArray[np.int64]
    samples_row: npt.NDArray[np.int64]
    status_at_us: npt.NDArray[np.int64]
    status_values: list[str]
    """Per status line, its values in JSON."""
    problem_location: str
    """Where the log couldn't be read; empty where it could, as are the next two."""
    problem: str
    problem_hint: str


def channels_of(value: Piece | UnitReport) -> list[Channel]:
    """The channels that its numbers stand for."""
    return [Channel(*parts) for parts in zip(*(getattr(value, name) for name in PARTS.values()), strict=True)]


def part_lists(channels: Sequence[Channel]) -> dict[str, list[str]]:
    """The columns that `channels_of` reads."""
    return {name: [getattr(channel, part) for channel in channels] for part, name in PARTS.items()}


def channel_of(piece: Piece) -> npt.NDArray[np.int32]:
    """The number of each receipt's channel."""
    return piece.channel if len(piece.channel) else np.zeros(len(piece.received_at_us), np.int32)


@dataclass(frozen=True, slots=True)
class CutPlan:
    """How the log is cut up. The order of receipts is that of (key, unit, row in unit): a receipt's key is the largest
    time of its file up to it.
    """

    key: str
    """The domain KEY."""
    domains: list[str]
    """Ordered by name."""
    carry_us: npt.NDArray[np.int64]
    """Per unit, the largest time of its file before it, -1 if none."""
    chunk_domain: npt.NDArray[np.int32]
    """Chunk -> domain. Chunks are numbered domain by domain, in order of receipt."""
    chunk_task: npt.NDArray[np.int32]
    """Chunk -> the number of the task that works on it."""
    cut_key_us: npt.NDArray[np.int64]
    """Chunk -> the receipt in the order of the log at which it begins, in three columns; a domain's first chunk begins before everything."""
    cut_unit: npt.NDArray[np.int32]
    cut_row: npt.NDArray[np.int64]
    partitions: int
    """Among how many partitions the ids are dealt."""
    unit_number: npt.NDArray[np.int64]
    """Unit -> the number of its first receipt in the order of reading."""
    keeps_rows: bool
    """Whether verdicts are asked for, so that each receipt keeps its number."""
    is_whole: npt.NDArray[np.bool_]
    """Per domain, whether it is so small that all of its ids go to one partition."""
    looks_across_domains: bool
    """Whether ids of one queue may hide in several domains."""

    @property
    def chunks(self) -> int:
        return len(self.chunk_domain)

    @property
    def tasks(self) -> int:
        return int(self.chunk_task.max(initial=-1)) + 1

    @property
    def first_chunk(self) -> npt.NDArray[np.int32]:
        """Chunk -> the first chunk of its domain."""
        return np.searchsorted(self.chunk_domain, self.chunk_domain).astype(np.int32)

    def of_domain(self, domain: int) -> range:
        """The chunks of a domain."""
        first, last = np.searchsorted(self.chunk_domain, [domain, domain + 1])
        return range(int(first), int(last))


@dataclass(frozen=True, slots=True)
class Ids:
    """The ids of a piece that go to one partition. Key: the partition."""

    unit: int
    chunk: npt.NDArray[np.int32]
    """Receipts of one chunk stand together, those of `chunk[n]` before row `chunk_end[n]`; in order, but for that."""
    chunk_end: npt.NDArray[np.int64]
    unit_row: npt.NDArray[np.int32]
    """The row of the receipt in the unit, counted as `Piece.first_row` is."""
    key_us: npt.NDArray[np.int64]
    id_high: npt.NDArray[np.int64]
    id_low: npt.NDArray[np.int64]
    source: npt.NDArray[np.int32]
    sources: list[str]
    digest_hash: npt.NDArray[np.uint64]
    """Empty where there is none."""
    channel: npt.NDArray[np.int32]
    """Only where the plan looks across domains, else empty."""
    connections: list[str]
    destinations: list[str]


@dataclass(frozen=True, slots=True)
class Latest:
    """The largest time of a piece's receipts with an id, by chunk. To the driver."""

    chunk: npt.NDArray[np.int32]
    latest_us: npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Links:
    """Receipts of a chunk whose ids come more than once in their domain. Key: the task."""

    chunk: int
    unit: npt.NDArray[np.int32]
    unit_row: npt.NDArray[np.int32]
    label: npt.NDArray[np.int64]
    """A number for the id: receipts of one id and domain have the same, all others another."""
    is_again: npt.NDArray[np.bool_]
    """Whether the id came before in the domain."""
    replaces: npt.NDArray[np.bool_]
    """Whether it came before from the same source."""
    is_last: npt.NDArray[np.bool_]
    """Whether the id never comes again in the domain."""
    next_in: npt.NDArray[np.int32]
    """The chunk in which the same source sends the id next, or NEVER."""
    ref_at: npt.NDArray[np.int32]
    """Which of these receipts later chunks refer to: for each id and source, its newest receipt in the chunk. It stands here
    once for each later chunk that has the id, up to the one in which the source sends it again.
    """
    ref_to: npt.NDArray[np.int32]
    """The chunk that refers to it."""


@dataclass(frozen=True, slots=True)
class TaskReceipts:
    """The receipts of a piece whose chunks are of one task. Key: the task."""

    unit: int
    chunk: npt.NDArray[np.int32]
    """Receipts of one chunk stand together, as in `Ids`, whose `chunk_end` is the next column."""
    chunk_end: npt.NDArray[np.int64]
    first_row: int
    """The row of the first receipt in the unit, where all follow each other; else `unit_row` has their rows."""
    unit_row: npt.NDArray[np.int32]
    received_at_us: npt.NDArray[np.int64]
    key_us: npt.NDArray[np.int64]
    """Empty where it is the time, as it is while a clock doesn't step back."""
    source: npt.NDArray[np.int32]
    sources: list[str]
    redelivered_row: npt.NDArray[np.int32]
    """Which of these receipts are marked as redelivered."""
    row_id: npt.NDArray[np.int64]
    """The number of each row in a caller's frame, as in `Piece`."""
    unchecked_row: npt.NDArray[np.int32]
    """Which of these receipts have no id."""


@dataclass(frozen=True, slots=True)
class _Receipts:
    """The receipts with an id of a chunk, in order."""

    chunk: int
    received_at_us: npt.NDArray[np.int64]
    """Clamped (rule 2)."""
    source: npt.NDArray[np.int32]
    sources: list[str]
    number: npt.NDArray[np.int64]
    """Only where verdicts are asked for, else empty: the `Piece.row_id`, or the receipt's number in the order of reading."""
    repeat_row: npt.NDArray[np.int32]
    """The receipts that `Links` is about, ascending."""
    label: npt.NDArray[np.int64]
    next_in: npt.NDArray[np.int32]
    ref_row: npt.NDArray[np.int32]
    """The receipts that later chunks refer to, ascending, then by `ref_to`."""
    ref_to: npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class ChunkReceipts(_Receipts):
    """The receipts with an id of a chunk, in order, and what else is counted of the chunk. Key: the task.

    Each of the `sources` sent at least one of them.
    """

    as_read_us: npt.NDArray[np.int64]
    """Times as read; empty where none was clamped."""
    redelivered_row: npt.NDArray[np.int32]
    """Which of these receipts are marked as redelivered."""
    unchecked_us: npt.NDArray[np.int64]
    """When the chunk's receipts without an id came, as read."""


@dataclass(frozen=True, slots=True)
class SourceCounts:
    """What each source sent in a chunk, of which `source_totals` makes sums. To the driver."""

    chunk: int
    new_ids: int
    """Receipts whose id is new in the domain."""
    first_us: int
    """When the first receipt with an id came, -1 without any."""
    dead_us: int
    """When the newest receipt came whose id the same source sends again in this chunk, -1 without any."""
    sources: list[str]
    firsts: npt.NDArray[np.int64]
    """By source, as are the next two: receipts whose id the source had not sent before."""
    lasts: npt.NDArray[np.int64]
    """Receipts whose id the source never sends again, in all of the log."""
    distinct: npt.NDArray[np.int64]
    """Different ids in this chunk."""
    replaced_source: npt.NDArray[np.int32]
    """Newest receipts of ids in this chunk that the source sends again in later chunks: which source, in which chunk, and how
    many.
    """
    replaced_in: npt.NDArray[np.int32]
    replaced_count: npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class OutgoingRefs:
    """Receipts of a chunk that later chunks refer to, with what their own chunk knows of them. Key: a hash of domain and
    source.
    """

    domain: int
    chunk: int
    sources: list[str]
    source: npt.NDArray[np.int32]
    row: npt.NDArray[np.int32]
    label: npt.NDArray[np.int64]
    received_at_us: npt.NDArray[np.int64]
    """Clamped."""
    to_chunk: npt.NDArray[np.int32]
    next_in: npt.NDArray[np.int32]
    lasts_within: npt.NDArray[np.int64]
    """The `SourceCounts.lasts` of its source in the chunk, up to this receipt and with it."""


@dataclass(frozen=True, slots=True)
class IncomingRefs:
    """Receipts of earlier chunks that a chunk refers to. Key: the task."""

    chunk: int
    label: npt.NDArray[np.int64]
    source: npt.NDArray[np.int32]
    sources: list[str]
    from_chunk: npt.NDArray[np.int32]
    from_row: npt.NDArray[np.int32]
    received_at_us: npt.NDArray[np.int64]
    """Clamped."""
    newer_ids: npt.NDArray[np.int64]
    """How many different ids its source has sent since, up to the chunk's begin."""


@dataclass(frozen=True, slots=True)
class IdEnds:
    """Ids that span chunks: a row for the id's first receipt, and one for its last. Key: the ids' partition."""

    chunk: int
    label: npt.NDArray[np.int64]
    is_last: npt.NDArray[np.bool_]
    new_before: npt.NDArray[np.int64]
    """How many receipts before it in the chunk have ids that are new in the domain."""
    received_at_us: npt.NDArray[np.int64]
    """Clamped."""


@dataclass(frozen=True, slots=True)
class MeasuredReceipts(_Receipts):
    """The receipts with an id of a chunk, and the earlier ones that it refers to: what every replay begins with. Key: the
    task. `sources` are those of the earlier receipts too.
    """

    earlier_chunk: npt.NDArray[np.int32]
    """The earlier receipts, in order: `IncomingRefs`."""
    earlier_row: npt.NDArray[np.int32]
    earlier_label: npt.NDArray[np.int64]
    earlier_source: npt.NDArray[np.int32]
    earlier_received_at_us: npt.NDArray[np.int64]
    window_needs: npt.NDArray[np.int64]
    """Per duplicate, in order of receipt."""


@dataclass(frozen=True, slots=True)
class Tail:
    """Receipts that are still remembered when a later chunk begins, under the settings asked for. Key: that chunk's task."""

    chunk: int
    from_chunk: int
    row: npt.NDArray[np.int32]
    label: npt.NDArray[np.int64]
    received_at_us: npt.NDArray[np.int64]
    source: npt.NDArray[np.int32]
    sources: list[str]


@dataclass(frozen=True, slots=True)
class Caught:
    """The numbers of receipts that are duplicates by verdict. Key: the task."""

    number: npt.NDArray[np.int64]
    by_time: npt.NDArray[np.bool_]
    """Whether only the time queue held the id."""
