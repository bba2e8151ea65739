"""The advice in words, for the terminal as for the page: what to set, how sure that is, what it guarantees, what changes."""

from __future__ import annotations

from receiver.quantities import count, duration, exact_secs, seconds
from receiver.report.words import named_source, of_duplicates, size
from receiver.settings import ReceiverSettings
from receiver.simulate.figures import Analysis, Grade, Kind, SettingFigures, SourceFigures
from receiver.simulate.recommend import FAIR_BURSTS

_LONGEST_NAME = 60


def _named(setting: SettingFigures) -> str:
    return f"W = {count(setting.window)} and E = {seconds(setting.expiry_us)}"


def decision(analysis: Analysis) -> str:
    """What to set."""
    setting = analysis.recommendation.setting
    return f"Set W = {count(setting.window, 'id')} per source and E = {seconds(setting.expiry_us)}."


def weakness(analysis: Analysis) -> str:
    """Why the evidence is weak; empty where it isn't for want of bursts."""
    evidence = analysis.evidence
    if evidence.grade is not Grade.WEAK or evidence.bursts >= FAIR_BURSTS:
        return ""
    return f"The evidence is weak: {count(evidence.bursts, 'burst')}, where fair takes {FAIR_BURSTS}."


def reasons(analysis: Analysis) -> tuple[str, ...]:
    """What the advice rests on: the log itself, one half of it against the other, and how often something happened."""
    evidence, duplicates = analysis.evidence, analysis.log.duplicates
    bursts = f"{count(evidence.bursts, 'burst')} in {duration(evidence.span_us)}"
    if not duplicates:
        return (f"The log holds no duplicate in {duration(evidence.span_us)}, so it says nothing about W and E.",)
    missed = of_duplicates(analysis.recommendation.setting.missed, duplicates)
    needs = f"W = {count(evidence.window_need)} or E = {duration(evidence.expiry_need_us)}"
    needed = f"They need {needs}, and came in {bursts}." if duplicates > 1 else f"The one duplicate needs {needs}."
    sized = analysis.recommendation.sized
    who, unseen = ("it", sized.unseen) if sized.unseen else ("'both'", analysis.of(Kind.BOTH).unseen)
    in_other = "none of the other half"
    if unseen is not None and unseen.missed:
        in_other = f"{of_duplicates(unseen.missed, unseen.duplicates)} in the other"
    # A setting that was asked for is told of too, and `--fail-on-missed` goes by that one.
    which = "The recommended setting" if len(analysis.settings) == 1 else "It"
    return f"{which} misses {missed} here. {needed}", f"Sized on one half of the log, {who} misses {in_other}."


def guarantees(analysis: Analysis) -> tuple[str, str]:
    """What the setting guarantees on any day: in time, and in ids."""
    setting = analysis.recommendation.setting
    in_time = f"A repeat within {seconds(setting.expiry_us)} is caught, however busy it was."
    if not setting.expiry_us:
        in_time = "No time is guaranteed: E is 0."
    if not setting.window:
        return in_time, "No number of ids is guaranteed: W is 0."
    in_ids = f"A repeat within its source's last {count(setting.window, 'id')} is caught, however late"
    peak = analysis.peak_per_second
    if not peak:
        return in_time, f"{in_ids}."
    lasts = duration(setting.window * 1_000_000 // peak)
    return in_time, f"{in_ids}: {lasts} of the busiest source at its peak."


def cost(analysis: Analysis) -> str:
    sized = analysis.recommendation.sized
    return (
        f"It keeps at most {count(sized.setting.peak_ids, 'id')}: {size(sized.memory_bytes)} of memory, "
        f"{size(sized.database_bytes)} in the database."
    )


def change(analysis: Analysis) -> str:
    """What changes for who has the present setting."""
    present, recommended = analysis.of(Kind.PRESENT), analysis.recommendation.sized
    said = f"{'The default' if present_is_default(analysis) else 'Your setting'}, {_named(present.setting)},"
    if present.setting == recommended.setting:
        return f"{said} is what is recommended."
    said = f"{said} misses {of_duplicates(present.setting.missed, analysis.log.duplicates)}"
    if present.memory_bytes == recommended.memory_bytes:
        return f"{said} and takes as much memory."
    return f"{said} and takes {size(present.memory_bytes)} instead of {size(recommended.memory_bytes)}."


def present_is_default(analysis: Analysis) -> bool:
    """Whether Apama's defaults are set at present, not raised to what the log needs."""
    return analysis.of(Kind.PRESENT).setting.pair == ReceiverSettings().sizes


def shortfall(analysis: Analysis) -> str:
    """Which tiers of the present setting don't catch by themselves what the log holds; empty where both do."""
    setting, evidence = analysis.of(Kind.PRESENT).setting, analysis.evidence
    expiry = duration(evidence.expiry_need_us)
    if expiry == duration(setting.expiry_us):  # to so few digits
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
    """Which sources need most, and by how much."""
    sources = analysis.sources
    if not sources:
        return "No source sent a duplicate, so no source decides about W and E."
    by_window = sorted(sources, key=lambda source: -source.window_need)
    by_expiry = sorted(sources, key=lambda source: -source.expiry_need_us)
    said = f"{_name(by_window[0])} needs the largest window, {count(by_window[0].window_need)}"
    if len(sources) > 1:
        said += f"; the next needs {count(by_window[1].window_need)}"
    # Sources that need a long expiry alone may be left out of an analysis.
    largest_us, _ = analysis.missed_by_expiry_us[-1]
    if by_expiry[0].expiry_need_us >= largest_us:
        who = "It also" if by_expiry[0] == by_window[0] else _name(by_expiry[0])
        said += f". {who} needs the longest expiry, {duration(by_expiry[0].expiry_need_us)}"
        if len(sources) > 1:
            said += f"; the next needs {duration(by_expiry[1].expiry_need_us)}"
    return f"All sources get the same W and E. {said}."


def _name(source: SourceFigures) -> str:
    return named_source(source.source, _LONGEST_NAME)


def properties(analysis: Analysis) -> tuple[str, str]:
    """The two lines for the receiver's bean in Apama's configuration."""
    setting = analysis.recommendation.setting
    # Apama takes whole seconds.
    secs = exact_secs(-(-setting.expiry_us // 1_000_000) * 1_000_000)
    return (
        f'<property name="dupDetectionPerSourceExpiryWindowSize" value="{setting.window}"/>',
        f'<property name="dupDetectionExpiryTimeSecs" value="{secs}"/>',
    )
