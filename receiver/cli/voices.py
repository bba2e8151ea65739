"""Lines of several processes on one terminal, each with the name of who says it."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from receiver.report.words import sanitised

__all__ = ["Voices"]

_COLOURS = ("cyan", "green", "yellow", "blue", "bright_cyan", "bright_green", "bright_yellow", "bright_blue")
_LONGEST = 1_000


class Voices:
    """Prints on standard error, in colours where it is a terminal; any thread may call `say`."""

    def __init__(self, leader: str, names: Sequence[str]) -> None:
        self._console = Console(stderr=True)
        self._width = max(map(len, (leader, *names)))
        self._styles = dict(zip(names, _COLOURS, strict=False)) | {leader: "bold magenta"}
        self._leader = leader
        self._last: dict[str, str] = {}

    def say(self, name: str, what: str) -> None:
        """Once, until they say something else; but what the leader does twice is told twice."""
        if self._last.get(name) == what and name != self._leader:
            return
        self._last[name] = what
        style = self._styles.get(name, "")
        line = Text.assemble(
            (f"{name:<{self._width}} | ", style), (sanitised(what, _LONGEST), style * (name == self._leader))
        )
        self._console.print(line, soft_wrap=True)
