"""Apama's two-tier detection as one policy among others."""

from __future__ import annotations

from collections import deque
from typing import ClassVar, Self

from receiver.detector import TwoTierDetector, serial_of
from receiver.policies.interface import Parameter, check_size, secs_text
from receiver.settings import ReceiverSettings

__all__ = ["ApamaTwoTier"]


class ApamaTwoTier(TwoTierDetector):
    """The newest `window` ids of each source, and what leaves there for `expiry` after the newest such id.

    Source: the reliable receiver of the Apama documentation; `receiver.detector` has the rules, and the choices made
    where that page is silent.
    """

    __slots__ = ()

    name: ClassVar[str] = "apama"
    kind: ClassVar[str] = "apama"
    parameters: ClassVar[tuple[Parameter, ...]] = (
        Parameter("window", "window", lambda: ReceiverSettings().sizes[0]),
        Parameter("expiry", "expiry_us", lambda: ReceiverSettings().sizes[1]),
    )
    records_duplicates: ClassVar[bool] = True
    keeps_ids: ClassVar[bool] = True
    goes_by_send_time: ClassVar[bool] = False
    mark = None

    def __init__(self, window: int, expiry_us: int) -> None:
        super().__init__(window, check_size("expiry_us", expiry_us) / 1_000_000)

    @classmethod
    def of_sizes(cls, window: int, expiry_us: int) -> Self:
        return cls(window, expiry_us)

    @property
    def sizes(self) -> tuple[int, int]:
        return self._window, self._expiry_us

    def __str__(self) -> str:
        return f"{self.name}:window={self._window},expiry={secs_text(self._expiry_us)}"

    @property
    def clock_us(self) -> int | None:
        return self.time_queue_newest_us

    def keep_forgotten(self) -> None:
        self.forgotten = deque()

    def take_forgotten(self) -> list[int]:
        taken = list(map(serial_of, self.forgotten))
        self.forgotten.clear()
        return taken
