"""Findings in words: what is true of a log that a person should know before choosing, each with its figures."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from receiver.domains import PARTS, domain_key
from receiver.simulate.figures import Finding

if TYPE_CHECKING:
    from collections.abc import Callable

    from receiver.simulate.figures import Recommendation
    from receiver.simulate.replays import Facts

__all__ = ["Evidence", "findings_of"]

_FAR_ABOVE = 10
_LEAST_ENDED_PERCENT = 1
_LEAST_SPANS = 2
_US = 1_000_000
_HOUR_US = 3600 * _US
_LONG_US = 2 * _HOUR_US


class Evidence(NamedTuple):
    """All that findings are drawn from."""

    facts: Facts
    recommendation: Recommendation
    key: str
    """The domain KEY."""


def _secs(us: float) -> str:
    if us >= _LONG_US:
        return f"{us / _HOUR_US:,.1f} h"
    return f"{us / _US:,.3f}".rstrip("0").rstrip(".") + " s"


def _share(part: int, whole: int) -> str:
    return f"{part:,} of {whole:,} ({100 * part / whole:.1f} %)"


def _without_duplicates(evidence: Evidence) -> Finding | None:
    if evidence.facts.log.duplicates:
        return None
    return Finding(
        "no-duplicates",
        f"None of the {evidence.facts.firsts:,} checked receipts repeats an id in its domain. A log from a time with a "
        "failover, a crash or a redelivery is needed to size the windows.",
    )


def _crosses_connections(evidence: Evidence) -> Finding | None:
    cross_domain = evidence.facts.cross_domain
    if cross_domain is None:
        return None
    (source, target), most = max(cross_domain.by_connections.items(), key=lambda item: (item[1], item[0]))
    return Finding(
        "crosses-connections",
        f"Receipts that repeat an id of the same queue, but over another connection or receiver: {cross_domain.receipts:,}. The "
        f"domain key '{evidence.key}' can't see them, so they are not among the {evidence.facts.log.duplicates:,} "
        f"duplicates counted here (most often first over '{source}', then over '{target}': {most:,}). If these "
        "connections compete for one queue, share one domain: --domain destination.",
    )


def _missing_parts(evidence: Evidence) -> Finding | None:
    lacking = {part: evidence.facts.lacking[part] for part in domain_key(evidence.key).needs}
    said = [
        f"Receipts without {part}: {_share(count, evidence.facts.log.receipts)}. The domain key "
        f"'{evidence.key}' takes them for receipts of one and the same, so an id that two {PARTS[part]} share counts as a "
        "duplicate."
        for part, count in lacking.items()
        if count
    ]
    if not said:
        return None
    way_out = (
        "If they were several (a correlator's log tells no connection), replay the receipts of each by themselves."
    )
    return Finding("missing-parts", " ".join([*said, way_out]))


def _id_reuse(evidence: Evidence) -> Finding | None:
    facts = evidence.facts
    if not facts.has_digest or not facts.reused:
        return None
    return Finding(
        "id-reuse",
        f"Duplicates with another body digest than the receipt they repeat: {_share(facts.reused, facts.log.duplicates)}. "
        "The sender uses one id for different messages, and dropping these would lose messages.",
    )


def _redelivered_flag(evidence: Evidence) -> Finding | None:
    facts = evidence.facts
    if not facts.has_redelivered or not facts.log.duplicates:
        return None
    if not facts.unmarked_duplicates and not facts.marked_firsts:
        return None
    return Finding(
        "redelivered-flag",
        "JMSRedelivered is no substitute for ids here: it is missing on "
        f"{_share(facts.unmarked_duplicates, facts.log.duplicates)} duplicates, and set on {facts.marked_firsts:,} first "
        "receipts.",
    )


def _demanding_sources(evidence: Evidence) -> Finding | None:
    needs = evidence.facts.source_window_needs
    if not needs.total:
        return None
    median = needs.at((needs.total - 1) // 2)
    bound = _FAR_ABOVE * max(median, _FAR_ABOVE)  # tens of ids cost nothing worth a word
    far = int(needs.counts[needs.values > bound].sum())
    if not far:
        return None
    worst = evidence.facts.sources[0]
    return Finding(
        "demanding-sources",
        f"Sources with duplicates that need a window over {bound:,}: {far:,} of {needs.total:,}, while the median one needs "
        f"{median:,}. The worst is '{worst.source}' in '{worst.domain}' with {worst.window_need:,}. All sources get the same "
        "window, so these set the price: look why they resend from so far back.",
    )


def _ended_sources(evidence: Evidence) -> Finding | None:
    facts, setting = evidence.facts, evidence.recommendation.setting
    ended = facts.ended_sources
    most_kept = int((ended.counts * np.minimum(ended.values, setting.window)).sum())
    kept = min(most_kept, setting.peak_ids)  # repeats are counted too, and an id may be in several queues
    if not kept or 100 * kept < _LEAST_ENDED_PERCENT * setting.peak_ids:
        return None
    return Finding(
        "ended-sources",
        f"Sources that sent no id in the second half of the log: {ended.total:,} of {facts.checked_sources:,}. Of the ids "
        f"remembered at the peak with W = {setting.window:,}, such sources keep up to {_share(kept, setting.peak_ids)}. A "
        "durable receiver retires them: see retire_sources_after_days and max_sources.",
    )


def _short_log(evidence: Evidence) -> Finding | None:
    log, need_us = evidence.facts.log, evidence.facts.most_expiry_need_us
    if log.first_received_at_us is None or log.last_received_at_us is None:
        return None
    span_us = log.last_received_at_us - log.first_received_at_us
    expiry_us = evidence.recommendation.setting.expiry_us
    if span_us >= _LEAST_SPANS * max(need_us, expiry_us) and span_us >= _HOUR_US:
        return None
    return Finding(
        "short-log",
        f"The log spans only {_secs(span_us)}, and without a window its duplicates needed an expiry of up to "
        f"{_secs(need_us)}. A repeat that takes longer than the log can't be in it: replay days that hold an outage before "
        "trusting an expiry.",
    )


def _clock_backwards(evidence: Evidence) -> Finding | None:
    clamped = evidence.facts.log.clock_clamped
    if not clamped:
        return None
    return Finding(
        "clock-backwards",
        f"Time ran backwards: receipts from before the latest one of their domain: {clamped:,}, by up to "
        f"{_secs(evidence.facts.largest_step_back_us)}. Each counts as received with that one.",
    )


def _rule_of_thumb(evidence: Evidence) -> Finding | None:
    took_us = round(evidence.facts.log.max_delivery_secs * _US)
    if not took_us:
        return None
    need_us = evidence.facts.most_expiry_need_us
    verdict = "covers" if 2 * took_us >= need_us else "does not cover"
    return Finding(
        "rule-of-thumb",
        f"The rule of thumb, an expiry of two to three times the redelivery time, gives {_secs(2 * took_us)} to "
        f"{_secs(3 * took_us)} here (rMaxDeliverySecs {_secs(took_us)}). It {verdict} this log: without a window the "
        f"longest repeat needs {_secs(need_us)}.",
    )


def _without_ids(evidence: Evidence) -> Finding | None:
    log = evidence.facts.log
    if not log.unchecked:
        return None
    return Finding(
        "unchecked",
        f"Receipts without uniqueMessageId: {_share(log.unchecked, log.receipts)}. They are delivered without a check.",
    )


def _status_lines(evidence: Evidence) -> Finding | None:
    lines = evidence.facts.status_lines
    if not lines:
        return None
    last = ", ".join(
        f"{name}={lines[-1].values[name]:g}"
        for name in ("rRedel", "rMaxDeliverySecs", "rDupsDet", "rDupIds")
        if name in lines[-1].values
    )
    most = max(line.values.get("rDupIds", 0) for line in lines)
    return Finding(
        "status-lines",
        f"The receiver itself reported, in {len(lines):,} JMS Status lines: at last {last}; at most {most:,.0f} ids "
        "remembered.",
    )


_FINDERS: tuple[Callable[[Evidence], Finding | None], ...] = (
    _without_duplicates,
    _crosses_connections,
    _missing_parts,
    _id_reuse,
    _redelivered_flag,
    _demanding_sources,
    _ended_sources,
    _short_log,
    _clock_backwards,
    _rule_of_thumb,
    _without_ids,
    _status_lines,
)


def findings_of(evidence: Evidence) -> tuple[Finding, ...]:
    """What is true of the log, most important first."""
    return tuple(finding for find in _FINDERS if (finding := find(evidence)) is not None)
