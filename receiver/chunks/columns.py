"""Small operations on columns of rows that come in several values."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np

from receiver.simulate.numbering import distinct

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["by_chunk", "column", "names_in_one", "order_unless_sorted", "split_by", "stable_order", "used"]

_Name = TypeVar("_Name")


class _OfChunk(Protocol):
    @property
    def chunk(self) -> int: ...


_Value = TypeVar("_Value", bound=_OfChunk)


def column(values: Iterable[object], name: str, kind: type[np.generic]) -> npt.NDArray[Any]:
    """One attribute of several values, one after the other."""
    parts = [getattr(value, name) for value in values]
    return np.concatenate(parts) if parts else np.empty(0, kind)


def by_chunk(values: Iterable[_Value]) -> defaultdict[int, list[_Value]]:
    """Values by the chunk they are for."""
    found: defaultdict[int, list[_Value]] = defaultdict(list)
    for value in values:
        found[value.chunk].append(value)
    return found


def split_by(keys: npt.NDArray[Any]) -> Iterator[tuple[int, npt.NDArray[np.int64]]]:
    """Each different key, ascending, with the rows that have it, in their order."""
    order = np.argsort(keys, kind="stable")
    found, begins = np.unique(keys[order], return_index=True)
    for key, begin, end in zip(found.tolist(), begins.tolist(), [*begins[1:].tolist(), len(order)], strict=False):
        yield key, order[begin:end]


def stable_order(values: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """The order that sorts them, equal ones as they stand."""
    if values.dtype == np.int32 and len(values):  # numbers of 16 bits are sorted many times faster
        values = values - values.min()
        values = values.astype(np.uint16) if values.max() < 1 << 16 else values
    return np.argsort(values, kind="stable")


def order_unless_sorted(values: npt.NDArray[Any]) -> npt.NDArray[np.int64] | None:
    """The same; None where they are in order."""
    return None if np.all(values[1:] >= values[:-1]) else stable_order(values)


def names_in_one(first: list[str], others: Sequence[list[str]]) -> tuple[list[str], list[npt.NDArray[np.int32]]]:
    """All names once, those of `first` in front as they are; and for each other list, where its names stand there."""
    numbers = {name: number for number, name in enumerate(first)}
    places = [np.array([numbers.setdefault(name, len(numbers)) for name in names], np.int32) for names in others]
    return list(numbers), places


def used(numbers: npt.NDArray[np.int32], names: Sequence[_Name]) -> tuple[npt.NDArray[np.int32], list[_Name]]:
    """Numbers anew for the names that they stand for, which are often few of all."""
    found, place = distinct(numbers)
    return place, [names[number] for number in found.tolist()]
