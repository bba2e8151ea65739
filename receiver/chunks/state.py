"""What a run leaves for the next one: a folder with the chunks of its log, so that the next need not read it again.

`state.json` names the files of the log as they were, and a folder for each layer: what one run has read. A layer is
written whole, then `state.json` takes the place of the one before; so a run that is killed leaves the state as it was.

A state stands for its files as long as they are as they were. A file that is gone is taken from the state; one that
has changed, or that is there but isn't part of the log any more, makes the state useless, as do another domain KEY and
other options. Where files are gone, what the state knows of them is never thrown away.
"""

from __future__ import annotations

import glob
import json
import os
import re
import secrets
import shutil
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from fnmatch import fnmatch
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
import pyarrow as pa

from receiver.chunks.layers import Layer, Move, moved
from receiver.chunks.parcels import SCHEMA, Flow, Parcel, parcel_of, unpack, values_in
from receiver.chunks.values import Body, Ids, Opening, Plan, Unit, UnitReport
from receiver.domains import DomainKey
from receiver.errors import LogFormatError
from receiver.logs import ReadOptions
from receiver.logs.files import LogFile, find_files
from receiver.logs.output import UNFINISHED, appearing, naming, replacing

__all__ = ["Found", "Mark", "Part", "SavedLayer", "StateFolder", "restored"]

_FORMAT = 1
"""To be raised when saved values come to mean something else; where their fields change, `_fingerprint` does."""
_STATE, _PLAN, _LAYER = "state.json", "plan.arrow", "layer-"
_LAYER_NAME = rf"\A{_LAYER}[0-9a-f]{{16}}\Z"
"""Folders of other names are none of ours, and never removed."""
_PART_NAME = r"\A[0-9a-z]+\.arrow\Z"
_HEAD_BYTES = 4 << 10
_ABANDONED_SECS = 7 * 24 * 3600
"""A folder of a layer that no state names belongs to a run that goes on, or was killed: after so long, the latter."""


@dataclass(frozen=True, slots=True)
class Mark:
    """What tells whether a file is the one that was read."""

    path: Annotated[str, msgspec.Meta(pattern=r"\A[^\0]+\Z")]
    """Without links."""
    size_bytes: int
    mtime_ns: int
    head_crc: int


@dataclass(frozen=True, slots=True)
class Part:
    """A file with parcels of a layer."""

    name: Annotated[str, msgspec.Meta(pattern=_PART_NAME)]
    size_bytes: int


@dataclass(frozen=True, slots=True)
class SavedLayer:
    """What `state.json` tells of a layer: its folder, the files of the log that it stands for, and the files in it."""

    folder: Annotated[str, msgspec.Meta(pattern=_LAYER_NAME)]
    files: list[Mark]
    parts: list[Part]


@dataclass(frozen=True, slots=True)
class ChunkFile:
    """What a task reads of a state."""

    layer: int
    path: bytes


@dataclass(frozen=True, slots=True)
class _State:
    made_by: dict[str, Any]
    layers: list[SavedLayer]


class Found(NamedTuple):
    """What a state has of a log."""

    layers: list[SavedLayer]
    """Empty where there is no state yet, or none that can be used."""
    new: list[LogFile]
    """The files that it doesn't have."""
    marks: dict[str, Mark]
    """Of all files that were named, by `LogFile.name`, as they are before they are read."""
    gone: list[str]
    """Those that the state has, and nobody else."""
    refusal: str | None = None
    """Why there is a state that can't be used."""


