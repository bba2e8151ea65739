"""What the later steps hand to each other, once ids are numbers, and what is written: as `schemas`, whose words it uses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = [
    "Caught",
    "ChunkNeeds",
    "ChunkReplay",
    "Leaving",
    "Ready",
    "State",
    "Tail",
    "Tally",
    "TopNeeds",
]


@dataclass(frozen=True, slots=True)
class State:
    """The receipts with an id of a chunk. Key: the bundle."""

    chunk: int
    received_at_us: npt.NDArray[np.int64]
    """Clamped (rule 2)."""
    source: npt.NDArray[np.int32]
    sources: list[str]
    label: npt.NDArray[np.int64]
    """The id's number in the domain: receipts of one id have one label."""
    dead: npt.NDArray[np.bool_]
    """Whether the same source sends the id again in this chunk."""
    leaving_row: npt.NDArray[np.int32]
    """As in `Departures`, ordered by row."""
    leaving_to: npt.NDArray[np.int32]
    replaced_in: npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Tally:
    """What adds up over the chunks. To the driver."""

    chunk: int
    duplicates: int
    clock_clamped: int
    largest_step_back_us: int
    marked_duplicates: int
    marked_firsts: int
    receipts_by_slice: npt.NDArray[np.int64]
    """All receipts, those without id too, over the plan's timeline; so are the next."""
    duplicates_by_slice: npt.NDArray[np.int64]
    first_us: int
    """When the first receipt with an id came, -1 without any."""
    dead_us: int
    """When the newest receipt came whose id the same source sends again in this chunk, -1 without any."""
    sources: list[str]
    receipts: npt.NDArray[np.int64]
    """By source, as are the next four."""
    last_us: npt.NDArray[np.int64]
    """When its last receipt came, clamped."""
    firsts: npt.NDArray[np.int64]
    """Receipts whose id the source had not sent before."""
    lasts: npt.NDArray[np.int64]
    """Receipts whose id the source never sends again, in all of the log."""
    distinct: npt.NDArray[np.int64]
    """Different ids in this chunk."""
    replaced_source: npt.NDArray[np.int32]
    """Of these distinct ids, those that the source sends again later: the source, in which chunk, and how many."""
    replaced_in: npt.NDArray[np.int32]
    replaced_count: npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Leaving:
    """`Departures` with what their chunk knows of them. Key: a hash of domain and source."""

    domain: int
    chunk: int
    sources: list[str]
    source: npt.NDArray[np.int32]
    row: npt.NDArray[np.int32]
    label: npt.NDArray[np.int64]
    received_at_us: npt.NDArray[np.int64]
    to_chunk: npt.NDArray[np.int32]
    replaced_in: npt.NDArray[np.int32]
    lasts_within: npt.NDArray[np.int64]
    """The `Tally.lasts` of its source in the chunk, up to this receipt and with it."""


@dataclass(frozen=True, slots=True)
class Ready(State):
    """A chunk with the entries it looks back to: what every replay begins with. `sources` are those of the entries too."""

    entry_chunk: npt.NDArray[np.int32]
    """The entries, in order of receipt: `Arrivals`."""
    entry_row: npt.NDArray[np.int32]
    entry_label: npt.NDArray[np.int64]
    entry_source: npt.NDArray[np.int32]
    entry_received_at_us: npt.NDArray[np.int64]
    window_needs: npt.NDArray[np.int64]
    """Per duplicate, in order of receipt."""


@dataclass(frozen=True, slots=True)
class ChunkNeeds:
    """What the duplicates of a chunk need. To the driver."""

    chunk: int
    window_values: npt.NDArray[np.int64]
    window_counts: npt.NDArray[np.int64]
    expiry_step_counts: npt.NDArray[np.int64]
    most_expiry_us: int
    top_expiry_us: npt.NDArray[np.int64]
    """The largest that duplicates need without a window."""
    sources: list[str]
    """Those with duplicates."""
    duplicates: npt.NDArray[np.int64]
    window_need: npt.NDArray[np.int64]
    expiry_need_us: npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Tail:
    """Receipts that are still remembered when a later chunk begins, under the settings asked for. Key: that one's bundle."""

    chunk: int
    from_chunk: int
    row: npt.NDArray[np.int32]
    label: npt.NDArray[np.int64]
    received_at_us: npt.NDArray[np.int64]
    source: npt.NDArray[np.int32]
    sources: list[str]


@dataclass(frozen=True, slots=True)
class TopNeeds:
    """Per window, the largest expiries that duplicates which it misses need, not more than asked for. To the driver."""

    window: npt.NDArray[np.int32]
    """Its place among the windows."""
    expiry_us: npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ChunkReplay:
    """A chunk's share of `replays.Replayed`. To the driver. Matrices are flat, row by row."""

    chunk: int
    caught: npt.NDArray[np.int64]
    """[window, expiry]"""
    peak_ids: npt.NDArray[np.int64]
    pair_caught: npt.NDArray[np.int64]
    """[pair]"""
    pair_peak_ids: npt.NDArray[np.int64]
    window_counts: npt.NDArray[np.int64]
    """As `headroom.LeftCounts`: [pair, step]"""
    expiry_counts: npt.NDArray[np.int64]
    least_window: npt.NDArray[np.int64]
    """[pair, source]"""
    least_expiry_us: npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Caught:
    """The numbers of receipts that are duplicates by verdict. Key: the bundle."""

    number: npt.NDArray[np.int64]
    by_time: npt.NDArray[np.bool_]
    """Whether only the time queue held the id."""
