"""An LRU memory of ids."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from operator import attrgetter
from typing import Any

from receiver.errors import SettingsError
from receiver.message import Decision, Receipt, ReceiptRow, ReceiptValues, check_receipt, for_each
from receiver.policies.apama import ApamaTwoTier
from receiver.policies.interface import Cause, Declared, Limit, Misses, Parameter, Setting, Vendor, check_size


def _of_detector(name: str) -> Any:
    return property(attrgetter(f"_detector.{name}"))


@replace(
    ApamaTwoTier.declaration,
    name="lru",
    kind="lru",
    order=25,
    parameters=(Parameter("size", "size"),),
    vendors=(
        Vendor(
            ("Vector's dedupe",),
            "size=5000",
            aliases=("vector",),
            setting=Setting("cache.num_events", "https://vector.dev/docs/reference/configuration/transforms/dedupe/"),
        ),
    ),
    names_its_system=False,
    clock=None,
    limit=Limit.USED,
    misses=Misses(Cause.EVICTED),
    compiled_policy="used",
)
class LatestUsed(Declared):
    """Remembers the `size` ids received last. A duplicate makes its id the latest; the least recently received id goes.

    This is Apama's rule for a single source without a time queue, so that policy does the work.

    Source: the transform `dedupe` of Vector, on the page that the declaration names: its cache puts an event first whether it is
    new or not. `cachetools.LRUCache` and the like follow this rule if each id that comes is written to them. If duplicates are
    only looked up, as by Camel's memory repository and others that are called LRU, the rule is that of `artemis`.
    """

    policy_state = None
    clock_us = None
    latest_us: int = _of_detector("latest_us")
    clock_clamped: int = _of_detector("clock_clamped")
    serial: int = _of_detector("serial")
    remembered_ids: int = _of_detector("remembered_ids")
    peak_ids: int = _of_detector("peak_ids")

    def __init__(self, size: int) -> None:
        if check_size("size", size) == 0:
            raise SettingsError("a memory of 0 ids would detect nothing", hint="size is at least 1")
        self._size = size
        self._detector = ApamaTwoTier(size, 0)

    @property
    def values(self) -> tuple[int, ...]:
        return (self._size,)

    def __contains__(self, unique_message_id: str) -> bool:
        return unique_message_id in self._detector

    def receive(
        self, unique_message_id: str | None, message_source_id: str | None = None, *, received_at_us: int
    ) -> Decision:
        if unique_message_id:
            check_receipt(unique_message_id, message_source_id, received_at_us, first=self.serial == 0)
        decision = self._detector.receive(unique_message_id, received_at_us=received_at_us)
        return decision if decision.tier is None else replace(decision, tier=None)

    def receive_many(self, receipts: Iterable[Receipt | tuple[str | None, str | None, int]]) -> list[Decision]:
        receive = self.receive
        return for_each(receipts, lambda receipt: receive(receipt[0], receipt[1], received_at_us=receipt[2]))

    def keep_forgotten(self) -> None:
        self._detector.keep_forgotten()

    def take_forgotten(self) -> list[int]:
        return self._detector.take_forgotten()

    def entries(self) -> list[int]:
        return self._detector.entries()

    def replay(self, entries: Iterable[ReceiptValues], clock_us: int | None) -> None:
        of_one_source = (ReceiptRow._make(entry)._replace(message_source_id=None) for entry in entries)
        self._detector.replay(of_one_source, clock_us)
