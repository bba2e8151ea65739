"""The advice in words, for terminal and page: what to set, how sure that is, what it guarantees, what changes."""

from __future__ import annotations

from receiver.quantities import count, duration, exact_secs, seconds
from receiver.report.words import LONGEST_WORD, named_source, of_duplicates, size
from receiver.settings import ReceiverSettings
from receiver.simulate.figures import WORST_SOURCES, Analysis, Grade, Kind, Move, SettingFigures
from receiver.simulate.recommend import FAIR_BURSTS


def _named(setting: SettingFigures) -> str:
    return f"W = {count(setting.window)} and E = {seconds(setting.expiry_us)}"


def answer(analysis: Analysis, allowed_missed: int | None) -> tuple[str, ...]:
    """What the single given setting misses, whether that is allowed, and what it costs; empty for several settings."""
    if len(analysis.settings) != 1:
        return ()
    (setting,) = analysis.settings
    said = f"{_named(setting)} would miss {of_duplicates(setting.missed, analysis.log.duplicates)}."
    if allowed_missed is not None:
        verdict = "passes" if setting.missed <= allowed_missed else "fails"
        said += f" This {verdict}: --fail-on-missed allows {count(allowed_missed)}."
    memory = size(setting.peak_ids * analysis.bytes_per_id)
    return said, f"It keeps at most {count(setting.peak_ids, 'id')}, {memory} of this package's memory."


def decision(analysis: Analysis) -> str:
    """Whether to keep, raise or lower W and E, and what to mend before."""
    advised = analysis.recommendation
    window_today, expiry_today_us = advised.present
    window = _moved(advised.window_move, count(window_today), count(advised.setting.window, "id"))
    expiry = _moved(advised.expiry_move, seconds(expiry_today_us), seconds(advised.setting.expiry_us))
    is_one = advised.window_move is advised.expiry_move
    begin = advised.window_move.capitalize()
    if is_one and advised.window_move is Move.KEEP and present_is_default(analysis):
        begin = "Keep the defaults,"
    said = f"{begin} W {window} per source and {'' if is_one else f'{advised.expiry_move} '}E {expiry}."
    return " ".join(filter(None, (said, advised.caveat)))


def _moved(move: Move, today: str, advised: str) -> str:
    return f"= {advised}" if move is Move.KEEP else f"from {today} to {advised}"


def supported(analysis: Analysis) -> str:
    """The setting that the log itself supports, whatever is set today, and what lowering to it would save."""
    advised, both = analysis.recommendation, analysis.of(Kind.BOTH)
    if not analysis.evidence.window_need:  # the log has no duplicate, or all may be missed
        if advised.expiry_move is Move.RAISE:
            return "No duplicate asks to raise E: it is at least a second, and at least three times the longest redelivery."
        return "The log itself asks for nothing."
    if both.setting == advised.setting:
        return "This setting is what the log itself supports."
    said = f"The log itself supports {_named(both.setting)}"
    if advised.sized.kind is not Kind.KEEP:
        return f"{said}, which takes {size(both.memory_bytes)}."
    # `keep` is never smaller than the setting that the log supports.
    what = "Lowering to that"
    if both.setting.window == advised.setting.window:
        what = "Lowering E to that"
    elif both.setting.expiry_us == advised.setting.expiry_us:
        what = "Lowering W to that"
    saved = advised.sized.memory_bytes - both.memory_bytes
    if saved <= 0:
        return f"{said}. {what} would save no memory."
    is_weak = analysis.evidence.grade is Grade.WEAK
    worth = "it shows too little for that" if is_weak else "do it only where memory is short"
    return f"{said}. {what} would save {size(saved)} of {size(advised.sized.memory_bytes)}: {worth}."


def weakness(analysis: Analysis) -> str:
    """Why the evidence is weak, if it has too few bursts; otherwise empty."""
    evidence = analysis.evidence
    if evidence.grade is not Grade.WEAK or evidence.bursts >= FAIR_BURSTS:
        return ""
    return f"The evidence is weak: {count(evidence.bursts, 'burst')}, where fair takes {FAIR_BURSTS}."


def reasons(analysis: Analysis) -> tuple[str, ...]:
    """The basis of the advice: the whole log, each half tested on the other, and the number of bursts."""
    evidence, duplicates = analysis.evidence, analysis.log.duplicates
    bursts = f"{count(evidence.bursts, 'burst')} in {duration(evidence.span_us)}"
    if not duplicates:
        return (f"The log holds no duplicate in {duration(evidence.span_us)}.",)
    missed = of_duplicates(analysis.recommendation.setting.missed, duplicates)
    needs = f"W = {count(evidence.window_need)} or E = {duration(evidence.expiry_need_us)}"
    needed = f"They need {needs}, and came in {bursts}." if duplicates > 1 else f"The one duplicate needs {needs}."
    # `keep` isn't sized by the log, so it has no test on the other half; the setting that the log supports has one.
    unseen = analysis.recommendation.sized.unseen or analysis.of(Kind.BOTH).unseen
    in_other = "none"
    if unseen is not None and unseen.missed:
        in_other = of_duplicates(unseen.missed, unseen.duplicates)
    # A single given setting is reported first, so "it" would be ambiguous.
    which = "The recommended setting" if len(analysis.settings) == 1 else "It"
    return (
        f"{which} misses {missed} here. {needed}",
        f"W and E sized on either half of the log miss {in_other} in the other.",
    )


