"""The content of a store, for people and as one JSON object: domains, damage, waiting and parked messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from itertools import zip_longest
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

from receiver.bridge.connectors.address import position_named
from receiver.durable.audit import StoredDomain, StoreFigures, memory_limit_ids
from receiver.durable.duplicates import Need
from receiver.durable.forgetting import KnownId
from receiver.durable.status import Counts
from receiver.quantities import SECOND_US, count, duration
from receiver.report.terminal import line
from receiver.report.words import LONGEST_WORD, moment_or_none, named_domain, or_dash, sanitised, second, size
from receiver.store.positions import PositionRow
from receiver.store.snapshot import PROBLEMS, DomainName, StoreFinding
from receiver.store.tables import DomainState
from receiver.store.upkeep import ParkedRow, TargetRow

_LONGEST_TARGET = 200
_LONGEST_LINE = 2000
_LONGEST_ERROR = 500
_UNKNOWN_DOMAIN = "(a domain that the store doesn't know)"
_UNKNOWN_TARGET = "(a target that the store doesn't know)"


def print_status(address: str, figures: StoreFigures, console: Console) -> None:
    """Print the store in one line, then each domain: its status line, the needs of its duplicates beside its W and E, and a table
    of the other figures."""
    _print_heading(address, figures, console)
    for domain in figures.domains:
        console.print()
        line(console, _shown_domain(DomainName.of(domain.state)), "bold")
        line(console, f"  {domain.policy}")
        line(console, f"  {domain.line()}")
        if domain.need is not None:
            line(console, f"  needs {_needs(domain.state, domain.need)}")
        if domain.secs_to_memory_limit is not None:
            secs = domain.secs_to_memory_limit
            when = f"in {duration(round(secs * SECOND_US))}" if secs else "now"
            ids = count(memory_limit_ids(), "id")
            line(console, f"  at the rate of the last hour, its ids fill the memory for {ids} {when}")
        for row in _sorted_positions(domain):
            line(console, f"  {_shown_position(row)}")
        for node in domain.nodes:
            line(
                console,
                f"  {shown_target(node.address)}: at {sanitised(node.node)} since {second(node.connected_at_us)} UTC",
            )
        console.print(_table(domain))


def print_check(address: str, figures: StoreFigures, console: Console) -> None:
    """Print the store in one line, the rows of each domain, and the list of damage."""
    _print_heading(address, figures, console)
    for domain in figures.domains:
        line(console, f"  {_shown_domain(DomainName.of(domain.state))}: {_rows(domain)}")
    if not figures.findings:
        line(console, f"Sound: {count(len(PROBLEMS), 'kind')} of damage looked for, none found.", "bold green")
        return
    line(console, f"Broken: {count(len(figures.findings), 'finding')}.", "bold red")
    for finding in figures.findings:
        line(console, f"- {_sentence(finding)}")


def status_object(address: str, figures: StoreFigures) -> dict[str, Any]:
    """The result of `receiver status --json`. Figures that weren't requested or aren't available are null."""
    return {**_store_object(address, figures), "domains": [_object(domain) for domain in figures.domains]}


def check_object(address: str, figures: StoreFigures) -> dict[str, Any]:
    """The result of `receiver check --json`."""
    return {
        **_store_object(address, figures),
        "sound": not figures.findings,
        "domains": [_object(domain, _CHECKED) for domain in figures.domains],
        "findings": [
            {
                "kind": finding.kind,
                "problem": finding.problem,
                "domain": finding.domain and finding.domain.name,
                "key": finding.domain and finding.domain.key,
                "count": finding.count,
                "example": finding.example,
            }
            for finding in figures.findings
        ],
    }


def _record(row: Any, names: str, **fields: str) -> dict[str, Any]:
    """A row as JSON with these names. `fields`: name -> the row's field, if that has another name. A name `..._at` gets the
    moment of the field `..._at_us`."""
    shown = {}
    for name in names.split():
        field = fields.get(name, name)
        is_moment = name.endswith("_at")
        shown[name] = moment_or_none(getattr(row, f"{field}_us")) if is_moment else getattr(row, field)
    return shown


def _print_heading(address: str, figures: StoreFigures, console: Console) -> None:
    domains = count(len(figures.domains), "domain")
    line(console, f"{address}: version {figures.version}, {domains}, {size(figures.size_bytes)}")


def _shown_domain(domain: DomainName) -> str:
    return f"{named_domain(domain.name, LONGEST_WORD)} (key {sanitised(domain.key)})"


def _rows(domain: StoredDomain) -> str:
    rows = count(domain.rows, "row")
    if domain.remembered_ids is None:
        return rows
    return f"{rows}, {count(domain.remembered_ids, 'id')} remembered, {count(domain.waiting_rows or 0, 'row')} to be deleted"


class _Column(NamedTuple):
    """A figure of a domain, for `receiver status`, `receiver check` and `receiver domain list`."""

    name: str
    """The figure's key in JSON; empty if JSON doesn't have it."""
    value: Callable[[StoredDomain], Any]
    title: str = ""
    """The figure's name in the table; empty if the table doesn't have it."""
    shown: Callable[[StoredDomain], str] | None = None
    """Formats the figure for the table; None: as a count."""

    def row(self, domain: StoredDomain) -> tuple[str, str]:
        return self.title, self.shown(domain) if self.shown else or_dash(self.value(domain))


def _counter(name: str, title: str) -> _Column:
    return _Column(name, lambda d: getattr(d.state, name), title)


def _sources(domain: StoredDomain) -> str:
    silent = f", {count(domain.silent_sources)} silent for a day" if domain.silent_sources else ""
    return or_dash(domain.sources) + silent


_COLUMNS = (
    _Column("domain", lambda d: d.state.domain_name),
    _Column("key", lambda d: d.state.domain_key),
    _Column("policy", lambda d: d.policy),
    _Column("window", lambda d: d.state.window_size),
    _Column("expiry_secs", lambda d: d.state.expiry_us / SECOND_US),
    _Column("resizes", lambda d: d.state.generation, "times changed"),
    *(_counter(each.name, each.metadata["title"]) for each in fields(Counts) if each.metadata["title"]),
    _Column(
        "max_delivery_secs",
        lambda d: d.state.max_delivery_us / SECOND_US,
        "longest delivery",
        lambda d: duration(d.state.max_delivery_us),
    ),
    _Column("window_need", lambda d: d.need and d.need.window),
    _Column("window_need_is_lower_bound", lambda d: d.need and d.need.is_lower_bound),
    _Column("expiry_need_secs", lambda d: d.need and d.need.expiry_us / SECOND_US),
    _Column(
        "latest_received_at",
        lambda d: moment_or_none(d.state.latest_us) if d.state.last_seq else None,
        "latest receipt, UTC",
        lambda d: second(d.state.latest_us) if d.state.last_seq else "-",
    ),
    _Column("", lambda d: d.remembered_ids, "ids remembered"),  # in JSON it follows `rows`
    _Column("sources", lambda d: d.sources, "sources", _sources),
    _Column("silent_sources", lambda d: d.silent_sources),
    _Column("retired_sources", lambda d: d.state.retired_sources, "sources retired"),
    _Column("memory_limit_ids", lambda _: memory_limit_ids()),
    _Column("secs_to_memory_limit", lambda d: d.secs_to_memory_limit),
    _Column("rows", lambda d: d.rows, "rows"),
    _Column("remembered_ids", lambda d: d.remembered_ids),
    _Column("rows_to_be_deleted", lambda d: d.waiting_rows, "rows to be deleted"),
    _Column("unfolded_receipts", lambda d: d.unfolded_receipts),
    _Column("unfolded_secs", lambda d: d.unfolded_secs),
    _Column("inbox", lambda d: d.inbox),
    _Column("parked", lambda d: d.parked),
    _Column("positions", lambda d: [row._asdict() | position_named(*row)._asdict() for row in _sorted_positions(d)]),
    _Column("nodes", lambda d: [_record(row, "address node connected_at") for row in d.nodes]),
    _Column("line", lambda d: d.line()),
)
_ALL = " ".join(column.name for column in _COLUMNS)
_CHECKED = "domain key rows remembered_ids rows_to_be_deleted"
_LISTED = "domain key policy window expiry_secs receipts latest_received_at rows inbox parked"


def _object(domain: StoredDomain, names: str = _ALL) -> dict[str, Any]:
    wanted = names.split()
    return {column.name: column.value(domain) for column in _COLUMNS if column.name in wanted}


def _table(domain: StoredDomain) -> Table:
    rows = [column.row(domain) for column in _COLUMNS if column.title]
    half = (len(rows) + 1) // 2
    pairs = list(zip_longest(rows[:half], rows[half:], fillvalue=("", "")))
    if domain.inbox != 0 or domain.parked != 0:  # the domain has a bridge
        pairs.append((("in the inbox", or_dash(domain.inbox)), ("parked", or_dash(domain.parked))))
    if domain.state.is_concurrent:
        oldest = "-" if domain.unfolded_secs is None else duration(round(domain.unfolded_secs * SECOND_US))
        pairs.append((("not folded in", or_dash(domain.unfolded_receipts)), ("the oldest, for", oldest)))
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 1))
    for justify in ("left", "right", "left", "right"):
        table.add_column(justify=justify, no_wrap=True)
    for (title, text), right in pairs:
        table.add_row(*map(Text, (f"  {title}", f"{text}   ", *right)))
    return table


def _needs(state: DomainState, need: Need) -> str:
    """The needs beside W and E: `W 176 of 360, E 20.5 s of 41 s`. A tier of size 0 is left out."""
    window = f"more than {count(need.window - 1)}" if need.is_lower_bound else count(need.window)
    tiers = {
        f"W {window} of {count(state.window_size)}": state.window_size,
        f"E {duration(need.expiry_us)} of {duration(state.expiry_us)}": state.expiry_us,
    }
    return ", ".join(said for said, size in tiers.items() if size)


def _sorted_positions(domain: StoredDomain) -> list[PositionRow]:
    """The positions ordered by source, a topic's partitions by number."""
    return sorted(domain.positions, key=lambda row: (row.source, position_named(*row).partition or 0, row.name))


