"""A bridge as a process, `receiver bridge`, killed and started again, and what it said."""

import re
import sys
from collections.abc import Sequence
from pathlib import Path

from examples.demo.processes import ChildProcess
from tests.before import python_of

IS_TAKING = "taking messages for"
HAS_CUT = "that weren't confirmed are cut off"
IS_FORGOTTEN = "has forgotten how the last turn ended"
_RECEIPTS = re.compile(r" rx=([\d,]+)")
_OUT_OF_REACH = 2
_LAST_LINES = 20


def command_of(package: Path | None) -> list[str]:
    """The command `receiver` of the package in a folder, or of this one."""
    if package is None:
        return [sys.executable, "-m", "receiver"]
    return [*python_of(package), "-m", "receiver"]


class MortalBridge:
    """Not running until `start`. One life follows another."""

    def __init__(self, name: str, arguments: Sequence[str], package: Path | None = None) -> None:
        self.name = name
        self.package = package
        """The folder of another version, which the lives to come are of; None: they are of this one."""
        self.said: list[str] = []
        """In this life."""
        self.kills_while_starting = 0
        self.refused_starts = 0
        """Lives that ended by themselves, for there was no broker or store to begin with."""
        self.refusal = ""
        """What the latest of them said."""
        self.repairs = 0
        """How often what a life had written to a file, and not confirmed, was cut off by a later one."""
        self.forgotten_turns = 0
        """How often Kafka had forgotten how a turn ended, which then may have come twice."""
        self._arguments = ["bridge", *arguments]
        self._process: ChildProcess | None = None

    @property
    def is_taking(self) -> bool:
        return any(IS_TAKING in line for line in self.said)

    @property
    def receipts_told(self) -> int:
        """In this life, by its latest status line."""
        counts = [match[1] for line in self.said if (match := _RECEIPTS.search(line))]
        return int(counts[-1].replace(",", "")) if counts else 0

    def start(self, *more: str) -> None:
        said = self.said = []
        command = [*command_of(self.package), *self._arguments, *more]
        self._process = ChildProcess(self.name, command, lambda _name, line: said.append(line))
        self._process.start()

    def kill(self) -> None:
        """Kill -9, if it runs."""
        if not self.has_refused() and self._process is not None:
            self._process.kill()
            self._process = None
            self._look_back()

    def ends_in(self) -> None:
        """Wait for the end that it was asked for, or that it comes to by itself, in peace."""
        assert self._process is not None
        status = self._process.wait_stopped()
        self._process = None
        assert status == 0, f"{self.name} ended with {status}: {self.last_words()}"
        self._look_back()

    def stop(self) -> None:
        """By SIGTERM."""
        assert self._process is not None
        self._process.stop()
        self.ends_in()

    def has_refused(self) -> bool:
        """Whether it has ended because it could not even begin; that it may, and nothing else."""
        if self._process is None or (status := self._process.ended()) is None:
            return False
        self._process.kill()  # what it said last is heard
        self._process = None
        assert (status, self.is_taking) == (_OUT_OF_REACH, False), (
            f"{self.name} ended with {status}: {self.last_words()}"
        )
        self._look_back()
        self.refused_starts += 1
        self.refusal = self.last_words()
        return True

    def last_words(self) -> str:
        return "\n".join(self.said[-_LAST_LINES:])

    def _look_back(self) -> None:
        """On what was said in the life that has ended."""
        self.repairs += sum(HAS_CUT in line for line in self.said)
        self.forgotten_turns += sum(IS_FORGOTTEN in line for line in self.said)
        assert not any("Traceback" in line for line in self.said), f"{self.name}: {self.last_words()}"
