"""The settings to choose from, one of each `Kind`: how they are sized, what each costs, and which one to take.

What is set today is kept, and raised where the log asks for more, because ids are cheap and a missed duplicate isn't. It is
lowered only where memory is short: then the safest kind that fits the budget is taken.

Two sentences follow from the rules. An id that comes again within E is caught, however busy the source was. An id that
comes again within the last W ids of its source is caught, however late it is. So `both` asks each tier alone to catch what
the log holds, with the margin. Such a setting still holds on a day with more traffic or with longer pauses.

`lean` is the setting with the fewest ids. Caught duplicates only grow with W and with E. So for each window w there is one
smallest expiry e(w) that misses no more than allowed. The windows tried are 0 (the time queue alone), the largest need (the
per-source tier alone), and the quantiles of the duplicates' needs in between, where one tier takes over from the other.
Each pair is multiplied by the margin, rounded up and replayed.

A way of choosing is put to the test on the log itself: what it chooses by the duplicates of one half is replayed against
those of the other.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from receiver.quantities import count, seconds
from receiver.settings import ReceiverSettings
from receiver.simulate.compiled import Int64s
from receiver.simulate.domain_rows import expiry_need_us
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
from receiver.simulate.kernel import WindowAsked

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from receiver.settings import SimulateSettings
    from receiver.simulate.facts import Facts, PartNeeds, PerPart, ValueCounts
    from receiver.simulate.question import Question
    from receiver.simulate.replays import PairOutcome, Replays, Section

_LEAST_EXPIRY_US = 1_000_000
_TIMES_DELIVERY = 3
"""Apama's rule of thumb: an expiry of two to three times the longest redelivery."""
_QUANTILES = (0.5, 0.9, 0.99, 0.999)
STRONG_BURSTS, FAIR_BURSTS = 30, 10
STRONG_SPANS = 10
"""How many times as long as the longest repeat a log must be."""
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
_CHOSEN = 8
"""How many values are chosen at most where nobody lists any."""
_CROSSING = 10
"""The KEY is in doubt where it hides more repeats than one for so many duplicates that it counts."""