def _shown_position(row: PositionRow) -> str:
    named = position_named(*row)
    if named.topic is not None:
        return f"topic {named.topic}, group {named.group}, partition {named.partition}: next offset {named.next_offset}"
    if named.stream is not None:
        return f"stream {named.stream}: next offset {named.next_offset}"
    return f"position of {row.source}, {row.name}: {row.position}"


def _sentence(finding: StoreFinding) -> str:
    domain = f"{_shown_domain(finding.domain)}: " if finding.domain else ""
    times = f" ({count(finding.count)} times, the first: " if finding.count > 1 else " ("
    return f"{domain}{finding.problem}{times}{finding.example})"


def _store_object(address: str, figures: StoreFigures) -> dict[str, Any]:
    return {"store": address, "version": figures.version, "size_bytes": figures.size_bytes}


def print_domains(address: str, figures: StoreFigures, console: Console) -> None:
    """Print the store in one line, then each domain: its name and policy, its receipts, rows and messages."""
    _print_heading(address, figures, console)
    for domain in figures.domains:
        state = domain.state
        console.print()
        line(console, f"{state.domain_id}: {_shown_domain(DomainName.of(state))}", "bold")
        line(console, f"  {domain.policy}")
        latest = f", the latest {second(state.latest_us)} UTC" if state.last_seq else ""
        line(console, f"  {count(state.receipts, 'receipt')}{latest}")
        waiting, parked = ("?" if number is None else count(number) for number in (domain.inbox, domain.parked))
        line(console, f"  {count(domain.rows, 'row')}, {waiting} in the inbox, {parked} parked")


