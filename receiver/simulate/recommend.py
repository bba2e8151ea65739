"""Recommends one of the sized settings, of which there is one for each `Kind`: what each costs, and why.

Today's setting is kept, and raised where the log asks for more, because ids are cheap and a missed duplicate isn't. It is
lowered only if memory is short: then the safest kind that fits the budget is taken.

Each way of choosing is tested on the log itself: its choice by the duplicates of one half is replayed against those of the
other.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, NamedTuple

from receiver.quantities import count, seconds
from receiver.simulate.figures import (
    Elsewhere,
    Evidence,
    Grade,
    Kind,
    Pair,
    Recommendation,
    SettingFigures,
    SizedSetting,
    Unseen,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from receiver.simulate.facts import Facts, PerPart
    from receiver.simulate.question import Question
    from receiver.simulate.replays import PairOutcome

LEAST_EXPIRY_US = 1_000_000
_MOST_EXPIRY_US = 10**18
"""The largest expiry that can be set. Larger ones soon exceed 64 bits."""
STRONG_BURSTS, FAIR_BURSTS = 30, 10
STRONG_SPANS = 10
"""For strong evidence, a log must be this many times as long as its longest repeat."""
_BY_THE_LOG = (Kind.BOTH, Kind.WINDOW, Kind.LEAN)
_SAFEST_FIRST = (Kind.KEEP, *_BY_THE_LOG)
"""The first whose memory is within the budget is recommended."""
_BY_KIND = {
    Kind.KEEP: "What is set today is kept, and raised where it is less than {margin} times that, rounded up.",
    Kind.BOTH: "Both are set, each to {margin} times that, rounded up: either tier alone catches it.",
    Kind.WINDOW: "The window is set, to {margin} times that, rounded up; the expiry only covers redeliveries.",
    Kind.LEAN: "W and E are set to {margin} times what they need together, rounded up: the fewest ids.",
}
"""Why a setting is recommended."""
_CROSSING = 10
"""The KEY is in doubt if it hides more than one repeat for this many duplicates that it counts."""


def rounded_up(value: Fraction | int) -> int:
    """The value rounded up to two significant digits, because people read settings."""
    whole = math.ceil(value)
    unit: int = 10 ** max(0, len(str(whole)) - 2)
    return -(-whole // unit) * unit


def _times(margin: float, need: int) -> Fraction:
    """The exact product, by the margin's shortest decimal form: 1.1 times 100 is 110, not a little more."""
    return Fraction(repr(float(margin))) * need


def with_margin(window: int, expiry_us: int, margin: float) -> Pair:
    """The setting for a need: the need times the margin, rounded up."""
    expiry = max(LEAST_EXPIRY_US, rounded_up(_times(margin, expiry_us))) if expiry_us else 0
    return rounded_up(_times(margin, window)), min(expiry, _MOST_EXPIRY_US)


def elsewhere_with_margin(needs: Elsewhere, margin: float) -> Elsewhere:
    """The settings for other systems' memories: their needs times the margin, rounded up."""
    ring, lru, sources = (
        rounded_up(_times(margin, need)) for need in (needs.artemis_id_cache_size, needs.lru_size, needs.sources)
    )
    _, ttl_us = with_margin(0, max(1, needs.ttl_us), margin)
    # Some systems forget an id once it is exactly as old as their time, and others don't say: so the time exceeds the need.
    return Elsewhere(ring, lru, max(ttl_us, rounded_up(needs.ttl_us + 1)), sources)


