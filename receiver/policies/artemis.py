"""The duplicate id cache of ActiveMQ Artemis."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import islice
from typing import Self

from receiver.errors import SettingsError
from receiver.message import ReceiptRow, ReceiptValues, Verdict, check_receipt
from receiver.policies.firsts import Entry, FirstReceipts
from receiver.policies.interface import Cause, Declaration, Limit, Misses, Parameter, Setting, Vendor

_DEFAULT_SIZE = 20_000
_CAMEL = "https://github.com/apache/camel/blob/main/core/camel-support/src/main/java/org/apache/camel/support/processor/idempotent"


@Declaration(
    name="artemis",
    same_rule_as=None,
    kind="artemis",
    order=20,
    parameters=(Parameter("id_cache_size", "id_cache_size", lambda: _DEFAULT_SIZE),),
    vendors=(
        Vendor(
            ("ActiveMQ Artemis",),
            aliases=("activemq",),
            setting=Setting(
                "id-cache-size", "https://activemq.apache.org/artemis/docs/latest/duplicate-detection.html"
            ),
        ),
        Vendor(  # its cache is called LRU, but a duplicate is no use of it
            ("Camel's memory repository",),
            "id_cache_size=1000",
            is_tried=False,
            aliases=("camel",),
            setting=Setting("cacheSize", f"{_CAMEL}/MemoryIdempotentRepository.java"),
        ),
    ),
    names_its_system=True,
    records_duplicates=False,
    goes_by_send_time=False,
    clock=None,
    limit=Limit.ACCEPTED,
    misses=Misses(Cause.EVICTED),
    false_cause=None,
    compiled_policy="ring",
    refusals=(),
)
class ArtemisIdCache(FirstReceipts):
    """A ring of `id_cache_size` ids per address; the next id overwrites the oldest. A size of 0 switches it off.

    Source: "Duplicate Message Detection" in the documentation of ActiveMQ Artemis, which the declaration names, its class
    `DuplicateIDCache`, and the behaviour of a broker 2.44.0. A duplicate isn't added again and refreshes nothing. The ids of a
    transaction become visible only at its commit, and one id of an earlier commit rejects the whole transaction. Two equal ids
    inside one transaction are both accepted and take two slots. Once either is overwritten, the id leaves the cache, and the
    other slot is dead. The old id in a slot is removed after the new one is entered: one that overwrites itself is forgotten.

    Where we differ: an address is a domain here. The empty text is no id here; to the broker it is one. The broker looks up an
    id when its message is sent, but enters the ids of a transaction once the commit is safe on disk: messages sent in between
    aren't compared with them. Here a transaction is one step. A broker that restarts reads the ring back from its journal,
    which revives ids of dead slots; so does `restarted`, but not a durable receiver that is merely opened again. A broker that
    is killed under load may then lack its oldest id or, with a larger size than before, still have one that it had just
    overwritten; `restarted` gives the state of a broker that was idle.
    """

    def __init__(self, id_cache_size: int = _DEFAULT_SIZE) -> None:
        super().__init__(id_cache_size)
        self._size = id_cache_size
        self._ring: deque[tuple[int, int, str, int]] = deque()  # oldest first: slot, number of the receipt, id, time
        # For each remembered id the number, time and slot of its latest receipt; slots count from 1.
        self._kept: dict[str, tuple[int, int, int]] = {}
        self._several: dict[str, deque[int]] = {}  # the slots of each id that has, or had, more than one; oldest first
        self._slots_taken = 0  # how many were ever taken
        self._asleep = self._ring  # with a size of 0, the slots that the journal has from before
        self._pending: list[tuple[int, int, str, int]] | None = None  # slots of the transaction under way
        # If a slot is overwritten while a later slot holds the same id, it kills the later slot. Receipt of the dead slot ->
        # receipt of its killer, whose row is kept as long as the dead slot's: without it, a replay would revive the id.
        self._killers: dict[int, int] = {}

    @property
    def remembered_ids(self) -> int:
        return len(self._kept)

    def restarted(self, id_cache_size: int | None = None) -> Self:
        """The cache after a restart of the broker, perhaps with another size: the newest slots, each with its id alive.

        A restart with a size of 0 leaves the slots in the journal. A later restart with a larger size reads them again.
        """
        size = self._size if id_cache_size is None else id_cache_size
        after = type(self)(size)
        slots = self._ring or self._asleep
        if not size:
            after._asleep = slots.copy()  # noqa: SLF001 - one of its own kind
        newest = islice(slots, max(0, len(slots) - size), None)
        after.replay(
            (ReceiptRow(serial, us, None, None, id_, policy_state=slot) for slot, serial, id_, us in newest), None
        )
        after.serial, after.latest_us = self.serial, self.latest_us
        return after

    def receive_transaction(self, ids: Iterable[str | None]) -> Verdict:
        """Decide on the ids of one transaction: `new` and all recorded, or `duplicate` and none recorded.

        None and the empty text aren't checked; `unchecked` if there is no other id.
        """
        if isinstance(ids, str):
            raise SettingsError(f"a transaction takes several ids, not the text {ids!r:.80}")
        checked = [id_ for id_ in ids if id_ is not None and id_ != ""]
        for id_ in checked:
            check_receipt(id_, None, self.latest_us, first=False)
        if any(id_ in self._kept for id_ in checked):
            return Verdict.DUPLICATE
        for id_ in checked:
            self.serial += 1
            self._enter(self._slots_taken + 1, self.serial, id_, self.latest_us)
        self.peak_ids = max(self.peak_ids, len(self._kept))
        return Verdict.NEW if checked else Verdict.UNCHECKED

    def begin_transaction(self) -> None:
        """Make `receive` judge only by earlier transactions, until `commit_transaction`."""
        self._pending = []

    def commit_transaction(self) -> None:
        """Enter the ids received since `begin_transaction`."""
        pending, self._pending = self._pending or (), None
        for slot in pending:
            self._enter(*slot)
        self.peak_ids = max(self.peak_ids, len(self._kept))

    def _entry_of(self, id_: str) -> Entry | None:
        entry = self._kept.get(id_)
        # The id leaves with the first of its slots, even a dead one.
        return entry if entry is None or id_ not in self._several else (*entry[:2], self._several[id_][0])

    def _headroom(self, entry: Entry) -> tuple[int | None, int | None]:
        return self._size - 1 - (self._slots_taken - entry[2]), 0

    def _state_of(self, jms_timestamp_ms: int | None) -> int | None:
        """The slot of the receipt. It shows which slots are overwritten, even if rows in between are gone."""
        del jms_timestamp_ms
        return self._slots_taken + len(self._pending or ()) + 1

    def _remember(self, id_: str) -> None:
        number = self._slots_taken + 1 if self.policy_state is None else self.policy_state
        slot = number, self.serial, id_, self.latest_us
        if self._pending is None:
            self._enter(*slot)
        else:
            self._pending.append(slot)

    def _enter(self, slot: int, serial: int, id_: str, received_at_us: int) -> None:
        self._slots_taken = slot
        if not self._size:
            self._forgotten.append(serial)
            return
        self._overwrite(before=slot - self._size)
        self._ring.append((slot, serial, id_, received_at_us))
        if id_ in self._several:
            self._several[id_].append(slot)
        elif id_ in self._kept:
            self._several[id_] = deque((self._kept[id_][2], slot))
        self._kept[id_] = serial, received_at_us, slot
        self._overwrite(before=slot - self._size + 1)

    def _overwrite(self, *, before: int) -> None:
        while self._ring and self._ring[0][0] < before:
            _, serial, id_, _ = self._ring.popleft()
            if serial in self._killers:
                self._forgotten.append(self._killers.pop(serial))
            taken_out = self._kept.pop(id_, None)
            if taken_out is None or taken_out[0] == serial:
                self._forgotten.append(serial)
            else:
                self._killers[taken_out[0]] = serial
            if id_ in self._several:
                self._several[id_].popleft()
                if not self._several[id_]:
                    del self._several[id_]

    def replay(self, entries: Iterable[ReceiptValues], clock_us: int | None) -> None:
        self._pending = None
        super().replay(entries, clock_us)

    def entries(self) -> list[int]:
        return [serial for _, serial, _, _ in self._ring]
