"""A comparison as an HTML page."""

from __future__ import annotations

from collections.abc import Sequence

from receiver.compare.comparison import Cause, Comparison
from receiver.report.compare_charts import causes_chart, memory_chart, with_number
from receiver.report.compare_words import (
    best_of,
    counted_causes,
    disagreement,
    meanings,
    notes,
    recommended_of,
    sides,
    standing_out,
    whose,
)
from receiver.report.page import LONGEST_NAME, LONGEST_PARAGRAPH, Figure, Numbers, page_text
from receiver.report.words import count, duration, reading, remarks, second, seconds, size, tamed

__all__ = ["html_text"]

_NONE = "-"


def html_text(comparison: Comparison) -> str:
    """The whole file."""
    return page_text(
        "compare",
        reading=reading(comparison.log),
        remarks=remarks(comparison.log, comparison.key),
        policies=_policies(comparison),
        whose=whose(comparison),
        recommended=_recommended(comparison),
        findings=[*standing_out(comparison), *notes(comparison), *_nobody_disagrees(comparison)],
        figures=_figures(comparison),
        tables=[_disputes(comparison)] if comparison.disputes else [],
        meanings=meanings(comparison),
    )


def _policies(comparison: Comparison) -> Numbers:
    best = best_of(comparison)
    rows = [
        [
            with_number(place, figures, LONGEST_NAME),
            count(figures.caught),
            count(figures.missed),
            count(figures.false_duplicates),
            count(figures.peak_ids),
            size(figures.memory_bytes),
        ]
        for place, figures in enumerate(comparison.policies)
    ]
    caption = "The policies side by side" + "; green is never wrong, with the fewest ids" * bool(best)
    columns = ["policy", "caught", "missed", "false duplicates", "most ids kept", "memory"]
    return Numbers(caption, columns, rows, texts=1, marked=best)


def _recommended(comparison: Comparison) -> str:
    place = recommended_of(comparison)
    if place is None or comparison.recommendation is None:
        return ""
    setting = comparison.recommendation.setting
    why = tamed(comparison.recommendation.why, LONGEST_PARAGRAPH)
    return (
        f"Policy {place + 1} is the two-tier setting recommended for this log, W = {count(setting.window)} with "
        f"E = {seconds(setting.expiry_us)}. {why}"
    )


def _nobody_disagrees(comparison: Comparison) -> list[str]:
    text = disagreement(comparison)
    return [text] if text and not comparison.disputes else []


def _figures(comparison: Comparison) -> list[Figure]:
    policies = comparison.policies
    return [
        Figure(
            "memory-missed",
            "What catching more costs",
            "The most ids kept against the duplicates missed, by the policies' numbers. Of the green ones, which are never "
            "wrong, those further left cost less.",
            memory_chart(policies),
        ),
        *_causes(
            "missed-causes",
            "Why duplicates are missed",
            [(with_number(place, figures), figures.missed_causes) for place, figures in enumerate(policies)],
        ),
        *_causes(
            "false-causes",
            "Why new messages are taken for duplicates",
            [(with_number(place, figures), figures.false_causes) for place, figures in enumerate(policies)],
        ),
    ]


def _causes(id_: str, title: str, causes: Sequence[tuple[str, dict[Cause, int]]]) -> list[Figure]:
    wrong = [(name, counts) for name, counts in causes if any(counts.values())]
    if not wrong:
        return []
    rows = [[name, count(sum(counts.values())), counted_causes(counts)] for name, counts in wrong]
    numbers = Numbers(title, ["policy", "receipts", "by cause"], rows, texts=1)
    caption = "Receipts by policy and cause; the causes are explained below."
    return [Figure(id_, title, caption, causes_chart(wrong), numbers)]


def _disputes(comparison: Comparison) -> Numbers:
    columns = ["id", "source", "domain", "say duplicate", "say new", "row", "age", "received, UTC"]
    rows = [
        [
            tamed(dispute.unique_message_id, LONGEST_NAME),
            tamed(dispute.message_source_id, LONGEST_NAME) or "(anonymous)",
            tamed(dispute.domain, LONGEST_NAME) or "(no name)",
            *(side or _NONE for side in sides(dispute)),
            str(dispute.row),
            _NONE if dispute.age_us is None else duration(dispute.age_us),
            second(dispute.received_at_us),
        ]
        for dispute in comparison.disputes
    ]
    return Numbers(disagreement(comparison), columns, rows, texts=5)
