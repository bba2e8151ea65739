"""What a replay shows, as plain values: the reports format them, and nothing here knows how they were counted.

Times are whole microseconds (`_us`); sizes are bytes. Needs are exact: each is the smallest setting that would have caught
the duplicate.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "Analysis",
    "DomainFigures",
    "Finding",
    "HeadroomFigures",
    "Histogram",
    "LogFigures",
    "Recommendation",
    "SettingFigures",
    "SourceFigures",
    "Timeline",
]


@dataclass(frozen=True, slots=True)
class SettingFigures:
    """One pair of the grid: a window W, an expiry E, and what the log would have seen with them."""

    window: int
    expiry_us: int
    caught: int
    missed: int
    peak_ids: int


@dataclass(frozen=True, slots=True)
class LogFigures:
    receipts: int
    unchecked: int
    skipped: int
    duplicates: int
    domains: int
    sources: int
    first_received_at_us: int | None
    last_received_at_us: int | None
    clock_clamped: int
    redelivered: int
    max_delivery_secs: float

    @property
    def middle_us(self) -> int:
        """Half way from the first receipt to the last, rounded down; 0 for a log without receipts."""
        return ((self.first_received_at_us or 0) + (self.last_received_at_us or 0)) // 2


@dataclass(frozen=True, slots=True)
class DomainFigures:
    domain: str
    receipts: int
    duplicates: int
    sources: int
    settings: tuple[SettingFigures, ...]


@dataclass(frozen=True, slots=True)
class SourceFigures:
    """One source of one domain, its worst duplicate and its share of the log."""

    domain: str
    source: str
    """Empty for the anonymous source."""
    receipts: int
    duplicates: int
    window_need: int
    """The smallest W that catches all of its duplicates without the time tier."""
    expiry_need_us: int
    """The smallest E that catches all of its duplicates without the per-source tier."""
    window_left: int | None
    """The least headroom in W of its duplicates that the recommended setting catches by the source's queue."""
    expiry_left_us: int | None
    """The least headroom in E of its duplicates that the recommended setting catches by the time queue alone."""


@dataclass(frozen=True, slots=True)
class Histogram:
    """Counts between edges: `counts[i]` values v with `edges[i] <= v < edges[i + 1]`; the edges grow as powers."""

    edges: tuple[int, ...]
    counts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class HeadroomFigures:
    """How close the caught duplicates came to being missed, for the recommended setting."""

    caught_by_source: int
    """Duplicates whose id a source's queue still held; `window_left` is the histogram of their headroom in W."""
    caught_by_time: int
    """Duplicates whose id only the time queue still held; `expiry_left_us` is the histogram of their headroom in E."""
    window_left: Histogram
    expiry_left_us: Histogram
    least_window_left: int | None
    least_expiry_left_us: int | None


@dataclass(frozen=True, slots=True)
class Timeline:
    """Receipts and duplicates in equal slices of time, by `received_at` as read."""

    start_us: int
    slice_us: int
    receipts: tuple[int, ...]
    duplicates: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Finding:
    """Something true of this log that a person should know before choosing; `text` holds its figures."""

    kind: str
    """A fixed word, such as `crosses-connections`; programs may look for it."""
    text: str


@dataclass(frozen=True, slots=True)
class Recommendation:
    """The cheapest setting that misses no more than was allowed, with a margin over what the log needed."""

    setting: SettingFigures
    memory_bytes: int
    database_bytes: int
    margin: float
    why: str


@dataclass(frozen=True, slots=True)
class Analysis:
    """Everything that the table, the JSON and the report show."""

    key: str
    """The domain KEY the log was replayed under."""
    log: LogFigures
    settings: tuple[SettingFigures, ...]
    """Sums over the domains, ordered by window, then expiry."""
    domains: tuple[DomainFigures, ...]
    """Ordered by name."""
    recommendation: Recommendation
    findings: tuple[Finding, ...]
    sources: tuple[SourceFigures, ...]
    """The sources that need most, worst first; not all of them."""
    window_needs: Histogram
    """Per duplicate, the smallest W that catches it alone: the reuse distance in distinct ids of the source, plus 1."""
    expiry_needs_us: Histogram
    """Per duplicate, the smallest E that catches it alone (W = 0)."""
    headroom: HeadroomFigures | None
    timeline: Timeline | None
    """None for a log without receipts."""
    bytes_per_id: int
    """Memory per remembered id, from settings.yaml."""
