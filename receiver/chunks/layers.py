"""A log that was read in several runs: each run's chunks are a layer, and layers that follow each other are one log.

A layer never changes. What numbers its receipts anew, as part of the whole log, is a step of the flow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from receiver.chunks.assemble import parts_of
from receiver.chunks.columns import split_by, used
from receiver.chunks.parcels import Parcel, parcel_of, unpack
from receiver.chunks.plan import bundles_of, names_of, splits_a_queue, time_of
from receiver.chunks.values import Body, Ids, Opening, Plan, Unit, UnitReport
from receiver.domains import DomainKey, domain_key

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["Layer", "Move", "can_split_queues", "first_key_us", "joined", "moved", "partitions_of"]

_KINDS: dict[str, type[Body | Ids | Opening]] = {kind.__name__: kind for kind in (Body, Ids, Opening)}
_MOST_GROWTH = 4
"""So many times more ids than a part should have are borne before all ids are dealt again, to more parts."""


class Layer(NamedTuple):
    """What is known of the chunks of one run. Units and chunks are numbered from 0."""

    plan: Plan
    units: list[Unit]
    reports: list[UnitReport]


class Move(NamedTuple):
    """From a layer's numbers to the whole log's."""

    chunk: npt.NDArray[np.int32]
    first_unit: int
    is_dealt: npt.NDArray[np.bool_]
    """Per chunk of the layer, whether its ids are in the parts where the whole log has them."""


def first_key_us(reports: Sequence[UnitReport], carry_us: npt.NDArray[np.int64]) -> int | None:
    """Of the first receipt in order; None without any. Each channel's first receipt is among the samples."""
    return min(
        (max(int(report.samples_latest_us.min()), int(carry_us[report.unit])) for report in reports if report.receipts),
        default=None,
    )


def can_split_queues(key: DomainKey) -> bool:
    """Whether receipts of one queue may fall into several domains."""
    return "connection_id" in key.needs


