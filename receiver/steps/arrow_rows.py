"""Rows on their way between tasks, as typed Arrow columns; and small helpers for columns.

A row holds one value, a dataclass: columns of receipts as lists (`schemas`), or counts. The output table of a step has a column
of structs for each kind of value, null in the rows of other kinds.
"""

from __future__ import annotations

import pickle
import secrets
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cache
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self, TypeVar

import numpy as np
import pyarrow as pa

from receiver.simulate.compiled import Flags, Int32s, Int64s
from receiver.simulate.numbering import distinct

if TYPE_CHECKING:
    import numpy.typing as npt

_BLOCK_BYTES = 8 << 20
"""The most bytes of a value in one row: longer columns go on in further rows, so that no buffer has to hold a chunk."""
_TOGETHER_BYTES = 1 << 20
LEAD = {"key": pa.int32(), "value": pa.int64(), "block": pa.int32(), "blocks": pa.int32()}
_SCALARS = {"int": pa.int64(), "str": pa.string(), "bytes": pa.binary()}
_LISTS = {
    "Int64s": (pa.int64(), np.int64),
    "Int32s": (pa.int32(), np.int32),
    "Flags": (pa.bool_(), np.bool_),
    "npt.NDArray[np.float64]": (pa.float64(), np.float64),
    "npt.NDArray[np.uint64]": (pa.int64(), np.uint64),  # Spark has no unsigned numbers
    "list[str]": (pa.string(), list),
    "pa.Array": (pa.string(), pa.Array),
}
_COLUMNS = (np.ndarray, pa.Array, list)


class Row(NamedTuple):
    """A value, and the key of the task that it is for."""

    key: int
    """A number from 0. Rows with equal keys can be brought together."""
    value: Any


@dataclass(frozen=True, slots=True)
class Failure:
    """An error of this package, on its way from a task to the driver."""

    pickled: bytes


class RowFlow(Protocol):
    """A lazy collection of rows. Only `kept` and `collect` compute; kept rows are computed once.

    `kinds` are the classes of the values that the work returns.
    """

    def map(self, work: Callable[[Iterator[Row]], Iterable[Row]], *kinds: type[Any]) -> RowFlow:
        """Work on rows one by one, in many tasks. Each task gets a part of the rows, in any order."""
        ...

    def grouped(self, work: Callable[[int, Iterator[Row]], Iterable[Row]], keys: int, *kinds: type[Any]) -> RowFlow:
        """Work on all rows of a key at once, which come in any order; keys are below `keys`."""
        ...

    def dealt(self, keys: int) -> Self:
        """Bring the rows of each key into one task, for `each_key`."""
        ...

    def each_key(self, work: Callable[[int, Iterator[Row]], Iterable[Row]], *kinds: type[Any]) -> RowFlow:
        """Work on all rows of a key at once, on a flow that `dealt` returned."""
        ...

    def only(self, *kinds: type[Any]) -> RowFlow: ...

    def plus(self, *others: Self) -> Self: ...

    def kept(self, what: str, *counts: type[Any]) -> tuple[Self, tuple[list[Any], ...]]:
        """Compute the rows now and keep them. Returns the kept flow, and a list of all values of each kind in `counts`.

        `what` names the step to people who wait.
        """
        ...

    def collect(self, what: str) -> list[Any]:
        """Bring the values to the driver, in any order: only for counts, never for receipts."""
        ...

    def forget(self) -> None:
        """Free kept rows."""
        ...


def values_in(rows: Iterable[Row], *kinds: type[Any]) -> tuple[list[Any], ...]:
    """The values of these kinds in rows, a list for each kind. There must be no other kinds."""
    return by_kind((row.value for row in rows), *kinds)


def by_kind(values: Iterable[Any], *kinds: type[Any]) -> tuple[list[Any], ...]:
    """The values of each kind. There must be no other kinds."""
    of_kind: dict[type[Any], list[Any]] = {kind: [] for kind in kinds}
    for value in values:
        of_kind[type(value)].append(value)
    return tuple(of_kind.values())


@cache
def _struct(kind: type[Any]) -> pa.StructType:
    types = {each.name: str(each.type) for each in fields(kind)}
    return pa.struct([(name, _SCALARS.get(text) or pa.list_(_LISTS[text][0])) for name, text in types.items()])


def schema_of(*kinds: type[Any]) -> pa.Schema:
    """The schema of rows that hold values of these kinds, or failures."""
    return pa.schema(LEAD | {kind.__name__: _struct(kind) for kind in (*kinds, Failure)})


