"""From a log's receipts to everything that the reports show."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from receiver.settings import ReceiverSettings, SimulateSettings
from receiver.simulate.figures import Analysis, DomainFigures, LogFigures, SettingFigures
from receiver.simulate.findings import Evidence, findings_of
from receiver.simulate.grid import check_grid, chosen_expiries_us, chosen_windows
from receiver.simulate.kernel import replay_grid
from receiver.simulate.needs import needs_of
from receiver.simulate.recommend import recommend
from receiver.simulate.replay import split_domains
from receiver.simulate.summaries import headroom_of, histogram, timeline_of, worst_sources

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import numpy.typing as npt

    from receiver.simulate.ingest import Receipts
    from receiver.simulate.replay import Domain

__all__ = ["Question", "analyse"]


@dataclass(frozen=True, slots=True)
class Question:
    """What to find out: the KEY of the domains and the grid, a list left None being chosen from the log."""

    key: str
    windows: list[int] | None = None
    expiries_us: list[int] | None = None
    settings: SimulateSettings | None = None


def _log_figures(receipts: Receipts, domains: Sequence[Domain]) -> LogFigures:
    times = receipts.received_at_us
    return LogFigures(
        receipts=len(times),
        unchecked=int(np.count_nonzero(receipts.id_number == 0)),
        skipped=receipts.skipped,
        duplicates=sum(domain.rows.duplicates for domain in domains),
        domains=len(domains),
        sources=sum(domain.sources for domain in domains),
        first_received_at_us=int(times.min()) if len(times) else None,
        last_received_at_us=int(times.max()) if len(times) else None,
        clock_clamped=sum(domain.clock_clamped for domain in domains),
        redelivered=0 if receipts.redelivered is None else int(np.count_nonzero(receipts.redelivered)),
        max_delivery_secs=receipts.max_delivery_us / 1_000_000,
    )


def _setting_figures(
    windows: list[int],
    expiries_us: list[int],
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


def _domain_figures(domain: Domain, windows: list[int], expiries_us: list[int]) -> DomainFigures:
    counts = replay_grid(domain.rows, np.array(windows, np.int64), np.array(expiries_us, np.int64))
    duplicates = domain.rows.duplicates
    settings = _setting_figures(windows, expiries_us, counts.caught, counts.peak_ids, duplicates)
    return DomainFigures(domain.name, domain.receipts, duplicates, domain.sources, settings)


def _sums(domains: Iterable[DomainFigures]) -> tuple[SettingFigures, ...]:
    return tuple(
        SettingFigures(
            same[0].window,
            same[0].expiry_us,
            sum(setting.caught for setting in same),
            sum(setting.missed for setting in same),
            sum(setting.peak_ids for setting in same),
        )
        for same in zip(*(domain.settings for domain in domains), strict=True)
    )


def analyse(receipts: Receipts, question: Question, *, advance: Callable[[int], None] | None = None) -> Analysis:
    """Replay a log under every setting of a grid, recommend one, and say what stands out.

    `advance` is told of each domain that is done.
    """
    settings = question.settings or SimulateSettings()
    domains = list(split_domains(receipts))
    needs = [needs_of(domain.rows) for domain in domains]
    all_windows = np.concatenate([need.window for need in needs])
    all_expiries_us = np.concatenate([need.expiry_us for need in needs])
    windows = question.windows or chosen_windows(all_windows)
    expiries_us = question.expiries_us or chosen_expiries_us(all_expiries_us)
    check_grid(windows, expiries_us)

    figures = []
    for domain in domains:
        figures.append(_domain_figures(domain, windows, expiries_us))
        if advance:
            advance(1)
    choice = recommend(domains, needs, settings, ReceiverSettings())
    setting = choice.recommendation.setting
    sources = worst_sources(receipts, domains, setting, needs, choice.needs_us)
    return Analysis(
        key=question.key,
        log=_log_figures(receipts, domains),
        settings=_sums(figures),
        domains=tuple(figures),
        recommendation=choice.recommendation,
        findings=findings_of(Evidence(receipts, question.key, domains, needs, choice.recommendation, sources)),
        sources=sources,
        window_needs=histogram(all_windows),
        expiry_needs_us=histogram(all_expiries_us),
        headroom=headroom_of(setting, needs, choice.needs_us),
        timeline=timeline_of(receipts, domains, needs),
        bytes_per_id=settings.memory_bytes_per_id,
    )
