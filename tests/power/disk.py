"""What a power cut may leave of a folder, after a program's actions there.

A cut keeps what was synced. Of later changes:

- Each sector of 512 bytes is as at its file's last sync, or as any later write made it.
- A file's size is that at its last sync, or any later one.
- Names and sizes change by *entries* in the file system's journal: files made, renamed, removed, resized. Two models
  say which entries are kept.

`EXT4`, with its default `data=ordered`: entries are kept in order, up to one that is drawn. A sync of any file or
folder keeps all entries before it. Data is written before the size that covers it, so no sector behind the old end is
empty.

`HARSH`, as POSIX promises no more: a name is certain only once its folder is synced. A file's sync keeps only the file.
Each other entry is kept or lost by itself. A size may cover sectors that were never written.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import Enum, auto
from itertools import count
from pathlib import Path

from tests.power.system_calls import Event, Opened, Removed, Renamed, Resized, Said, Synced, Wrote

SECTOR = 512


class Model(Enum):
    EXT4 = auto()
    HARSH = auto()


@dataclass
class _File:
    """A file, by a number that stays when its name changes. Its versions are numbered by the events that made them."""

    number: int
    contents: list[tuple[int, bytes]]
    """Its contents, each with the event that made them: those of the last sync first, then the later ones."""

    @property
    def now(self) -> bytes:
        return self.contents[-1][1]


@dataclass(frozen=True)
class _Entry:
    """A change of names: the file that each name has afterwards; None for no file."""

    event: int
    names: tuple[tuple[Path, int | None], ...]


class Disk:
    """The disk under a folder that had these files before, while a program acts there."""

    def __init__(self, before: dict[Path, bytes]) -> None:
        self._numbers = count()
        self._event = -1
        self._files: dict[int, _File] = {}
        self._first_names: dict[Path, int] = {}
        for path, data in before.items():
            file = self._new_file(data)
            self._first_names[path] = file.number
        self._names = dict(self._first_names)
        self._entries: list[_Entry] = []
        self._committed = -1
        """For `EXT4`: the last event whose entries are all kept."""
        self._kept_entries: set[int] = set()
        """For `HARSH`: the events of the entries that are kept."""
        self.said: list[str] = []

    def _new_file(self, data: bytes = b"") -> _File:
        file = _File(next(self._numbers), [(self._event, data)])
        self._files[file.number] = file
        return file

    def does(self, event: Event) -> None:
        """Take the next of the program's events."""
        self._event += 1
        match event:
            case Said(text):
                self.said.append(text)
            case Opened(path, makes, _):
                if makes:
                    self._enters((path, self._new_file().number))
                else:
                    self._file(path).contents.append((self._event, b""))
            case Wrote(path, offset, data):
                file = self._file(path)
                old = file.now.ljust(offset, b"\0")
                file.contents.append((self._event, old[:offset] + data + old[offset + len(data) :]))
            case Resized(path, size):
                file = self._file(path)
                file.contents.append((self._event, file.now[:size].ljust(size, b"\0")))
            case Renamed(old, new):
                self._enters((new, self._names[old]), (old, None))
            case Removed(path):
                self._enters((path, None))
            case Synced(path, data_only):
                self._syncs(path, data_only=data_only)

    def _file(self, path: Path) -> _File:
        number = self._names[path]
        assert number is not None
        return self._files[number]

    def _enters(self, *names: tuple[Path, int | None]) -> None:
        self._entries.append(_Entry(self._event, names))
        for path, number in names:
            if number is None:
                del self._names[path]
            else:
                self._names[path] = number

    def _syncs(self, path: Path, *, data_only: bool) -> None:
        if path in self._names:
            file = self._file(path)
            # An unchanged file needs no entry in ext4's journal. Nor does a sync of the data alone, if the data covers
            # no more than before.
            commits = len(file.contents[0][1]) != len(file.now) if data_only else len(file.contents) > 1
            file.contents = [(self._event, file.now)]
        else:
            self._kept_entries.update(entry.event for entry in self._entries if entry.names[0][0].parent == path)
            commits = True
        if commits:
            self._committed = self._event

    def cut(self, model: Model, draw: random.Random) -> dict[Path, bytes]:
        """The files that are left if the power goes now."""
        upto = draw.choice([self._committed, self._event, draw.randint(self._committed, self._event)])
        if model is Model.EXT4:
            entries = [entry for entry in self._entries if entry.event <= upto]
        else:
            likely = draw.choice([0, 0.5, 1])
            entries = [entry for entry in self._entries if entry.event in self._kept_entries or draw.random() < likely]
        names: dict[Path, int | None] = dict(self._first_names)
        for entry in entries:
            names.update(entry.names)
        likely = draw.choice([0, 0.5, 0.9, 1])
        return {
            path: self._left_of(self._files[number], model, upto, likely, draw)
            for path, number in names.items()
            if number is not None
        }

    def _left_of(self, file: _File, model: Model, upto: int, likely: float, draw: random.Random) -> bytes:
        """The contents that are left of a file. Its size and each sector are the present ones with this likelihood,
        else earlier ones."""
        (synced_at, synced), *pending = file.contents
        if not pending:
            return synced
        sizes = [(at, len(data)) for at, data in file.contents if model is Model.HARSH or at <= max(upto, synced_at)]
        sized_at, size = sizes[-1] if draw.random() < likely else draw.choice(sizes)
        sectors = []
        for start in range(0, size, SECTOR):
            is_behind_the_old_end = start + SECTOR > len(synced)
            least = sized_at if model is Model.EXT4 and is_behind_the_old_end else synced_at
            possible = [data for at, data in file.contents if at >= least]
            data = possible[-1] if draw.random() < likely else draw.choice(possible)
            sectors.append(data[start : start + SECTOR].ljust(SECTOR, b"\0"))
        return b"".join(sectors)[:size]
