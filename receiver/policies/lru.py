"""An LRU memory of ids."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import replace

from receiver.detector import TwoTierDetector, serial_of
from receiver.errors import SettingsError
from receiver.message import Decision, Receipt, ReceiptRow, ReceiptValues, check_receipt, for_each
from receiver.policies.interface import (
    Cause,
    Declaration,
    Declared,
    Limit,
    Misses,
    Parameter,
    Setting,
    Vendor,
    check_size,
    registered,
)


@registered(
    Declaration(
        name="lru",
        same_rule_as=None,
        kind="lru",
        order=25,
        parameters=(Parameter("size", "size"),),
        vendors=(
            Vendor(
                ("Vector's dedupe",),
                "size=5000",
                aliases=("vector",),
                setting=Setting(
                    "cache.num_events", "https://vector.dev/docs/reference/configuration/transforms/dedupe/"
                ),
            ),
        ),
        names_its_system=False,
        records_duplicates=True,
        keeps_ids=True,
        goes_by_send_time=False,
        clock=None,
        limit=Limit.USED,
        misses=Misses(Cause.EVICTED),
        false_cause=None,
        compiled_policy="used",
        refusals=(),
    )
)
class LatestUsed(Declared):
    """Remembers the `size` ids received last. A duplicate makes its id the latest; the least recently received id goes.

    This is Apama's rule for a single source without a time queue, so the detector does the work.

    Source: the transform `dedupe` of Vector, on the page that the declaration names: its cache puts an event first whether it is
    new or not. `cachetools.LRUCache` and the like follow this rule if each id that comes is written to them. If duplicates are
    only looked up, nothing is refreshed, and the rule is that of `artemis`: Camel's memory repository and others that are called
    LRU do so.
    """

    policy_state = None
    clock_us = None

    def __init__(self, size: int) -> None:
        if check_size("size", size) == 0:
            raise SettingsError("a memory of 0 ids would detect nothing", hint="size is at least 1")
        self._size = size
        self._detector = TwoTierDetector(size, 0)

    @property
    def values(self) -> tuple[int, ...]:
        return (self._size,)

    @property
    def latest_us(self) -> int:
        return self._detector.latest_us

    @property
    def clock_clamped(self) -> int:
        return self._detector.clock_clamped

    @property
    def serial(self) -> int:
        return self._detector.serial

    @property
    def remembered_ids(self) -> int:
        return self._detector.remembered_ids

    @property
    def peak_ids(self) -> int:
        return self._detector.peak_ids

    def __contains__(self, unique_message_id: str) -> bool:
        return unique_message_id in self._detector

    def receive(
        self,
        unique_message_id: str | None,
        message_source_id: str | None = None,
        *,
        received_at_us: int,
    ) -> Decision:
        if unique_message_id:
            check_receipt(unique_message_id, message_source_id, received_at_us, first=self.serial == 0)
        decision = self._detector.receive(unique_message_id, received_at_us=received_at_us)
        return decision if decision.tier is None else replace(decision, tier=None)

    def receive_many(self, receipts: Iterable[Receipt | tuple[str | None, str | None, int]]) -> list[Decision]:
        receive = self.receive
        return for_each(receipts, lambda receipt: receive(receipt[0], receipt[1], received_at_us=receipt[2]))

    def keep_forgotten(self) -> None:
        self._detector.forgotten = deque()

    def take_forgotten(self) -> list[int]:
        taken = list(map(serial_of, self._detector.forgotten))
        self._detector.forgotten.clear()
        return taken

    def entries(self) -> list[int]:
        return self._detector.entries()

    def replay(self, entries: Iterable[ReceiptValues], clock_us: int | None) -> None:
        of_one_source = (ReceiptRow._make(entry)._replace(message_source_id=None) for entry in entries)
        self._detector.replay(of_one_source, clock_us)
