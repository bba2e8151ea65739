"""Small operations on columns of rows that come in several values."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np

from receiver.simulate.numbering import distinct

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = [
    "by_chunk",
    "changes",
    "column",
    "in_one",
    "joined",
    "order_unless_sorted",
    "runs",
    "split_by",
    "stable_order",
    "used",
]

_Name = TypeVar("_Name")
_Number = TypeVar("_Number", bound=np.generic)


class _OfChunk(Protocol):
    @property
    def chunk(self) -> int: ...


_Value = TypeVar("_Value", bound=_OfChunk)


def joined(kind: type[_Number], parts: Iterable[npt.NDArray[_Number]]) -> npt.NDArray[_Number]:
    """One column of several; of none, too."""
    return np.concatenate([np.empty(0, kind), *parts])


def column(values: Iterable[object], name: str, kind: type[_Number]) -> npt.NDArray[_Number]:
    """One attribute of several values, one after the other."""
    return joined(kind, (getattr(value, name) for value in values))


def by_chunk(values: Iterable[_Value]) -> defaultdict[int, list[_Value]]:
    """Values by the chunk they are for."""
    by_number: defaultdict[int, list[_Value]] = defaultdict(list)
    for value in values:
        by_number[value.chunk].append(value)
    return by_number


def changes(values: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Where a value isn't the one before it; the first never is."""
    is_change = np.ones(len(values), np.bool_)
    is_change[1:] = values[1:] != values[:-1]
    return is_change


def runs(begins: npt.NDArray[np.bool_]) -> Iterator[tuple[int, int]]:
    """The stretches of rows that begin where it is said, the first row among them."""
    return pairwise([*np.flatnonzero(begins).tolist(), len(begins)])


def split_by(keys: npt.NDArray[Any], *then: npt.NDArray[Any]) -> Iterator[tuple[int, npt.NDArray[np.int64]]]:
    """Each different key, ascending, with the rows that have it, ordered by further columns, then as they stand."""
    order = np.lexsort((*reversed(then), keys))
    ordered = keys[order]
    for begin, end in runs(changes(ordered)):
        yield int(ordered[begin]), order[begin:end]


def stable_order(values: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """The order that sorts them, equal ones as they stand."""
    if (
        len(values) and int(values.max()) - int(values.min()) < 1 << 16
    ):  # numbers of 16 bits are sorted many times faster
        values = (values - values.min()).astype(np.uint16)
    return np.argsort(values, kind="stable")


def order_unless_sorted(values: npt.NDArray[Any]) -> npt.NDArray[np.int64] | None:
    """The order that sorts values, equal ones as they stand; None where they are in order."""
    return None if np.all(values[1:] >= values[:-1]) else stable_order(values)


def in_one(
    parts: Iterable[tuple[npt.NDArray[np.int32], Sequence[_Name]]], first: Iterable[_Name] = ()
) -> tuple[npt.NDArray[np.int32], list[_Name]]:
    """One column of several whose numbers stand for names of their own lists, and one list, which begins with `first`."""
    known = {name: number for number, name in enumerate(first)}
    columns = [
        np.array([known.setdefault(name, len(known)) for name in names], np.int32)[numbers] for numbers, names in parts
    ]
    return joined(np.int32, columns), list(known)


def used(numbers: npt.NDArray[np.int32], names: Sequence[_Name]) -> tuple[npt.NDArray[np.int32], list[_Name]]:
    """Numbers anew for the names that they stand for, which are often few of all, and those names."""
    in_use, index = distinct(numbers)
    return index, [names[number] for number in in_use.tolist()]