@dataclass(frozen=True, slots=True)
class StateFolder:
    """The folder of a state, which need not exist yet; tasks on other machines reach it by the same path.

    Two runs may use it at a time: the one that ends last leaves its state.
    """

    path: Path

    def find_files(self, paths: Sequence[str]) -> list[LogFile]:
        """As `logs.files.find_files`, but a path need not lead to a file any more where the state has such files."""
        state, _ = self._read()
        gone = [mark.path for mark in _marks(state) if not os.path.lexists(mark.path)]
        left = [text for text in paths if not any(_stands_for(text, path) for path in gone) or _finds(text)]
        return find_files(left, growing=False) if left or not paths else []

    def found(self, files: Sequence[LogFile], key: DomainKey, options: ReadOptions) -> Found:
        """Look for what the state has of a log, and make the folder if need be. `OutputError` where it can't be made."""
        with naming(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
        marks = {file.name: _mark(file) for file in files}
        none = Found([], list(files), marks, [])
        state, trouble = self._read()
        if not state.layers:
            return none._replace(refusal=trouble)
        known = _marks(state)
        named = [marks[file.name] for file in files]
        paths = {mark.path for mark in named}
        gone = [mark.path for mark in known if mark.path not in paths and not os.path.lexists(mark.path)]
        refusal = _refusal(state, _made_by(key, options), named, gone) or self._damage(state)
        if refusal:
            return none._replace(gone=gone, refusal=refusal)
        old = {mark.path for mark in known}
        return Found(state.layers, [file for file in files if marks[file.name].path not in old], marks, gone)

    def load(self, saved: SavedLayer) -> Layer:
        """What is known of a layer's chunks."""
        plans, units, reports = values_in(_parcels_in(self.path / saved.folder / _PLAN), Plan, Unit, UnitReport)
        return Layer(plans[0], units, reports)

    def parts(self, layers: Sequence[SavedLayer]) -> list[Parcel]:
        """The files with the chunks of layers, on their way to the tasks that read them: see `restored`."""
        files = [
            ChunkFile(number, os.fsencode(self.path.absolute() / layer.folder / part.name))
            for number, layer in enumerate(layers)
            for part in layer.parts
            if part.name != _PLAN
        ]
        return [parcel_of(number, file) for number, file in enumerate(files)]

    def save(self, files: list[Mark], layer: Layer, chunks: Flow) -> SavedLayer:
        """Write a layer. It is no part of the state before `commit`."""
        name = f"{_LAYER}{secrets.token_hex(8)}"
        with appearing(self.path.absolute() / name) as folder:
            known = [parcel_of(0, value) for value in (layer.plan, *layer.units, *layer.reports)]
            plan = Part(_PLAN, _write(folder / _PLAN, known))
            written = chunks.map(partial(_saved, folder)).collect("Saving the state")
            parts = [plan, *(unpack(Part, parcel.payload) for parcel in written)]
            for left_by_retry in {path.name for path in folder.iterdir()} - {part.name for part in parts}:
                (folder / left_by_retry).unlink()
        return SavedLayer(name, files, parts)

    def commit(self, layers: list[SavedLayer], key: DomainKey, options: ReadOptions) -> bool:
        """Let layers be the state. False where another run has thrown one of them away meanwhile."""
        state = _State(_made_by(key, options), layers)
        if self._damage(state):
            shutil.rmtree(self.path / layers[-1].folder, ignore_errors=True)
            return False
        before, _ = self._read()
        text = json.dumps({"made_by": state.made_by, "layers": [asdict(layer) for layer in layers]}, indent=1)
        with replacing(self.path / _STATE) as file:
            file.write(text.encode())
        kept = {layer.folder for layer in layers}
        self._drop({layer.folder for layer in before.layers} - kept)
        self._drop(self._abandoned() - kept)
        return True

    def _read(self) -> tuple[_State, str | None]:
        """An empty one where there is none, or, told by the second, none that can be read."""
        try:
            return msgspec.convert(json.loads((self.path / _STATE).read_bytes()), _State), None
        except FileNotFoundError:
            return _State({}, []), None
        except (OSError, ValueError, RecursionError) as error:
            return _State({}, []), f"its {_STATE} can't be read: {error}"

    def _damage(self, state: _State) -> str | None:
        for layer in state.layers:
            for part in layer.parts:
                path = self.path / layer.folder / part.name
                if not path.is_file() or path.stat().st_size != part.size_bytes:
                    return f"{layer.folder}/{part.name} is missing or damaged"
        return None

    def _abandoned(self) -> set[str]:
        oldest = time.time() - _ABANDONED_SECS
        folders = [path for path in self.path.iterdir() if path.is_dir() and _is_ours(path.name)]
        return {path.name for path in folders if path.stat().st_mtime < oldest}

    def _drop(self, folders: set[str]) -> None:
        for folder in folders:
            shutil.rmtree(self.path / folder, ignore_errors=True)


def _is_ours(name: str) -> bool:
    return name.startswith(UNFINISHED) or re.search(_LAYER_NAME, name) is not None


def _marks(state: _State) -> list[Mark]:
    return [mark for layer in state.layers for mark in layer.files]


def _mark(file: LogFile) -> Mark:
    assert file.path is not None  # noqa: S101 - standard input can't be read by many
    try:
        with file.path.open("rb") as opened:
            status = os.fstat(opened.fileno())
            head = opened.read(_HEAD_BYTES)
    except OSError as error:
        raise LogFormatError(file.name, f"can't be read: {error.strerror or error}") from error
    return Mark(os.path.realpath(file.path), status.st_size, status.st_mtime_ns, zlib.crc32(head))


def _made_by(key: DomainKey, options: ReadOptions) -> dict[str, Any]:
    return {"format": [_FORMAT, _fingerprint()], "key": key.text, "options": asdict(options)}


def _fingerprint() -> int:
    """Another one for values with other fields."""
    kinds = (Body, Ids, Opening, Plan, Unit, UnitReport)
    return zlib.crc32(repr([(kind.__name__, [(f.name, f.type) for f in fields(kind)]) for kind in kinds]).encode())


def _refusal(state: _State, made_by: dict[str, Any], named: Sequence[Mark], gone: Sequence[str]) -> str | None:
    """Why a state isn't one of the log whose files are named, or None."""
    for what, said in (
        ("format", "another version of receiver made it"),
        ("key", f"it was made for the domain key {state.made_by.get('key')}"),
        ("options", "the log was read with other options"),
    ):
        if state.made_by.get(what) != made_by[what]:
            return said
    known = {mark.path: mark for mark in _marks(state)}
    for mark in named:
        if mark != known.get(mark.path, mark):
            return f"{mark.path} has changed"
    left_out = known.keys() - {mark.path for mark in named} - set(gone)
    if left_out:
        return f"{min(left_out)} isn't part of the log any more"
    if [mark for mark in named if mark.path in known] != [mark for mark in _marks(state) if mark.path not in gone]:
        return "the files come in another order"
    return None


def _stands_for(text: str, path: str) -> bool:
    """Whether an argument named a file that was at `path`: by its name, its folder, or a pattern."""
    named = os.path.realpath(text)
    return path == named or str(Path(path).parent) == named or (glob.has_magic(text) and fnmatch(path, named))


def _finds(text: str) -> bool:
    try:
        return bool(find_files([text], growing=False))
    except LogFormatError:
        return False


def _saved(folder: Path, parcels: Iterator[Parcel]) -> Iterator[Parcel]:
    """What a task writes: one file, if it has parcels at all."""
    first = next(parcels, None)
    if first is not None:
        name = f"{secrets.token_hex(8)}.arrow"
        yield parcel_of(0, Part(name, _write(folder / name, chain([first], parcels))))


def _write(path: Path, parcels: Iterable[Parcel]) -> int:
    """-> its size in bytes."""
    with replacing(path) as file, pa.ipc.new_stream(file, SCHEMA) as writer:
        for parcel in parcels:
            writer.write_batch(pa.record_batch([[cell] for cell in parcel], schema=SCHEMA))
    return path.stat().st_size


def restored(plan: Plan, moves: Sequence[Move]) -> Callable[[Iterator[Parcel]], Iterator[Parcel]]:
    """For `Flow.map`: `ChunkFile`s become the chunks in them, those of the whole log."""
    return partial(_restored, plan, moves)


def _restored(plan: Plan, moves: Sequence[Move], parcels: Iterator[Parcel]) -> Iterator[Parcel]:
    for parcel in parcels:
        file = unpack(ChunkFile, parcel.payload)
        yield from moved(plan, moves[file.layer])(_parcels_in(Path(os.fsdecode(file.path))))


def _parcels_in(path: Path) -> Iterator[Parcel]:
    """The parcels that a file of a state holds, one at a time."""
    try:
        with path.open("rb") as file, pa.ipc.open_stream(file) as reader:
            for batch in reader:
                yield Parcel(*(column[0].as_py() for column in batch.columns))
    except (OSError, pa.ArrowException) as error:
        raise LogFormatError(
            str(path), f"the saved state can't be read: {error}", hint="if another run has replaced it, run again"
        ) from error
