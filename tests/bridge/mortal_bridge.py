"""A bridge as a process, `receiver bridge`, that is killed and started again; and its output."""

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
_DUMP = "Fatal Python error: Aborted"
_OUT_OF_REACH = 2
_LAST_LINES = 20


def command_of(package: Path | None) -> list[str]:
    """The command `receiver` of the package in this folder, or of the package under test."""
    python = [sys.executable] if package is None else python_of(package)
    return [*python, "-X", "faulthandler", "-m", "receiver"]


class MortalBridge:
    """A bridge with many lives, one after the other. It doesn't run until `start`."""

    def __init__(self, name: str, arguments: Sequence[str], package: Path | None = None) -> None:
        self.name = name
        self.package = package
        """The folder of another version, with which the next lives run. None: the package under test."""
        self.said: list[str] = []
        """The lines that it has printed in this life."""
        self.kills_while_starting = 0
        self.refused_starts = 0
        """The lives that ended by themselves, because broker or store couldn't be reached at the start."""
        self.refusal = ""
        """The last lines of the latest of these lives."""
        self.repairs = 0
        """How often a life cut off what an earlier one had written to a file and not confirmed."""
        self.forgotten_turns = 0
        """How often Kafka had forgotten how a turn ended. Then the turn may come twice."""
        self._arguments = ["bridge", *arguments]
        self._process: ChildProcess | None = None

    @property
    def is_taking(self) -> bool:
        return any(IS_TAKING in line for line in self.said)

    @property
    def receipts_told(self) -> int:
        """The receipts of this life, by its latest status line."""
        counts = [match[1] for line in self.said if (match := _RECEIPTS.search(line))]
        return int(counts[-1].replace(",", "")) if counts else 0

    def start(self, *more: str) -> None:
        said = self.said = []
        command = [*command_of(self.package), *self._arguments, *more]
        self._process = ChildProcess(self.name, command, lambda _name, line: said.append(line))
        self._process.start()

    def kill(self) -> None:
        """Kill -9 it, if it runs."""
        if not self.has_refused() and self._process is not None:
            self._process.kill()
            self._process = None
            self._look_back()

    def ends_in(self) -> None:
        """Wait for its end, which must be orderly. It may have been asked to end, or end by itself."""
        assert self._process is not None
        status = self._process.wait_stopped()
        self._process = None
        assert status == 0, f"{self.name} ended with {status}: {self.last_words()}"
        self._look_back()

    def stop(self) -> None:
        """Stop it by SIGTERM."""
        assert self._process is not None
        self._process.stop()
        self.ends_in()

    def has_refused(self) -> bool:
        """Whether it has ended because it couldn't begin. It may end for no other reason."""
        if self._process is None or (status := self._process.ended()) is None:
            return False
        self._process.kill()  # reads its last lines too
        self._process = None
        assert (status, self.is_taking) == (_OUT_OF_REACH, False), (
            f"{self.name} ended with {status}: {self.last_words()}"
        )
        self._look_back()
        self.refused_starts += 1
        self.refusal = self.last_words()
        return True

    def last_words(self) -> str:
        dump = next((number for number, line in enumerate(self.said) if line.startswith(_DUMP)), len(self.said))
        return "\n".join(self.said[max(0, dump - _LAST_LINES) :])

    def abort(self) -> None:
        """End it. If it runs, its last words are what each of its threads was doing."""
        if self._process is not None:
            self._process.abort()
            self._process = None

    def _look_back(self) -> None:
        """Count and check what the life that has ended has printed."""
        self.repairs += sum(HAS_CUT in line for line in self.said)
        self.forgotten_turns += sum(IS_FORGOTTEN in line for line in self.said)
        assert not any("Traceback" in line for line in self.said), f"{self.name}: {self.last_words()}"
