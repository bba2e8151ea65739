"""The figures of an analysis, as plain values: the reports format them, and nothing here knows how they were counted.

Times are whole microseconds (`_us`); sizes are bytes. Needs are exact: each is the smallest setting that would have caught
the duplicate. In JSON, logs, domains, settings, findings and the like have these names of their fields.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from enum import StrEnum

from receiver.policies.interface import Explained, Limit

Pair = tuple[int, int]
"""A window, and an expiry in microseconds."""
Curve = tuple[tuple[int, int], ...]
"""Settings, ascending, each with the number of duplicates that it misses. A setting between two of them misses at most as many
as the smaller.

A curve begins with setting 0 and ends with the least that misses none; it is empty for a log without duplicates.
"""
WORST_SOURCES = 50
"""The most sources that an analysis lists."""


@dataclass(frozen=True, slots=True)
class SettingFigures:
    """One pair of the grid: a window W, an expiry E, and the log's figures under them."""

    window: int
    expiry_us: int
    caught: int
    missed: int
    peak_ids: int

    @property
    def pair(self) -> Pair:
        return self.window, self.expiry_us


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
        """The time half way from the first receipt to the last, rounded down; 0 for a log without receipts."""
        return ((self.first_received_at_us or 0) + (self.last_received_at_us or 0)) // 2

    @property
    def span_us(self) -> int:
        """The time from the first receipt to the last."""
        return (self.last_received_at_us or 0) - (self.first_received_at_us or 0)

    @property
    def delivery_us(self) -> int:
        """The longest redelivery, at most the span of the log: a longer one shows a sender's clock that is wrong."""
        return min(round(self.max_delivery_secs * 1_000_000), self.span_us)


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """The least sizes with which other systems' memories miss no duplicate, without a margin."""

    artemis_id_cache_size: int = 0
    """The least size of a ring of ids: the most new ids from the first receipt of an id, itself included, to a repeat."""
    lru_size: int = 0
    """The least size of an LRU memory of ids, for which a repeat is a use: the most different ids from the newest receipt of an
    id, itself included, to a repeat."""
    ttl_us: int = 0
    """The longest time from the first receipt of an id to a repeat."""
    sources: int = 0
    """The number of sources, for a memory that has one number for each."""

    @classmethod
    def largest(cls, parts: Iterable[Elsewhere | None]) -> Elsewhere | None:
        """The largest of each need; None if there are none."""
        needs = list(filter(None, parts))
        return cls(*(max(getattr(part, need.name) for part in needs) for need in fields(cls))) if needs else None

    def of(self, limit: Limit) -> int:
        """The need of a memory with this kind of limit: ids, microseconds or sources."""
        match limit:
            case Limit.ACCEPTED:
                return self.artemis_id_cache_size
            case Limit.USED:
                return self.lru_size
            case Limit.AGE:
                return self.ttl_us
            case Limit.SOURCES:
                return self.sources


@dataclass(frozen=True, slots=True)
class DomainFigures:
    domain: str
    receipts: int
    duplicates: int = 0
    sources: int = 0
    """The number of sources, including those of receipts without an id."""
    window_need: int = 0
    """The least W that, without the time tier, misses no more of its duplicates than allowed."""
    expiry_need_us: int = 0
    """The least E that, without a window, misses no more of its duplicates than allowed."""
    elsewhere: Elsewhere | None = None
    """None without duplicates."""
    settings: tuple[SettingFigures, ...] = ()


@dataclass(frozen=True, slots=True)
class SourceFigures:
    """One source of one domain: its needs, and its share of the log."""

    domain: str
    source: str
    """Empty for the anonymous source."""
    receipts: int
    duplicates: int
    window_need: int
    """The smallest W that catches all of its duplicates without the time tier."""
    expiry_need_us: int
    """The smallest E that catches all of its duplicates without the per-source tier."""
    window_left: int | None = None
    """The least headroom in W of its duplicates that the recommended setting catches by the source's queue."""
    expiry_left_us: int | None = None
    """The least headroom in E of its duplicates that the recommended setting catches by the time queue alone."""


@dataclass(frozen=True, slots=True)
class HeadroomFigures:
    """How nearly the recommended setting missed the duplicates that it catches."""

    caught_by_source: int
    """Duplicates whose id a source's queue still held."""
    caught_by_time: int
    """Duplicates whose id only the time queue still held."""
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
    """A fact about this log that a person should know before choosing; `text` holds its figures."""

    id: str
    """A fixed name, such as `crosses-connections`, for programs."""
    text: str


