"""Findings in words: facts about a log that a person should know before choosing, each with its figures."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from receiver.domains import PARTS, domain_key
from receiver.quantities import DAY_US, HOUR_US, SECOND_US, count, duration, moment, percent
from receiver.simulate.figures import Finding, Kind, Move
from receiver.simulate.recommend import STRONG_BURSTS, STRONG_SPANS, with_margin

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from receiver.simulate.facts import Facts
    from receiver.simulate.figures import Evidence, Recommendation, SizedSetting

_FAR_ABOVE = 10
"""A source is named if it needs this many times as much as others."""
_LEAST_ENDED_PERCENT = 1
"""Ended sources are only mentioned if they keep at least this share of the remembered ids."""
_ENOUGH_TO_DOUBT = 100
"""How many checked receipts a log must have to be doubted: a shorter log may look odd by chance."""
_ENOUGH_MARKED = 10
"""How many receipts must be marked as redelivered to ask where the ones before are."""
_REPEATS_PER_ID = 100
"""From this many repeats per id on, ids hardly distinguish messages."""
_WAYS_TO_WRITE = re.compile(r"queue://|/queues?/|jms\.queue\.|\s")
"""Prefixes of a queue's name that some logs write and others don't. Names may also differ in case."""
_MINUTE_US = 60 * SECOND_US
_YEAR_2000_US, _YEAR_2100_US = 946_684_800 * SECOND_US, 4_102_444_800 * SECOND_US
"""Other times are in another unit, or don't count from the epoch."""


class Known(NamedTuple):
    """The figures from which findings are drawn."""

    facts: Facts
    recommendation: Recommendation
    kinds: Sequence[SizedSetting]
    evidence: Evidence
    key: str
    """The domain KEY."""

    @property
    def checked(self) -> int:
        """How many receipts have an id."""
        return self.facts.firsts + self.facts.log.duplicates

    @property
    def can_be_doubted(self) -> bool:
        return self.checked >= _ENOUGH_TO_DOUBT


def _before_lowering(known: Known) -> str:
    """The end of a sentence that asks for more logs."""
    return " before you lower what is set today" if known.recommendation.lowers else " to learn more"


def _share(part: int, whole: int) -> str:
    return f"{part:,} of {whole:,} ({percent(part, whole)})"


def _ids_alike(known: Known) -> str:
    ids, duplicates = known.facts.firsts, known.facts.log.duplicates
    if not known.can_be_doubted or duplicates < _REPEATS_PER_ID * ids:
        return ""
    return (
        f"The ids are nearly all alike: {count(ids, 'id')} for {known.checked:,} checked receipts. Is unique_message_id read from "
        "the right field? It must differ from message to message (--map unique_message_id=FIELD)."
    )


def _ids_repeated(known: Known) -> str:
    ids, duplicates = known.facts.firsts, known.facts.log.duplicates
    if not known.can_be_doubted or not ids <= duplicates < _REPEATS_PER_ID * ids or _rows_copied(known):
        return ""
    return (
        f"Most receipts repeat an id: {_share(duplicates, known.checked)} of those checked. Is unique_message_id read from "
        "the right field (--map unique_message_id=FIELD), and has the log one row for each receipt?"
    )


def _rows_copied(known: Known) -> str:
    same_time, duplicates = known.facts.same_time_duplicates, known.facts.log.duplicates
    if not known.can_be_doubted or 2 * same_time < duplicates or 100 * same_time < known.checked:
        return ""
    if _same_second(known) or _whole_minutes(known) or _out_of_order(known):  # then times are alike for another reason
        return ""
    return (
        f"Duplicates at the very time of the receipt that they repeat: {_share(same_time, duplicates)}. Is a file given twice, or "
        "do files overlap? Then these are copies of rows, not redeliveries: give each row once. Or are the times cut to whole "
        "seconds?"
    )


