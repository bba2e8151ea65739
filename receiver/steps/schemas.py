"""What the steps hand to each other: one dataclass per kind of row, whose fields are the columns (see `rows`).

Rows are told by numbers: a *unit* is a file, or a part of one; a *chunk* is a stretch of one domain's receipts in order;
a *row* of a chunk is its place among the chunk's receipts with an id. A *bundle* is the chunks that one task works on. An
id is a digest of 128 bits under a key that is drawn for each run. Other text stays text: each value has its own list of
sources, since numbers for the whole log would have to be handed out in one place.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from receiver.domains import Channel

if TYPE_CHECKING:
    import numpy.typing as npt
    import pyarrow as pa

__all__ = [
    "NEVER",
    "Arrivals",
    "Body",
    "Departures",
    "Failure",
    "Ids",
    "Labels",
    "LinkCounts",
    "Opening",
    "Piece",
    "Plan",
    "Stretch",
    "Unit",
    "UnitReport",
    "channels_of",
    "chunk_of",
    "label_of",
    "row_of",
]

NEVER = 2**31 - 1
"""A chunk after all others."""


def label_of(chunk: int | npt.NDArray[np.int32], rows: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
    """The number of an id in its domain: the place of its first receipt. In order of receipt."""
    return (np.int64(chunk) << np.int64(32)) | rows.astype(np.int64)


def chunk_of(label: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
    """The chunk of an id's first receipt."""
    return (label >> 32).astype(np.int32)


