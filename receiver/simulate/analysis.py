"""From a log that can be replayed, and what is asked of it, to all that the reports show."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from receiver.simulate.facts import Facts
from receiver.simulate.figures import Analysis, SourceFigures
from receiver.simulate.findings import Known, findings_of
from receiver.simulate.question import Question, check_grid
from receiver.simulate.recommend import sizing_of
from receiver.simulate.replays import PairOutcome, Replays


def analyse(log: Replays, question: Question) -> Analysis:
    """Replay a log under every setting of a grid, recommend one, and say what stands out."""
    facts, sizing = log.facts, sizing_of(log, question)
    check_grid(*sizing.grid)
    replayed = log.replay(*sizing.grid, sizing.pairs)
    recommendation, kinds, evidence = sizing.choose(replayed.pairs)
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