def guarantees(analysis: Analysis) -> tuple[str, str]:
    """The guarantees of the recommended setting, whatever the traffic: in time, and in ids."""
    setting = analysis.recommendation.setting
    in_time = f"A repeat within {seconds(setting.expiry_us)} is caught, however busy it was."
    if not setting.expiry_us:
        in_time = "No time is guaranteed: E is 0."
    if not setting.window:
        return in_time, "No number of ids is guaranteed: W is 0."
    in_ids = f"A repeat within its source's last {count(setting.window, 'id')} is caught, however late."
    peak = analysis.peak_per_second
    if not peak:
        return in_time, in_ids
    lasts = duration(setting.window * 1_000_000 // peak)
    return in_time, f"{in_ids} (At its peak the busiest source sends that many in {lasts}.)"


def cost(analysis: Analysis) -> str:
    sized = analysis.recommendation.sized
    return (
        f"It keeps at most {count(sized.setting.peak_ids, 'id')}. They take this package {size(sized.memory_bytes)} of memory and "
        f"{size(sized.database_bytes)} in its database; a correlator's memory isn't measured."
    )


def change(analysis: Analysis) -> str:
    """What changes against the present setting."""
    present, recommended = analysis.of(Kind.PRESENT), analysis.recommendation.sized
    said = f"{'The default' if present_is_default(analysis) else 'Your setting'}, {_named(present.setting)},"
    if present.setting == recommended.setting:
        return f"{said} is kept."
    said = f"{said} misses {of_duplicates(present.setting.missed, analysis.log.duplicates)}"
    if present.memory_bytes == recommended.memory_bytes:
        return f"{said} and takes as much memory."
    return f"{said} and takes {size(present.memory_bytes)} instead of {size(recommended.memory_bytes)}."


def present_is_default(analysis: Analysis) -> bool:
    """Whether the present setting is Apama's defaults."""
    return analysis.of(Kind.PRESENT).setting.pair == ReceiverSettings().sizes


def shortfall(analysis: Analysis) -> str:
    """Which tiers of the present setting wouldn't catch all duplicates alone; empty if both would."""
    setting, evidence = analysis.of(Kind.PRESENT).setting, analysis.evidence
    expiry = duration(evidence.expiry_need_us)
    if expiry == duration(setting.expiry_us):  # equal only because both are rounded
        expiry = seconds(evidence.expiry_need_us)
    takes = {
        "window": f"W = {count(evidence.window_need)}" if setting.window < evidence.window_need else "",
        "expiry": f"E = {expiry}" if setting.expiry_us < evidence.expiry_need_us else "",
    }
    short = [tier for tier, need in takes.items() if need]
    if not short:
        return ""
    who = "Neither tier would do" if len(short) == len(takes) else f"The {short[0]} wouldn't do"
    return f"{who} alone: that takes {' or '.join(takes[tier] for tier in short)}."


def price_setters(analysis: Analysis) -> str:
    """Which sources need the most, and how much the next need."""
    sources = analysis.sources
    if not sources:
        return "No source sent a duplicate, so no source decides about W and E."
    by_window = sorted(sources, key=lambda source: -source.window_need)
    by_expiry = sorted(sources, key=lambda source: -source.expiry_need_us)
    said = (
        f"{named_source(by_window[0].source, LONGEST_WORD)} needs the largest window, {count(by_window[0].window_need)}"
    )
    if len(sources) > 1:
        said += f"; the next needs {count(by_window[1].window_need)}"
    # An analysis lists those with the largest window needs, and may leave out others with large expiry needs.
    largest_us, _ = analysis.missed_by_expiry_us[-1]
    if by_expiry[0].expiry_need_us >= largest_us:
        who = "It also" if by_expiry[0] == by_window[0] else named_source(by_expiry[0].source, LONGEST_WORD)
        said += f". {who} needs the longest expiry, {duration(by_expiry[0].expiry_need_us)}"
        if 1 < len(sources) < WORST_SOURCES:
            said += f"; the next needs {duration(by_expiry[1].expiry_need_us)}"
    return f"All sources get the same W and E. {said}."


def properties(analysis: Analysis) -> tuple[str, str]:
    """The two lines for the receiver's bean in Apama's configuration."""
    setting = analysis.recommendation.setting
    # Apama takes whole seconds.
    secs = exact_secs(-(-setting.expiry_us // 1_000_000) * 1_000_000)
    return (
        f'<property name="dupDetectionPerSourceExpiryWindowSize" value="{setting.window}"/>',
        f'<property name="dupDetectionExpiryTimeSecs" value="{secs}"/>',
    )
