"""The command `receiver`: parse, call, print, exit status; one file per command."""

from __future__ import annotations

import os
import signal
import sys
from typing import Annotated

import typer

from receiver.cli.bridge import EPILOG as BRIDGE_EPILOG
from receiver.cli.bridge import bridge
from receiver.cli.check import EPILOG as CHECK_EPILOG
from receiver.cli.check import check
from receiver.cli.compare import EPILOG as COMPARE_EPILOG
from receiver.cli.compare import compare
from receiver.cli.demo import EPILOG as DEMO_EPILOG
from receiver.cli.demo import demo
from receiver.cli.domain import domain
from receiver.cli.generate import EPILOG as GENERATE_EPILOG
from receiver.cli.generate import generate
from receiver.cli.inbox import inbox
from receiver.cli.migrate import EPILOG as MIGRATE_EPILOG
from receiver.cli.migrate import migrate
from receiver.cli.parked import parked
from receiver.cli.retire import EPILOG as RETIRE_EPILOG
from receiver.cli.retire import retire
from receiver.cli.simulate import EPILOG as SIMULATE_EPILOG
from receiver.cli.simulate import simulate
from receiver.cli.status import EPILOG as STATUS_EPILOG
from receiver.cli.status import status
from receiver.errors import MissingExtraError, OutputError, ReceiverError, SettingsError
from receiver.report.words import tamed

__all__ = ["app", "run"]

_BAD_USAGE = 2
_INTERRUPTED = 128 + signal.SIGINT
_LONGEST_ERROR = 2000
_PARTS_OF_SIMULATE = {
    "altair",
    "jinja2",
    "markupsafe",
    "msgspec",
    "numba",
    "numpy",
    "pyarrow",
    "vl_convert",
    "zstandard",
}

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
app.command(epilog=SIMULATE_EPILOG)(simulate)
app.command(epilog=COMPARE_EPILOG)(compare)
app.command(epilog=BRIDGE_EPILOG)(bridge)
app.command(epilog=GENERATE_EPILOG)(generate)
app.command(epilog=MIGRATE_EPILOG)(migrate)
app.command(epilog=STATUS_EPILOG)(status)
app.command(epilog=CHECK_EPILOG)(check)
app.add_typer(inbox)
app.add_typer(parked)
app.command(epilog=RETIRE_EPILOG)(retire)
app.add_typer(domain)
app.command(epilog=DEMO_EPILOG)(demo)


def _print_version(asked: bool) -> None:  # noqa: FBT001 - as Typer calls it
    if asked:
        from importlib.metadata import version

        print(f"receiver {version('reliable-receiver')}")
        raise typer.Exit


@app.callback()
def receiver(
    version: Annotated[  # noqa: FBT002
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Two-tier duplicate detection for at-least-once messages, and the sizing of its windows from your own log."""


def run(command: typer.Typer = app, name: str = "receiver") -> int:
    """Run the command line and give its exit status: never a traceback for what a user can mend."""
    if sys.stdout is None:
        return _complain(OutputError("can't write to standard output: it is closed"))
    try:
        status = command(prog_name=name, standalone_mode=False) or 0
        sys.stdout.flush()
    except (typer.Abort, KeyboardInterrupt):
        status = _INTERRUPTED
    except (BrokenPipeError, SystemExit):  # the latter is what Typer makes of the former
        # Whoever read our output has had enough.
        _drop_standard_output()
        status = 0
    except OSError as error:
        # Logs and files to be written have errors of their own.
        _drop_standard_output()
        status = _complain(OutputError(f"can't write to standard output: {error.strerror or error}"))
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in _PARTS_OF_SIMULATE:
            raise
        status = _complain(MissingExtraError("simulate", "this command"))
    except ReceiverError as error:
        status = _complain(error)
    except typer.TyperException as error:
        usage = getattr(error, "ctx", None)
        asked = usage.command_path if usage else name
        status = _complain(SettingsError(error.format_message(), hint=f"{asked} --help tells what there is"))
    return status


def _drop_standard_output() -> None:
    # What it still holds can't be written, and the interpreter would complain about that at its end.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _complain(error: ReceiverError) -> int:
    print(f"error: {tamed(error.message, _LONGEST_ERROR)}", file=sys.stderr)
    if error.hint:
        print(f"hint: {tamed(error.hint, _LONGEST_ERROR)}", file=sys.stderr)
    return _BAD_USAGE
