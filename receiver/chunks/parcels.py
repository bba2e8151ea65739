"""Values on their way between tasks: a whole batch of rows is one parcel, so that moving a row costs next to nothing.

A value is a dataclass of numbers, texts, bytes, lists of texts, and NumPy and Arrow arrays; it travels as one row of
Arrow, compressed, with a list where the value has an array. Nothing in it is code, so it may also be kept in a file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields
from typing import Any, NamedTuple, Protocol, Self, TypeVar

import numpy as np
import pyarrow as pa

__all__ = ["SCHEMA", "Flow", "Parcel", "pack", "parcel_of", "unpack", "values_in"]

_Value = TypeVar("_Value")
_COMPRESSED = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)
_READ_HERE = pa.ipc.IpcReadOptions(use_threads=False)


class Parcel(NamedTuple):
    """A packed value, what it is, and whom it is for."""

    key: int
    """From 0: parcels of one key can be brought together."""
    kind: str
    payload: bytes


SCHEMA = pa.schema([("key", pa.int64()), ("kind", pa.string()), ("payload", pa.binary())])
"""Of parcels as rows."""


class Flow(Protocol):
    """Parcels, somewhere. Only `kept`, `collect` and `in_order` do work; what is kept is worked out once."""

    def map(self, work: Callable[[Iterator[Parcel]], Iterable[Parcel]]) -> Flow:
        """Work on parcels one by one, in many tasks; each sees some of them, in no order."""
        ...

    def grouped(self, work: Callable[[int, Iterator[Parcel]], Iterable[Parcel]], keys: int) -> Flow:
        """Work on all parcels of a key at once, which come in no order; keys are below `keys`."""
        ...

    def only(self, *kinds: str) -> Flow: ...

    def plus(self, *others: Self) -> Self: ...

    def kept(self, what: str) -> Flow:
        """The same, worked out now and kept for whoever asks later; `what` names the step to those who wait."""
        ...

    def collect(self, what: str) -> list[Parcel]:
        """Bring parcels here, in no order: summaries, never receipts."""
        ...

    def in_order(self, what: str) -> Iterator[Parcel]:
        """Bring here what `grouped` has made and was kept, a key at a time: by ascending key, then as its work made it.

        The work must not have given its parcels other keys.
        """
        ...

    def forget(self) -> None:
        """What was kept isn't needed any more."""
        ...


def parcel_of(key: int, value: Any) -> Parcel:
    """A dataclass on its way; its kind is the name of its class."""
    return Parcel(key, type(value).__name__, pack(value))


def values_in(parcels: Iterable[Parcel], *kinds: type[Any]) -> tuple[list[Any], ...]:
    """The values of each kind; there are no others."""
    found: dict[str, list[Any]] = {kind.__name__: [] for kind in kinds}
    types = {kind.__name__: kind for kind in kinds}
    for parcel in parcels:
        found[parcel.kind].append(unpack(types[parcel.kind], parcel.payload))
    return tuple(found.values())


def pack(value: Any) -> bytes:
    """A dataclass as bytes."""
    columns = {field.name: _cell(getattr(value, field.name)) for field in fields(value)}
    batch = pa.record_batch(list(columns.values()), names=list(columns))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=_COMPRESSED) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def unpack(kind: type[_Value], payload: bytes) -> _Value:
    """The dataclass again; its arrays may not be written to."""
    with pa.ipc.open_stream(pa.py_buffer(payload), options=_READ_HERE) as reader:
        batch = reader.read_next_batch()
    return kind(**{name: _value(column) for name, column in zip(batch.schema.names, batch.columns, strict=True)})


def _cell(value: Any) -> pa.Array:
    if isinstance(value, np.ndarray):
        # Times, rows and labels ascend mostly: their steps are small, and compress to a third. Overflow cancels out.
        return _one_list(pa.array(np.diff(value, prepend=np.int64(0)) if value.dtype == np.int64 else value))
    if isinstance(value, pa.Array):
        return _one_list(value)
    if isinstance(value, list):
        # Marked by its type, so that it comes back as a list: a large one, as arrays never are.
        return pa.LargeListArray.from_arrays([0, len(value)], pa.array(value, pa.string()))
    return pa.array([value])


def _one_list(values: pa.Array) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), values)


def _value(column: pa.Array) -> Any:
    if pa.types.is_large_list(column.type):
        return column.values.to_pylist()
    if not pa.types.is_list(column.type):
        return column[0].as_py()
    values = column.values
    if pa.types.is_string(values.type):
        return values
    numbers = values.to_numpy(zero_copy_only=not pa.types.is_boolean(values.type))
    return np.cumsum(numbers) if numbers.dtype == np.int64 else numbers