def domains_object(address: str, figures: StoreFigures) -> dict[str, Any]:
    """The result of `receiver domain list --json`."""
    domains = [{"number": domain.state.domain_id, **_object(domain, _LISTED)} for domain in figures.domains]
    return {**_store_object(address, figures), "domains": domains}


def print_inbox(address: str, rows: Sequence[TargetRow], console: Console) -> None:
    """Print the store in one line, then each target: its domain, and the messages that wait for it."""
    waiting = count(sum(row.waiting for row in rows), "message")
    line(console, f"{address}: {count(len(rows), 'target')}, {waiting} in the inbox")
    for row in rows:
        console.print()
        line(console, f"{row.number}: {shown_target(row.name)}", "bold")
        line(console, f"  of {_target_domain(row)}")
        line(console, f"  {shown_waiting(row)}")


def _target_domain(row: TargetRow) -> str:
    if row.domain is None or row.domain_key is None:
        return _UNKNOWN_DOMAIN
    return _shown_domain(DomainName(row.domain_key, row.domain))


def shown_target(name: str) -> str:
    return sanitised(name, _LONGEST_TARGET)


def shown_waiting(row: TargetRow) -> str:
    if row.oldest_us is None:
        return "nothing waits"
    return f"{count(row.waiting, 'message')}, {size(row.body_bytes)}, the oldest received {second(row.oldest_us)} UTC"


