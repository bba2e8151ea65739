"""Why a policy misses a duplicate.

An id is *not refreshed* where the policy goes by an id's first remembered receipt and has dropped that, though the newest
earlier receipt of the id, a duplicate at the time, is within its limit: no older than the expiry, or, for a ring of n
places, fewer than n ids were accepted after it. Had that duplicate counted as the first one does, the id would have been
remembered. Else it is *expired* or *evicted*.

Apama refreshes. With E > 0 each id that leaves its source's queue comes to the time queue, if only to be too old for it,
so what it misses is expired; with E = 0 it is evicted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

import numpy as np

from receiver.compare.figures import Cause
from receiver.policies.declaration import Limit

if TYPE_CHECKING:
    import numpy.typing as npt

    from receiver.compare.twins import Judged
    from receiver.policies.interface import Policy
    from receiver.simulate.rows import DomainRows

__all__ = ["CAUSES", "missed_causes"]

CAUSES = tuple(Cause)
"""Causes are told by their places here."""


def missed_causes(
    policy: Policy, rows: DomainRows, judged: Judged, missed: npt.NDArray[np.int64]
) -> npt.NDArray[np.int8]:
    """The place of the cause among `CAUSES`, for each of these rows, which are duplicates that the policy missed."""
    if not len(missed):
        return np.zeros(0, np.int8)
    misses = policy.declaration.misses
    if misses is None:
        raise AssertionError(f"{policy} misses nothing")
    size, expiry_us = policy.sizes
    cause = misses.cause if expiry_us or misses.without_expiry is None else misses.without_expiry
    refreshed = np.zeros(len(missed), np.bool_)
    earlier = rows.earlier[missed]
    match misses.limit:
        case Limit.AGE:
            refreshed = rows.received_at_us[missed] - rows.received_at_us[earlier] <= expiry_us
        case Limit.ACCEPTED:
            accepted = np.cumsum(~judged.is_duplicate, dtype=np.int32)
            refreshed = accepted[missed - 1] - accepted[earlier] < size
        case None:
            pass
        case never:
            assert_never(never)
    causes = np.where(refreshed, CAUSES.index(Cause.NOT_REFRESHED), CAUSES.index(cause))
    return causes.astype(np.int8)
