"""The receipts of ids that come more than once, out of all: few in most logs, and all that links have to look at."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from receiver.chunks.columns import joined
from receiver.chunks.parcels import Parcel, unpack
from receiver.chunks.values import Ids
from receiver.simulate.interning import TextNumbers

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["Repeated", "repeated"]


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