class Kind(Explained):
    """How a setting is chosen for a log, and what it does: with the margin, if it is sized by the log."""

    BOTH = "both", "either tier alone catches what the log holds"
    WINDOW = "window", "the window alone does; E covers redeliveries only"
    LEAN = "lean", "the fewest ids: one tier or the other catches it"
    KEEP = "keep", "what is set today, raised where the log needs more"
    PRESENT = "present", "what is set today"


@dataclass(frozen=True, slots=True)
class Unseen:
    """A test of a way of choosing: it chooses by each half of a log, and the setting is replayed on the other half."""

    duplicates: int
    missed: int
    """The other half's duplicates that were missed, both ways added up."""


@dataclass(frozen=True, slots=True)
class SizedSetting:
    """The setting that one `Kind` chooses, and what it costs."""

    kind: Kind
    setting: SettingFigures
    memory_bytes: int
    database_bytes: int
    unseen: Unseen | None
    """None for kinds that aren't chosen by the log alone."""


class Grade(StrEnum):
    """How sure the advice is."""

    STRONG = "strong"
    FAIR = "fair"
    WEAK = "weak"


@dataclass(frozen=True, slots=True)
class Evidence:
    grade: Grade
    bursts: int
    """Groups of duplicates of one domain that came close together. Each group counts as one disturbance."""
    window_need: int
    """The least W that, without the time tier, misses no more duplicates than allowed."""
    expiry_need_us: int
    """The least E that, without a window, misses no more duplicates than allowed."""
    span_us: int


class Move(StrEnum):
    """What the advice does to today's W, or to today's E."""

    KEEP = "keep"
    RAISE = "raise"
    LOWER = "lower"

    @classmethod
    def between(cls, today: int, advised: int) -> Move:
        if today == advised:
            return cls.KEEP
        return cls.RAISE if advised > today else cls.LOWER


@dataclass(frozen=True, slots=True)
class Recommendation:
    """The setting to take, of those that were sized."""

    sized: SizedSetting
    present: Pair
    """Today's setting."""
    margin: float
    why: str
    """What the log needs, and how the setting follows from it."""
    risk: str = ""
    """What may get through because of the budget; empty if today's setting fits the budget."""
    caveat: str = ""
    """Which KEY to try first, if this one hides many repeats; else empty."""

    @property
    def setting(self) -> SettingFigures:
        return self.sized.setting

    @property
    def explanation(self) -> str:
        return " ".join(filter(None, (self.why, self.risk, self.caveat)))

    @property
    def window_move(self) -> Move:
        return Move.between(self.present[0], self.setting.window)

    @property
    def expiry_move(self) -> Move:
        return Move.between(self.present[1], self.setting.expiry_us)

    @property
    def lowers(self) -> bool:
        return Move.LOWER in {self.window_move, self.expiry_move}


@dataclass(frozen=True, slots=True)
class Analysis:
    """Everything that the table, the JSON and the report show."""

    key: str
    """The domain KEY under which the log was replayed."""
    log: LogFigures
    settings: tuple[SettingFigures, ...]
    """Sums over the domains, ordered by window, then expiry."""
    domains: tuple[DomainFigures, ...]
    """Ordered by name."""
    recommendation: Recommendation
    kinds: tuple[SizedSetting, ...]
    """One of each `Kind`, in their order."""
    evidence: Evidence
    elsewhere: Elsewhere | None
    """The largest needs of any domain; None for a log without duplicates."""
    peak_per_second: int
    """The most receipts with an id from one source in one second of the clock."""
    findings: tuple[Finding, ...]
    sources: tuple[SourceFigures, ...]
    """The sources that need most, worst first, and no more than `WORST_SOURCES`."""
    missed_by_window: Curve
    """How many duplicates each window alone misses (E = 0)."""
    missed_by_expiry_us: Curve
    """How many duplicates each expiry alone misses (W = 0)."""
    headroom: HeadroomFigures
    timeline: Timeline | None
    """None for a log without receipts."""
    bytes_per_id: int
    """Memory per remembered id, from settings.yaml."""

    def of(self, kind: Kind) -> SizedSetting:
        return next(sized for sized in self.kinds if sized.kind is kind)
