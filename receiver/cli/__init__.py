"""The command `receiver`: parse, call, print, exit status; one file per command."""

from __future__ import annotations

import os
import signal
import sys

import typer

from receiver.cli.generate import EPILOG as GENERATE_EPILOG
from receiver.cli.generate import generate
from receiver.cli.simulate import EPILOG as SIMULATE_EPILOG
from receiver.cli.simulate import simulate
from receiver.errors import MissingExtraError, ReceiverError
from receiver.report.words import tamed

__all__ = ["app", "run"]

_BAD_USAGE = 2
_INTERRUPTED = 128 + signal.SIGINT
_LONGEST_ERROR = 2000
_PARTS_OF_SIMULATE = {"altair", "jinja2", "markupsafe", "msgspec", "numba", "numpy", "pyarrow", "vl_convert", "zstandard"}

app = typer.Typer(
    help="Two-tier duplicate detection for at-least-once messages, and the sizing of its windows from your own log.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command(epilog=SIMULATE_EPILOG)(simulate)
app.command(epilog=GENERATE_EPILOG)(generate)


def run() -> int:
    """Run the command line and give its exit status: never a traceback for what a user can mend."""
    try:
        status = app(standalone_mode=False)
        sys.stdout.flush()
    except typer.Exit as stop:
        return stop.exit_code
    except (typer.Abort, KeyboardInterrupt):
        return _INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has had enough. The interpreter would complain on closing it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in _PARTS_OF_SIMULATE:
            raise
        return _complain(MissingExtraError("simulate", "this command"))
    except ReceiverError as error:
        return _complain(error)
    except typer.TyperException as error:
        error.show()
        return error.exit_code
    return status or 0


def _complain(error: ReceiverError) -> int:
    print(f"error: {tamed(error.message, _LONGEST_ERROR)}", file=sys.stderr)
    if error.hint:
        print(f"hint: {tamed(error.hint, _LONGEST_ERROR)}", file=sys.stderr)
    return _BAD_USAGE