def batches_of(rows: Iterable[Row], *kinds: type[Any]) -> Iterator[pa.RecordBatch]:
    """Rows as Arrow batches: small rows share a batch, a large row doesn't wait for others."""
    schema = schema_of(*kinds)
    waiting: list[tuple[tuple[int, ...], Any, dict[str, Any]]] = []
    waiting_bytes = 0
    for lead, kind, cells, size_bytes in _blocks(rows):
        waiting.append((lead, kind, cells))
        waiting_bytes += size_bytes
        if waiting_bytes >= _TOGETHER_BYTES:
            yield _batch(waiting, schema)
            waiting, waiting_bytes = [], 0
    if waiting:
        yield _batch(waiting, schema)


def _blocks(rows: Iterable[Row]) -> Iterator[tuple[tuple[int, ...], type[Any], dict[str, Any], int]]:
    for key, value in rows:
        kind = type(value)
        cells = {each.name: getattr(value, each.name) for each in fields(kind)}
        size_bytes = sum(_size_bytes(cell) for cell in cells.values())
        blocks = -(-size_bytes // _BLOCK_BYTES) or 1
        # Blocks of values from many tasks arrive in any order: each value has a random number of its own.
        number = secrets.randbits(62) if blocks > 1 else 0
        for block in range(blocks):
            part = cells if blocks == 1 else {name: _part(cell, block, blocks) for name, cell in cells.items()}
            yield (key, number, block, blocks), kind, part, size_bytes // blocks


def _size_bytes(cell: Any) -> int:
    if isinstance(cell, (np.ndarray, pa.Array)):
        return int(cell.nbytes)
    return 50 * len(cell) if isinstance(cell, list) else 8


def _part(cell: Any, block: int, blocks: int) -> Any:
    if isinstance(cell, _COLUMNS):
        return cell[len(cell) * block // blocks : len(cell) * (block + 1) // blocks]
    return cell


def _concatenated(parts: list[Any]) -> Any:
    """The parts of a column as one column."""
    if isinstance(parts[0], np.ndarray):
        return parts[0] if len(parts) == 1 else np.concatenate(parts)
    return pa.concat_arrays(parts) if isinstance(parts[0], pa.Array) else list(chain.from_iterable(parts))


def _batch(rows: list[tuple[tuple[int, ...], Any, dict[str, Any]]], schema: pa.Schema) -> pa.RecordBatch:
    columns: list[pa.Array] = [
        pa.array(numbers, field.type)
        for numbers, field in zip(zip(*(lead for lead, _, _ in rows), strict=True), schema, strict=False)
    ]
    for field in list(schema)[len(LEAD) :]:
        of_kind = [kind.__name__ == field.name for _, kind, _ in rows]
        values = [cells for (_, _, cells), here in zip(rows, of_kind, strict=True) if here]
        structs = pa.StructArray.from_arrays(
            [_arrow_column([cells[child.name] for cells in values], child.type) for child in field.type],
            fields=list(field.type),
        )
        if len(values) < len(rows):
            index = np.cumsum(of_kind) - 1
            structs = structs.take(pa.array(index, pa.int64(), mask=~np.array(of_kind)))
        columns.append(structs)
    return pa.record_batch(columns, schema=schema)


def _arrow_column(cells: list[Any], kind: pa.DataType) -> pa.Array:
    if not pa.types.is_list(kind):
        return pa.array(cells, kind)
    offsets = np.cumsum([0, *map(len, cells)], dtype=np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), _elements(cells, kind.value_type), type=kind)


def _elements(cells: list[Any], kind: pa.DataType) -> pa.Array:
    elements = _concatenated(cells) if cells else []
    if isinstance(elements, np.ndarray) and elements.dtype == np.uint64:
        elements = elements.view(np.int64)
    return elements if isinstance(elements, pa.Array) else pa.array(elements, kind)


def rows_of(batches: Iterable[pa.RecordBatch], *kinds: type[Any]) -> Iterator[Row]:
    """Rows from Arrow batches; their arrays are read-only. Raises a failure among them, so that each step passes it on."""
    by_name = {kind.__name__: kind for kind in (*kinds, Failure)}
    unfinished: dict[int, dict[int, Any]] = {}
    for batch in batches:
        keys, numbers, block, blocks = (batch.column(name).to_pylist() for name in LEAD)
        for name in batch.schema.names[len(LEAD) :]:
            for row, value in _values(batch.column(name), by_name[name]):
                if isinstance(value, Failure):
                    raise pickle.loads(value.pickled)  # noqa: S301 - our own task's
                if blocks[row] == 1:
                    yield Row(keys[row], value)
                    continue
                together = unfinished.setdefault(numbers[row], {})
                together[block[row]] = value
                if len(together) == blocks[row]:
                    del unfinished[numbers[row]]
                    yield Row(keys[row], _whole([together[number] for number in sorted(together)]))
    if unfinished:
        raise AssertionError("a value came without all of its blocks")


def _values(structs: pa.StructArray, kind: type[Any]) -> Iterator[tuple[int, Any]]:
    rows = np.flatnonzero(structs.is_valid().to_numpy(zero_copy_only=False)).tolist()
    if not rows:
        return
    readers = [_reader(structs.field(each.name), str(each.type)) for each in fields(kind)]
    for row in rows:
        yield row, kind(*(read(row) for read in readers))


def _reader(column: pa.Array, kind: str) -> Callable[[int], Any]:
    if kind in _SCALARS:
        return column.to_pylist().__getitem__  # type: ignore[no-any-return]
    made = _LISTS[kind][1]
    elements, offsets = column.values, column.offsets.to_pylist()
    if made is list:
        return lambda row: elements[offsets[row] : offsets[row + 1]].to_pylist()
    if made is not pa.Array:
        elements = elements.to_numpy(zero_copy_only=False).view(made)
    return lambda row: elements[offsets[row] : offsets[row + 1]]


def _whole(blocks: list[Any]) -> Any:
    kind = type(blocks[0])
    columns = [[getattr(block, each.name) for block in blocks] for each in fields(kind)]
    return kind(*(_concatenated(parts) if isinstance(parts[0], _COLUMNS) else parts[0] for parts in columns))


_Name = TypeVar("_Name")
_Number = TypeVar("_Number", bound=np.generic)


def joined(kind: type[_Number], parts: Iterable[npt.NDArray[_Number]]) -> npt.NDArray[_Number]:
    """The parts as one column; empty for no parts."""
    return np.concatenate([np.empty(0, kind), *parts])


def column(values: Iterable[object], name: str, kind: type[_Number]) -> npt.NDArray[_Number]:
    """The columns of one name of several values, joined."""
    return joined(kind, (getattr(value, name) for value in values))


def by_chunk(values: Iterable[Any]) -> defaultdict[int, list[Any]]:
    """The values by `chunk`."""
    by_number: defaultdict[int, list[Any]] = defaultdict(list)
    for value in values:
        by_number[value.chunk].append(value)
    return by_number


def changes(values: npt.NDArray[Any]) -> Flags:
    """Whether each value differs from the one before it; true for the first."""
    is_change = np.ones(len(values), np.bool_)
    is_change[1:] = values[1:] != values[:-1]
    return is_change


def runs(begins: Flags) -> Iterator[tuple[int, int]]:
    """The begin and end of each group of adjacent rows. `begins` marks the first row of each, so also the first of all."""
    return pairwise([*np.flatnonzero(begins).tolist(), len(begins)])


def split_by(keys: npt.NDArray[Any]) -> Iterator[tuple[int, Int64s]]:
    """Each different key, ascending, with the rows that have it, in their order."""
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    for begin, end in runs(changes(ordered)):
        yield int(ordered[begin]), order[begin:end]


def stable_order(values: npt.NDArray[Any]) -> Int64s:
    """The order that sorts the values stably."""
    if len(values) and int(values.max()) - int(values.min()) < 1 << 16:
        values = (values - values.min()).astype(np.uint16)  # these are sorted many times faster
    return np.argsort(values, kind="stable")


def order_unless_sorted(values: npt.NDArray[Any]) -> Int64s | None:
    """The order that sorts the values stably; None if they are sorted."""
    return None if np.all(values[1:] >= values[:-1]) else stable_order(values)


def in_one(parts: Iterable[tuple[Int32s, Sequence[_Name]]], first: Iterable[_Name] = ()) -> tuple[Int32s, list[_Name]]:
    """Join columns of indices, each with its own list of names, into one column and one list.

    The list begins with `first`.
    """
    known = {name: number for number, name in enumerate(first)}
    columns = [
        np.array([known.setdefault(name, len(known)) for name in names], np.int32)[numbers] for numbers, names in parts
    ]
    return joined(np.int32, columns), list(known)


def used(numbers: Int32s, names: Sequence[_Name]) -> tuple[Int32s, list[_Name]]:
    """New numbers for only those names that occur, often few of all; and these names."""
    in_use, index = distinct(numbers)
    return index, [names[number] for number in in_use.tolist()]
