"""`sh bin/demo`: watch a broker, senders and bridges as they are killed, and count every message afterwards."""

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
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from examples.demo import artemis
from examples.demo.processes import interruptible
from examples.demo.supervisor import BRIDGES, DOMAIN, SENDERS, SUPERVISOR, DemoOutcome, DemoPlan, Files, run_demo
from receiver.bridge.options import Mode
from receiver.cli import run
from receiver.cli.output import console, progress
from receiver.cli.simulate import simulate
from receiver.errors import MissingExtraError, OutputError, SettingsError
from receiver.quantities import count
from receiver.report.terminal import heading, paragraph
from receiver.report.words import sanitised

EPILOG = """Examples:

sh bin/demo

sh bin/demo --secs 120 --protocol amqp --keep kept
"""

_NEEDED = ("platformdirs", "proton", "numba", "pyarrow", "zstandard")
_PROMISE_BROKEN = 1
_SEEDS = 1_000_000
_DOWNLOAD = "46 MB"
_COLOURS = ("cyan", "green", "yellow", "blue", "bright_cyan")
_LONGEST_LINE = 1_000


class _Mode(StrEnum):
    EXACTLY_ONCE = "EXACTLY_ONCE"
    AT_LEAST_ONCE = "AT_LEAST_ONCE"


class _Protocol(StrEnum):
    STOMP = "stomp"
    AMQP = "amqp"


def demo(
    secs: Annotated[int, typer.Option(metavar="SECS", min=5, max=86_400, help="How long messages are sent.")] = 30,
    protocol: Annotated[_Protocol, typer.Option(help="The protocol of senders and bridges.")] = _Protocol.STOMP,
    mode: Annotated[
        _Mode, typer.Option(help="The bridges' mode. AT_LEAST_ONCE shows what comes twice.")
    ] = _Mode.EXACTLY_ONCE,
    seed: Annotated[
        int | None, typer.Option(metavar="N", help="Draws who is killed, and when. [default: another each time]")
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
        raise MissingExtraError("demo", "the demo")

    from platformdirs import user_cache_path

    cache = user_cache_path("reliable-receiver")
    artemis.check_programs(cache)
    plan = DemoPlan(
        seed=secrets.randbelow(_SEEDS) if seed is None else seed,
        secs=secs,
        protocol=protocol.value,
        mode=Mode(mode),
    )
    with interruptible(), _folder(keep) as folder:
        files = Files(folder)
        output = _Output()
        home = _broker_program(cache)
        output.say(
            SUPERVISOR,
            f"{secs} s of messages by {protocol}, {mode}, kills drawn by --seed {plan.seed}; Ctrl-C ends it",
        )
        outcome = run_demo(plan, home, files, output.say)
        _print_outcome(outcome, plan, files)
        heading(console(), "How large the window has to be, by receiver simulate")
        recorded = f"all of their {count(outcome.receipts)} receipts, though they were killed"
        paragraph(console(), f"It reads what the bridges have recorded: {recorded}.", first="")
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


def _broker_program(cache: Path) -> Path:
    """The folder of the broker's program, which is fetched the first time."""
    if artemis.home_in(cache).is_dir():
        return artemis.home_in(cache)
    what = f"ActiveMQ Artemis {artemis.VERSION} ({_DOWNLOAD})"
    print(f"fetching {what} from Maven Central, once: it is kept in {cache}", file=sys.stderr)
    with progress(f"Fetching {what}", None):
        return artemis.fetch(cache)


class _Output:
    """Prints lines of the processes on standard error, each behind the name of its process; any thread may call `say`."""

    def __init__(self) -> None:
        names = SENDERS + BRIDGES
        self._console = Console(stderr=True)
        self._width = max(map(len, (SUPERVISOR, *names)))
        self._styles = dict(zip(names, _COLOURS, strict=True)) | {SUPERVISOR: "bold magenta"}
        self._last: dict[str, str] = {}

    def say(self, name: str, what: str) -> None:
        """Print a line of a process; if it repeats its last line, only the supervisor's."""
        if self._last.get(name) == what and name != SUPERVISOR:
            return
        self._last[name] = what
        style = self._styles[name]
        text_style = style if name == SUPERVISOR else ""
        line = Text.assemble((f"{name:<{self._width}} | ", style), (sanitised(what, _LONGEST_LINE), text_style))
        self._console.print(line, soft_wrap=True)


def _print_outcome(outcome: DemoOutcome, plan: DemoPlan, files: Files) -> None:
    """Print what was sent, what came, and what it did in the target."""
    effects, crashes = outcome.effects, outcome.crashes
    verdict = "not each exactly once" if effects.missing or effects.double else "each exactly once"
    unknown = effects.lines - effects.double - (outcome.messages - effects.missing)
    known = f"confirmed to their senders; {count(unknown)} more arrived from senders that crashed before they knew"
    style = "bold green" if outcome.holds(plan.mode) else "bold red"
    heading(console(), "What became of the messages")
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


def _print_what_next(files: Files, *, kept: bool) -> None:
    if not kept:
        print("\nTo go on with what the bridges leave, run it with --keep DIR.")
        return
    receipts, store = shlex.quote(str(files.receipts)), shlex.quote(files.store)
    heading(console(), "To go on")
    print(f"  receiver simulate {receipts} --domain {DOMAIN} --report report.html")
    print(f"  receiver compare {receipts} --domain {DOMAIN}")
    print(f"  receiver status {store}")
    print(f"  receiver check {store}")


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.command(epilog=EPILOG)(demo)
    sys.exit(run(app, "demo"))