def inbox_object(address: str, rows: Sequence[TargetRow]) -> dict[str, Any]:
    """The result of `receiver inbox list --json`."""
    names = "number target domain key waiting oldest_received_at body_bytes"
    fields = {"target": "name", "key": "domain_key", "oldest_received_at": "oldest"}
    return {"store": address, "targets": [_record(row, names, **fields) for row in rows]}


def print_parked(address: str, rows: Sequence[ParkedRow], console: Console) -> None:
    """Print the store in one line, then each parked message: its id, source and target, the times, and the error."""
    line(console, f"{address}: {count(len(rows), 'message')} parked")
    for row in rows:
        console.print()
        line(console, f"{row.parked_id}: {_message_name(row)}", "bold")
        source = f"from {sanitised(row.message_source_id)} " if row.message_source_id else ""
        line(
            console,
            f"  {source}by {sanitised(row.destination)}, for {sanitised(row.target or _UNKNOWN_TARGET, _LONGEST_TARGET)}",
        )
        times = f"received {second(row.received_at_us)}, parked {second(row.parked_at_us)} UTC"
        line(console, f"  {times}, tried {count(row.tries, 'time')}, {size(row.body_bytes)}")
        line(console, f"  {sanitised(row.error, _LONGEST_ERROR)}")


def _message_name(row: ParkedRow) -> str:
    if row.unique_message_id:
        return sanitised(row.unique_message_id)
    return f"(no id, JMSMessageID {sanitised(row.message_id)})" if row.message_id else "(no id)"


def parked_object(address: str, rows: Sequence[ParkedRow]) -> dict[str, Any]:
    """The result of `receiver parked list --json`."""
    names = (
        "number domain key target unique_message_id message_source_id destination message_id received_at parked_at tries "
        "body_bytes error"
    )
    fields = {"number": "parked_id", "key": "domain_key"}
    return {"store": address, "parked": [_record(row, names, **fields) for row in rows]}


def known_id_line(known: KnownId) -> str:
    name = named_domain(known.domain, _LONGEST_LINE)
    if not known.is_remembered:
        return f"{name}: not remembered"
    by = f" by the {known.tier} tier" if known.tier else ""
    if known.first_received_at_us is None or known.latest_received_at_us is None:
        return f"{name}: remembered{by}"
    source = sanitised(known.message_source_id, _LONGEST_LINE) if known.message_source_id else "the anonymous source"
    return (
        f"{name}: remembered{by}, first received {moment_or_none(known.first_received_at_us) or '-'}, last"
        f" {moment_or_none(known.latest_received_at_us) or '-'} from {source}"
    )


def known_ids_object(address: str, unique_message_id: str, known: Sequence[KnownId]) -> dict[str, Any]:
    names = "domain remembered tier first_received_at latest_received_at message_source_id"
    domains = [_record(each, names, remembered="is_remembered") for each in known]
    return {"store": address, "unique_message_id": unique_message_id, "domains": domains}
