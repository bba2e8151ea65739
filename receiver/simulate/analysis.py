"""From a log that can be replayed to everything that the reports show."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from receiver.domains import domain_key
from receiver.settings import ReceiverSettings, SimulateSettings
from receiver.simulate.figures import Analysis, SettingFigures
from receiver.simulate.findings import Known, findings_of
from receiver.simulate.grid import check_grid, chosen_expiries_us, chosen_windows
from receiver.simulate.recommend import sizing_of
from receiver.simulate.replays import missed_between, missed_by

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from receiver.simulate.figures import SourceFigures
    from receiver.simulate.headroom import Replays
    from receiver.simulate.replays import Facts, PairOutcome


@dataclass(frozen=True, slots=True)
class Question:
    """What an analysis is asked; `SettingsError` for what can't be answered."""

    key: str
    """The KEY of the domains."""
    windows: list[int] | None = None
    """The windows of the grid. This list and that of the expiries are chosen from the log where they are None."""
    expiries_us: list[int] | None = None
    settings: SimulateSettings = field(default_factory=SimulateSettings)
    present: tuple[int, int] | None = None
    """The window and the expiry in microseconds that are set at present; None for Apama's defaults."""

    def __post_init__(self) -> None:
        domain_key(self.key)
        if self.windows is not None and self.expiries_us is not None:
            check_grid(self.windows, self.expiries_us)


def analyse(replays: Replays, question: Question) -> Analysis:
    """Replay a log under every setting of a grid, recommend one, and say what stands out."""
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
        domains=tuple(
            replace(domain, settings=_setting_figures(windows, expiries_us, caught, peak_ids, domain.duplicates))
            for domain, caught, peak_ids in zip(facts.domains, replayed.caught, replayed.peak_ids, strict=True)
        ),
        recommendation=recommendation,
        kinds=kinds,
        evidence=evidence,
        elsewhere=facts.elsewhere,
        peak_per_second=facts.peak_per_second,
        findings=findings_of(Known(facts, recommendation, kinds, evidence, settings.max_missed, question.key)),
        sources=tuple(_source_figures(facts, outcome)),
        missed_by_window=missed_by(facts.whole.windows),
        missed_by_expiry_us=missed_between(facts.expiry_needs, facts.most_expiry_need_us),
        headroom=outcome.headroom(),
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


def _source_figures(facts: Facts, outcome: PairOutcome) -> Iterator[SourceFigures]:
    for index, source in enumerate(facts.sources):
        window_left, expiry_left_us = outcome.left(index)
        need_us = max(1, source.expiry_need_us)  # an expiry of 0 catches nothing
        yield replace(source, expiry_need_us=need_us, window_left=window_left, expiry_left_us=expiry_left_us)
