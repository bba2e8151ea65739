"""The yardstick: every id for ever."""

from __future__ import annotations

from receiver.policies.declaration import Declaration, Vendor
from receiver.policies.firsts import KeptIds
from receiver.policies.interface import registered

__all__ = ["Perfect"]


@registered(
    Declaration(
        name="perfect",
        kind="perfect",
        order=90,
        parameters=(),
        vendors=(Vendor((), remark="forgets nothing, the yardstick"),),
        names_its_system=False,
        records_duplicates=False,
        keeps_ids=True,
        goes_by_send_time=False,
        clock=None,
        misses=None,
        false_cause=None,
        memory_bytes_per_id=None,
        twin="all",
        refusals=(),
    )
)
class Perfect(KeptIds):
    """Never forgets, so it misses nothing and calls nothing wrongly a duplicate; its memory grows without bound."""
