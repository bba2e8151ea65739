"""`receiver demo`: watch a broker, senders and bridges as they are killed, and count every message afterwards."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from receiver.cli.progress import progress
from receiver.cli.simulate import simulate
from receiver.errors import MissingExtraError, OutputError, SettingsError

if TYPE_CHECKING:
    from receiver.demo.plan import Files, Outcome, Plan

__all__ = ["EPILOG", "demo"]

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
    secs: Annotated[int, typer.Option(min=5, max=86_400, help="How long messages are sent.")] = 30,
    protocol: Annotated[
        _Protocol, typer.Option(help="What senders and bridges speak to the broker.")
    ] = _Protocol.STOMP,
    mode: Annotated[
        _Mode, typer.Option(help="Of the bridges: AT_LEAST_ONCE shows what comes twice.")
    ] = _Mode.EXACTLY_ONCE,
    seed: Annotated[
        int | None, typer.Option(help="Who is killed when is drawn from it. [default: another each time]")
    ] = None,
    keep: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Keep the target, the store and the recorded receipts in a new folder."),
    ] = None,
) -> int:
    """Watch messages come through kills, each with one effect.

    A broker, senders that crash and send again, and two bridges that compete for their messages are started on this
    machine and killed now and then. At the end each message is counted in the target, and the window is sized from
    what came. Needs Java 17 and, the first time, Maven, which fetches the broker.
    """
    if not all(map(find_spec, _NEEDED)):
        raise MissingExtraError("demo", "receiver demo")

    from receiver.bridge.options import Mode
    from receiver.cli.demo_outcome import print_outcome, print_sizing_heading, print_what_next
    from receiver.demo.ending import interruptible
    from receiver.demo.plan import DOMAIN, Files, Plan

    cache = _checked_cache()
    plan = Plan(
        seed=secrets.randbelow(_SEEDS) if seed is None else seed,
        secs=secs,
        protocol=protocol.value,
        mode=Mode(mode),
    )
    with interruptible(), _folder(keep) as folder:
        files = Files(folder)
        outcome = _perform(plan, _broker_program(cache), files)
        print_outcome(outcome, plan, files)
        print_sizing_heading(outcome)
        simulate([str(files.receipts)], domain=DOMAIN)
    print_what_next(files, kept=keep is not None)
    return 0 if outcome.holds(plan.mode) else _PROMISE_BROKEN


@contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    """Where the files go: the folder to keep, made now, or one that is gone afterwards."""
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
    """The folder for the broker's program, once it is known that it can be fetched and run."""
    from platformdirs import user_cache_path

    from receiver.demo.artemis import check_programs

    cache = user_cache_path("reliable-receiver")
    check_programs(cache)
    return cache


def _broker_program(cache: Path) -> Path:
    """Where it is, after it was fetched the first time."""
    from receiver.demo.artemis import VERSION, fetch, home_in

    if home_in(cache).is_dir():
        return home_in(cache)
    what = f"ActiveMQ Artemis {VERSION} ({_DOWNLOAD})"
    print(f"fetching {what} from Maven Central, once: it is kept in {cache}", file=sys.stderr)
    with progress(f"Fetching {what}", None):
        return fetch(cache)


def _perform(plan: Plan, home: Path, files: Files) -> Outcome:
    from receiver.cli.voices import Voices
    from receiver.demo.director import DIRECTOR, perform
    from receiver.demo.plan import BRIDGES, SENDERS

    voices = Voices(DIRECTOR, SENDERS + BRIDGES)
    voices.say(
        DIRECTOR,
        f"{plan.secs} s of messages by {plan.protocol}, {plan.mode}, kills drawn by --seed {plan.seed}; Ctrl-C ends it",
    )
    return perform(plan, home, files, voices.say)
