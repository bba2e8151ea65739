"""Findings in words: what is true of a log that a person should know before choosing, each with its figures."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from receiver.domains import destination_name
from receiver.simulate.figures import Finding
from receiver.simulate.summaries import most_by_source

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from receiver.simulate.figures import Recommendation, SourceFigures
    from receiver.simulate.ingest import Receipts
    from receiver.simulate.needs import Needs
    from receiver.simulate.replay import Domain

__all__ = ["Evidence", "findings_of"]

_FAR_ABOVE = 10
_JUDGEABLE = 2
_US = 1_000_000
_HOUR_US = 3600 * _US
_LONG_US = 2 * _HOUR_US


class Evidence:
    """All that findings are drawn from, with the rows of duplicates and of first receipts in the log."""

    def __init__(  # noqa: PLR0917 - made in one place
        self,
        receipts: Receipts,
        key: str,
        domains: Sequence[Domain],
        needs: Sequence[Needs],
        recommendation: Recommendation,
        sources: Sequence[SourceFigures],
    ) -> None:
        self.receipts = receipts
        self.key = key
        self.domains = domains
        self.recommendation = recommendation
        self.sources = sources
        pairs = list(zip(domains, needs, strict=True))
        windows = np.concatenate([most_by_source(domain, need, need.window) for domain, need in pairs])
        self.source_needs = windows[windows > 0]
        """Per source with duplicates, the window that catches them all."""
        self.expiry_needs_us = np.concatenate([need.expiry_us for need in needs])
        self.duplicates = np.concatenate([domain.log_rows[need.row] for domain, need in pairs])
        self.earlier = np.concatenate([domain.log_rows[domain.rows.earlier[need.row]] for domain, need in pairs])
        self.firsts = np.concatenate([domain.log_rows[domain.rows.earlier < 0] for domain in domains])


def _secs(us: float) -> str:
    if us >= _LONG_US:
        return f"{us / _HOUR_US:,.1f} h"
    return f"{us / _US:,.3f}".rstrip("0").rstrip(".") + " s"


def _share(part: int, whole: int) -> str:
    return f"{part:,} of {whole:,} ({100 * part / whole:.1f} %)"


def _without_duplicates(evidence: Evidence) -> Finding | None:
    if len(evidence.duplicates):
        return None
    return Finding(
        "no-duplicates",
        f"None of the {len(evidence.firsts):,} checked receipts repeats an id in its domain. A log from a time with a "
        "failover, a crash or a redelivery is needed to size the windows.",
    )


def _connection(receipts: Receipts, row: int) -> str:
    channel = receipts.channels[int(receipts.channel_number[row])]
    return channel.connection_id


def _crosses_connections(evidence: Evidence) -> Finding | None:
    receipts = evidence.receipts
    if evidence.key not in {"default", "connection", "receiver"}:
        return None
    ids = receipts.id_number
    shared = np.bincount(ids[evidence.firsts], minlength=receipts.ids.count) > 1
    rows = np.flatnonzero(shared[ids])
    destinations = [destination_name(channel.destination) for channel in receipts.channels]
    # Every receiver of a topic gets a copy of its own, so a topic's ids rightly come more than once.
    numbers = {name: number for number, name in enumerate(dict.fromkeys(destinations))}
    queue = np.array([numbers[name] if name.startswith("queue://") else -1 for name in destinations])
    rows = rows[queue[receipts.channel_number[rows]] >= 0]
    of_queue = queue[receipts.channel_number[rows]]
    order = np.lexsort((rows, ids[rows], of_queue))
    rows, of_queue = rows[order], of_queue[order]
    again = np.zeros(len(rows), np.bool_)
    again[1:] = (of_queue[1:] == of_queue[:-1]) & (ids[rows[1:]] == ids[rows[:-1]])
    first_in_domain = np.zeros(len(ids), np.bool_)
    first_in_domain[evidence.firsts] = True
    crossing = np.flatnonzero(again & first_in_domain[rows])
    if not len(crossing):
        return None
    ways: dict[tuple[str, str], int] = {}
    for before, after in zip(rows[crossing - 1].tolist(), rows[crossing].tolist(), strict=True):
        way = _connection(receipts, before), _connection(receipts, after)
        ways[way] = ways.get(way, 0) + 1
    (source, target), most = max(ways.items(), key=lambda item: (item[1], item[0]))
    return Finding(
        "crosses-connections",
        f"Receipts that repeat an id of the same queue, but over another connection or receiver: {len(crossing):,}. The domain "
        f"key '{evidence.key}' can't see them, so they are not among the {len(evidence.duplicates):,} "
        f"duplicates counted here (most often first over '{source}', then over '{target}': {most:,}). If these "
        "connections compete for one queue, share one domain: --domain destination.",
    )


def _id_reuse(evidence: Evidence) -> Finding | None:
    digests = evidence.receipts.digest_hash
    if digests is None:
        return None
    now, before = digests[evidence.duplicates], digests[evidence.earlier]
    reused = int(np.count_nonzero((now != before) & (now != 0) & (before != 0)))
    if not reused:
        return None
    return Finding(
        "id-reuse",
        f"Duplicates with another body digest than the receipt they repeat: {_share(reused, len(evidence.duplicates))}. "
        "The sender uses one id for different messages, and dropping these would lose messages.",
    )


def _redelivered_flag(evidence: Evidence) -> Finding | None:
    flags = evidence.receipts.redelivered
    duplicates = len(evidence.duplicates)
    if flags is None or not duplicates:
        return None
    unmarked = duplicates - int(np.count_nonzero(flags[evidence.duplicates]))
    on_first = int(np.count_nonzero(flags[evidence.firsts]))
    if not unmarked and not on_first:
        return None
    return Finding(
        "redelivered-flag",
        f"JMSRedelivered is no substitute for ids here: it is missing on {_share(unmarked, duplicates)} duplicates, and set "
        f"on {on_first:,} first receipts.",
    )


def _demanding_sources(evidence: Evidence) -> Finding | None:
    needs = evidence.source_needs
    if not len(needs):
        return None
    median = int(np.sort(needs)[(len(needs) - 1) // 2])
    bound = _FAR_ABOVE * max(median, _FAR_ABOVE)  # tens of ids cost nothing worth a word
    far = int(np.count_nonzero(needs > bound))
    if not far:
        return None
    worst = evidence.sources[0]
    return Finding(
        "demanding-sources",
        f"Sources with duplicates that need a window over {bound:,}: {far:,} of {len(needs):,}, while the median one needs "
        f"{median:,}. The worst is '{worst.source}' in '{worst.domain}' with {worst.window_need:,}. All sources get the same "
        "window, so these set the price: look why they resend from so far back.",
    )


def _short_log(evidence: Evidence) -> Finding | None:
    times = evidence.receipts.received_at_us
    span_us = int(times.max() - times.min())
    need_us = int(evidence.expiry_needs_us.max(initial=0))
    expiry_us = evidence.recommendation.setting.expiry_us
    if span_us >= _JUDGEABLE * max(need_us, expiry_us) and span_us >= _HOUR_US:
        return None
    return Finding(
        "short-log",
        f"The log spans only {_secs(span_us)}, and without a window its duplicates needed an expiry of up to "
        f"{_secs(need_us)}. A repeat that takes longer than the log can't be in it: replay days that hold an outage before "
        "trusting an expiry.",
    )


def _clock_backwards(evidence: Evidence) -> Finding | None:
    clamped = sum(domain.clock_clamped for domain in evidence.domains)
    if not clamped:
        return None
    largest_us = max(domain.largest_step_back_us for domain in evidence.domains)
    return Finding(
        "clock-backwards",
        f"Time ran backwards: receipts from before the latest one of their domain: {clamped:,}, by up to "
        f"{_secs(largest_us)}. Each counts as received with that one.",
    )


def _rule_of_thumb(evidence: Evidence) -> Finding | None:
    took_us = evidence.receipts.max_delivery_us
    if took_us <= 0:
        return None
    need_us = int(evidence.expiry_needs_us.max(initial=0))
    verdict = "covers" if 2 * took_us >= need_us else "does not cover"
    return Finding(
        "rule-of-thumb",
        f"The rule of thumb, an expiry of two to three times the redelivery time, gives {_secs(2 * took_us)} to "
        f"{_secs(3 * took_us)} here (rMaxDeliverySecs {_secs(took_us)}). It {verdict} this log: without a window the "
        f"longest repeat needs {_secs(need_us)}.",
    )


def _without_ids(evidence: Evidence) -> Finding | None:
    total = len(evidence.receipts.id_number)
    unchecked = total - len(evidence.duplicates) - len(evidence.firsts)
    if not unchecked:
        return None
    return Finding(
        "unchecked",
        f"Receipts without uniqueMessageId: {_share(unchecked, total)}. They are delivered without a check.",
    )


def _status_lines(evidence: Evidence) -> Finding | None:
    lines = evidence.receipts.status_lines
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
    _id_reuse,
    _redelivered_flag,
    _demanding_sources,
    _short_log,
    _clock_backwards,
    _rule_of_thumb,
    _without_ids,
    _status_lines,
)


def findings_of(evidence: Evidence) -> tuple[Finding, ...]:
    """What is true of the log, most important first."""
    return tuple(finding for find in _FINDERS if (finding := find(evidence)) is not None)
