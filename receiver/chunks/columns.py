"""Small operations on columns of rows that come in several values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["column", "names_in_one", "split_by"]


def column(values: Iterable[object], name: str, kind: type[np.generic]) -> npt.NDArray[Any]:
    """One attribute of several values, one after the other."""
    parts = [getattr(value, name) for value in values]
    return np.concatenate(parts) if parts else np.empty(0, kind)


def split_by(keys: npt.NDArray[Any]) -> Iterator[tuple[int, npt.NDArray[np.int64]]]:
    """Each different key, ascending, with the rows that have it, in their order."""
    order = np.argsort(keys, kind="stable")
    found, begins = np.unique(keys[order], return_index=True)
    for key, begin, end in zip(found.tolist(), begins.tolist(), [*begins[1:].tolist(), len(order)], strict=False):
        yield key, order[begin:end]


def names_in_one(first: list[str], others: Sequence[list[str]]) -> tuple[list[str], list[npt.NDArray[np.int32]]]:
    """All names once, those of `first` in front as they are; and for each other list, where its names stand there."""
    numbers = {name: number for number, name in enumerate(first)}
    places = [
        np.array([numbers.setdefault(name, len(numbers)) for name in names], np.int32) for names in others
    ]
    return list(numbers), places
