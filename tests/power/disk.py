"""What a power cut may leave of a folder, from what a program did there until then.

A cut keeps what was synced. Of what came after:

- Each sector of 512 bytes has what it was at its file's last sync, or what any later write made of it.
- A file's size is that at its last sync, or any later one.
- Names and sizes change by *entries* in the file system's journal: files made, renamed, removed, resized. Two models say
  which of them are kept.

`EXT4`, with `data=ordered`, its default: entries are kept in order, up to one that is drawn. A sync of any file or folder
keeps all entries before it. What a size covers was written before the size was: no sector behind the old end is empty.

`HARSH`, as POSIX promises no more: a name is certain only once its folder is synced, a file's sync keeps the file alone;
each other entry is kept or not by itself; and a size may cover sectors that were never written.
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
    """A file by its number, whatever its names are. Versions are numbered by the events that made them."""

    number: int
    contents: list[tuple[int, bytes]]
    """What it held, from each event on: as it was last synced, and since."""

    @property
    def now(self) -> bytes:
        return self.contents[-1][1]


@dataclass(frozen=True)
class _Entry:
    """A change of names: which file each name has afterwards, None for none."""

    event: int
    names: tuple[tuple[Path, int | None], ...]


class Disk:
    """The disk under a folder that held these files, and what a program does there."""

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
        """By `EXT4`: the last event whose entries are all kept."""
        self._kept_entries: set[int] = set()
        """Those of `HARSH`, by their events."""
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
            # A file that hasn't changed asks nothing of ext4's journal; nor does one whose data alone is synced, and is
            # where data was before.
            commits = len(file.contents[0][1]) != len(file.now) if data_only else len(file.contents) > 1
            file.contents = [(self._event, file.now)]
        else:
            self._kept_entries.update(entry.event for entry in self._entries if entry.names[0][0].parent == path)
            commits = True
        if commits:
            self._committed = self._event

    def cut(self, model: Model, draw: random.Random) -> dict[Path, bytes]:
        """What is left if the power goes now."""
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
        """What is left of a file. Its size and each sector are as they are now with this likelihood, else of another time."""
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
