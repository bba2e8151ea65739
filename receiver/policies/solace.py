"""A policy that compares ids with the last one: one of two ways to detect duplicates that Solace recommends to applications.

The other way, a look-up in a database, is in `perfect.py`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Self

from receiver.errors import IdFormatError, NotComparableError
from receiver.policies.firsts import Entry, FirstReceipts
from receiver.policies.interface import Cause, Declaration, Misses, Vendor

RGMID_FORM = "rmid1:([0-9A-Fa-f]{5})-([0-9A-Fa-f]{11})-([0-9A-Fa-f]{8})-([0-9A-Fa-f]{8})"
_NUMBER_BITS = 64


@dataclass(frozen=True, slots=True)
class ReplicationGroupMessageId:
    """The number that a Solace broker gives a message, the same on both mates of a replication group.

    `origin`, the first 16 hexadecimal digits, says which broker numbered it. Ids of one origin are ordered by `number`, the last
    16 digits, and equal if both numbers are, in whatever case they were written. Ids of different origins can't be ordered.
    Source: "Detecting Duplicate Messages" in Solace's API developer guide, and the behaviour of its client library
    (https://docs.solace.com/API/API-Developer-Guide/Detecting-Duplicate-Mess.htm).
    """

    origin: int
    number: int

    def __post_init__(self) -> None:
        if not (0 <= self.origin < 1 << _NUMBER_BITS and 0 <= self.number < 1 << _NUMBER_BITS):
            raise IdFormatError(f"origin and number must have 64 bits, not {self.origin!r:.40} and {self.number!r:.40}")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read exactly `rmid1:` and 5-11-8-8 hexadecimal digits of either case; `IdFormatError` for other text."""
        match = re.fullmatch(RGMID_FORM, text) if isinstance(text, str) else None
        if match is None:
            raise IdFormatError(
                f"{text!r:.80} isn't a replication group message id",
                hint="those are like rmid1:0d77c-b0b2e66aece-00000000-00000001: 5-11-8-8 hexadecimal digits",
            )
        digits = "".join(match.groups())
        return cls(int(digits[:16], 16), int(digits[16:], 16))

    def __str__(self) -> str:
        """The canonical text, in lower case."""
        digits = f"{self.origin << _NUMBER_BITS | self.number:032x}"
        return f"rmid1:{digits[:5]}-{digits[5:16]}-{digits[16:24]}-{digits[24:]}"

    def compare(self, other: ReplicationGroupMessageId) -> int:
        """-1, 0 or 1 if this id is older than, equal to or newer than the other; `NotComparableError` if their origins differ."""
        if self.origin != other.origin:
            raise NotComparableError(
                f"{self} and {other} come from different origins", hint="take the message for a new one"
            )
        return (self.number > other.number) - (self.number < other.number)


@Declaration(
    name="solace-last",
    same_rule_as=None,
    kind="solace-last",
    order=40,
    parameters=(),
    vendors=(Vendor(("Solace",), aliases=("solace",)),),
    names_its_system=True,
    records_duplicates=False,
    goes_by_send_time=False,
    clock=None,
    limit=None,
    misses=Misses(Cause.OTHER_ORIGIN),
    false_cause=Cause.SEQUENCE_GAP,
    compiled_policy="last",
    refusals=(),
)
class SolaceLast(FirstReceipts):
    """Keeps the newest delivered replication group message id of each endpoint: an id that isn't newer is a duplicate.

    Source: the page that `ReplicationGroupMessageId` names. It says that the id of a message's copy on one endpoint is the same
    throughout a replication group, so after a failover to the mate no message is let through twice. Another group, or a dead
    message queue, gives the message another id. An id of another origin can't be compared and is taken for new: no message is
    lost, but resends of the old origin are let through. An id that comes behind a newer one is called a duplicate though it never
    came before: the rule needs ids in order, as an endpoint, which is a domain here, delivers them to one consumer.
    """

    def __init__(self) -> None:
        super().__init__()
        self._last: ReplicationGroupMessageId | None = None
        self._entry: Entry = ()

    @property
    def remembered_ids(self) -> int:
        return int(self._last is not None)

    def _check_form(self, id_: str) -> None:
        ReplicationGroupMessageId.parse(id_)

    def _entry_of(self, id_: str) -> Entry | None:
        if self._last is None:
            return None
        try:
            is_newer = ReplicationGroupMessageId.parse(id_).compare(self._last) > 0
        except NotComparableError:
            return None
        return None if is_newer else self._entry

    def _remember(self, id_: str) -> None:
        self._forgotten.extend(self._entry[:1])
        self._last = ReplicationGroupMessageId.parse(id_)
        self._entry = self.serial, self.latest_us

    def entries(self) -> list[int]:
        return list(self._entry[:1])