def row_of(label: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
    """The row of an id's first receipt in that chunk."""
    return (label & 0xFFFFFFFF).astype(np.int32)


@dataclass(frozen=True, slots=True)
class Failure:
    """An error of the package's own, on its way from a task to the driver."""

    error: str
    """Its class."""
    place: str
    problem: str
    hint: str


@dataclass(frozen=True, slots=True)
class Unit:
    """What one task reads. Units of one file follow each other."""

    number: int
    file: int
    """Place of its file among the files; the rows of a file stand in their order. Files that follow each other
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
    """Rows of the file before it, so that errors can tell the line."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Some receipts of a unit in order, as read. A column that the log lacks is empty."""

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
    """Only where verdicts will be told, else empty."""
    source: npt.NDArray[np.int32]
    """Indices of `sources`."""
    sources: list[str]
    channel: npt.NDArray[np.int32]
    """Indices of the three lists of parts, which run in parallel."""
    connections: list[str]
    destinations: list[str]
    receivers: list[str]
    redelivered: npt.NDArray[np.bool_]
    digest_hash: npt.NDArray[np.uint64]
    """0 where the digest is missing."""
    row_id: npt.NDArray[np.int64]
    """What a caller's frame tells its rows by; empty where nobody asks."""


@dataclass(frozen=True, slots=True)
class UnitReport:
    """What a unit holds, for the plan."""

    unit: int
    file: str
    """Of units that were found in a frame: their file, and the first and last row in it."""
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
    samples_channel: npt.NDArray[np.int32]
    """Every so many receipts of a channel, one of them: its channel, and its place in the log but for `Plan.carry_us`."""
    samples_latest_us: npt.NDArray[np.int64]
    samples_row: npt.NDArray[np.int64]
    status_at_us: npt.NDArray[np.int64]
    status_values: list[str]
    """Per status line, its values in JSON."""
    problem_place: str
    """Where the log couldn't be read; empty where it could, as are the next two."""
    problem: str
    problem_hint: str


def channels_of(value: Piece | UnitReport) -> list[Channel]:
    """The channels that its numbers stand for."""
    return [Channel(*parts) for parts in zip(value.connections, value.destinations, value.receivers, strict=True)]


@dataclass(frozen=True, slots=True)
class Plan:
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
    chunk_receipts: npt.NDArray[np.float64]
    """About how many there are."""
    chunk_bundle: npt.NDArray[np.int32]
    cut_key_us: npt.NDArray[np.int64]
    """Chunk -> the place in the log where it begins, in three columns; a domain's first chunk begins before everything."""
    cut_unit: npt.NDArray[np.int32]
    cut_row: npt.NDArray[np.int64]
    partitions: int
    """Into how many parts the ids are dealt."""
    unit_number: npt.NDArray[np.int64]
    """Unit -> the place of its first receipt in the order of reading."""
    keeps_rows: bool
    """Whether verdicts will be told, so that each receipt keeps its number."""
    is_whole: npt.NDArray[np.bool_]
    """Per domain, whether it is so small that all of its ids go to one part."""
    start_us: int
    slice_us: int
    slices: int
    """The timeline's."""
    looks_for_crossing: bool
    """Whether ids of one queue may hide in several domains."""

    @property
    def chunks(self) -> int:
        return len(self.chunk_domain)

    @property
    def bundles(self) -> int:
        return int(self.chunk_bundle.max(initial=-1)) + 1

    @property
    def first_chunk(self) -> npt.NDArray[np.int32]:
        """Chunk -> the first chunk of its domain."""
        return np.searchsorted(self.chunk_domain, self.chunk_domain).astype(np.int32)

    def of_domain(self, domain: int) -> range:
        """The chunks of a domain."""
        first, last = np.searchsorted(self.chunk_domain, [domain, domain + 1])
        return range(int(first), int(last))


@dataclass(frozen=True, slots=True)
class Stretch:
    """The receipts of a piece whose chunks are in one bundle, in order. Key: the bundle."""

    unit: int
    unit_row: npt.NDArray[np.int64]
    chunk: npt.NDArray[np.int32]
    key_us: npt.NDArray[np.int64]
    """Empty where it is the time, as it is while a clock doesn't step back."""
    received_at_us: npt.NDArray[np.int64]
    id_high: npt.NDArray[np.int64]
    id_low: npt.NDArray[np.int64]
    source: npt.NDArray[np.int32]
    sources: list[str]
    redelivered: npt.NDArray[np.bool_]
    """Empty where the file lacks it, and so is the next."""
    digest_hash: npt.NDArray[np.uint64]
    row_id: npt.NDArray[np.int64]
    """As in `Piece`."""
    channel: npt.NDArray[np.int32]
    """Only where the plan keeps channels."""
    connections: list[str]
    destinations: list[str]


@dataclass(frozen=True, slots=True)
class Opening:
    """What a chunk holds, counted before ids are known. To the driver."""

    chunk: int
    receipts: int
    latest_us: int
    """The largest time of its receipts with an id, -1 without any."""
    sources: list[str]
    """Those of receipts without id included."""


@dataclass(frozen=True, slots=True)
class Body:
    """The receipts with an id of a chunk, in order. Key: the bundle."""

    chunk: int
    received_at_us: npt.NDArray[np.int64]
    """As read."""
    source: npt.NDArray[np.int32]
    sources: list[str]
    """Each of them sent some of these receipts."""
    redelivered: npt.NDArray[np.bool_]
    """Empty where the whole log lacks it, and so are all in `Piece`; absent flags of a file among others are False."""
    number: npt.NDArray[np.int64]
    """Only where verdicts will be told, else empty: the `Piece.row_id`, or the place in the order of reading."""
    unchecked_at_us: npt.NDArray[np.int64]
    """When the chunk's receipts without id came, as read."""


@dataclass(frozen=True, slots=True)
class Ids:
    """The ids of a chunk's receipts that fall into one part, in order of receipt; equal ids always fall into the same.

    A part may have several for a chunk. Key: the part.
    """

    chunk: int
    row: npt.NDArray[np.int32]
    id_high: npt.NDArray[np.int64]
    id_low: npt.NDArray[np.int64]
    source: npt.NDArray[np.int32]
    sources: list[str]
    digest_hash: npt.NDArray[np.uint64]
    """Empty where there is none."""
    key_us: npt.NDArray[np.int64]
    """This and what follows only where the plan keeps channels, else empty: the receipt's place in the log, ..."""
    unit: npt.NDArray[np.int32]
    unit_row: npt.NDArray[np.int64]
    channel: npt.NDArray[np.int32]
    """... and its channel."""
    connections: list[str]
    destinations: list[str]


@dataclass(frozen=True, slots=True)
class Labels:
    """The receipts of a chunk whose id came before in their domain. Key: the bundle. All other receipts are firsts."""

    chunk: int
    row: npt.NDArray[np.int32]
    label: npt.NDArray[np.int64]
    """`label_of` the id's first receipt."""
    replaces: npt.NDArray[np.bool_]
    """Whether the same source had sent the id before."""


@dataclass(frozen=True, slots=True)
class Departures:
    """The newest receipts in a chunk of (id, source), which receipts in later chunks look back to. Key: the bundle.

    One for each later chunk with the id, up to the one where the same source sends it again.
    """

    chunk: int
    row: npt.NDArray[np.int32]
    to_chunk: npt.NDArray[np.int32]
    replaced_in: npt.NDArray[np.int32]
    """The chunk in which the same source sends the id again, or NEVER."""


@dataclass(frozen=True, slots=True)
class LinkCounts:
    """What only a look at the ids can count. To the driver."""

    reused: int
    """Duplicates whose digest isn't that of the id's newest earlier receipt in the domain, both being there."""
    way_from: list[str]
    """As `replays.Crossing.ways`, in three parallel lists."""
    way_to: list[str]
    way_count: npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Entries of earlier chunks that a chunk's receipts look back to. Key: the bundle."""

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
