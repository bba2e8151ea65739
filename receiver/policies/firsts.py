"""Base classes of policies that remember an id from its first receipt, and that a duplicate doesn't refresh."""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Iterable
from typing import Any

from receiver.detector import ForgottenId
from receiver.errors import SettingsError
from receiver.message import NEW, UNCHECKED, Decision, Receipt, ReceiptValues, Verdict, check_receipt, for_each
from receiver.policies.interface import Declared, check_size

Entry = tuple[int, ...]
"""A remembered receipt: its number, its time, and any other values that a policy keeps of it."""


class FirstReceipts(Declared):
    """A policy for which duplicates change nothing, so that only receipts judged new are entries."""

    def __init__(self, *values: int) -> None:
        self._values = tuple(
            check_size(parameter.argument, value) for parameter, value in zip(self.parameters, values, strict=True)
        )
        self.latest_us = self.clock_clamped = self.peak_ids = self.serial = 0
        self.policy_state: int | None = None
        self.clock_us: int | None = None
        self._forgotten: deque[int] = deque(maxlen=0)

    @property
    def values(self) -> tuple[int, ...]:
        return self._values

    @property
    @abstractmethod
    def remembered_ids(self) -> int: ...

    def __contains__(self, unique_message_id: str) -> bool:
        return self._entry_of(unique_message_id) is not None

    @abstractmethod
    def _entry_of(self, id_: str) -> Entry | None:
        """The entry that makes the next receipt of the id a duplicate; None if it is new. `IdFormatError` if that can't be told."""

    @abstractmethod
    def _remember(self, id_: str) -> None:
        """Enter a new receipt. Its number is `serial`, its time `latest_us`; `policy_state` is its own."""

    def _state_of(self, jms_timestamp_ms: int | None) -> int | None:
        """The `policy_state` of a new receipt: what its row must keep beside id and time."""
        del jms_timestamp_ms
        return None

    def _forget(self) -> None:
        """Drop entries that are too old when a receipt comes at `latest_us`."""

    def _headroom(self, entry: Entry) -> tuple[int | None, int | None]:
        """The `window_left` and `expiry_left_us` of a duplicate that repeats the entry."""
        del entry
        return None, None

    def receive(
        self,
        unique_message_id: str | None,
        message_source_id: str | None = None,
        *,
        received_at_us: int,
        jms_timestamp_ms: int | None = None,
    ) -> Decision:
        id_ = unique_message_id
        if not id_ and (id_ is None or isinstance(id_, str)):
            return UNCHECKED
        id_ = check_receipt(id_, message_source_id, received_at_us, first=self.serial == 0)
        if jms_timestamp_ms is not None and (jms_timestamp_ms.__class__ is not int or jms_timestamp_ms < 0):
            raise SettingsError(
                f"jms_timestamp_ms must be whole milliseconds of at least 0, not {jms_timestamp_ms!r:.80}"
            )
        self._check_form(id_)
        now_us = max(received_at_us, self.latest_us)
        self.clock_clamped += now_us > received_at_us
        self.latest_us = now_us
        self._forget()
        entry = self._entry_of(id_)
        self.serial += 1
        if entry is not None:
            window_left, expiry_left_us = self._headroom(entry)
            return Decision(
                Verdict.DUPLICATE,
                age_us=now_us - entry[1],
                window_left=window_left,
                expiry_left_us=expiry_left_us,
                distance=self.serial - entry[0],
            )
        self.policy_state = self._state_of(jms_timestamp_ms)
        self._remember(id_)
        self.peak_ids = max(self.peak_ids, self.remembered_ids)
        return NEW

    def _check_form(self, id_: str) -> None:
        """Raise `IdFormatError` for an id that can't be judged."""

    def receive_many(self, receipts: Iterable[Receipt | tuple[str | None, str | None, int]]) -> list[Decision]:
        def decided(receipt: Any) -> Decision:
            sent_at_ms = receipt.jms_timestamp_ms if isinstance(receipt, Receipt) else None
            return self.receive(receipt[0], receipt[1], received_at_us=receipt[2], jms_timestamp_ms=sent_at_ms)

        return for_each(receipts, decided)

    def keep_forgotten(self) -> None:
        self._forgotten = deque()

    def take_forgotten(self) -> list[int]:
        taken = list(self._forgotten)
        self._forgotten.clear()
        return taken

    def replay(self, entries: Iterable[ReceiptValues], clock_us: int | None) -> None:
        del clock_us
        for seq, received_at_us, first_received_at_us, _, id_, _, policy_state in entries:
            self.serial, self.latest_us, self.policy_state = seq, received_at_us, policy_state
            self._forget()
            if first_received_at_us is None:  # otherwise a duplicate, kept only for the id's history
                self._remember(id_ or ForgottenId())
                self.peak_ids = max(self.peak_ids, self.remembered_ids)


class KeptIds(FirstReceipts):
    """A policy for which duplicates change nothing, and which remembers each id by itself."""

    def __init__(self, *values: int) -> None:
        super().__init__(*values)
        self._kept: dict[str, Entry] = {}

    @property
    def remembered_ids(self) -> int:
        return len(self._kept)

    def _entry_of(self, id_: str) -> Entry | None:
        return self._kept.get(id_)

    def _remember(self, id_: str) -> None:
        self._kept[id_] = self.serial, self.latest_us

    def entries(self) -> list[int]:
        return sorted(serial for serial, *_ in self._kept.values())