def _rounded_up(value: Fraction | int) -> int:
    """To two significant digits, upwards: settings are read by people."""
    whole = math.ceil(value)
    unit: int = 10 ** max(0, len(str(whole)) - 2)
    return -(-whole // unit) * unit


def _times(margin: float, need: int) -> Fraction:
    """Exactly, by the margin's shortest decimal form: 1.1 times 100 is 110, not a little more."""
    return Fraction(repr(margin)) * need


def with_margin(window: int, expiry_us: int, margin: float) -> Pair:
    """The setting that stands for a need: so many times as much, rounded up."""
    expiry = max(_LEAST_EXPIRY_US, _rounded_up(_times(margin, expiry_us))) if expiry_us else 0
    return _rounded_up(_times(margin, window)), expiry


def elsewhere_with_margin(needs: Elsewhere, margin: float) -> Elsewhere:
    """What to set other systems' memories to."""
    ring, lru, sources = (
        _rounded_up(_times(margin, need)) for need in (needs.artemis_id_cache_size, needs.lru_size, needs.sources)
    )
    _, ttl_us = with_margin(0, max(1, needs.ttl_us), margin)
    # Some systems forget an id that is exactly as old as their time, and others don't say: so it is longer than the need.
    return Elsewhere(ring, lru, max(ttl_us, _rounded_up(needs.ttl_us + 1)), sources)


def _windows(needs: ValueCounts, max_missed: int) -> list[int]:
    """The windows to try for `lean`: 0, the largest need that counts, and quantiles in between."""
    if not needs.total:
        return []
    last = needs.total - 1
    # The largest needs may be missed, as many as `max_missed`. The next one is then the largest that counts.
    ranks = (max(0, last - max_missed), *(int(q * last) for q in _QUANTILES))
    return sorted({0, *(needs.at(rank) for rank in ranks)})


class _Asked(NamedTuple):
    """The pairs that a log, or half of it, asks for: one of each kind."""

    both: Pair
    window: Pair
    lean: Sequence[Pair]
    """Several: which of them remembers the fewest ids is known once they are replayed."""


def _asked(part: PartNeeds, lean: Sequence[Pair], facts: Facts, settings: SimulateSettings) -> _Asked:
    """`lean` is what the part needs of both tiers together, without a margin."""
    window = _rounded_up(_times(settings.margin, part.window))
    # However little the duplicates need, the expiry covers a redelivery.
    least_us = Fraction(max(_TIMES_DELIVERY * facts.log.delivery_us, _LEAST_EXPIRY_US))
    enlarged = {with_margin(*need, settings.margin) for need in lean if need != (0, 0)}
    return _Asked(
        both=(window, _rounded_up(max(_times(settings.margin, part.expiry_us), least_us))),
        window=(window, _rounded_up(least_us)),
        lean=sorted(enlarged) or [ReceiverSettings().sizes],
    )


def sizing_of(log: Replays, question: Question) -> Sizing:
    """What to replay in order to size each kind, by what each part of the log needs of both tiers together."""
    facts, settings = log.facts, question.settings
    tried = tuple(_windows(part.windows, facts.max_missed) for part in facts.parts)
    both = _asked(facts.whole, [], facts, settings).both
    grid = grid_of(question, facts, both)
    # What a half needs, and what is needed beside a window, is never more than what the whole log needs without one.
    lean = with_margin(max(chain(*tried), default=0), facts.whole.expiry_us, settings.margin)
    windows, expiries_us = zip(both, lean, question.present, ReceiverSettings().sizes, map(max, grid), strict=True)
    together = needs_together(log, tried, (max(windows), max(expiries_us)))
    asked = (_asked(*part, facts, settings) for part in zip(facts.parts, together, strict=True))
    return Sizing(facts, question, tuple(asked), grid)


def needs_together(log: Replays, tried: PerPart[Sequence[int]], largest: Pair) -> PerPart[list[Pair]]:
    """Each window tried for a part, and the smallest E in microseconds that together with it misses no more of the
    part's duplicates than allowed; 0 where none is needed. Nothing that is asked later exceeds `largest`.
    """
    facts = log.facts
    max_missed = facts.max_missed  # for `work`, which may be sent to tasks: not with all the facts
    # A window that catches all of a part needs no expiry, and the need without a window is known.
    parts = zip(facts.parts, tried, strict=True)
    windows = sorted({window for part, of_part in parts for window in of_part if 0 < window < part.windows.most})

    def work(section: Section) -> Iterator[TopNeeds]:
        return _top_needs(section, windows, max_missed)

    needs_us: defaultdict[tuple[int, int], list[Int64s]] = defaultdict(list)
    for top in log.in_sections("Trying windows", work, TopNeeds, largest) if windows else ():
        for part in (0, 1 + top.half):
            needs_us[part, top.window].append(top.expiry_us)

    def need_us(part: int, window: int) -> int:
        if window == 0:
            return facts.parts[part].expiry_us
        own = needs_us.get((part, window))
        return expiry_need_us(np.concatenate(own), max_missed) if own else 0

    return tuple([(window, need_us(part, window)) for window in of_part] for part, of_part in enumerate(tried))


@dataclass(frozen=True, slots=True)
class TopNeeds:
    """The largest expiries that duplicates of one section, in one half of the log, need beside a window which misses them."""

    window: int
    half: int
    """0 for the first half, 1 for the second."""
    expiry_us: Int64s


def _top_needs(section: Section, windows: Sequence[int], max_missed: int) -> Iterator[TopNeeds]:
    """For each window and half, the largest needs: at most `max_missed` + 1 of them."""
    asked = [WindowAsked(window, [], with_needs=True) for window in windows]
    for window, (_, _, needs_us) in zip(windows, section.replay(asked), strict=True):
        for half, of_half in enumerate((needs_us[: section.in_first_half], needs_us[section.in_first_half :])):
            top_us = np.sort(of_half[of_half >= 0])[-max_missed - 1 :]
            if len(top_us):
                yield TopNeeds(window, half, top_us)


def grid_of(question: Question, facts: Facts, also: Pair) -> tuple[list[int], list[int]]:
    """The windows and the expiries to try; what is chosen from the log has this setting among it."""
    # A log's duplicates come to be caught at 0, at the default, and at steps up to twice what one of them needs most.
    windows = question.windows or _ladder(facts.whole.windows.most, also[0], ReceiverSettings().sizes[0], least=10)
    most_us = facts.most_expiry_need_us
    expiries_us = question.expiries_us or _ladder(most_us, also[1], ReceiverSettings().sizes[1], least=100_000)
    return windows, expiries_us


def _ladder(most_need: int, also: int, default: int, *, least: int) -> list[int]:
    """0, the default, `also`, and a few round steps (1, 2, 5, 10 ...) from the least to the first that is twice the most
    needed."""
    most = 2 * max(least, most_need, default // 20)
    steps = [mantissa * 10**power for power in range(1, 19) for mantissa in (1, 2, 5)]
    rungs = [step for step in steps if least <= step < most]
    rungs.append(next(step for step in steps if step >= most))
    keep = {rungs[round(i)] for i in np.linspace(0, len(rungs) - 1, min(len(rungs), _CHOSEN - 2))}
    return sorted({0, default, also, *keep})


@dataclass(frozen=True, slots=True)
class Sizing:
    """What to replay: the grid, and the pairs that the whole log and each half ask for."""

    facts: Facts
    question: Question
    asked: PerPart[_Asked]
    grid: tuple[list[int], list[int]]

    @property
    def pairs(self) -> list[Pair]:
        pairs = {self.question.present, self._kept()}
        for part in self.asked:
            pairs |= {part.both, part.window, *part.lean}
        return sorted(pairs)

    def _kept(self) -> Pair:
        (window, expiry_us), both = self.question.present, self.asked[0].both
        return max(window, both[0]), max(expiry_us, both[1])

    def choose(self, outcomes: Mapping[Pair, PairOutcome]) -> tuple[Recommendation, tuple[SizedSetting, ...], Evidence]:
        """By what the replay of each pair came to: the setting to take, one of each kind, and what that rests on."""
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

    def _pair_of(self, kind: Kind, part: _Asked, outcomes: Mapping[Pair, PairOutcome]) -> Pair:
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
        # What one half chose is held against the other: its duplicates, less those of them that were caught.
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
        """Says which KEY would count the repeats that this one hides, where those are many."""
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
        """Why what is set today can't be kept, and what may get through that it would catch."""
        budget_bytes, (window, expiry_us) = self.question.settings.budget_bytes, self.question.present
        advised = sized.setting
        said = f"Memory decides: '{keep.kind}' takes {keep.memory_bytes:,} bytes, and --budget allows {budget_bytes:,}."
        if sized.memory_bytes > budget_bytes:
            said += f" This takes {sized.memory_bytes:,}, the least of all."
        if advised.window >= window and advised.expiry_us >= expiry_us:
            return said
        said += (
            f" The risk: a repeat that comes more than {seconds(advised.expiry_us)} and {count(advised.window, 'id')} later may "
            f"get through. What is set today catches each within {seconds(expiry_us)} or {count(window, 'id')}."
        )
        if evidence.grade is Grade.WEAK:
            said += " A log that says this little is no reason to set less: raise --budget if you can."
        return said