def _one_id(known: Known) -> str:
    most, duplicates = known.facts.most_repeats, known.facts.log.duplicates
    if most < max(_REPEATS_PER_ID, duplicates // 100) or duplicates >= known.facts.firsts:
        return ""
    return (
        f"One id alone makes {_share(most, duplicates)} duplicates. Does it stand for no id, as a tool may have written 'NULL'? "
        "Then leave it empty. Or one message comes again for ever."
    )


def _ids_anew(known: Known) -> str:
    # Such a source sends all its other ids between the two receipts of its first id.
    sources = (each for each in known.facts.sources if each.window_need == each.receipts - each.duplicates)
    worst = next((each for each in sources if each.duplicates >= _ENOUGH_TO_DOUBT), None)
    if worst is None or known.facts.log.duplicates >= known.facts.firsts:
        return ""
    return (
        f"The source '{worst.source or '(anonymous)'}' in '{worst.domain}' sends {count(worst.duplicates, 'id')} again, from its "
        "very first on. Does it count anew after a restart? Then these are new messages, which a larger W or E would drop: have "
        "its ids tell each start."
    )


def _ids_missing(known: Known) -> str:
    log = known.facts.log
    if not log.unchecked or 2 * log.unchecked < log.receipts or (known.checked and log.receipts < _ENOUGH_TO_DOUBT):
        return ""
    return (
        f"Most receipts have no uniqueMessageId: {_share(log.unchecked, log.receipts)}. They are delivered without a check. Is "
        "unique_message_id read from the right field (--map unique_message_id=FIELD)?"
    )


def _sources_unlike(known: Known) -> str:
    ids, sources = known.facts.firsts, known.facts.checked_sources
    if ids < _ENOUGH_TO_DOUBT or 10 * sources < 9 * ids:
        return ""
    return (
        f"Nearly every id has a source of its own: {sources:,} sources for {count(ids, 'id')}. Is message_source_id read from the "
        "right field (--map message_source_id=FIELD)? W counts the ids of a source, so the log says nothing about W."
    )


def _odd_times(known: Known) -> str:
    first_us = known.facts.log.first_received_at_us or 0
    if not known.can_be_doubted or _YEAR_2000_US <= first_us < _YEAR_2100_US:
        return ""
    digits = " Are they a date's digits, such as 20261121013748? Write ISO 8601." if first_us >= _YEAR_2100_US else ""
    return (
        f"The times begin at {moment(first_us)}. Is received_at read from the right field (--map received_at=FIELD), and in "
        f"the right unit (--time-unit)?{digits} E is as wrong as they are."
    )


def _same_second(known: Known) -> str:
    log = known.facts.log
    if not known.can_be_doubted or log.span_us >= SECOND_US:
        return ""
    return (
        f"All {log.receipts:,} receipts have times within one second ({duration(log.span_us)}), so the log says nothing about E. Is "
        "received_at read from the right field (--map received_at=FIELD), and in the right unit (--time-unit)?"
    )


def _whole_minutes(known: Known) -> str:
    log = known.facts.log
    times_us = (log.first_received_at_us or 0, log.last_received_at_us or 0, known.facts.most_expiry_need_us)
    if not known.can_be_doubted or not log.duplicates or any(us % _MINUTE_US for us in times_us):
        return ""
    unit = "day" if not any(us % DAY_US for us in times_us) else "minute"
    return (
        f"The times look cut to whole {unit}s, so a repeat may need a {unit} more of E than it seems to. Take a log whose "
        "received_at has seconds."
    )


def _out_of_order(known: Known) -> str:
    clamped, back_us = known.facts.log.clock_clamped, known.facts.largest_step_back_us
    if not known.can_be_doubted or 100 * clamped < known.checked or back_us <= _MINUTE_US:
        return ""
    return (
        f"The rows aren't in order of their times: {_share(clamped, known.checked)} of those checked have a time before the latest "
        f"one of their domain, by up to {duration(back_us)}. Each counts as received at that latest time, so the log says little "
        "about E. Is it newest first, or several logs in one file? Sort it by received_at. Was a clock wrong or set back, as in "
        "autumn? Take another day, or times in UTC."
    )


def _counts_lacking(known: Known) -> str:
    log, said = known.facts.log, []
    for name, here, noun in (("rx", log.receipts, "receipt"), ("rDupsDet", log.duplicates, "duplicate")):
        counted = [line.values[name] for line in known.facts.status_lines if name in line.values]
        # If counts fall, they are from several correlators, or from one that was restarted.
        if counted and counted == sorted(counted) and counted[-1] - counted[0] > here:
            said.append(f"{name} rose by {counted[-1] - counted[0]:,.0f}, and the log has {count(here, noun)}")
    if not said:
        return ""
    return (
        f"The receiver's own JMS Status lines count more: {'; '.join(said)}. Is a file missing, isn't each message logged, or is "
        "unique_message_id read from another field (--map unique_message_id=FIELD)?"
    )


def _rows_skipped(known: Known) -> str:
    skipped, receipts = known.facts.log.skipped, known.facts.log.receipts
    if not skipped or 100 * skipped < receipts:
        return ""
    return (
        f"Rows that couldn't be read: {_share(skipped, skipped + receipts)}. What they repeat, and what repeats them, isn't "
        "counted. Mend them: without --on-error skip the first is named, and a compacted log lists them in _bad_rows.jsonl."
    )


def _domains_alike(known: Known) -> str:
    alike: dict[str, list[str]] = {}
    for name in (each.domain for each in known.facts.domains):
        alike.setdefault(_WAYS_TO_WRITE.sub("", name.casefold()), []).append(name)
    several = [names for names in alike.values() if len(names) > 1]
    if not several:
        return ""
    return (
        f"Domains that may be one queue under several names: {sum(map(len, several)):,}, such as '{several[0][0]}' and "
        f"'{several[0][1]}'. If so, have the log write one name: an id that comes under both isn't counted as a duplicate."
    )


def _without_duplicates(known: Known) -> str:
    if known.facts.log.duplicates or not known.facts.firsts:
        return ""
    marked = known.facts.marked_firsts
    said = f" But JMSRedelivered is set on {marked:,}, which came before, elsewhere or by another id." if marked else ""
    return (
        f"No id comes twice in its domain, of {count(known.facts.firsts, 'checked receipt')}.{said} Is unique_message_id the "
        "sender's id, which a resend keeps? If the log is a table with a unique key on the id, the duplicates never got into it. "
        "Take a log that has every receipt, from a time with a failover, a crash or a redelivery."
    )


def _firsts_missing(known: Known) -> str:
    facts, marked = known.facts, known.facts.log.redelivered
    # In a sample of one receipt in ten, nine of ten redeliveries lack the receipt before, and W counts a tenth of the ids.
    if not facts.log.duplicates or facts.cross_domain or marked < _ENOUGH_MARKED or 2 * facts.marked_firsts <= marked:
        return ""
    return (
        f"JMSRedelivered is set on {count(marked, 'receipt')}, and {facts.marked_firsts:,} of them repeat no earlier receipt. A "
        "consumer may have died before it took them. But if the log is a sample, or lacks a consumer's receipts, true needs may be "
        "larger: take a log that has every receipt."
    )


def _crosses_connections(known: Known) -> str:
    cross_domain = known.facts.cross_domain
    if not cross_domain:
        return ""
    (before, after), most = max(cross_domain.items(), key=lambda item: (item[1], item[0]))
    most_often = ""
    if before != after:  # otherwise the receivers shared a connection
        most_often = f" (most often first over '{before}', then over '{after}': {most:,})"
    return (
        f"Receipts that repeat an id of the same queue, but over another connection or receiver: {cross_domain.total():,}. The "
        f"domain key '{known.key}' can't see them, so they are not among the {count(known.facts.log.duplicates, 'duplicate')} "
        f"counted here{most_often}. If these connections compete for one queue, share one domain: --domain destination."
    )


def _missing_parts(known: Known) -> str:
    lacking = {part: known.facts.lacking[part] for part in domain_key(known.key).needs}
    said = [
        f"Receipts without {part}: {_share(receipts, known.facts.log.receipts)}. The domain key "
        f"'{known.key}' puts them all into one domain, so an id that two {PARTS[part]} share counts as a duplicate."
        for part, receipts in lacking.items()
        if receipts
    ]
    if not said:
        return ""
    said.append(
        "If there were several (a correlator's log names no connection), replay the receipts of each by themselves."
    )
    return " ".join(said)


def _id_reuse(known: Known) -> str:
    facts = known.facts
    if not facts.reused:
        return ""
    return (
        f"Duplicates with another body digest than the receipt they repeat: {_share(facts.reused, facts.log.duplicates)}. "
        "The sender uses one id for different messages, and dropping these would lose messages."
    )


def _redelivered_flag(known: Known) -> str:
    facts = known.facts
    if not facts.has_redelivered or not facts.log.duplicates:
        return ""
    wrong = []
    if facts.unmarked_duplicates:
        wrong.append(f"missing on {_share(facts.unmarked_duplicates, facts.log.duplicates)} duplicates")
    if facts.marked_firsts:
        firsts = count(facts.marked_firsts, "first receipt")
        wrong.append(f"set on {firsts}, which came before, to another consumer or to none")
    return f"JMSRedelivered is no substitute for ids here: it is {', and '.join(wrong)}." if wrong else ""


def _demanding_sources(known: Known) -> str:
    needs = known.facts.source_window_needs
    if not needs.total:
        return ""
    median = needs.at((needs.total - 1) // 2)
    bound = _FAR_ABOVE * max(median, _FAR_ABOVE)  # tens of ids cost next to nothing
    far = int(needs.counts[needs.values > bound].sum())
    if not far:
        return ""
    worst = known.facts.sources[0]
    return (
        f"Sources with duplicates that need a window over {bound:,}: {far:,} of {needs.total:,}, while the median one needs "
        f"{median:,}. The worst is '{worst.source or '(anonymous)'}' in '{worst.domain}' with {worst.window_need:,}. All sources get the same "
        "window, so these decide how large it has to be: find out why they resend from so far back."
    )


def _shared_window(known: Known) -> str:
    anonymous = [each for each in known.facts.sources if not each.source and each.window_need > _FAR_ABOVE**2]
    if not anonymous:
        return ""
    worst = anonymous[0]
    named = [each.window_need for each in known.facts.sources if each.source]
    alone = f" Of the sources that have one, none needs more than {max(named):,} by itself." if named else ""
    return (
        f"Without messageSourceId, all senders of a domain share one window, and each pushes out the ids of the others: in "
        f"'{worst.domain}' together they need W = {worst.window_need:,}, for {count(worst.receipts, 'receipt')}.{alone} If these "
        "come from n senders alike, each would need about the nth part alone. Have each set messageSourceId, or name the "
        "property that says who sent a message."
    )


def _ended_sources(known: Known) -> str:
    facts, setting = known.facts, known.recommendation.setting
    ended = facts.ended_sources
    most_kept = int((ended.counts * np.minimum(ended.values, setting.window)).sum())
    kept = min(most_kept, setting.peak_ids)  # `most_kept` counts repeats too, and an id may be in several queues
    if not kept or 100 * kept < _LEAST_ENDED_PERCENT * setting.peak_ids:
        return ""
    return (
        f"Sources that sent no id in the second half of the log: {ended.total:,} of {facts.checked_sources:,}. Of the ids "
        f"remembered at the peak with W = {setting.window:,}, such sources keep up to {_share(kept, setting.peak_ids)}. A "
        "durable receiver retires them: see retire_sources_after_days and max_sources."
    )


def _short_log(known: Known) -> str:
    span_us, need_us = known.facts.log.span_us, known.facts.most_expiry_need_us
    if span_us >= max(STRONG_SPANS * need_us, HOUR_US):
        return ""
    longest = f", and its longest repeat needs {duration(need_us)}" if need_us else ""
    only = "only " if span_us < HOUR_US else ""
    return (
        f"The log spans {only}{duration(span_us)}{longest}. It can't show repeats that come later than that. Replay days that "
        f"hold an outage{_before_lowering(known)}."
    )


def _few_bursts(known: Known) -> str:
    bursts = known.evidence.bursts
    if not 0 < bursts < STRONG_BURSTS:
        return ""
    # The bursts of the log and the next burst are n + 1 bursts. If they are alike, each has the same chance to be the largest.
    largest = "this one" if bursts == 1 else f"the largest of these {bursts}"
    return (
        f"The duplicates came in {count(bursts, 'burst')}. If bursts are alike, the next one exceeds {largest} with a chance "
        f"of 1 in {bursts + 1}; the margin is there for that. Replay more days, or take a larger --margin."
    )


def _halves_disagree(known: Known) -> str:
    both = next(sized for sized in known.kinds if sized.kind is Kind.BOTH)
    if both.unseen is None or not both.unseen.missed:
        return ""
    first, second = known.facts.halves
    return (
        f"Sized on one half of the log, 'both' misses {_share(both.unseen.missed, both.unseen.duplicates)} in the other. "
        f"The first half needs W = {first.window:,}, the second W = {second.window:,}. "
        f"The next day may differ as much: replay more days{_before_lowering(known)}."
    )


def _short_window(known: Known) -> str:
    facts, setting = known.facts, known.recommendation.setting
    delivery_us, peak = facts.log.delivery_us, facts.peak_per_second
    # W is too short if the peak rate fills it sooner than the longest redelivery takes. Cross-multiplied, to be exact.
    if not setting.window or not peak or setting.window * SECOND_US >= delivery_us * peak:
        return ""
    way_out = f"So W alone may miss a redelivery at the peak. E covers it: keep E at {duration(delivery_us)} or more."
    if setting.expiry_us < delivery_us:
        way_out = "E is less than that too, so a redelivery at the peak may be missed: a larger --budget allows for it."
    return (
        f"At its peak the busiest source sends {count(setting.window, 'id')} in {duration(setting.window * SECOND_US // peak)}, and the "
        f"longest redelivery took {duration(delivery_us)}. {way_out}"
    )


def _other_sources(known: Known) -> str:
    others = known.facts.from_other_sources
    if not others:
        return ""
    return (
        f"Duplicates whose id came last from another source: {_share(others, known.facts.log.duplicates)}. If a sender took over "
        "and sent again, their ids are caught in the queue of the source before, so don't retire it before that can happen: "
        "see retire_sources_after_days. If each source counts by itself, they are new messages, and dropping them would lose them: "
        "put the source into the id."
    )


def _clock_backwards(known: Known) -> str:
    clamped = known.facts.log.clock_clamped
    if not clamped or _out_of_order(known):
        return ""
    return (
        f"Time ran backwards: receipts with a time before the latest one of their domain: {clamped:,}, by up to "
        f"{duration(known.facts.largest_step_back_us)}. Each counts as received at that latest time, so a repeat may need so much "
        "more of E than it seems to."
    )


def _rule_of_thumb(known: Known) -> str:
    took_us = round(known.facts.log.max_delivery_secs * SECOND_US)
    if not took_us:
        return ""
    need_us = known.facts.most_expiry_need_us
    verdict = "covers" if 2 * took_us >= need_us else "does not cover"
    said = f" It {verdict} this log: without a window the longest repeat needs {duration(need_us)}."
    advised = known.recommendation
    _, for_repeats_us = with_margin(0, known.evidence.expiry_need_us, advised.margin)
    is_why = advised.expiry_move is Move.RAISE and advised.setting.expiry_us > for_repeats_us
    return (
        f"The rule of thumb, an expiry of two to three times the redelivery time, gives {duration(2 * took_us)} to "
        f"{duration(3 * took_us)} here (rMaxDeliverySecs {duration(took_us)}).{said if known.facts.log.duplicates else ''}"
        f"{' The rule is why E is raised.' if is_why else ''}"
    )


def _without_ids(known: Known) -> str:
    log = known.facts.log
    if not log.unchecked or _ids_missing(known):
        return ""
    return (
        f"Receipts without uniqueMessageId: {_share(log.unchecked, log.receipts)}. They are delivered without a check."
    )


def _status_lines(known: Known) -> str:
    lines = known.facts.status_lines
    if not lines:
        return ""
    shown = ", ".join(
        f"{name}={lines[-1].values[name]:,.15g}"
        for name in ("rRedel", "rMaxDeliverySecs", "rDupsDet", "rDupIds")
        if name in lines[-1].values
    )
    remembered = [line.values["rDupIds"] for line in lines if "rDupIds" in line.values]
    said = [f"at last {shown}"] if shown else ["no duplicates"]
    if remembered:
        said.append(f"at most {max(remembered):,.0f} ids remembered")
    return f"The receiver itself reported, in {count(len(lines), 'JMS Status line')}: {'; '.join(said)}."


_DOUBTS: dict[str, Callable[[Known], str]] = {
    "ids-alike": _ids_alike,
    "ids-repeated": _ids_repeated,
    "rows-copied": _rows_copied,
    "id-reuse": _id_reuse,
    "one-id": _one_id,
    "ids-anew": _ids_anew,
    "ids-missing": _ids_missing,
    "sources-unlike": _sources_unlike,
    "old-times": _odd_times,
    "one-second": _same_second,
    "whole-minutes": _whole_minutes,
    "out-of-order": _out_of_order,
    "counts-lacking": _counts_lacking,
    "rows-skipped": _rows_skipped,
    "domains-alike": _domains_alike,
    "no-duplicates": _without_duplicates,
}
DOUBTS = frozenset(_DOUBTS)
"""The findings that ask whether this is the right log. Reports show them beside the decision."""
_FINDERS = _DOUBTS | {
    "crosses-connections": _crosses_connections,
    "missing-parts": _missing_parts,
    "firsts-missing": _firsts_missing,
    "redelivered-flag": _redelivered_flag,
    "demanding-sources": _demanding_sources,
    "shared-window": _shared_window,
    "ended-sources": _ended_sources,
    "short-log": _short_log,
    "few-bursts": _few_bursts,
    "halves-disagree": _halves_disagree,
    "short-window": _short_window,
    "other-sources": _other_sources,
    "clock-backwards": _clock_backwards,
    "rule-of-thumb": _rule_of_thumb,
    "unchecked": _without_ids,
    "status-lines": _status_lines,
}
"""By fixed name, a function that writes the finding's text, or empty text if it doesn't apply. Most important first."""


def findings_of(known: Known) -> tuple[Finding, ...]:
    said = ((id_, find(known)) for id_, find in _FINDERS.items())
    return tuple(Finding(id_, text) for id_, text in said if text)
