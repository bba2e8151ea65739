"""What a sender remembers through its crashes: how far it is sure, and what it tried."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

__all__ = ["Journal", "Sent"]


class Sent(NamedTuple):
    """What a journal tells."""

    starts: int
    confirmed: int
    """The messages 1 to this one have reached the broker."""
    tries: int
    """Messages sent, each counted as often as it was."""


class Journal:
    """Appends what a sender does, before it does it; a line is handed to the system at once, so it outlives a kill."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def start(self) -> None:
        self._append("start")

    def send(self, messages: int) -> None:
        self._append(f"send {messages}")

    def confirm(self, number: int) -> None:
        self._append(f"confirmed {number}")

    def read(self) -> Sent:
        """Nothing where the sender was never started."""
        starts = confirmed = tries = 0
        for line in self._path.read_text(encoding="ascii").splitlines() if self._path.exists() else ():
            match line.split():
                case ["start"]:
                    starts += 1
                case ["send", messages]:
                    tries += int(messages)
                case ["confirmed", number]:
                    confirmed = int(number)
        return Sent(starts, confirmed, tries)

    def _append(self, line: str) -> None:
        with self._path.open("a", encoding="ascii") as file:
            file.write(f"{line}\n")
