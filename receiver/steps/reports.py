"""What the units of a log hold, by their reports: whether it can be read, and what is known before any id is looked at."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from receiver.domains import Channel, DomainKey
from receiver.errors import LogFormatError
from receiver.logs import StatusLine, no_receipt
from receiver.logs.columns import TimeUnit
from receiver.logs.rows import two_units
from receiver.simulate.facts import LogSeen
from receiver.simulate.figures import DomainFigures, LogFigures
from receiver.simulate.numbering import check_columns, lacking_parts
from receiver.steps.schemas import Unit, UnitReport, channels_of

if TYPE_CHECKING:
    import numpy.typing as npt


def reports_of(unordered: Iterable[UnitReport], units: Sequence[Unit], key: DomainKey) -> list[UnitReport]:
    """The reports by unit; `LogFormatError` for what is wrong with the log, as one process that reads it would raise."""
    reports = sorted(unordered, key=lambda report: report.unit)
    first_units: dict[int, TimeUnit] = {}
    for report, unit in zip(reports, units, strict=True):
        if report.time_unit:
            time_unit = TimeUnit(report.time_unit, report.time_unit_line)
            first = first_units.setdefault(unit.file, time_unit)
            if first.unit != time_unit.unit:
                raise two_units(unit.name, first, time_unit)
        if report.problem:
            raise LogFormatError(report.problem_location, report.problem, hint=report.problem_hint or None)
    if not any(report.receipts for report in reports):
        raise no_receipt(list({unit.file: unit.name for unit in units}.values()))
    check_columns({column for report in reports for column in report.columns_present}, key)
    return reports


def status_lines_of(reports: Iterable[UnitReport]) -> Iterator[StatusLine]:
    """The status lines in the units, in the order of reading."""
    for report in reports:
        for at_us, values in zip(report.status_at_us.tolist(), report.status_values, strict=True):
            yield StatusLine(at_us, json.loads(values))


def names_of(reports: Iterable[UnitReport], key: DomainKey) -> dict[Channel, str]:
    """The domain of each channel."""
    return {
        channel: key.name(channel) for channel in {channel for report in reports for channel in channels_of(report)}
    }


def carry_us_of(reports: Sequence[UnitReport], units: Sequence[Unit]) -> npt.NDArray[np.int64]:
    """Per unit, the largest time of its file before it, -1 if none: `CutPlan.carry_us`."""
    carry_us = np.full(len(units), -1, np.int64)
    for before, unit in pairwise(units):
        if before.file == unit.file:
            carry_us[unit.number] = max(int(carry_us[before.number]), reports[before.number].last_us)
    return carry_us


def seen_of(reports: Sequence[UnitReport], key: DomainKey) -> LogSeen:
    """What is known of the log before any id is looked at."""
    domains = _domains(reports, key)
    present = {column for report in reports for column in report.columns_present}
    lacking: Counter[str] = Counter()
    for report in reports:
        lacking.update(lacking_parts(channels_of(report), report.receipts_by_channel.tolist()))
    return LogSeen(
        log=LogFigures(
            receipts=sum(report.receipts for report in reports),
            unchecked=sum(report.unchecked for report in reports),
            skipped=sum(report.skipped for report in reports),
            duplicates=0,
            domains=len(domains),
            sources=sum(domain.sources for domain in domains),
            first_received_at_us=min(report.first_us for report in reports if report.receipts),
            last_received_at_us=max(report.last_us for report in reports if report.receipts),
            clock_clamped=0,
            redelivered=sum(report.redelivered for report in reports),
            max_delivery_secs=max(report.max_delivery_us for report in reports) / 1_000_000,
        ),
        domains=domains,
        lacking=dict(lacking),
        has_digest="body_digest" in present,
        has_redelivered="jms_redelivered" in present,
        status_lines=list(status_lines_of(reports)),
    )


def _domains(reports: Sequence[UnitReport], key: DomainKey) -> list[DomainFigures]:
    """The domains, ordered by name."""
    name_of = names_of(reports, key)
    sources: dict[str, set[str]] = {name: set() for name in sorted(set(name_of.values()))}
    receipts: Counter[str] = Counter()
    for report in reports:
        names = [name_of[channel] for channel in channels_of(report)]
        for source, channel in zip(report.sources, report.sources_channel.tolist(), strict=True):
            sources[names[channel]].add(source)
        for name, count in zip(names, report.receipts_by_channel.tolist(), strict=True):
            receipts[name] += count
    return [DomainFigures(name, receipts[name], sources=len(of_domain)) for name, of_domain in sources.items()]
