"""The receipts on which not all policies say the same: how many, and the first of them in full."""

from __future__ import annotations

from bisect import insort
from operator import attrgetter
from typing import TYPE_CHECKING

import numpy as np

from receiver.compare.causes import CAUSES, FALSE_CAUSE, missed_causes
from receiver.compare.figures import Cause, Dispute

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from receiver.compare.twins import Judged
    from receiver.policies.interface import Policy
    from receiver.simulate.ingest import Receipts
    from receiver.simulate.replay import Domain

__all__ = ["Disputes"]

_SHOWN = 10
_BY_ROW = attrgetter("row")


class Disputes:
    """Collects them domain by domain."""

    def __init__(self, receipts: Receipts, policies: Sequence[Policy]) -> None:
        self.count = 0
        self._receipts = receipts
        self._policies = policies
        self._first: list[Dispute] = []

    def first(self) -> tuple[Dispute, ...]:
        """The first ten, in the order of the log."""
        return tuple(self._first)

    def add(self, domain: Domain, judged: Sequence[Judged]) -> None:
        """What the policies, in their order, made of one more domain."""
        some, all_ = judged[0].is_duplicate.copy(), judged[0].is_duplicate.copy()
        for each in judged[1:]:
            some |= each.is_duplicate
            all_ &= each.is_duplicate
        disputed = np.flatnonzero(some & ~all_)
        self.count += len(disputed)
        rows = disputed[:_SHOWN]
        if len(self._first) == _SHOWN:
            rows = rows[domain.log_rows[rows] < self._first[-1].row]
        if len(rows):
            for dispute in self._shown(domain, judged, rows):
                insort(self._first, dispute, key=_BY_ROW)
            del self._first[_SHOWN:]

    def _shown(self, domain: Domain, judged: Sequence[Judged], rows: npt.NDArray[np.int64]) -> list[Dispute]:
        receipts = self._receipts
        log_rows = domain.log_rows[rows]
        ids = receipts.ids.texts(receipts.id_number[log_rows]).to_pylist()
        causes = [self._causes(domain, each, policy, rows) for each, policy in zip(judged, self._policies, strict=True)]
        disputes = []
        for place, (row, log_row) in enumerate(zip(rows.tolist(), log_rows.tolist(), strict=True)):
            earlier = int(domain.rows.earlier[row])
            times = domain.rows.received_at_us
            disputes.append(
                Dispute(
                    row=log_row,
                    domain=domain.name,
                    unique_message_id=ids[place],
                    message_source_id=receipts.sources[receipts.source_number[log_row]],
                    received_at_us=int(receipts.received_at_us[log_row]),
                    is_duplicate=earlier >= 0,
                    earlier_row=int(domain.log_rows[earlier]) if earlier >= 0 else None,
                    age_us=int(times[row] - times[earlier]) if earlier >= 0 else None,
                    duplicate_by=tuple(bool(each.is_duplicate[row]) for each in judged),
                    causes=tuple(of_rows[place] for of_rows in causes),
                )
            )
        return disputes

    @staticmethod
    def _causes(domain: Domain, judged: Judged, policy: Policy, rows: npt.NDArray[np.int64]) -> list[Cause | None]:
        """Why the policy is wrong about each of these rows; None where it is right."""
        came_before, called = domain.rows.earlier[rows] >= 0, judged.is_duplicate[rows]
        causes: list[Cause | None] = [FALSE_CAUSE if false else None for false in (called & ~came_before).tolist()]
        missed = np.flatnonzero(came_before & ~called)
        found = missed_causes(policy, domain.rows, judged, rows[missed])
        for place, cause in zip(missed.tolist(), found.tolist(), strict=True):
            causes[place] = CAUSES[cause]
        return causes
