"""The command `receiver`: parse, call, print, exit status.

| file | what is in it |
|---|---|
| `simulate.py`, `compare.py` | commands on logs: `simulate` and `generate`, `compare` |
| `bridge.py` | commands on brokers: `bridge`, `probe` |
| `serving.py` | a bridge's metrics and health over HTTP |
| `stores.py`, `waiting.py` | commands on a store, and on the messages that wait in it or are parked |
| `options.py` | arguments that commands share; options that are the fields of a dataclass; help with the current settings |
| `output.py` | results, progress bars and reports; standard output that a reader may have closed |
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from functools import cache
from typing import Annotated

import typer

from receiver.cli import bridge, compare, simulate, stores, waiting
from receiver.cli.options import CommandWithSettings
from receiver.cli.output import shielded
from receiver.errors import MissingExtraError, OutputError, ReceiverError, SettingsError
from receiver.masking import masked_text
from receiver.report.words import sanitised

_BAD_USAGE = 2
_INTERRUPTED = 128 + signal.SIGINT
_LONGEST_ERROR = 2000
_MODULES_OF_SIMULATE = {"msgspec", "numba", "numpy", "pyarrow", "zstandard"}

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
for command in (
    simulate.simulate,
    compare.compare,
    bridge.bridge,
    bridge.probe,
    simulate.generate,
    stores.migrate,
    stores.status,
    stores.check,
    stores.lookup,
    stores.forget,
    stores.retire,
):
    app.command(cls=CommandWithSettings)(command)
for group in (waiting.inbox, waiting.parked, stores.domain):
    app.add_typer(group)


def _print_version(is_wanted: bool) -> None:  # noqa: FBT001 - as Typer calls it
    if is_wanted:
        from importlib.metadata import version

        print(f"receiver {version('reliable-receiver')}")
        raise typer.Exit


@app.callback()
def receiver(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Two-tier duplicate detection for at-least-once messages. Sizes its windows from your own log."""


def run(command: typer.Typer = app, name: str = "receiver") -> int:
    """Run the command line and return its exit status. Errors that a user can mend are printed without a traceback.

    The status is that of the work, even if the reader of the output has gone.
    """
    if sys.stdout is None:
        return _complain(OutputError("can't write to standard output: it is closed"))
    try:
        with shielded():
            return _status(command, name)
    except OutputError as error:  # the last lines couldn't be written
        return _complain(error)


_parser = cache(typer.main.get_command)
"""The parser of a command, made once per process: making it takes as long as many a command."""


def _status(command: typer.Typer, name: str) -> int:
    try:
        return _parser(command)(prog_name=name, standalone_mode=False) or 0
    except (typer.Abort, KeyboardInterrupt):
        return _INTERRUPTED
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in _MODULES_OF_SIMULATE:
            raise
        problem: ReceiverError = MissingExtraError("simulate", "this command")
    except ReceiverError as error:
        problem = error
    except typer.TyperException as error:
        usage = getattr(error, "ctx", None)
        refusing = usage.command_path if usage else name
        problem = SettingsError(error.format_message(), hint=f"{refusing} --help lists what there is")
    except OSError as error:
        problem = _refusal(error)
    except SystemExit as error:
        # Typer treats every broken pipe as one of standard output, but `shielded` keeps those from getting here.
        if not isinstance(error.__context__, BrokenPipeError):
            raise
        problem = _refusal(error.__context__)
    return _complain(problem)


def _refusal(error: OSError) -> OutputError:
    """The error for an `OSError` that the package doesn't handle itself. It names the file, or the function without a file."""
    files = [os.fsdecode(file) for file in (error.filename, error.filename2) if isinstance(file, str | bytes)]
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    what = ", ".join(files) or f"{frame.f_globals.get('__name__')}.{frame.f_code.co_name}"
    return OutputError(f"{what}: {error.strerror or error}")


def _complain(error: ReceiverError) -> int:
    for what, text in (("error", error.message), ("hint", error.hint)):
        if text:
            print(f"{what}: {sanitised(masked_text(text), _LONGEST_ERROR)}", file=sys.stderr)
    return _BAD_USAGE
