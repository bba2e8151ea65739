"""The rules of `receiver.policies` once more, compiled: each judges a whole domain, and is proven equal to the readable one.

Which receipt each duplicate repeats, the newest earlier one of its id, is known beforehand (`DomainRows.earlier`). So a
rule that goes by an id's first remembered receipt carries what it has to know of that along these links, and needs no
table of ids. Nor does it forget: whether a receipt is too old is decided when its id comes again.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from receiver.compare.id_forms import rgmids_of, sequences_of
from receiver.policies.interface import Policy
from receiver.policies.names import POLICIES
from receiver.simulate.compiled import compiled
from receiver.simulate.kernel import WindowAsked, is_caught, replay_windows

if TYPE_CHECKING:
    import numpy.typing as npt

    from receiver.simulate.ingest import Receipts
    from receiver.simulate.whole import Domain

_NOTHING = -1


class Judged(NamedTuple):
    """A policy's verdicts on one domain, and the most ids that it remembered."""

    is_duplicate: npt.NDArray[np.bool_]
    """One flag per row of the domain."""
    peak_ids: int


class CompiledPolicy(Protocol):
    """A policy's rule over the columns of a domain, beginning anew in each."""

    def __call__(self, domain: Domain, /) -> Judged: ...


def compiled_policy_of(policy: Policy, receipts: Receipts) -> CompiledPolicy:
    """A policy's rule compiled, for domains of these receipts; IdFormatError where it can't judge all of their ids."""
    if policy.declaration.compiled_policy is None:
        raise TypeError(f"{policy} has no compiled policy")
    return _MAKERS[policy.declaration.compiled_policy](policy, receipts)


def _all(domain: Domain) -> Judged:
    came_before = domain.rows.earlier != _NOTHING
    return Judged(came_before, len(came_before) - domain.rows.duplicates)


def _two_tier(window: int, expiry_us: int, domain: Domain) -> Judged:
    (counts,) = replay_windows(domain.rows, [WindowAsked(window, [expiry_us], with_needs=True)], threads=1)
    is_duplicate = domain.rows.earlier != _NOTHING
    is_duplicate[is_duplicate] = is_caught(counts.needs_us, expiry_us)
    return Judged(is_duplicate, int(counts.peak_ids[0]))


@compiled()
def _judge_by_age(
    times: npt.NDArray[np.int64], earlier: npt.NDArray[np.int32], expiry_us: int, is_duplicate: npt.NDArray[np.bool_]
) -> int:
    """Judge rows by the age of the first remembered receipt of their id. -> the most ids remembered."""
    first = np.empty(len(times), np.int32)  # the remembered receipt of each row's id
    oldest = 0  # no row before it is remembered
    remembered = 0
    peak_ids = 0
    for row in range(len(times)):
        while times[row] - times[oldest] > expiry_us:
            remembered -= not is_duplicate[oldest]
            oldest += 1
        first[row] = row
        if earlier[row] != _NOTHING and first[earlier[row]] >= oldest:
            first[row] = first[earlier[row]]
            is_duplicate[row] = True
        else:
            remembered += 1
            peak_ids = max(peak_ids, remembered)
    return peak_ids


def _age(expiry_us: int, domain: Domain) -> Judged:
    rows = domain.rows
    is_duplicate = np.zeros(len(rows.earlier), np.bool_)
    return Judged(is_duplicate, _judge_by_age(rows.received_at_us, rows.earlier, expiry_us, is_duplicate))


@compiled()
def _judge_by_slot(earlier: npt.NDArray[np.int32], size: int, is_duplicate: npt.NDArray[np.bool_]) -> int:
    """Judge rows by a ring of `size` slots. -> how many slots were taken; plain sends never hold an id twice."""
    slot = np.empty(len(earlier), np.int32)  # of each row's id
    slots = 0
    for row in range(len(earlier)):
        if earlier[row] != _NOTHING and slots - slot[earlier[row]] < size:
            slot[row] = slot[earlier[row]]
            is_duplicate[row] = True
        else:
            slots += 1
            slot[row] = slots
    return slots


def _ring(size: int, domain: Domain) -> Judged:
    is_duplicate = np.zeros(len(domain.rows.earlier), np.bool_)
    return Judged(is_duplicate, min(size, _judge_by_slot(domain.rows.earlier, size, is_duplicate)))


@compiled()
def _judge_by_highest(
    numbers: npt.NDArray[np.int64],
    producers: npt.NDArray[np.int32],
    highest: npt.NDArray[np.int64],
    is_duplicate: npt.NDArray[np.bool_],
) -> int:
    """Judge rows by the highest number of their producer. -> how many producers there are.

    `highest` has a number for each producer, is all -1 and is left so.
    """
    count = 0
    for row in range(len(numbers)):
        if numbers[row] <= highest[producers[row]]:
            is_duplicate[row] = True
        else:
            count += highest[producers[row]] == _NOTHING
            highest[producers[row]] = numbers[row]
    for producer in producers:
        highest[producer] = _NOTHING
    return count


def _highest(receipts: Receipts) -> CompiledPolicy:
    sequences = sequences_of(receipts)
    highest = np.full(sequences.producer_count, _NOTHING, np.int64)

    def judge(domain: Domain) -> Judged:
        ids = receipts.id_number[domain.log_rows]
        is_duplicate = np.zeros(len(ids), np.bool_)
        peak_ids = _judge_by_highest(sequences.numbers[ids], sequences.producers[ids], highest, is_duplicate)
        return Judged(is_duplicate, peak_ids)

    return judge


@compiled()
def _judge_by_last(
    origins: npt.NDArray[np.uint64], numbers: npt.NDArray[np.uint64], is_duplicate: npt.NDArray[np.bool_]
) -> None:
    """Judge rows by the last one that was new."""
    last = 0
    for row in range(1, len(numbers)):
        if origins[row] == origins[last] and numbers[row] <= numbers[last]:
            is_duplicate[row] = True
        else:
            last = row


def _last(receipts: Receipts) -> CompiledPolicy:
    rgmids = rgmids_of(receipts)

    def judge(domain: Domain) -> Judged:
        ids = receipts.id_number[domain.log_rows]
        is_duplicate = np.zeros(len(ids), np.bool_)
        _judge_by_last(rgmids.origins[ids], rgmids.numbers[ids], is_duplicate)
        return Judged(is_duplicate, min(1, len(ids)))

    return judge


_MAKERS: dict[str, Callable[[Policy, Receipts], CompiledPolicy]] = {
    "all": lambda _policy, _receipts: _all,
    "two-tier": lambda policy, _receipts: partial(_two_tier, *policy.sizes),
    "age": lambda policy, _receipts: partial(_age, policy.sizes[1]),
    "ring": lambda policy, _receipts: partial(_ring, policy.sizes[0]),
    "highest": lambda _policy, receipts: _highest(receipts),
    "last": lambda _policy, receipts: _last(receipts),
}
"""By the names in declarations."""
for _kind in POLICIES:
    if _kind.declaration.compiled_policy is not None and _kind.declaration.compiled_policy not in _MAKERS:
        raise TypeError(
            f"policy {_kind.name} declares the compiled policy {_kind.declaration.compiled_policy!r}, which {__name__} lacks"
        )
