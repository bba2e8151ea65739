"""`receiver status`, `check`, `migrate`, `retire`, `lookup`, `forget` and `domain`; and what commands on a store share."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from receiver.cli.options import AsJson, CommandWithSettings, examples
from receiver.cli.output import console, note, print_json, progress
from receiver.errors import SettingsError
from receiver.masking import masked
from receiver.quantities import count
from receiver.report.words import named_domain, sanitised

if TYPE_CHECKING:
    from rich.console import Console

    from receiver.durable.audit import StoreFigures
    from receiver.durable.forgetting import RetiredSources

T = TypeVar("T")
_LONGEST_ADDRESS = _LONGEST_NAME = 2000
_LONGEST_QUESTION = 200

StoreAddress = Annotated[
    str, typer.Argument(metavar="URL", help="The store: sqlite:///FILE or postgresql://USER:PASSWORD@HOST/DATABASE.")
]
Yes = Annotated[bool, typer.Option("--yes", help="Don't ask before data is destroyed.")]


def shown_address(url: str) -> str:
    """The address without its password; `SettingsError` if it isn't a store's address."""
    from receiver.store.databases import store_url
    from receiver.store.databases.database import shown

    return shown(store_url(url))


def sanitised_address(url: str) -> str:
    """The address without its password, harmless on a terminal."""
    return sanitised(shown_address(url), _LONGEST_ADDRESS)


def check_not_swapped(url: str, what: str) -> None:
    """`SettingsError` if `what`, the argument behind the store's address, is an address and `url` isn't: they are swapped."""
    if "://" in what and "://" not in url:
        raise SettingsError(
            f"{url!r:.200} isn't a store's address", hint=f"the store comes first: {shlex.join([masked(what), url])}"
        )


def show(
    url: str,
    what: T,
    as_object: Callable[[str, T], dict[str, Any]],
    print_: Callable[[str, T, Console], None],
    *,
    as_json: bool,
) -> None:
    """Print content of a store, as one JSON object or for people."""
    if as_json:
        print_json(as_object(shown_address(url), what))
    else:
        print_(shown_address(url), what, console())


def confirm(loss: str, *, yes: bool) -> None:
    """Return if `--yes` was given or a person at the terminal agrees; otherwise raise `SettingsError`.

    `loss` is a sentence without full stop on what is lost: "this drops 1,000 remembered ids".
    """
    if yes:
        return
    if not (sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()):
        raise SettingsError(f"{loss}, so it needs --yes", hint="add --yes to do so")
    if not typer.confirm(f"{loss}. Go on?", err=True):
        raise SettingsError("nothing was changed")


def number_of(given: str, names: Mapping[int, str], kind: str, listed_by: str) -> int:
    """The number of the only row, such as a domain, with the given number or exact name. `names` has the names of all rows.

    `SettingsError` if no row or several rows match. Its hint names the command `listed_by`, which lists the rows.
    """
    meant = [number for number, name in names.items() if given in {str(number), name}]
    if not meant:
        raise SettingsError(f"there is no {kind} {given!r:.200}", hint=f"{listed_by} lists them")
    if len(meant) > 1:
        numbers = ", ".join(map(str, meant))
        raise SettingsError(
            f"several are called {given!r:.200}: {numbers}", hint=f"{listed_by} shows the numbers: give one of them"
        )
    return meant[0]


def _note_if_broken(figures: StoreFigures) -> None:
    if figures.findings:
        note("the store is broken: receiver check says where")


@examples(
    "receiver status sqlite:///receiver.db",
    "receiver status postgresql://bridge:secret@db.example.com/orders --json",
    "receiver status sqlite:///receiver.db --quick",
)
def status(
    url: StoreAddress,
    *,
    as_json: AsJson = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="Don't count the remembered ids: that would read all rows.")
    ] = False,
) -> None:
    """Show the figures of each domain in a store.

    The figures are what came, what was caught and what is kept, since the domain was made and over all its receivers.
    Receivers may go on meanwhile. Nothing is changed.
    """
    from receiver.durable.audit import look
    from receiver.report.store import print_status, status_object

    with progress("Reading rows", None) as advance:
        figures = look(url, with_ids=not quick, advance=advance)
    show(url, figures, status_object, print_status, as_json=as_json)
    _note_if_broken(figures)


_BROKEN = 1


@examples(
    "receiver check sqlite:///receiver.db", "receiver check postgresql://bridge:secret@db.example.com/orders --json"
)
def check(
    url: StoreAddress,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a list.")] = False,
) -> int:
    """Check every invariant of a store.

    If one is broken, the command lists what is broken and exits with 1. It exits with 2 if the store can't be opened.
    Receivers may go on meanwhile. Nothing is changed.
    """
    from receiver.durable.audit import audit
    from receiver.report.store import check_object, print_check

    with progress("Checking rows", None) as advance:
        figures = audit(url, advance=advance)
    show(url, figures, check_object, print_check, as_json=as_json)
    return _BROKEN if figures.findings else 0


@examples("receiver migrate sqlite:///receiver.db", "receiver migrate postgresql://bridge:secret@db.example.com/orders")
def migrate(
    url: StoreAddress,
    *,
    revision: Annotated[
        str,
        typer.Option(
            metavar="REV",
            help="The version to go to: head (the newest) or a number. base drops the tables with all they hold.",
        ),
    ] = "head",
    yes: Yes = False,
) -> None:
    """Make a store's tables, or upgrade them.

    A receiver upgrades the tables by itself when it opens. Only this command takes them back to an older version. Other
    receivers wait meanwhile. Either all of it happens or nothing.

    Going back is refused while the older version would judge wrongly or lose messages. The command shows what else would
    be lost, and asks before it goes on, unless you give --yes.
    """
    from receiver.store.databases import store_url
    from receiver.store.schema import losses
    from receiver.store.schema import migrate as migrate_store

    address = sanitised_address(url)
    lost = ", ".join(losses(store_url(url), revision))
    if lost:
        confirm(f"{address}: this drops {lost}", yes=yes)
    before, after = migrate_store(store_url(url), revision, may_lose=bool(lost) or yes)
    if before == after:
        print(f"{address}: {_named(before)} already")
    else:
        print(f"{address}: from {_named(before)} to {_named(after)}{f', without {lost}' if lost else ''}")


def _named(version: str | None) -> str:
    return "no tables" if version is None else f"version {version}"


_OnlyDomain = Annotated[
    str | None, typer.Option("--domain", metavar="NAME", help="Only in domains of this name. [default: all domains]")
]


@examples(
    "receiver retire sqlite:///receiver.db --idle {receiver.retire_sources_after_days}",
    "receiver retire sqlite:///receiver.db --source gateway-1:4711 --source gateway-1:4712 --domain queue://orders",
)
def retire(
    url: StoreAddress,
    sources: Annotated[
        list[str] | None, typer.Option("--source", metavar="NAME", help="Retire this messageSourceId. May be repeated.")
    ] = None,
    idle_days: Annotated[
        float | None,
        typer.Option(
            "--idle",
            metavar="DAYS",
            help="Retire all sources that have sent nothing for DAYS days, by the times of the receipts.",
        ),
    ] = None,
    domain: _OnlyDomain = None,
) -> None:
    """Retire sources that have ended.

    A source keeps its newest W ids until it is retired. Then they expire by E, as if newer ids had pushed them out. If the
    source sends again, it begins a new queue. Receivers may go on meanwhile.

    Receivers also retire sources by themselves: those silent for {receiver.retire_sources_after_days} days, and beyond
    {receiver.max_sources} sources those silent longest. The settings are retire_sources_after_days and max_sources
    (0: never).
    """
    from receiver.durable.forgetting import retire_sources

    if not sources and idle_days is None:
        raise SettingsError("say which sources: --source NAME or --idle DAYS", hint="receiver status counts them")
    if idle_days is not None and not 0 <= idle_days < float("inf"):
        raise SettingsError(f"--idle must be a number of days of at least 0, not {idle_days}")

    def print_retired(done: RetiredSources) -> None:
        name, retired, forgotten_ids, left = done
        print(
            f"{named_domain(name, _LONGEST_NAME)}: {count(retired, 'source')} retired,"
            f" {count(forgotten_ids, 'id')} forgotten, {count(left, 'source')} left"
        )

    if not retire_sources(url, domain=domain, sources=sources or (), idle_days=idle_days, on_retired=print_retired):
        print(f"{sanitised_address(url)}: no domain keeps ids by source")


_UniqueMessageId = Annotated[
    str, typer.Argument(metavar="ID", help="The uniqueMessageId, exactly. Write -- before one that begins with a dash.")
]
_NOT_REMEMBERED = 1


@examples(
    "receiver lookup sqlite:///receiver.db order-4711",
    "receiver lookup postgresql://bridge@db.example.com/orders order-4711 --domain broker-a:queue://orders --json",
)
def lookup(
    url: StoreAddress, unique_message_id: _UniqueMessageId, *, domain: _OnlyDomain = None, as_json: AsJson = False
) -> int:
    """Say whether an id is remembered, and when it came.

    For each domain: in which tier it is, when it first came and when it came last, and from which source. The command exits
    with 1 if no domain remembers it: then it never came, or is forgotten by now. Receivers may go on meanwhile. Nothing is
    changed.
    """
    from receiver.durable.forgetting import look_up
    from receiver.report.store import known_id_line, known_ids_object

    check_not_swapped(url, unique_message_id)
    with progress("Reading rows", None):
        known = look_up(url, unique_message_id, domain=domain)
    if as_json:
        print_json(known_ids_object(shown_address(url), unique_message_id, known))
    else:
        for each in known:
            print(known_id_line(each))
        if not known:
            print(f"{sanitised_address(url)}: there is no domain yet")
    return 0 if any(each.is_remembered for each in known) else _NOT_REMEMBERED


@examples(
    "receiver forget sqlite:///receiver.db order-4711 --yes",
    "receiver forget postgresql://bridge@db.example.com/orders order-4711 --domain broker-a:queue://orders",
)
def forget(
    url: StoreAddress, unique_message_id: _UniqueMessageId, *, domain: _OnlyDomain = None, yes: Yes = False
) -> int:
    """Forget an id, so that the next message with it is new.

    Every receiver of the domain goes by it from its next batch on. All other ids are remembered as before. The command asks
    first, unless you give --yes, and exits with 1 if no domain remembers the id.
    """
    from receiver.durable.forgetting import forget as forget_id
    from receiver.durable.forgetting import look_up

    check_not_swapped(url, unique_message_id)
    with progress("Reading rows", None):
        remembering = [each.domain for each in look_up(url, unique_message_id, domain=domain) if each.is_remembered]
    if not remembering:
        print(f"{sanitised_address(url)}: no domain remembers it")
        return _NOT_REMEMBERED
    names = ", ".join(named_domain(name, _LONGEST_NAME) for name in remembering)
    confirm(f"the next message with this id will be new in {names}", yes=yes)
    forget_id(
        url,
        unique_message_id,
        domain=domain,
        on_forgotten=lambda name: print(f"{named_domain(name, _LONGEST_NAME)}: forgotten"),
    )
    return 0


domain = typer.Typer(name="domain", help="List the domains of a store, or drop one that is no longer used.")


@domain.command("list", cls=CommandWithSettings)
@examples(
    "receiver domain list sqlite:///receiver.db",
    "receiver domain list postgresql://bridge:secret@db.example.com/orders --json",
)
def list_domains(url: StoreAddress, *, as_json: AsJson = False) -> None:
    """List the domains in a store, and how much each keeps. Nothing is changed."""
    from receiver.durable.audit import look
    from receiver.report.store import domains_object, print_domains

    figures = look(url, with_ids=False)
    show(url, figures, domains_object, print_domains, as_json=as_json)
    _note_if_broken(figures)


@domain.command("drop", cls=CommandWithSettings)
@examples(
    "receiver domain drop sqlite:///receiver.db --domain 3",
    "receiver domain drop sqlite:///receiver.db --domain queue://orders --yes",
)
def drop_domain(
    url: StoreAddress,
    *,
    domain: Annotated[
        str,
        typer.Option(
            metavar="DOMAIN", help="Its number, or its exact name if no other domain has the same.", show_default=False
        ),
    ],
    yes: Yes = False,
) -> None:
    """Drop a domain with all that it keeps.

    Its remembered ids go, its targets, and the messages that wait for them or are parked: all of it or nothing. Close
    its receivers first. One that is open fails from then on. One that is opened later makes the domain anew, and every id
    is new to it.
    """
    from receiver.durable.audit import look
    from receiver.store import upkeep

    domains = {figures.state.domain_id: figures for figures in look(url, with_ids=False).domains}
    names = {number: figures.state.domain_name for number, figures in domains.items()}
    figures = domains[number_of(domain, names, "domain", "receiver domain list")]
    kept = (figures.rows, figures.inbox or 0, figures.parked or 0)
    confirm(f"this drops {sanitised(figures.state.domain_name, _LONGEST_QUESTION)} with {_amounts(*kept)}", yes=yes)
    dropped = upkeep.drop_domain(url, figures.state)
    print(f"{sanitised_address(url)}: dropped {_amounts(dropped.receipts, dropped.waiting, dropped.parked)}")


def _amounts(rows: int, waiting: int, parked: int) -> str:
    return f"{count(rows, 'stored receipt')}, {count(waiting, 'message')} in the inbox and {parked:,} parked"
