"""The whole log in order, in slices that fit a task: receipts without regard to their domains, as a table shows them.

A receipt has a number here: its place in the order of reading, which is that of units, then of rows. Within a slice
receipts stand by key, then by number, which is the order of the log.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from receiver.domains import domain_key
from receiver.steps.assemble import placing
from receiver.steps.columns import column, in_one, split_by, used
from receiver.steps.outcomes import Extents, Strip
from receiver.steps.plan import plan_of
from receiver.steps.rows import Flow, Row
from receiver.steps.schemas import Piece, Plan, Unit, UnitReport, channels_of

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["Places", "SliceRows", "Slices", "joined", "sliced"]

_WHOLE_LOG = domain_key("name:log")


class Places(NamedTuple):
    """Where the strips lie: by it a receipt's slice is told."""

    strip_number: npt.NDArray[np.int64]
    """The numbers at which strips begin, ascending, and their slices."""
    strip_slice: npt.NDArray[np.int32]
    first_row: npt.NDArray[np.int64]
    """Slice -> the row of the log that it begins with."""

    @property
    def slices(self) -> int:
        return len(self.first_row)

    def by_slice(self, numbers: npt.NDArray[np.int64]) -> Iterator[tuple[int, npt.NDArray[np.int64]]]:
        """Numbers of receipts, slice by slice."""
        slices = self.strip_slice[np.searchsorted(self.strip_number, numbers, side="right") - 1]
        for each, rows in split_by(slices):
            yield each, numbers[rows]


class Slices(NamedTuple):
    """A log cut into slices."""

    strips: Flow
    places: Places


def sliced(pieces: Flow, plan: Plan, reports: Sequence[UnitReport], units: Sequence[Unit], slice_rows: int) -> Slices:
    """Cut a log into slices of about so many receipts. Domains are named as in `plan`."""
    slices = plan_of(reports, units, _WHOLE_LOG, chunk_rows=slice_rows, partition_rows=slice_rows)
    strips = pieces.only(Piece).map(partial(_cut, plan, slices), Strip, Extents)
    strips, extents = strips.kept("Putting receipts in order", Extents)
    number, slice_of = column(extents, "number", np.int64), column(extents, "slice", np.int32)
    receipts = np.bincount(slice_of, column(extents, "receipts", np.int64), slices.chunks).astype(np.int64)
    order = np.argsort(number)
    places = Places(number[order], slice_of[order], np.cumsum(receipts) - receipts)
    return Slices(strips.only(Strip), places)


def _cut(plan: Plan, slices: Plan, rows: Iterator[Row]) -> Iterator[Row]:
    """Each `Piece` becomes strips, and all of them `Extents`."""
    places, name = placing(slices), domain_key(plan.key).name
    extents: list[tuple[int, int, int]] = []
    for row in rows:
        piece = row.value
        key_us, slice_of = places(piece)
        domain_of, domains = in_one([(piece.channel, [name(channel) for channel in channels_of(piece)])])
        for each, here in split_by(slice_of):
            some = slice(int(here[0]), int(here[-1]) + 1)  # slices follow each other in a unit as its rows do
            source, sources = used(piece.source[some], piece.sources)
            domain, names = used(domain_of[some], domains)
            strip = Strip(
                number=int(plan.unit_number[piece.unit]) + piece.first_row + some.start,
                key_us=key_us[some],
                unique_message_id=piece.unique_message_id[some],
                source=source,
                sources=sources,
                domain=domain,
                domains=names,
            )
            extents.append((each, strip.number, len(here)))
            yield Row(each, strip)
    slice_column, number, receipts = np.array(extents, np.int64).reshape(-1, 3).T
    yield Row(0, Extents(slice_column.astype(np.int32), number, receipts))


class SliceRows(NamedTuple):
    """The receipts of a slice, in the order of the log."""

    number: npt.NDArray[np.int64]
    ids: pa.Array
    """`large_string`, as a slice of long ids may have more than 2 GB; not in order: see `id_place`."""
    id_place: npt.NDArray[np.int64]
    source: npt.NDArray[np.int32]
    sources: list[str]
    domain: npt.NDArray[np.int32]
    domains: list[str]


def joined(strips: Sequence[Strip]) -> SliceRows:
    """Join the strips of a slice."""
    strips = sorted(strips, key=lambda strip: strip.number)
    source, sources = in_one((strip.source, strip.sources) for strip in strips)
    domain, domains = in_one((strip.domain, strip.domains) for strip in strips)
    number = np.concatenate([np.arange(len(strip.key_us)) + strip.number for strip in strips])
    order = np.argsort(column(strips, "key_us", np.int64), kind="stable")
    return SliceRows(
        number=number[order],
        ids=pa.concat_arrays([strip.unique_message_id.cast(pa.large_string()) for strip in strips]),
        id_place=order,
        source=source[order],
        sources=sources,
        domain=domain[order],
        domains=domains,
    )
