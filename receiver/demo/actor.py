"""One process on the stage: started, killed and started again, while what it prints is passed on line by line."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from typing import IO

from receiver.demo.ending import uninterrupted
from receiver.errors import BrokerError

__all__ = ["Actor", "Say"]

Say = Callable[[str, str], None]
"""Told who says something, and what: a line. Called by several threads."""

_STOPS_SECS = 60.0


class Actor:
    """Runs one command under a name; not running until `start`.

    What reads its input is asked to end by the end of that, which comes too if this process dies; others by SIGTERM.
    """

    def __init__(self, name: str, command: Sequence[str], say: Say, *, reads_input: bool = False) -> None:
        self.name = name
        self._command = command
        self._say = say
        self._reads_input = reads_input
        self.started_secs = 0.0
        """On the monotonic clock, its latest start."""
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
                start_new_session=True,  # Ctrl-C in the terminal is for the director, who then ends it
            )
        self._listener = threading.Thread(target=self._pass_on, args=(self._process.stdout,), daemon=True)
        self._listener.start()

    def ended(self) -> int | None:
        """The status with which it ended, None while it runs; a signal's number is negative, as `Popen` has it."""
        return None if self._process is None else self._process.poll()

    def kill(self) -> None:
        """End at once, by kill -9; nothing where it has ended."""
        if self._process is not None:
            self._process.kill()
            self._wait(self._process)

    def stop(self) -> None:
        """Ask it to end."""
        if self._process is None:
            return
        if self._process.stdin is not None:
            self._process.stdin.close()
        else:
            self._process.terminate()

    def wait_stopped(self) -> int:
        """Wait until it has ended, and give its status as `ended` does; `BrokerError` where it doesn't end."""
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
