"""The analysis as an HTML page."""

from __future__ import annotations

from typing import Any

from receiver.report.page import LONGEST_PARAGRAPH, page_text
from receiver.report.sections import figures_of, tables_of
from receiver.report.words import (
    count,
    headroom_left,
    of_duplicates,
    reading,
    remarks,
    seconds,
    setting_asked_for,
    size,
    tamed,
)
from receiver.simulate.figures import Analysis

__all__ = ["html_text"]


def html_text(analysis: Analysis) -> str:
    """The whole file. Its size depends little on the grid and the number of domains: both are cut, and the page says so."""
    return page_text(
        "simulate",
        reading=reading(analysis.log),
        remarks=remarks(analysis.log, analysis.key),
        asked=setting_asked_for(analysis),
        answer=_answer(analysis),
        findings=[tamed(finding.text, LONGEST_PARAGRAPH) for finding in analysis.findings],
        figures=figures_of(analysis),
        tables=tables_of(analysis),
    )


def _answer(analysis: Analysis) -> dict[str, Any]:
    recommendation = analysis.recommendation
    setting = recommendation.setting
    return {
        "window": count(setting.window),
        "expiry": seconds(setting.expiry_us),
        "settings": {
            "dupDetectionPerSourceExpiryWindowSize": str(setting.window),
            "dupDetectionExpiryTimeSecs": seconds(setting.expiry_us).removesuffix(" s").replace(",", ""),
        },
        "missed": of_duplicates(setting.missed, analysis.log.duplicates),
        "missed_none": not setting.missed,
        "ids": count(setting.peak_ids),
        "memory": size(recommendation.memory_bytes),
        "database": size(recommendation.database_bytes),
        "margin": f"{recommendation.margin:g}",
        "why": tamed(recommendation.why, LONGEST_PARAGRAPH),
        "headroom": headroom_left(analysis),
    }
