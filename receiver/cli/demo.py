"""`receiver demo`: watch a broker, senders and bridges as they are killed, and count every message afterwards."""

from __future__ import annotations

import secrets
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from receiver.cli.output import ProcessOutput, console, progress
from receiver.cli.simulate import simulate
from receiver.errors import MissingExtraError, OutputError, SettingsError
from receiver.report.words import count

if TYPE_CHECKING:
    from receiver.demo.supervisor import DemoOutcome, DemoPlan, Files

EPILOG = """Examples:

receiver demo

receiver demo --secs 120 --protocol amqp --keep demo
"""

_NEEDED = ("platformdirs", "proton", "numba", "pyarrow", "zstandard")
_PROMISE_BROKEN = 1
_SEEDS = 1_000_000
_DOWNLOAD = "46 MB"


class _Mode(StrEnum):
    EXACTLY_ONCE = "EXACTLY_ONCE"
    AT_LEAST_ONCE = "AT_LEAST_ONCE"


class _Protocol(StrEnum):
    STOMP = "stomp"
    AMQP = "amqp"


def demo(
    secs: Annotated[int, typer.Option(min=5, max=86_400, help="Send messages for so many seconds.")] = 30,
    protocol: Annotated[_Protocol, typer.Option(help="The protocol of senders and bridges.")] = _Protocol.STOMP,
    mode: Annotated[
        _Mode, typer.Option(help="The bridges' mode. AT_LEAST_ONCE shows what comes twice.")
    ] = _Mode.EXACTLY_ONCE,
    seed: Annotated[
        int | None, typer.Option(help="Draws who is killed, and when. [default: another each time]")
    ] = None,
    keep: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Keep the target, the store and the recorded receipts in this new folder."),
    ] = None,
) -> int:
    """Watch messages come through kills, each with one effect.

    The command starts a broker, senders, and two bridges that compete for the messages, and kills them now and then. At
    the end it counts each message in the target, and sizes the window from what came. It needs Java 17 and, the first
    time, Maven, which fetches the broker.
    """
    if not all(map(find_spec, _NEEDED)):
        raise MissingExtraError("demo", "receiver demo")

    from receiver.bridge.options import Mode
    from receiver.demo.process import interruptible
    from receiver.demo.supervisor import DOMAIN, DemoPlan, Files

    cache = _checked_cache()
    plan = DemoPlan(
        seed=secrets.randbelow(_SEEDS) if seed is None else seed,
        secs=secs,
        protocol=protocol.value,
        mode=Mode(mode),
    )
    with interruptible(), _folder(keep) as folder:
        files = Files(folder)
        outcome = _run(plan, _broker_program(cache), files)
        _print_outcome(outcome, plan, files)
        _print_sizing_heading(outcome)
        simulate([str(files.receipts)], domain=DOMAIN)
    _print_what_next(files, kept=keep is not None)
    return 0 if outcome.holds(plan.mode) else _PROMISE_BROKEN


@contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    """The folder for the files: the one to keep, made now, or one that is deleted afterwards."""
    if keep is None:
        with TemporaryDirectory(prefix="receiver-demo-") as temporary:
            yield Path(temporary)
        return
    folder = keep.absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise SettingsError(f"{keep} isn't empty", hint="name a new folder for --keep")
    except OSError as error:
        raise OutputError(
            f"can't make the folder {keep}: {error.strerror or error}", hint="name a new folder for --keep"
        ) from error
    yield folder


def _checked_cache() -> Path:
    """The folder for the broker's program, after a check that it can be fetched and run here."""
    from platformdirs import user_cache_path

    from receiver.demo.artemis import check_programs

    cache = user_cache_path("reliable-receiver")
    check_programs(cache)
    return cache


def _broker_program(cache: Path) -> Path:
    """The folder of the broker's program, which is fetched the first time."""
    from receiver.demo.artemis import VERSION, fetch, home_in

    if home_in(cache).is_dir():
        return home_in(cache)
    what = f"ActiveMQ Artemis {VERSION} ({_DOWNLOAD})"
    print(f"fetching {what} from Maven Central, once: it is kept in {cache}", file=sys.stderr)
    with progress(f"Fetching {what}", None):
        return fetch(cache)


def _run(plan: DemoPlan, home: Path, files: Files) -> DemoOutcome:
    from receiver.demo.supervisor import BRIDGES, SENDERS, SUPERVISOR, run_demo

    output = ProcessOutput(SUPERVISOR, SENDERS + BRIDGES)
    output.say(
        SUPERVISOR,
        f"{plan.secs} s of messages by {plan.protocol}, {plan.mode}, kills drawn by --seed {plan.seed}; Ctrl-C ends it",
    )
    return run_demo(plan, home, files, output.say)


def _print_outcome(outcome: DemoOutcome, plan: DemoPlan, files: Files) -> None:
    """Print what was sent, what came, and what it did in the target."""
    from rich.table import Table
    from rich.text import Text

    effects, crashes = outcome.effects, outcome.crashes
    verdict = "not each exactly once" if effects.missing or effects.double else "each exactly once"
    unknown = effects.lines - effects.double - (outcome.messages - effects.missing)
    known = f"confirmed to their senders; {count(unknown)} more arrived from senders that crashed before they knew"
    style = "bold green" if outcome.holds(plan.mode) else "bold red"
    _heading("What became of the messages")
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 1))
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(overflow="fold")
    for name, number, remark in (
        ("messages", outcome.messages, known if unknown else "confirmed to their senders"),
        ("sent", outcome.sent, f"{count(outcome.sent - outcome.messages)} of them again, after a crash"),
        ("receipts", outcome.receipts, f"{count(outcome.redelivered)} of them flagged as redelivered"),
        (f"duplicates {'caught' if plan.mode.detects else 'counted'}", outcome.duplicates, ""),
        (f"effects in {files.target.name}", effects.lines, verdict),
        ("  missing", effects.missing, ""),
        ("  double", effects.double, ""),
        ("crashes", crashes.total(), ", ".join(f"{count(number)} of {name}" for name, number in crashes.items())),
    ):
        table.add_row(*(Text(text, style=style if text == verdict else "") for text in (name, count(number), remark)))
    console().print(table)


def _print_sizing_heading(outcome: DemoOutcome) -> None:
    """Print the heading above the table of `receiver simulate`."""
    from receiver.report.terminal import paragraph

    _heading("How large the window has to be, by receiver simulate")
    paragraph(
        console(),
        f"It reads what the bridges have recorded: all of their {count(outcome.receipts)} receipts, though they were killed.",
        first="",
    )


def _heading(text: str) -> None:
    from receiver.report.terminal import heading

    heading(console(), text)


def _print_what_next(files: Files, *, kept: bool) -> None:
    from receiver.demo.supervisor import DOMAIN

    if not kept:
        print("\nTo go on with what the bridges leave, run it with --keep DIR.")
        return
    receipts, store = shlex.quote(str(files.receipts)), shlex.quote(files.store)
    _heading("To go on")
    print(f"  receiver simulate {receipts} --domain {DOMAIN} --report report.html")
    print(f"  receiver compare {receipts} --domain {DOMAIN}")
    print(f"  receiver status {store}")
    print(f"  receiver check {store}")
