"""A comparison as one JSON object."""

from __future__ import annotations

from typing import Any

from receiver.compare.comparison import Cause, ComparedDomain, Comparison, Dispute, PolicyFigures
from receiver.message import Verdict
from receiver.report.json_object import dumped, log_object, recommendation_object
from receiver.report.words import moment

__all__ = ["json_text"]


def json_text(comparison: Comparison) -> str:
    """The object on one line, without a line break at its end. Text is exact; `received_at` is as read, in UTC."""
    policies = [figures.policy for figures in comparison.policies]
    return dumped(
        {
            "log": log_object(comparison.log),
            "policies": [_policy(figures) for figures in comparison.policies],
            "domains": [_domain(domain, policies) for domain in comparison.domains],
            "disputed": comparison.disputed,
            "disputes": [_dispute(dispute, policies) for dispute in comparison.disputes],
            "crossed_domains": comparison.crossed_domains,
            "left_out": [{"policy": policy, "why": why} for policy, why in comparison.left_out],
            "recommendation": comparison.recommendation and recommendation_object(comparison.recommendation),
        }
    )


def _policy(figures: PolicyFigures) -> dict[str, Any]:
    return {
        "policy": figures.policy,
        "caught": figures.caught,
        "missed": figures.missed,
        "false_duplicates": figures.false_duplicates,
        "peak_ids": figures.peak_ids,
        "memory_bytes": figures.memory_bytes,
        "missed_causes": _causes(figures.missed_causes),
        "false_causes": _causes(figures.false_causes),
    }


def _domain(domain: ComparedDomain, policies: list[str]) -> dict[str, Any]:
    counted = zip(policies, domain.caught, domain.false_duplicates, domain.peak_ids, strict=True)
    return {
        "domain": domain.domain,
        "receipts": domain.receipts,
        "duplicates": domain.duplicates,
        "policies": [
            {
                "policy": policy,
                "caught": caught,
                "missed": domain.duplicates - caught,
                "false_duplicates": false,
                "peak_ids": peak_ids,
            }
            for policy, caught, false, peak_ids in counted
        ],
    }


def _causes(causes: dict[Cause, int]) -> dict[str, int]:
    return {str(cause): causes[cause] for cause in Cause if causes.get(cause)}


def _dispute(dispute: Dispute, policies: list[str]) -> dict[str, Any]:
    verdicts = zip(policies, dispute.duplicate_by, dispute.causes, strict=True)
    return {
        "row": dispute.row,
        "domain": dispute.domain,
        "unique_message_id": dispute.unique_message_id,
        "message_source_id": dispute.message_source_id,
        "received_at": moment(dispute.received_at_us),
        "duplicate": dispute.is_duplicate,
        "earlier_row": dispute.earlier_row,
        "age_secs": None if dispute.age_us is None else dispute.age_us / 1_000_000,
        "verdicts": [
            {
                "policy": policy,
                "verdict": str(Verdict.DUPLICATE if is_duplicate else Verdict.NEW),
                "cause": cause and str(cause),
            }
            for policy, is_duplicate, cause in verdicts
        ],
    }
