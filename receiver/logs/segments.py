"""How the segments of a rotating log are named.

    receipts-20261121T074500.123456Z-4711.jsonl.zst            finished: whole, and never changed again
    .receipts-20261121T074500.123456Z-4711.jsonl.zst.journal   being written, or left by a process that was killed

Ordered by name they stand in the order of time. Readers take finished files for any other log; journals they know by
this name, for globs leave out what begins with a dot.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import StrPath

__all__ = ["SegmentNames", "finished_from", "is_journal", "journals_in", "segment_names"]

_ENDINGS = (".jsonl.zst", ".parquet")
_IN_A_FOLDER = "receipts.jsonl.zst"
_STAMP = r"-\d{8}T\d{6}\.\d{6}Z-\d+"
_JOURNAL = ".journal"
_ANY_JOURNAL = re.compile(
    rf"\..+{_STAMP}({'|'.join(map(re.escape, _ENDINGS))}){re.escape(_JOURNAL)}", re.ASCII | re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class SegmentNames:
    """The segments that `receipts.jsonl.zst`, say, stands for."""

    folder: Path
    stem: str
    ending: str

    @property
    def is_parquet(self) -> bool:
        return self.ending.lower() == ".parquet"

    def finished(self) -> list[Path]:
        """Those that are whole, oldest first; `OSError` where the folder can't be read."""
        return self._matching(re.escape(self.stem) + _STAMP + re.escape(self.ending))

    def unfinished(self) -> list[Path]:
        """Those being written, by this process or another, and those left behind; oldest first."""
        return self._matching(re.escape(f".{self.stem}") + _STAMP + re.escape(self.ending + _JOURNAL))

    def unfinished_at(self, began: datetime) -> Path:
        """The segment that this process begins at such a time, in UTC."""
        return self.folder / f".{self.stem}-{began:%Y%m%dT%H%M%S.%f}Z-{os.getpid()}{self.ending}{_JOURNAL}"

    def _matching(self, pattern: str) -> list[Path]:
        return _matching(self.folder, re.compile(pattern, re.ASCII))


def finished_from(journal: Path) -> Path:
    """The file that is made of a journal in the end."""
    return journal.with_name(journal.name.removeprefix(".").removesuffix(_JOURNAL))


def is_journal(path: Path) -> bool:
    return path.name.endswith(_JOURNAL)


def journals_in(folder: Path) -> list[Path]:
    """The journals of all that is recorded in a folder, oldest first of each name."""
    return _matching(folder, _ANY_JOURNAL)


def _matching(folder: Path, known: re.Pattern[str]) -> list[Path]:
    return [folder / name for name in sorted(os.listdir(folder)) if known.fullmatch(name)]  # noqa: PTH208


def segment_names(path: StrPath) -> SegmentNames | None:
    """What a path names: a folder, or a file whose ending tells the format; None for any other ending."""
    text = os.fspath(path)
    if text.endswith(("/", os.sep)) or os.path.isdir(text):  # noqa: PTH112 - False for a path that no file can have
        return segment_names(Path(text) / _IN_A_FOLDER)
    file = Path(text)
    ending = next((file.name[-len(known) :] for known in _ENDINGS if file.name.lower().endswith(known)), None)
    return SegmentNames(file.parent, file.name.removesuffix(ending), ending) if ending else None