class Asked(NamedTuple):
    """The pairs that a log, or half of it, asks for, by kind."""

    both: Pair
    window: Pair
    lean: Sequence[Pair]
    """Several candidates: only their replay shows which remembers the fewest ids."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A setting of each kind, to be replayed, then chosen from."""

    facts: Facts
    question: Question
    asked: PerPart[Asked]

    @property
    def pairs(self) -> list[Pair]:
        """All pairs to replay."""
        pairs = {self.question.present, self._kept()}
        for part in self.asked:
            pairs |= {part.both, part.window, *part.lean}
        return sorted(pairs)

    def _kept(self) -> Pair:
        (window, expiry_us), both = self.question.present, self.asked[0].both
        return max(window, both[0]), max(expiry_us, both[1])

    def choose(self, outcomes: Mapping[Pair, PairOutcome]) -> tuple[Recommendation, tuple[SizedSetting, ...], Evidence]:
        """From the replay of each pair, the setting to take, a setting of each kind, and the evidence."""
        settings = self.question.settings
        kinds = tuple(self._sized(kind, outcomes) for kind in Kind)
        by_kind = {sized.kind: sized for sized in kinds}
        evidence = self._evidence(by_kind[Kind.BOTH])
        order = [by_kind[kind] for kind in _SAFEST_FIRST]
        affordable = (sized for sized in order if sized.memory_bytes <= settings.budget_bytes)
        sized = next(affordable, order[-1])
        risk = "" if sized is order[0] else self._risk(sized, order[0], evidence)
        why = self._why(sized, evidence)
        advised = Recommendation(sized, self.question.present, settings.margin, why, risk, self._caveat())
        return advised, kinds, evidence

    def _pair_of(self, kind: Kind, part: Asked, outcomes: Mapping[Pair, PairOutcome]) -> Pair:
        match kind:
            case Kind.BOTH:
                return part.both
            case Kind.WINDOW:
                return part.window
            case Kind.LEAN:
                return min(part.lean, key=lambda pair: (outcomes[pair].peak_ids, pair))
            case Kind.KEEP:
                return self._kept()
            case Kind.PRESENT:
                return self.question.present

    def _sized(self, kind: Kind, outcomes: Mapping[Pair, PairOutcome]) -> SizedSetting:
        pair = self._pair_of(kind, self.asked[0], outcomes)
        outcome, duplicates, settings = outcomes[pair], self.facts.log.duplicates, self.question.settings
        return SizedSetting(
            kind=kind,
            setting=SettingFigures(*pair, outcome.caught, duplicates - outcome.caught, outcome.peak_ids),
            memory_bytes=outcome.peak_ids * settings.memory_bytes_per_id,
            database_bytes=outcome.peak_ids * settings.database_bytes_per_id,
            unseen=self._unseen(kind, outcomes) if kind in _BY_THE_LOG else None,
        )

    def _unseen(self, kind: Kind, outcomes: Mapping[Pair, PairOutcome]) -> Unseen:
        by_first, by_second = (outcomes[self._pair_of(kind, half, outcomes)] for half in self.asked[1:])
        in_first, in_second = (half.windows.total for half in self.facts.halves)
        # The choice of each half is tested on the other half: its duplicates, less those that were caught.
        missed = in_second - (by_first.caught - by_first.caught_in_first_half)
        missed += in_first - by_second.caught_in_first_half
        return Unseen(in_first + in_second, missed)

    def _evidence(self, both: SizedSetting) -> Evidence:
        facts = self.facts
        expiry_us, span_us = facts.whole.expiry_us, facts.log.span_us
        holds = both.unseen is not None and both.unseen.missed == 0
        if holds and facts.bursts >= STRONG_BURSTS and span_us >= STRONG_SPANS * expiry_us:
            grade = Grade.STRONG
        else:
            grade = Grade.FAIR if holds and facts.bursts >= FAIR_BURSTS else Grade.WEAK
        return Evidence(grade, facts.bursts, facts.whole.window, expiry_us, span_us)

    def _caveat(self) -> str:
        """Which KEY would count the repeats that this one hides; empty if they are few."""
        hidden, duplicates = self.facts.cross_domain.total(), self.facts.log.duplicates
        if hidden * _CROSSING <= duplicates:
            return ""
        return (
            f"But first run again with --domain destination: this KEY counts {count(duplicates, 'duplicate')}, and not the "
            f"{count(hidden, 'repeat')} that came over another connection or receiver of the same queue."
        )

    def _why(self, sized: SizedSetting, evidence: Evidence) -> str:
        max_missed, duplicates = self.question.settings.max_missed, self.facts.log.duplicates
        if not duplicates:
            return "The log holds no duplicate, so it says nothing about the windows."
        if max_missed >= duplicates:
            return "All duplicates of this log may be missed, so it asks for nothing."
        caught = "its one duplicate" if duplicates == 1 else f"all {duplicates:,} duplicates"
        if max_missed:
            caught = f"{caught} but {max_missed:,}"
        return (
            f"To catch {caught}, this log needs W = {evidence.window_need:,} without an expiry, or "
            f"E = {seconds(evidence.expiry_need_us)} without a window. "
        ) + _BY_KIND[sized.kind].format(margin=f"{self.question.settings.margin:g}")

    def _risk(self, sized: SizedSetting, keep: SizedSetting, evidence: Evidence) -> str:
        """Why today's setting can't be kept, and which repeats may get through that it would catch."""
        budget_bytes, (window, expiry_us) = self.question.settings.budget_bytes, self.question.present
        advised = sized.setting
        said = f"Memory decides: '{keep.kind}' takes {keep.memory_bytes:,} bytes, and --budget allows {budget_bytes:,}."
        if sized.memory_bytes > budget_bytes:
            said += f" This takes {sized.memory_bytes:,}, the least that catches what the log holds, with the margin."
        if advised.window >= window and advised.expiry_us >= expiry_us:
            return said
        said += (
            f" The risk: a repeat that comes more than {seconds(advised.expiry_us)} and {count(advised.window, 'id')} later may "
            f"get through. What is set today catches each within {seconds(expiry_us)} or {count(window, 'id')}."
        )
        if evidence.grade is Grade.WEAK:
            said += " A log that says this little is no reason to set less: raise --budget if you can."
        return said
