"""The key cache that TDMQ CMQ recommends to consumers, by either of its formulas."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from heapq import heappop, heappush

from receiver.errors import SettingsError
from receiver.message import ReceiptValues
from receiver.policies.firsts import Entry, KeptIds
from receiver.policies.interface import Cause, Clock, Declaration, Misses, Parameter, Refusal, Setting, Use, Vendor
from receiver.policies.ttl import KeptForATime, TimeToLive

_FOR_THE_LIBRARY = (
    "that formula is for programs of your own, which call advance(); take cmq:retention=...,retry=...,network=..."
)


@replace(
    TimeToLive.declaration,
    name="cmq",
    kind="cmq",
    order=50,
    parameters=(
        Parameter("retention", "retention_us"),
        Parameter("retry", "retry_us"),
        Parameter("network", "network_us"),
    ),
    vendors=(
        # CMQ states no default: 12 hours is the longest time that a queue lets a message stay unacknowledged. Network delay
        # and retries are only seconds, and a log's own times include them.
        Vendor(
            ("TDMQ CMQ",),
            "retention=43200,retry=0,network=0",
            sizes_are_ours=True,
            remark="keys kept for 12 hours",
            aliases=("tdmq",),
            setting=Setting("retention + retry + network", "https://www.tencentcloud.com/document/product/1111/43011"),
        ),
    ),
)
class CmqKeyCache(KeptForATime):
    """Keeps a key from its delivery on for the sum of the longest retention, the retries and the network delay.

    Source: "Message Deduplication" in the documentation of TDMQ for CMQ, which the declaration names: the key expires at
    current_time + max_retention + max_retry + max_network. A duplicate refreshes nothing. Where we differ: the clock is the
    receipts' own, so an idle queue forgets nothing; a key exactly as old as the sum is still kept. A store keeps only the sum.
    """

    def __init__(self, retention_us: int, retry_us: int, network_us: int) -> None:
        super().__init__(retention_us, retry_us, network_us)


@Declaration(
    name="cmq",
    same_rule_as=None,
    kind="cmq-minimum",
    order=60,
    parameters=(Parameter("retry", "retry_us"), Parameter("network", "network_us")),
    vendors=(Vendor(("TDMQ CMQ",)),),
    names_its_system=False,
    records_duplicates=False,
    goes_by_send_time=True,
    clock=Clock.CALLER,
    limit=None,
    misses=Misses(Cause.EXPIRED),
    false_cause=None,
    compiled_policy=None,
    refusals=(
        Refusal(Use.COMPARISON, "no log has the queue's minimum message time", _FOR_THE_LIBRARY),
        Refusal(Use.BRIDGE, "no broker gives the queue's minimum message time", _FOR_THE_LIBRARY),
    ),
)
class CmqMinimumTimeCache(KeptIds):
    """Keeps a key until the queue's minimum unconsumed message time has passed its send time by retries and network delay.

    Source: the second formula of that page, for a queue that gives `min_msg_time`, which `advance` takes. Before it does, nothing
    is forgotten. The send time is JMSTimestamp or, if missing, the time of receipt. Where we differ: a minimum that goes back is
    ignored, because the keys are gone; a key passed by exactly the limit is still kept. A store keeps only the sum.
    """

    def __init__(self, retry_us: int, network_us: int) -> None:
        super().__init__(retry_us, network_us)
        self._limit_us = retry_us + network_us
        self._by_send_time: list[tuple[int, int, str]] = []  # a heap of send time, number and id

    def advance(self, min_msg_time_us: int) -> None:
        """Set the earliest send time of all messages that aren't consumed yet, in microseconds since 1970."""
        if min_msg_time_us.__class__ is not int or min_msg_time_us < 0:
            raise SettingsError(
                f"min_msg_time_us must be whole microseconds of at least 0, not {min_msg_time_us!r:.80}"
            )
        self.clock_us = max(min_msg_time_us, self.clock_us or 0)
        self._forget_passed()

    def _forget_passed(self) -> None:
        heap = self._by_send_time
        while heap and self.clock_us is not None and self.clock_us - heap[0][0] > self._limit_us:
            _, serial, id_ = heappop(heap)
            kept = self._kept.get(id_)
            if kept is not None and kept[0] == serial:  # otherwise an older receipt of the id, from a replay
                del self._kept[id_]
            self._forgotten.append(serial)

    def _headroom(self, entry: Entry) -> tuple[int | None, int | None]:
        passed_us = 0 if self.clock_us is None else max(0, self.clock_us - entry[2])
        return 0, self._limit_us - passed_us

    def _state_of(self, jms_timestamp_ms: int | None) -> int | None:
        """The send time in microseconds since 1970; None if not known."""
        return jms_timestamp_ms * 1000 if jms_timestamp_ms else None

    def _remember(self, id_: str) -> None:
        sent_us = self.latest_us if self.policy_state is None else self.policy_state
        self._kept[id_] = self.serial, self.latest_us, sent_us
        heappush(self._by_send_time, (sent_us, self.serial, id_))
        self._forget_passed()

    def replay(self, entries: Iterable[ReceiptValues], clock_us: int | None) -> None:
        super().replay(entries, clock_us)
        if clock_us is not None:
            self.advance(clock_us)
