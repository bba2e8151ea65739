"""Why a policy misses a duplicate, and the receipts on which policies disagree: their number, and some of them in full.

Many policies remember an id from its first receipt on, and repeats don't refresh it. Once it is forgotten, the next repeat is
missed. The cause is *not refreshed* if refreshing by the id's newest earlier receipt, a duplicate, would have prevented that:
this receipt is no older than the expiry or, for a ring of n slots, fewer than n ids were accepted after it. Otherwise the cause
is *expired* or *evicted*.

Apama's rule refreshes. With E > 0 each id that leaves its source's queue enters the time queue, perhaps only to be too old for
it, so its misses are *expired*; with E = 0 they are *evicted*.

A *way* to disagree is a set of policies that call a receipt a duplicate. There are few ways, and one may be far more frequent
than the others. So up to ten disputes are shown: the first receipt of each way, then the first of all. Somebody whose
policy misses three duplicates wants to see all three: so if a policy misses at most ten, all are shown.
"""

from __future__ import annotations

from functools import reduce
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, assert_never

import numpy as np

from receiver.compare import Cause, Dispute
from receiver.policies.interface import Limit
from receiver.simulate.numbering import distinct

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy.typing as npt

    from receiver.compare.compiled_policies import Judged
    from receiver.policies.interface import Policy
    from receiver.simulate.domain_rows import DomainRows
    from receiver.simulate.ingest import Receipts
    from receiver.simulate.whole import Domain

CAUSES = tuple(Cause)
"""Columns of causes hold indexes of this tuple."""
_SHOWN = 10
_BY_ROW = attrgetter("row")


def missed_causes(
    policy: Policy, rows: DomainRows, judged: Judged, missed: npt.NDArray[np.int64]
) -> npt.NDArray[np.int8]:
    """For each row of `missed`, which are duplicates that the policy missed, the index of the cause in `CAUSES`."""
    if not len(missed):
        return np.zeros(0, np.int8)
    misses = policy.declaration.misses
    if misses is None:
        raise AssertionError(f"{policy} misses nothing")
    size, expiry_us = policy.sizes
    cause = misses.cause if expiry_us or misses.without_expiry is None else misses.without_expiry
    refreshed = np.zeros(len(missed), np.bool_)
    earlier = rows.earlier[missed]
    match policy.declaration.limit:
        case Limit.AGE:
            refreshed = rows.received_at_us[missed] - rows.received_at_us[earlier] <= expiry_us
        case Limit.ACCEPTED:
            accepted = np.cumsum(~judged.is_duplicate, dtype=np.int32)
            refreshed = accepted[missed - 1] - accepted[earlier] < size
        case Limit.USED | Limit.SOURCES | None:  # repeats refresh, or there is nothing to refresh
            pass
        case never:
            assert_never(never)
    causes = np.where(refreshed, CAUSES.index(Cause.NOT_REFRESHED), CAUSES.index(cause))
    return causes.astype(np.int8)


class Disputes:
    """Collects the receipts on which policies disagree, domain by domain."""

    def __init__(self, receipts: Receipts, policies: Sequence[Policy]) -> None:
        self.count = 0
        self._receipts = receipts
        self._policies = policies
        self._candidates: list[Dispute] = []
        self._missed: list[list[Dispute] | None] = [[] for _ in policies]
        """By policy, the duplicates that it misses and another catches; None once they are more than ten."""

    def shown(self) -> tuple[Dispute, ...]:
        """Up to ten disputes, and every miss of each policy that has at most ten; in the order of the log."""
        few = chain.from_iterable(missed for missed in self._missed if missed is not None)
        by_row = {dispute.row: dispute for dispute in (*self._candidates[:_SHOWN], *few)}
        return tuple(sorted(by_row.values(), key=_BY_ROW))

    def add(self, domain: Domain, judged: Sequence[Judged]) -> None:
        """Collect from one more domain. `judged` has the verdicts of each policy, in order."""
        verdicts = [each.is_duplicate for each in judged]
        disputed = np.flatnonzero(reduce(np.logical_or, verdicts) & ~reduce(np.logical_and, verdicts))
        if not len(disputed):
            return
        self.count += len(disputed)
        ways = disputed[_first_columns(np.stack([each[disputed] for each in verdicts]))]
        rows = np.union1d(disputed[:_SHOWN], np.sort(ways)[:_SHOWN])
        self._candidates = _preferred(self._candidates + self._in_full(domain, judged, rows))
        repeats = disputed[domain.rows.earlier[disputed] >= 0]
        for index, (each, missed) in enumerate(zip(verdicts, self._missed, strict=True)):
            more = repeats[~each[repeats]]
            if missed is not None and len(more):
                few = len(missed) + len(more) <= _SHOWN
                self._missed[index] = missed + self._in_full(domain, judged, more) if few else None

    def _in_full(self, domain: Domain, judged: Sequence[Judged], rows: npt.NDArray[np.int64]) -> list[Dispute]:
        receipts = self._receipts
        log_rows = domain.log_rows[rows]
        ids = receipts.ids.texts(receipts.id_number[log_rows]).to_pylist()
        causes = [self._causes(domain, each, policy, rows) for each, policy in zip(judged, self._policies, strict=True)]
        disputes = []
        for index, (row, log_row) in enumerate(zip(rows.tolist(), log_rows.tolist(), strict=True)):
            earlier = int(domain.rows.earlier[row])
            times = domain.rows.received_at_us
            disputes.append(
                Dispute(
                    row=log_row,
                    domain=domain.name,
                    unique_message_id=ids[index],
                    message_source_id=receipts.sources[receipts.source_number[log_row]],
                    received_at_us=int(receipts.received_at_us[log_row]),
                    is_duplicate=earlier >= 0,
                    earlier_row=int(domain.log_rows[earlier]) if earlier >= 0 else None,
                    age_us=int(times[row] - times[earlier]) if earlier >= 0 else None,
                    duplicate_by=tuple(bool(each.is_duplicate[row]) for each in judged),
                    causes=tuple(of_rows[index] for of_rows in causes),
                )
            )
        return disputes

    @staticmethod
    def _causes(domain: Domain, judged: Judged, policy: Policy, rows: npt.NDArray[np.int64]) -> list[Cause | None]:
        """Why the policy is wrong about each of these rows; None if it is right."""
        came_before, called = domain.rows.earlier[rows] >= 0, judged.is_duplicate[rows]
        causes: list[Cause | None] = [
            policy.declaration.false_cause if false else None for false in (called & ~came_before).tolist()
        ]
        missed = np.flatnonzero(came_before & ~called)
        missed_because = missed_causes(policy, domain.rows, judged, rows[missed])
        for index, cause in zip(missed.tolist(), missed_because.tolist(), strict=True):
            causes[index] = CAUSES[cause]
        return causes


def _preferred(disputes: Iterable[Dispute]) -> list[Dispute]:
    """The first dispute of each way to disagree, ways in order of occurrence; then the first of all disputes."""
    in_order = sorted(disputes, key=_BY_ROW)
    first_of_way: dict[tuple[bool, ...], Dispute] = {}
    for dispute in in_order:
        first_of_way.setdefault(dispute.duplicate_by, dispute)
    ways = list(first_of_way.values())[:_SHOWN]
    return ways + [dispute for dispute in in_order[:_SHOWN] if dispute not in ways]


def _first_columns(flags: npt.NDArray[np.bool_]) -> npt.NDArray[np.intp]:
    """The index of the first of each set of equal columns."""
    number = np.zeros(flags.shape[1], np.int32)
    for row in flags:
        _, number = distinct(2 * number + row)
    return np.unique(number, return_index=True)[1]
