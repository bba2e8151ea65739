"""The analysis as one JSON object, the same byte for byte from every engine."""

from __future__ import annotations

import json
import re
from typing import Any

from receiver.report.words import moment
from receiver.simulate.figures import Analysis, LogFigures, Recommendation, SettingFigures

__all__ = ["dumped", "json_object", "json_text", "log_object", "recommendation_object"]

# JSON may hold these as they are, but a terminal obeys some of them and an editor hides the others; and UTF-8 has no lone
# surrogates, which an id may have.
_INVISIBLE = re.compile("[\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff]")


def json_text(analysis: Analysis) -> str:
    """The object on one line, without a line break at its end. Text is exact; times are ISO 8601 in UTC or null."""
    return dumped(json_object(analysis))


def dumped(value: dict[str, Any]) -> str:
    """An object in JSON on one line. Text is exact, what can't be seen in it is escaped."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    return _INVISIBLE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def json_object(analysis: Analysis) -> dict[str, Any]:
    """The object; text is exact, times are ISO 8601 in UTC or None."""
    return {
        "log": log_object(analysis.log),
        "settings": [_setting(setting) for setting in analysis.settings],
        "domains": [
            {
                "domain": domain.domain,
                "receipts": domain.receipts,
                "duplicates": domain.duplicates,
                "sources": domain.sources,
                "settings": [_setting(setting) for setting in domain.settings],
            }
            for domain in analysis.domains
        ],
        "recommendation": recommendation_object(analysis.recommendation),
        "findings": [{"kind": finding.kind, "text": finding.text} for finding in analysis.findings],
    }


def log_object(log: LogFigures) -> dict[str, Any]:
    """What was read, under the names that every command gives it."""
    return {
        "receipts": log.receipts,
        "unchecked": log.unchecked,
        "skipped": log.skipped,
        "duplicates": log.duplicates,
        "domains": log.domains,
        "sources": log.sources,
        "first_received_at": None if log.first_received_at_us is None else moment(log.first_received_at_us),
        "last_received_at": None if log.last_received_at_us is None else moment(log.last_received_at_us),
        "clock_clamped": log.clock_clamped,
        "redelivered": log.redelivered,
        "max_delivery_secs": float(log.max_delivery_secs),
    }


def _setting(setting: SettingFigures) -> dict[str, Any]:
    return {
        "window": setting.window,
        "expiry_secs": setting.expiry_us / 1_000_000,
        "caught": setting.caught,
        "missed": setting.missed,
        "peak_ids": setting.peak_ids,
    }


def recommendation_object(recommendation: Recommendation) -> dict[str, Any]:
    """The recommended setting, under the names that every command gives it."""
    return {
        **_setting(recommendation.setting),
        "memory_bytes": recommendation.memory_bytes,
        "database_bytes": recommendation.database_bytes,
        "why": recommendation.why,
    }
