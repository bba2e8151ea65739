"""The receipts of ids that come more than once, out of all: few in most logs, and all that links have to look at."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa

from receiver.chunks.parcels import Parcel, unpack
from receiver.chunks.values import Ids
from receiver.simulate.interning import TextNumbers

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["Repeated", "joined", "numbered", "repeated"]

_Number = TypeVar("_Number", bound=np.generic)


class Repeated(NamedTuple):
    """What repeats of some ids of a chunk."""

    ids: Ids
    """All of them, without their texts."""
    at: npt.NDArray[np.intp]
    """Where in `ids` the receipts are whose id comes more than once in the part, in whatever domain."""
    id: npt.NDArray[np.int32]
    """The numbers of their ids in the part."""


def repeated(parcels: Iterable[Parcel]) -> list[Repeated]:
    """Look through all `Ids` of a part."""
    texts = TextNumbers()
    no_text = pa.array([], pa.string())
    read: list[tuple[Ids, npt.NDArray[np.int32]]] = []
    for parcel in parcels:
        ids = unpack(Ids, parcel.payload)
        read.append((replace(ids, text=no_text), texts.number(ids.text)))
    several = np.bincount(joined(np.int32, (numbers for _, numbers in read)), minlength=texts.count) > 1
    found = []
    for ids, numbers in read:
        at = np.flatnonzero(several[numbers])
        found.append(Repeated(ids, at, numbers[at]))
    return found


def joined(kind: type[_Number], parts: Iterable[npt.NDArray[_Number]]) -> npt.NDArray[_Number]:
    """One column of several; of none, too."""
    return np.concatenate([np.empty(0, kind), *parts])


def numbered(known: dict[str, int], texts: list[str], places: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    """Numbers for texts, told by their places in a list; those not yet known are added, and numbered in turn."""
    used, place_in_used = np.unique(places, return_inverse=True)
    numbers = [known.setdefault(texts[place], len(known)) for place in used.tolist()]
    return np.array(numbers, np.int32)[place_in_used]