def partitions_of(before: Sequence[Layer], receipts: int, *, partition_rows: int, tasks: int) -> int:
    """Into how many parts the ids of a log are dealt that has grown to so many receipts."""
    wanted = max(tasks, -(-receipts // partition_rows))
    now = before[-1].plan.partitions
    return now if wanted <= _MOST_GROWTH * now else wanted


def joined(layers: Sequence[Layer], *, chunk_rows: int) -> tuple[Plan, list[Move]]:
    """The plan of the whole log, and what `moved` needs to know of each layer.

    Every receipt of a layer comes after those of the layers before it, in the order of the log.
    """
    plans = [layer.plan for layer in layers]
    key = domain_key(plans[0].key)
    reports = [report for layer in layers for report in layer.reports]
    looks_for_crossing = splits_a_queue(names_of(reports, key))
    domains = sorted({name for plan in plans for name in plan.domains})
    number = {name: place for place, name in enumerate(domains)}
    own = [np.array([number[name] for name in plan.domains], np.int32) for plan in plans]
    domain = np.concatenate([names[plan.chunk_domain] for names, plan in zip(own, plans, strict=True)])
    order = np.argsort(domain, kind="stable")  # layer by layer, as they stand
    receipts = np.concatenate([plan.chunk_receipts for plan in plans])[order]
    is_small = np.bincount(domain[order], weights=receipts, minlength=len(domains)) <= chunk_rows
    first_units = list(accumulate((len(layer.units) for layer in layers), initial=0))
    start_us, slice_us, slices = time_of(reports)
    cuts = _cuts(layers, first_units, order, domain[order])
    whole = Plan(
        key=key.text,
        domains=domains,
        carry_us=np.concatenate([plan.carry_us for plan in plans]),
        chunk_domain=domain[order],
        chunk_receipts=receipts,
        chunk_bundle=bundles_of(receipts.tolist(), chunk_rows),
        cut_key_us=cuts[0],
        cut_unit=cuts[1].astype(np.int32),
        cut_row=cuts[2],
        partitions=plans[-1].partitions,
        hash_seed=plans[0].hash_seed,
        is_whole=is_small & (not looks_for_crossing),
        start_us=start_us,
        slice_us=slice_us,
        slices=slices,
        looks_for_crossing=looks_for_crossing,
        keeps_channels=all(plan.keeps_channels for plan in plans),
    )
    chunk = np.empty(len(order), np.int32)
    chunk[order] = np.arange(len(order), dtype=np.int32)
    ends = np.cumsum([plan.chunks for plan in plans])[:-1]
    moves = [
        Move(chunks, first_unit, _is_dealt(plan, whole, chunks))
        for plan, chunks, first_unit in zip(plans, np.split(chunk, ends), first_units, strict=False)
    ]
    return whole, moves


def _cuts(
    layers: Sequence[Layer], first_units: Sequence[int], order: npt.NDArray[np.intp], domain: npt.NDArray[np.int32]
) -> list[npt.NDArray[np.int64]]:
    """Where chunks begin, in the three columns of `Plan`."""
    columns = []
    for layer, first_unit in zip(layers, first_units, strict=False):
        plan = layer.plan
        opens = plan.cut_key_us < 0
        key_us = np.where(opens, first_key_us(layer.reports, plan.carry_us) or 0, plan.cut_key_us)
        columns.append((key_us, plan.cut_unit + np.int64(first_unit) * ~opens, plan.cut_row))
    cuts = [np.concatenate(column).astype(np.int64)[order] for column in zip(*columns, strict=True)]
    cuts[0][np.flatnonzero(np.diff(domain, prepend=-1))] = -1  # a domain's first chunk begins before everything
    return cuts


def _is_dealt(plan: Plan, whole: Plan, chunk: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_]:
    by_hash = ~plan.is_whole[plan.chunk_domain] & (plan.partitions == whole.partitions)
    dealt: npt.NDArray[np.bool_] = by_hash & ~whole.is_whole[whole.chunk_domain[chunk]]
    return dealt


def moved(plan: Plan, move: Move) -> Callable[[Iterator[Parcel]], Iterator[Parcel]]:
    """For `Flow.map`: the chunks of a layer become those of the whole log."""
    return partial(_moved, plan, move)


def _moved(plan: Plan, move: Move, parcels: Iterator[Parcel]) -> Iterator[Parcel]:
    for parcel in parcels:
        own = unpack(_KINDS[parcel.kind], parcel.payload)
        value = replace(own, chunk=int(move.chunk[own.chunk]))
        if not isinstance(value, Opening):
            value = replace(value, unit=value.unit + np.int32(move.first_unit))
        if not isinstance(value, Ids):
            yield parcel_of(int(plan.chunk_bundle[value.chunk]), value)
        elif move.is_dealt[own.chunk]:
            yield parcel_of(parcel.key, value)
        else:
            yield from _dealt(plan, value)


def _dealt(plan: Plan, ids: Ids) -> Iterator[Parcel]:
    parts = parts_of(plan, np.full(len(ids.row), ids.chunk, np.int32), ids.text)
    for part, rows in split_by(parts):
        yield parcel_of(part, ids if len(rows) == len(parts) else _some(ids, rows))


def _some(ids: Ids, rows: npt.NDArray[np.int64]) -> Ids:
    source, sources = used(ids.source[rows], ids.sources)
    channels = list(zip(ids.connections, ids.destinations, strict=True))
    channel, few = used(ids.channel[rows] if len(ids.channel) else ids.channel, channels)
    columns: dict[str, Any] = {
        field.name: column[rows]
        for field in fields(ids)
        if isinstance(column := getattr(ids, field.name), np.ndarray) and len(column)
    }
    return replace(
        ids,
        **columns
        | {
            "text": ids.text.take(pa.array(rows)),
            "source": source,
            "sources": sources,
            "channel": channel,
            "connections": [connection for connection, _ in few],
            "destinations": [destination for _, destination in few],
        },
    )
