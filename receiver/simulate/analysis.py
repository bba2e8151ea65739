"""Analyses a log: sizes and replays settings, and gathers the figures of the reports.

A setting of each `Kind` is sized by the needs of duplicates, then replayed with the grid. The rules give two guarantees. An
id that comes again within E is caught, however busy the source was. An id that comes again within the last W ids of its source
is caught, however late it is. So for `both`, each tier alone catches the log's duplicates, with the margin. Such a setting
still holds on a day with more traffic or with longer pauses.

`lean` is the setting with the fewest ids. Caught duplicates only grow with W and with E. So for each window w there is one
smallest expiry e(w) that misses no more than allowed. The windows tried are 0 (the time queue alone), the largest need (the
per-source tier alone), and the quantiles of the duplicates' needs in between, where one tier takes over from the other.
Each pair is multiplied by the margin, rounded up and replayed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np

from receiver.settings import ReceiverSettings, SimulateSettings
from receiver.simulate.compiled import Int64s
from receiver.simulate.domain_rows import expiry_need_us
from receiver.simulate.facts import Facts, PartNeeds, PerPart, ValueCounts
from receiver.simulate.figures import Analysis, Pair, SourceFigures
from receiver.simulate.findings import Known, findings_of
from receiver.simulate.kernel import WindowAsked
from receiver.simulate.question import Question, check_grid
from receiver.simulate.recommend import LEAST_EXPIRY_US, Asked, Choice, rounded_up, with_margin
from receiver.simulate.replays import PairOutcome, Replays, Section

Grid = tuple[list[int], list[int]]
"""Windows and expiries, each ascending."""
_TIMES_DELIVERY = 3
"""Apama's rule of thumb: an expiry of two to three times the longest redelivery."""
_QUANTILES = (0.5, 0.9, 0.99, 0.999)
_CHOSEN = 8
"""The most values of W, or of E, that are chosen if none are given."""


def analyse(log: Replays, question: Question) -> Analysis:
    """Replay a log under every setting of a grid, recommend one, and say what stands out."""
    facts, (grid, choice) = log.facts, sized(log, question)
    check_grid(*grid)
    replayed = log.replay(*grid, choice.pairs)
    recommendation, kinds, evidence = choice.choose(replayed.pairs)
    outcome = replayed.pairs[recommendation.setting.pair]
    return Analysis(
        key=question.key,
        log=facts.log,
        settings=replayed.settings,
        domains=replayed.domains,
        recommendation=recommendation,
        kinds=kinds,
        evidence=evidence,
        elsewhere=facts.elsewhere,
        peak_per_second=facts.peak_per_second,
        findings=findings_of(Known(facts, recommendation, kinds, evidence, question.key)),
        sources=tuple(_source_figures(facts, outcome)),
        missed_by_window=facts.missed_by_window,
        missed_by_expiry_us=facts.missed_by_expiry_us,
        headroom=outcome.headroom,
        timeline=facts.timeline,
        bytes_per_id=question.settings.memory_bytes_per_id,
    )


def _source_figures(facts: Facts, outcome: PairOutcome) -> Iterator[SourceFigures]:
    for index, source in enumerate(facts.sources):
        window_left, expiry_left_us = outcome.left(index)
        need_us = max(1, source.expiry_need_us)  # an expiry of 0 catches nothing
        yield replace(source, expiry_need_us=need_us, window_left=window_left, expiry_left_us=expiry_left_us)


def sized(log: Replays, question: Question) -> tuple[Grid, Choice]:
    """The grid to replay; and settings of each kind, sized by the whole log and by each half."""
    facts, settings = log.facts, question.settings
    tried = tuple(_windows(part.windows, facts.max_missed) for part in facts.parts)
    both = _asked(facts.whole, [], facts, settings).both
    grid = grid_of(question, facts, both)
    # No half needs more than the whole log, and no duplicate needs a larger E beside a window than without one.
    lean = with_margin(max(chain(*tried), default=0), facts.whole.expiry_us, settings.margin)
    windows, expiries_us = zip(both, lean, question.present, ReceiverSettings().sizes, map(max, grid), strict=True)
    together = needs_together(log, tried, (max(windows), max(expiries_us)))
    asked = (_asked(*part, facts, settings) for part in zip(facts.parts, together, strict=True))
    return grid, Choice(facts, question, tuple(asked))


def _windows(needs: ValueCounts, max_missed: int) -> list[int]:
    """The windows to try for `lean`: 0, the largest need that counts, and quantiles in between."""
    if not needs.total:
        return []
    last = needs.total - 1
    # The `max_missed` largest needs may be missed. The next one is then the largest that counts.
    ranks = (max(0, last - max_missed), *(int(q * last) for q in _QUANTILES))
    return sorted({0, *(needs.at(rank) for rank in ranks)})


def _asked(part: PartNeeds, lean: Sequence[Pair], facts: Facts, settings: SimulateSettings) -> Asked:
    """The settings that a part of the log asks for. `lean`: what it needs of both tiers together, without a margin."""
    window, expiry_us = with_margin(part.window, part.expiry_us, settings.margin)
    # However little the duplicates need, the expiry covers a redelivery.
    least_us = rounded_up(max(_TIMES_DELIVERY * facts.log.delivery_us, LEAST_EXPIRY_US))
    enlarged = {with_margin(*need, settings.margin) for need in lean if need != (0, 0)}
    return Asked((window, max(expiry_us, least_us)), (window, least_us), sorted(enlarged) or [ReceiverSettings().sizes])


def needs_together(log: Replays, tried: PerPart[Sequence[int]], largest: Pair) -> PerPart[list[Pair]]:
    """Each window tried for a part, with the smallest E in microseconds that together with it misses no more of the part's
    duplicates than allowed; 0 if the window alone does. No later replay exceeds `largest`.
    """
    facts = log.facts
    max_missed = facts.max_missed  # so that `work`, which may be sent to tasks, doesn't take all facts along
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
    """The largest expiry needs of those duplicates of one section, in one half of the log, that a window misses."""

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


def grid_of(question: Question, facts: Facts, also: Pair) -> Grid:
    """The windows and the expiries to try. Those that are chosen from the log include `also`."""
    # Chosen values are 0, the default, and steps up to twice the largest need.
    windows = question.windows or _ladder(facts.whole.windows.most, also[0], ReceiverSettings().sizes[0], least=10)
    most_us = facts.most_expiry_need_us
    expiries_us = question.expiries_us or _ladder(most_us, also[1], ReceiverSettings().sizes[1], least=100_000)
    return windows, expiries_us


def _ladder(most_need: int, also: int, default: int, *, least: int) -> list[int]:
    """0, the default, `also`, and a few round steps (1, 2, 5, 10 ...) from the least to the first that is at least twice the
    largest need."""
    most = 2 * max(least, most_need, default // 20)
    steps = [mantissa * 10**power for power in range(1, 19) for mantissa in (1, 2, 5)]
    rungs = [step for step in steps if least <= step < most]
    rungs.append(next(step for step in steps if step >= most))
    keep = {rungs[round(i)] for i in np.linspace(0, len(rungs) - 1, min(len(rungs), _CHOSEN - 2))}
    return sorted({0, default, also, *keep})
