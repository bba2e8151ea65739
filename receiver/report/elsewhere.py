"""What other systems would need to miss none of a log's duplicates, in words for reports and documentation."""

from __future__ import annotations

from enum import StrEnum
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

from receiver.policies.interface import FOR_EVER, Limit
from receiver.policies.names import POLICIES, policy, text_of
from receiver.quantities import count, duration, seconds
from receiver.report.document import Cells, Column, Items, Shown, Table
from receiver.report.words import MOST_DOMAINS, named_domain
from receiver.simulate.recommend import elsewhere_with_margin

if TYPE_CHECKING:
    from receiver.policies.interface import Policy, Setting, Vendor
    from receiver.simulate.figures import Analysis, DomainFigures, Elsewhere

REMEMBERED = {
    Limit.ACCEPTED: "latest new ids",
    Limit.USED: "ids used last",
    Limit.AGE: "ids for a time",
    Limit.SOURCES: "producers' numbers",
}


class SizedSystem(NamedTuple):
    """A system with a limit of ids, time or sources, which its users can set or should know."""

    name: str
    setting: Setting
    limit: Limit
    default: int | None
    """The limit unless it is set, in ids, microseconds or sources; or `FOR_EVER`. None: the vendor states none."""


class Enough(StrEnum):
    """Whether a vendor's default is enough for a log."""

    YES = "yes"
    BARELY = "barely"
    """Enough only without the margin."""
    NO = "no"
    UNSTATED = "-"
    """The vendor states no default."""


_SHORT = {Enough.BARELY: "enough only without a margin", Enough.NO: "not enough"}


class SystemNeed(NamedTuple):
    """The need of one system, in words."""

    system: str
    limit: Limit
    setting: str
    """The setting's name in the system; empty if it can't be set."""
    with_margin: str
    """The value to set; if it can't be set, the value that would be enough."""
    default: str
    """Empty if the vendor states none."""
    enough: Enough
    shortfall: str
    """Sentences on what to do if the default isn't enough; empty otherwise."""


def sized_systems() -> list[SizedSystem]:
    """The systems that a log can size, ordered by limit, then by policy."""
    systems = [
        SizedSystem(system, vendor.setting, limit, _default_of(rule, vendor, limit))
        for rule in POLICIES
        if (limit := rule.declaration.limit)
        for vendor in rule.declaration.vendors
        if vendor.setting is not None
        for system in vendor.systems
    ]
    return sorted(systems, key=lambda system: list(Limit).index(system.limit))


def _default_of(rule: type[Policy], vendor: Vendor, limit: Limit) -> int | None:
    if vendor.setting and vendor.setting.default is not None:
        return vendor.setting.default
    if vendor.sizes is None or vendor.sizes_are_ours:
        return None
    ids, expiry_us = policy(text_of(rule, vendor.sizes)).sizes
    return expiry_us if limit is Limit.AGE else ids


def systems_of(analysis: Analysis) -> tuple[SystemNeed, ...]:
    """The need of each system, ordered by the kind of limit; empty for a log without duplicates."""
    needs = analysis.elsewhere
    if needs is None:
        return ()
    wanted = elsewhere_with_margin(needs, analysis.recommendation.margin)
    return tuple(_need_of(each, needs.of(each.limit), wanted.of(each.limit)) for each in sized_systems())


def _need_of(system: SizedSystem, need: int, wanted: int) -> SystemNeed:
    setting, default, limit = system.setting, system.default, system.limit
    wanted = max(wanted, setting.least)
    # A time must exceed the need: some systems forget an id at exactly that age, and others don't document it.
    least = need + 1 if limit is Limit.AGE else need
    enough = _enough(default, least, wanted)
    needs, with_margin = amount(limit, need), seconds(wanted) if limit is Limit.AGE else count(wanted)
    stated = "" if default is None else amount(limit, default)
    if limit is Limit.AGE and needs == stated:  # equal only because both are rounded
        needs = seconds(need) if enough is not Enough.NO else f"more than {stated}"
    shortfall = ""
    if short := _SHORT.get(enough):
        what = f"{stated} by default" if setting.name else stated
        shortfall = f"{system.name}: {what} is {short} here. This log needs {needs}, with the margin {with_margin}."
        if setting.name:
            shortfall += " " + _advice(setting, least, wanted, with_margin)
    return SystemNeed(system.name, limit, setting.name, with_margin, stated, enough, shortfall)


