"""From a log that can be replayed to everything that the reports show."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from receiver.settings import ReceiverSettings, SimulateSettings
from receiver.simulate.figures import Analysis, DomainFigures, SettingFigures, SourceFigures
from receiver.simulate.findings import Known, findings_of
from receiver.simulate.grid import check_grid, chosen_expiries_us, chosen_windows
from receiver.simulate.recommend import sizing_of
from receiver.simulate.replays import missed_between, missed_by

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from receiver.simulate.replays import Facts, PairOutcome, Replayed, Replays

__all__ = ["Question", "analyse"]


@dataclass(frozen=True, slots=True)
class Question:
    """What an analysis is asked."""

    key: str
    """The KEY of the domains."""
    windows: list[int] | None = None
    """Those of the grid, as are the expiries; a list that is None is chosen from the log."""
    expiries_us: list[int] | None = None
    settings: SimulateSettings = field(default_factory=SimulateSettings)
    present: tuple[int, int] | None = None
    """The window and the expiry in microseconds that are set at present; None for Apama's defaults."""


def analyse(replays: Replays, question: Question) -> Analysis:
    """Replay a log under every setting of a grid, recommend one, and say what stands out."""
    # Here, because it loads Numba, and a caller that only needs `Question` is spared that.
    from receiver.simulate.headroom import headroom_of

    settings = question.settings
    facts = replays.facts()
    sizing = sizing_of(replays, settings, question.present or ReceiverSettings().sizes)
    window, expiry_us = sizing.asked[0].both
    windows = question.windows or sorted({*chosen_windows(facts.whole.windows.most), window})
    expiries_us = question.expiries_us or sorted({*chosen_expiries_us(facts.most_expiry_need_us), expiry_us})
    check_grid(windows, expiries_us)
    pairs = sizing.pairs
    replayed = replays.replay(windows, expiries_us, pairs)
    outcomes = dict(zip(pairs, replayed.pairs, strict=True))
    recommendation, kinds, evidence = sizing.choose(outcomes)
    outcome = outcomes[recommendation.setting.window, recommendation.setting.expiry_us]
    return Analysis(
        key=question.key,
        log=facts.log,
        settings=_setting_figures(
            windows,
            expiries_us,
            np.sum(replayed.caught, axis=0),
            np.sum(replayed.peak_ids, axis=0),
            facts.log.duplicates,
        ),
        domains=_domain_figures(facts, windows, expiries_us, replayed),
        recommendation=recommendation,
        kinds=kinds,
        evidence=evidence,
        elsewhere=facts.elsewhere,
        peak_per_second=facts.peak_per_second,
        findings=findings_of(Known(facts, recommendation, kinds, evidence, settings.max_missed, question.key)),
        sources=_source_figures(facts, outcome),
        missed_by_window=missed_by(facts.whole.windows),
        missed_by_expiry_us=missed_between(facts.expiry_needs, facts.most_expiry_need_us),
        headroom=headroom_of(outcome.slack),
        timeline=facts.timeline,
        bytes_per_id=settings.memory_bytes_per_id,
    )


def _setting_figures(
    windows: Sequence[int],
    expiries_us: Sequence[int],
    caught: npt.NDArray[np.int64],
    peak_ids: npt.NDArray[np.int64],
    duplicates: int,
) -> tuple[SettingFigures, ...]:
    return tuple(
        SettingFigures(w, e, int(caught[i, j]), duplicates - int(caught[i, j]), int(peak_ids[i, j]))
        for i, w in enumerate(windows)
        for j, e in enumerate(expiries_us)
        if (w, e) != (0, 0)
    )


def _domain_figures(
    facts: Facts, windows: Sequence[int], expiries_us: Sequence[int], replayed: Replayed
) -> tuple[DomainFigures, ...]:
    return tuple(
        DomainFigures(
            domain.name,
            domain.receipts,
            domain.duplicates,
            domain.sources,
            domain.window_need,
            domain.expiry_need_us,
            _setting_figures(windows, expiries_us, caught, peak_ids, domain.duplicates),
        )
        for domain, caught, peak_ids in zip(facts.domains, replayed.caught, replayed.peak_ids, strict=True)
    )


def _source_figures(facts: Facts, outcome: PairOutcome) -> tuple[SourceFigures, ...]:
    return tuple(
        SourceFigures(
            domain=source.domain,
            source=source.source,
            receipts=source.receipts,
            duplicates=source.duplicates,
            window_need=source.window_need,
            expiry_need_us=max(1, source.expiry_need_us),  # an expiry of 0 catches nothing
            window_left=window_left,
            expiry_left_us=expiry_left_us,
        )
        for source, (window_left, expiry_left_us) in zip(facts.sources, outcome.source_slack, strict=True)
    )
