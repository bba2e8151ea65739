"""Apama's two-tier detection as one policy among others."""

from __future__ import annotations

from collections import deque

from receiver.detector import TwoTierDetector, serial_of
from receiver.policies.interface import Cause, Clock, Declaration, Declared, Misses, Parameter, Vendor, check_size
from receiver.settings import ReceiverSettings


@Declaration(
    name="apama",
    same_rule_as=None,
    kind="apama",
    order=10,
    parameters=(
        Parameter("window", "window", lambda: ReceiverSettings().sizes[0]),
        Parameter("expiry", "expiry_us", lambda: ReceiverSettings().sizes[1]),
    ),
    vendors=(Vendor(("Apama",), aliases=("two-tier",)),),
    names_its_system=True,
    records_duplicates=True,
    goes_by_send_time=False,
    clock=Clock.RECEIPTS,
    limit=None,
    misses=Misses(Cause.EXPIRED, without_expiry=Cause.EVICTED),
    false_cause=None,
    compiled_policy="two-tier",
    refusals=(),
)
class ApamaTwoTier(TwoTierDetector, Declared):
    """Remembers the newest `window` ids of each source; ids that leave there, until one more than `expiry` newer leaves.

    Source: the page on reliable JMS receivers of the Apama documentation. `receiver.detector` has the rules;
    `docs/semantics.md` has the choices made where that page is silent.
    """

    __slots__ = ()

    policy_state = None
    __repr__ = Declared.__repr__

    def __init__(self, window: int, expiry_us: int) -> None:
        super().__init__(window, check_size("expiry_us", expiry_us) / 1_000_000)

    @property
    def values(self) -> tuple[int, ...]:
        return self._window, self._expiry_us

    @property
    def clock_us(self) -> int | None:
        return self.time_queue_newest_us

    def keep_forgotten(self) -> None:
        self.forgotten = deque()

    def take_forgotten(self) -> list[int]:
        taken = list(map(serial_of, self.forgotten))
        self.forgotten.clear()
        return taken