def amount(limit: Limit, value: int) -> str:
    """A value of a limit with its unit: `20,000 ids`, `10 min`, `for ever`."""
    match limit:
        case Limit.AGE:
            return "for ever" if value == FOR_EVER else duration(value)
        case Limit.SOURCES:
            return count(value, "producer")
        case Limit.ACCEPTED | Limit.USED:
            return count(value, "id")


def _bare(limit: Limit, value: int) -> str:
    return amount(limit, value) if limit is Limit.AGE else count(value)


def _enough(default: int | None, least: int, wanted: int) -> Enough:
    if default is None:
        return Enough.UNSTATED
    if default < least:
        return Enough.NO
    return Enough.YES if default >= wanted else Enough.BARELY


def _advice(setting: Setting, least: int, wanted: int, with_margin: str) -> str:
    """The value to set, or that the setting allows no value that is enough."""
    if setting.most is not None and wanted > setting.most:
        short = "is too short" if setting.most < least else "leaves less than the margin"
        return f"The most that {setting.name} can be, {duration(setting.most)}, {short}."
    return " ".join(filter(None, (f"Set {setting.name} to {with_margin}.", setting.remark)))


def contents(analysis: Analysis) -> list[Table | Items]:
    """A table of the systems, and a text about each whose default isn't enough with the margin; empty without duplicates."""
    systems, needs = systems_of(analysis), analysis.elsewhere
    if needs is None:
        return []
    wanted = elsewhere_with_margin(needs, analysis.recommendation.margin)
    alike = [
        [each for each in systems if (each.limit, each.enough) == (limit, enough)]
        for limit, enough in product(Limit, Enough)
    ]
    table = Table.of(
        "What other systems would need",
        list(filter(None, alike)),
        [
            (Column("they remember", Cells.TEXT), lambda own: REMEMBERED[own[0].limit]),
            (Column("need"), lambda own: _bare(own[0].limit, needs.of(own[0].limit))),
            (Column("with\nmargin"), lambda own: _bare(own[0].limit, wanted.of(own[0].limit))),
            (Column("enough?", Cells.WORD), lambda own: str(own[0].enough)),
            (
                Column("systems, with their default or what to set", Cells.TEXT),
                lambda own: ", ".join(f"{each.system} ({each.default or each.setting})" for each in own),
            ),
        ],
        note="The largest need of any domain. A broker that compares messages as they are sent sees other times than this "
        "log's, and none of its own redeliveries.",
    )
    short = [each.shortfall for each in systems if each.shortfall]
    return [table, Items("", short)] if short else [table]


def by_domain(analysis: Analysis) -> Table | None:
    """The needs of each domain, for systems that are sized by address; None for fewer than two domains."""
    domains = [(domain, domain.elsewhere) for domain in analysis.domains if domain.elsewhere is not None]
    if len(domains) < 2:  # noqa: PLR2004
        return None

    def shown(limit: Limit) -> Shown[tuple[DomainFigures, Elsewhere]]:
        return Column(REMEMBERED[limit]), lambda row: amount(limit, row[1].of(limit))

    domains.sort(key=lambda row: (-row[1].artemis_id_cache_size, row[0].domain))
    return Table.of(
        "What each domain would need of them, without the margin",
        domains[:MOST_DOMAINS],
        [(Column("domain", Cells.NAME), lambda row: named_domain(row[0].domain)), *map(shown, Limit)],
    )
