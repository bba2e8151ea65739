"""The rules of `receiver.policies` once more, compiled: each judges a whole domain, and is proven equal to the readable one.

Which receipt each duplicate repeats, the newest earlier one of its id, is known beforehand (`DomainRows.earlier`). So a
rule that goes by an id's first remembered receipt carries what it has to know of that along these links, and needs no
table of ids. Nor does it forget: whether a receipt is too old is decided when its id comes again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from receiver.compare.id_forms import (
    first_not_rgmid,
    first_not_sequence,
    judge_by_last,
    judge_by_sequence,
    number_producers,
)
from receiver.errors import IdFormatError
from receiver.policies.interface import Policy
from receiver.policies.names import POLICIES
from receiver.simulate.compiled import compiled
from receiver.simulate.kernel import is_caught, replay_grid

if TYPE_CHECKING:
    import numpy.typing as npt

    from receiver.simulate.ingest import Receipts
    from receiver.simulate.rows import Domain

__all__ = ["CompiledPolicy", "Judged", "compiled_policy_of"]

_NOTHING = -1


class Judged(NamedTuple):
    """A policy's verdicts on one domain, and the most ids that it remembered."""

    is_duplicate: npt.NDArray[np.bool_]
    """One flag per row of the domain."""
    peak_ids: int


class CompiledPolicy(Protocol):
    """A policy's rule over the columns of a domain, beginning anew in each."""

    def __call__(self, domain: Domain, /) -> Judged: ...


_Maker = Callable[[Policy, "Receipts"], CompiledPolicy]
_MAKERS: dict[str, _Maker] = {}


def compiled_policy_of(policy: Policy, receipts: Receipts) -> CompiledPolicy:
    """A policy's rule compiled, for domains of these receipts; IdFormatError where it can't judge all of their ids."""
    if policy.declaration.compiled_policy is None:
        raise TypeError(f"{policy} has no compiled policy")
    return _MAKERS[policy.declaration.compiled_policy](policy, receipts)


def _compiles(name: str) -> Callable[[_Maker], _Maker]:
    """Register what makes the compiled policy of all policies that declare this name."""

    def keep(maker: _Maker) -> _Maker:
        _MAKERS[name] = maker
        return maker

    return keep


@_compiles("all")
def _all(_policy: Policy, _receipts: Receipts) -> CompiledPolicy:
    def judge(domain: Domain) -> Judged:
        came_before = domain.rows.earlier != _NOTHING
        return Judged(came_before, len(came_before) - domain.rows.duplicates)

    return judge


@_compiles("two-tier")
def _two_tier(policy: Policy, _receipts: Receipts) -> CompiledPolicy:
    window, expiry_us = policy.sizes

    def judge(domain: Domain) -> Judged:
        counts = replay_grid(domain.rows, np.array([window]), np.array([expiry_us]), with_needs=True, threads=1)
        is_duplicate = domain.rows.earlier != _NOTHING
        is_duplicate[is_duplicate] = is_caught(counts.needs_us[:, 0], expiry_us)
        return Judged(is_duplicate, int(counts.peak_ids[0, 0]))

    return judge


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


@_compiles("age")
def _age(policy: Policy, _receipts: Receipts) -> CompiledPolicy:
    _, expiry_us = policy.sizes

    def judge(domain: Domain) -> Judged:
        rows = domain.rows
        is_duplicate = np.zeros(len(rows.earlier), np.bool_)
        return Judged(is_duplicate, _judge_by_age(rows.received_at_us, rows.earlier, expiry_us, is_duplicate))

    return judge


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


@_compiles("ring")
def _ring(policy: Policy, _receipts: Receipts) -> CompiledPolicy:
    size, _ = policy.sizes

    def judge(domain: Domain) -> Judged:
        is_duplicate = np.zeros(len(domain.rows.earlier), np.bool_)
        return Judged(is_duplicate, min(size, _judge_by_slot(domain.rows.earlier, size, is_duplicate)))

    return judge


@_compiles("highest")
def _sequence(policy: Policy, receipts: Receipts) -> CompiledPolicy:
    _refuse(policy, receipts, first_not_sequence(*receipts.ids.buffers()))
    producers, count = number_producers(receipts.ids)
    highest = np.full(count, _NOTHING, np.int32)

    def judge(domain: Domain) -> Judged:
        ids = receipts.id_number[domain.log_rows]
        is_duplicate = np.zeros(len(ids), np.bool_)
        return Judged(is_duplicate, judge_by_sequence(ids, *receipts.ids.buffers(), producers, highest, is_duplicate))

    return judge


@_compiles("last")
def _last(policy: Policy, receipts: Receipts) -> CompiledPolicy:
    _refuse(policy, receipts, first_not_rgmid(*receipts.ids.buffers()))

    def judge(domain: Domain) -> Judged:
        ids = receipts.id_number[domain.log_rows]
        is_duplicate = np.zeros(len(ids), np.bool_)
        judge_by_last(ids, *receipts.ids.buffers(), is_duplicate)
        return Judged(is_duplicate, min(1, len(ids)))

    return judge


def _refuse(policy: Policy, receipts: Receipts, number: int) -> None:
    """IdFormatError for the number of an id that the policy can't judge, if it isn't -1."""
    if number == _NOTHING:
        return
    row = int(np.argmax(receipts.id_number == number))
    (id_,) = receipts.ids.texts(np.array([number], np.int32)).to_pylist()
    try:
        policy.receive(id_, received_at_us=0)
    except IdFormatError as error:
        raise IdFormatError(f"in row {row}, {error.message}", hint=error.hint) from None
    raise AssertionError(f"{policy} takes {id_!r:.80}, and its compiled policy doesn't")


for _kind in POLICIES:
    if _kind.declaration.compiled_policy is not None and _kind.declaration.compiled_policy not in _MAKERS:
        raise TypeError(
            f"policy {_kind.name} declares the compiled policy {_kind.declaration.compiled_policy!r}, which {__name__} lacks"
        )
