"""An analysis or a comparison as one JSON object. That of an analysis is the same byte for byte from every engine.

Text is exact; times are ISO 8601 in UTC, or null.
"""

from __future__ import annotations

import json
import re
from dataclasses import fields
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from receiver.compare import Cause, ComparedDomain, Comparison, Dispute, PolicyFigures
from receiver.message import Verdict
from receiver.report.words import moment_or_none
from receiver.simulate.figures import Analysis, Elsewhere, Recommendation, SettingFigures, SizedSetting

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

# JSON allows these characters, but a terminal obeys some of them and editors hide others. Lone surrogates, which an id may
# have, can't be encoded as UTF-8.
_INVISIBLE = re.compile("[\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff]")


def dumped(value: dict[str, Any]) -> str:
    """An object as JSON on one line, without a line break at its end. Invisible characters are escaped."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    return _INVISIBLE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def analysis_object(analysis: Analysis) -> dict[str, Any]:
    """The result of `receiver simulate --json`."""
    return {
        "log": record(analysis.log),
        "settings": [_setting(setting) for setting in analysis.settings],
        "domains": [
            {
                **record(domain),
                "elsewhere": domain.elsewhere and _elsewhere(domain.elsewhere),
                "settings": [_setting(setting) for setting in domain.settings],
            }
            for domain in analysis.domains
        ],
        "recommendation": _recommendation(analysis.recommendation),
        "kinds": {
            str(sized.kind): {**_cost(sized), "unseen": sized.unseen and record(sized.unseen)}
            for sized in analysis.kinds
        },
        "evidence": record(analysis.evidence),
        "elsewhere": analysis.elsewhere and _elsewhere(analysis.elsewhere),
        "findings": [record(finding) for finding in analysis.findings],
    }


def _elsewhere(needs: Elsewhere) -> dict[str, Any]:
    """The needs without the number of sources, which the log's or domain's figures have."""
    return {name: value for name, value in record(needs).items() if name != "sources"}


def record(figures: DataclassInstance) -> dict[str, Any]:
    """Figures by the names of their fields, without `is_`. Microseconds become a moment, or seconds."""
    shown: dict[str, Any] = {}
    for field in fields(figures):
        value, name = getattr(figures, field.name), field.name.removeprefix("is_")
        if name.endswith("received_at_us"):
            shown[name.removesuffix("_us")] = moment_or_none(value)
        elif name.endswith("_us"):
            shown[f"{name.removesuffix('_us')}_secs"] = None if value is None else value / 1_000_000
        else:
            shown[name] = str(value) if isinstance(value, StrEnum) else value
    return shown


def _setting(setting: SettingFigures) -> dict[str, Any]:
    # Not by `record`, which takes several times as long: a large grid of many domains has millions of settings.
    return {
        "window": setting.window,
        "expiry_secs": setting.expiry_us / 1_000_000,
        "caught": setting.caught,
        "missed": setting.missed,
        "peak_ids": setting.peak_ids,
    }


def _cost(sized: SizedSetting) -> dict[str, Any]:
    return {**_setting(sized.setting), "memory_bytes": sized.memory_bytes, "database_bytes": sized.database_bytes}


def _recommendation(recommendation: Recommendation) -> dict[str, Any]:
    sized = recommendation.sized
    moves = {"window": str(recommendation.window_move), "expiry": str(recommendation.expiry_move)}
    return {**_cost(sized), "kind": str(sized.kind), "moves": moves, "why": recommendation.explanation}


def comparison_object(comparison: Comparison) -> dict[str, Any]:
    """The result of `receiver compare --json`."""
    policies = [figures.policy for figures in comparison.policies]
    return {
        "log": record(comparison.log),
        "policies": [_policy(figures) for figures in comparison.policies],
        "domains": [_domain(domain, policies) for domain in comparison.domains],
        "disputed": comparison.disputed,
        "disputes": [_dispute(dispute, policies) for dispute in comparison.disputes],
        "crossed_domains": comparison.crossed_domains,
        "left_out": [{"policy": policy, "why": why} for policy, why in comparison.left_out],
        "recommendation": comparison.recommendation and _recommendation(comparison.recommendation),
        "doubts": [record(doubt) for doubt in comparison.doubts],
    }


def _policy(figures: PolicyFigures) -> dict[str, Any]:
    shown = record(figures)
    if not figures.is_fitted:
        del shown["fitted"]
    return shown | {name: _causes(shown[name]) for name in ("missed_causes", "false_causes")}


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
    shown = record(dispute)
    verdicts = zip(policies, shown.pop("duplicate_by"), shown.pop("causes"), strict=True)
    shown["verdicts"] = [
        {
            "policy": policy,
            "verdict": str(Verdict.DUPLICATE if is_duplicate else Verdict.NEW),
            "cause": cause and str(cause),
        }
        for policy, is_duplicate, cause in verdicts
    ]
    return shown
