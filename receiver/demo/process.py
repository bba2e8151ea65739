"""Processes of the demo: started, killed and started again, their output passed on; and signals to the demo itself."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import IO, Any

from receiver.errors import BrokerError

Say = Callable[[str, str], None]
"""Takes the name of a process and a line that it has printed. Called by several threads."""

_STOPS_SECS = 60.0
_ENDINGS = [signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])]


class ChildProcess:
    """One command under a name; not running until `start`.

    A command that reads its input is asked to stop by the end of that input, which comes too if this process dies; any
    other by SIGTERM.
    """

    def __init__(self, name: str, command: Sequence[str], say: Say, *, reads_input: bool = False) -> None:
        self.name = name
        self._command = command
        self._say = say
        self._reads_input = reads_input
        self.started_secs = 0.0
        """The time of its latest start, on the monotonic clock."""
        self._process: subprocess.Popen[str] | None = None
        self._listener: threading.Thread | None = None

    def start(self) -> None:
        self.started_secs = time.monotonic()
        with uninterrupted():
            self._process = subprocess.Popen(
                self._command,
                env=os.environ | {"PYTHONUNBUFFERED": "1"},
                stdin=subprocess.PIPE if self._reads_input else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                encoding="utf-8",
                errors="replace",
                start_new_session=True,  # Ctrl-C in the terminal is for the supervisor, which then ends it
            )
        self._listener = threading.Thread(target=self._pass_on, args=(self._process.stdout,), daemon=True)
        self._listener.start()

    def ended(self) -> int | None:
        """The exit status, the negative number of the signal that ended it, or None while it runs."""
        return None if self._process is None else self._process.poll()

    def kill(self) -> None:
        """End it at once, by kill -9; do nothing if it has ended."""
        if self._process is not None:
            self._process.kill()
            self._wait(self._process)

    def stop(self) -> None:
        """Ask it to stop, and return at once."""
        if self._process is None:
            return
        if self._process.stdin is not None:
            self._process.stdin.close()
        else:
            self._process.terminate()

    def wait_stopped(self) -> int:
        """Wait until it has ended, and return its status as `ended` does; `BrokerError` if it doesn't stop in a minute."""
        if self._process is None:
            return 0
        try:
            return self._wait(self._process)
        except subprocess.TimeoutExpired:
            self.kill()
            raise BrokerError(f"{self.name} hasn't stopped in {_STOPS_SECS:g} s, and was killed") from None

    def _wait(self, process: subprocess.Popen[str]) -> int:
        status = process.wait(_STOPS_SECS)
        if process.stdin is not None:
            process.stdin.close()
        if self._listener is not None:
            self._listener.join()
        self._process = None
        return status

    def _pass_on(self, printed: IO[str]) -> None:
        with printed:
            for line in printed:
                if line.strip():
                    self._say(self.name, line.rstrip())


@contextmanager
def interruptible() -> Iterator[None]:
    """Raise `KeyboardInterrupt` in the block at Ctrl-C, a closed terminal or a plain kill.

    Only the first one counts, so that cleaning up isn't interrupted.
    """

    def interrupt(_number: int, _frame: Any) -> None:
        for ending in _ENDINGS:
            signal.signal(ending, signal.SIG_IGN)
        raise KeyboardInterrupt

    with _handled_by(interrupt):
        yield


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Hold such signals back until the end of the block, in which a process is started and remembered."""
    if threading.current_thread() is not threading.main_thread():  # where no signal interrupts
        yield
        return
    came: list[int] = []
    try:
        with _handled_by(lambda number, _frame: came.append(number)):
            yield
    finally:
        if came:
            signal.raise_signal(came[0])


@contextmanager
def _handled_by(handler: Callable[[int, Any], None]) -> Iterator[None]:
    before = {ending: signal.signal(ending, handler) for ending in _ENDINGS}
    try:
        yield
    finally:
        for ending, handler_before in before.items():
            signal.signal(ending, handler_before)
