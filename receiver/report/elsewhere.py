"""What other systems would need to miss none of a log's duplicates, as reports and documents say it."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from receiver.policies.interface import Limit
from receiver.policies.names import sized_systems
from receiver.quantities import count, duration, seconds
from receiver.report.document import Cells, Column, Items, Table
from receiver.report.words import or_dash
from receiver.simulate.recommend import elsewhere_with_margin

if TYPE_CHECKING:
    from receiver.policies.names import SizedSystem
    from receiver.simulate.figures import Analysis


class Enough(StrEnum):
    """Whether what a vendor states as the default would do for a log."""

    YES = "yes"
    BARELY = "barely"
    """Without the margin only."""
    NO = "no"
    UNSTATED = "-"
    """There is no default."""


class SystemNeed(NamedTuple):
    """What one system would need, as people read it."""

    system: str
    setting: str
    """As the system writes it; empty where nobody can set it."""
    needs: str
    """Without a margin."""
    with_margin: str
    """What to set, where it can be set; otherwise what would do."""
    default: str
    """`-` where the vendor states none."""
    enough: Enough
    sentence: str
    source: str
    """The vendor's page that states the default and the limits."""


def systems_of(analysis: Analysis) -> tuple[SystemNeed, ...]:
    """What each system would need that goes by an id's first receipt; empty for a log without duplicates."""
    needs = analysis.elsewhere
    if needs is None:
        return ()
    wanted = elsewhere_with_margin(needs, analysis.recommendation.margin)
    return tuple(_need_of(each, needs.of(each.limit), wanted.of(each.limit)) for each in sized_systems())


def _need_of(system: SizedSystem, need: int, wanted: int) -> SystemNeed:
    setting, default = system.setting, system.default
    wanted = max(wanted, setting.least)
    counts_ids = system.limit is not Limit.AGE
    # A time must be longer than the need: some systems have forgotten an id as old as it, and others don't say.
    least = need if counts_ids else need + 1
    enough = _enough(default, least, wanted)
    if counts_ids:
        needs, with_margin, stated = count(need, "id"), count(wanted), or_dash(default)
    else:
        needs, with_margin, stated = duration(need), seconds(wanted), or_dash(default, duration)
        if needs == stated:  # to so few digits
            needs = seconds(need) if enough is not Enough.NO else f"more than {stated}"
    needed = f"this log needs {needs}, with the margin {with_margin}"
    sentences = [_verdict(system, f"{stated} ids" if counts_ids else stated, enough, needed)]
    if enough is not Enough.YES and setting.name:
        sentences.append(_advice(system, least, wanted, with_margin))
    return SystemNeed(
        system.name, setting.name, needs, with_margin, stated, enough, " ".join(sentences), setting.source
    )


def _enough(default: int | None, least: int, wanted: int) -> Enough:
    if default is None:
        return Enough.UNSTATED
    if default < least:
        return Enough.NO
    return Enough.YES if default >= wanted else Enough.BARELY


def _verdict(system: SizedSystem, stated: str, enough: Enough, needed: str) -> str:
    if enough is Enough.UNSTATED:
        return f"{system.name} has no default: {needed}."
    whose = f"{system.name}'" if system.name.endswith("s") else f"{system.name}'s"
    what, verb = (f"default of {stated}", "is") if system.setting.name else (stated, "are")
    said = {Enough.YES: "enough", Enough.BARELY: "enough only without a margin", Enough.NO: "not enough"}
    return f"{whose} {what} {verb} {said[enough]} here: {needed}."


def _advice(system: SizedSystem, least: int, wanted: int, with_margin: str) -> str:
    """How to set it."""
    setting = system.setting
    if setting.most is not None and wanted > setting.most:
        short = "is too short" if setting.most < least else "leaves less than the margin"
        return f"The most that {setting.name} can be, {duration(setting.most)}, {short}."
    return " ".join(filter(None, (f"Set {setting.name} to {with_margin}.", setting.remark)))


def contents(analysis: Analysis) -> list[Table | Items]:
    """A table of the systems, and a sentence about each whose default is not enough; nothing without duplicates."""
    systems = systems_of(analysis)
    if not systems:
        return []
    table = Table.of(
        "What other systems would need",
        systems,
        [
            (
                Column("system, and its setting", Cells.TEXT),
                lambda each: "\n  ".join(filter(None, (each.system, each.setting))),
            ),
            (Column("needs"), lambda each: each.needs),
            (Column("with\nmargin"), lambda each: each.with_margin),
            (Column("default"), lambda each: each.default),
            (Column("enough?", Cells.WORD), lambda each: str(each.enough)),
        ],
        note="The largest need of any domain. A broker that compares messages as they are sent sees other times than this "
        "log's, and none of its own redeliveries.",
    )
    return [table, Items("", [each.sentence for each in systems if each.enough is not Enough.YES])]
