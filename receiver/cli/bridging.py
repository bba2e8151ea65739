"""What surrounds a bridge at work: its log on standard error, signals that stop it, figures while it goes on."""

from __future__ import annotations

import logging
import os
import re
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from receiver.errors import MissingExtraError, SettingsError

if TYPE_CHECKING:
    from receiver.bridge.bridge import Bridge

__all__ = ["listening_address", "load_metrics", "logging_to_stderr", "password_of", "reporting", "stopped_by_signals"]

_LOGGER = logging.getLogger("receiver.bridge")
_LISTENING = re.compile(r"(?:([^\[\]:]+|\[[^\[\]]+\]):)?([0-9]{1,5})")
_LARGEST_PORT = 65_535


def logging_to_stderr(*, verbose: bool) -> None:
    """Lines as a correlator logs them, so that whatever reads those finds the status lines."""
    from receiver.durable.status import LOG_FORMAT

    logging.basicConfig(format=LOG_FORMAT, stream=sys.stderr)
    # Not each duplicate: the status line counts them.
    logging.getLogger("receiver").setLevel(logging.DEBUG if verbose else logging.WARNING)
    _LOGGER.setLevel(logging.DEBUG if verbose else logging.INFO)


def password_of(side: str, file: Path | None) -> str | None:
    """The password for FROM or TO: of the environment, or else the first line of a file."""
    found = os.environ.get(f"RECEIVER_{side}_PASSWORD")
    if found is not None or file is None:
        return found
    try:
        with file.open(encoding="utf-8") as lines:
            return lines.readline().rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise SettingsError(f"the password can't be read from {file}: {why}", hint="one line of text, UTF-8") from error


def listening_address(text: str) -> tuple[str, int]:
    """The address and the port that `[ADDRESS:]PORT` says to listen on; this machine's own where it names none."""
    parts = _LISTENING.fullmatch(text)
    if parts is None or int(parts[2]) > _LARGEST_PORT:
        raise SettingsError(
            f"--metrics-port must be [ADDRESS:]PORT with a port up to {_LARGEST_PORT}, not {text!r:.80}",
            hint="write 9100, 0.0.0.0:9100 or [::1]:9100",
        )
    return (parts[1] or "127.0.0.1").strip("[]"), int(parts[2])


@contextmanager
def stopped_by_signals(bridge: Bridge) -> Iterator[None]:
    """Stop the bridge cleanly at the first SIGTERM or Ctrl-C, and the process at the second.

    After Ctrl-C there is a KeyboardInterrupt once it has stopped.
    """
    interrupts = 0

    def stop(number: int, _frame: object) -> None:
        nonlocal interrupts
        if bridge.is_stopping:
            os._exit(128 + number)
        interrupts += number == signal.SIGINT
        bridge.stop()
        # What is under way may take its time, so it is said here, past the log, whose lock somebody may hold.
        with suppress(OSError):
            os.write(2, b"stopping after what is under way; a second signal ends it at once\n")

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if interrupts:
        raise KeyboardInterrupt


def load_metrics() -> None:
    """Load what serves metrics, as `reporting` expects with a port; `MissingExtraError` where it isn't installed."""
    try:
        import_module("receiver.bridge.metrics")
    except ImportError as error:
        raise MissingExtraError("metrics", "--metrics-port") from error


@contextmanager
def reporting(bridge: Bridge, status_secs: float, metrics_address: tuple[str, int] | None) -> Iterator[None]:
    """Log the status line every so many seconds, and at the end; serve metrics."""
    if metrics_address is not None:
        _serve_metrics(bridge, *metrics_address)
    ended = threading.Event()
    if status_secs > 0:
        thread = threading.Thread(target=_log_status, args=(bridge, status_secs, ended), name="Status", daemon=True)
        thread.start()
    try:
        yield
    finally:
        ended.set()
        if status_secs > 0:
            thread.join()


def _log_status(bridge: Bridge, status_secs: float, ended: threading.Event) -> None:
    while True:
        is_last = ended.wait(status_secs)
        if not bridge.has_started:
            if is_last:
                return
            continue
        _LOGGER.info("%s", bridge.status_line())
        if is_last:
            return


def _serve_metrics(bridge: Bridge, address: str, port: int) -> None:
    from prometheus_client import start_http_server

    from receiver.bridge.metrics import export

    export(bridge)
    try:
        start_http_server(port, address)
    except (OSError, UnicodeError) as error:  # UnicodeError: a name that can't be one of a host
        why = getattr(error, "strerror", None) or error
        raise SettingsError(
            f"metrics can't be served on port {port} of {address}: {why}", hint="choose another --metrics-port"
        ) from error
