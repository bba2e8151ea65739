"""The duplicate id cache of ActiveMQ Artemis."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable
from itertools import islice
from typing import Any, ClassVar, Self

from receiver.errors import SettingsError
from receiver.message import Verdict, check_receipt
from receiver.policies.firsts import Entry, FirstReceipts
from receiver.policies.interface import Parameter, check_size

__all__ = ["ArtemisIdCache"]


class ArtemisIdCache(FirstReceipts):
    """A ring of `id_cache_size` ids per address; the next id overwrites the oldest. A size of 0 switches it off.

    Source: "Duplicate Message Detection" in the documentation of ActiveMQ Artemis
    (https://activemq.apache.org/artemis/docs/latest/duplicate-detection.html), its class `DuplicateIDCache`, and what a
    broker 2.44.0 answered. A duplicate isn't added again and refreshes nothing. In a transaction ids become visible at
    the commit only, and one id that an earlier commit holds rejects all of it. Two equal ids inside one transaction are
    both accepted and take two places; whichever of them is overwritten first takes the id out of the cache, the other
    place is then dead. A new id is entered before what lay in its place is taken out, so an id that overwrites itself is
    forgotten too.

    Where we differ: an address is a domain here. A broker that restarts reads the ring back from its journal, which
    brings ids of dead places to life; so does `restarted`, but not a durable receiver that is merely opened again.
    """

    name = kind = "artemis"
    parameters: ClassVar[tuple[Parameter, ...]] = (Parameter("id_cache_size", "id_cache_size", default=20_000),)
    forgets_in_order = True

    def __init__(self, id_cache_size: int = 20_000) -> None:
        super().__init__()
        self._size = check_size("id_cache_size", id_cache_size)
        self._ring: deque[tuple[int, str, int]] = deque()  # number, id and time received of each place, oldest first
        # Of each id that is remembered, the number, time received and place of its latest receipt; places count from 1.
        self._kept: dict[str, tuple[int, int, int]] = {}
        self._places = 0  # ever taken
        self._pending: list[tuple[int, str, int]] | None = None  # of the transaction under way
        self._twins: dict[str, deque[int]] = {}  # the places of each id that has, or had, several, oldest first
        # Of each id that is forgotten though a place holds it, the number of the place whose overwriting took it out. A
        # replay that began after that place would bring the id to life, so those from there on are still needed.
        self._dead: OrderedDict[str, int] = OrderedDict()
        self._overwritten: deque[int] = deque()  # numbers of places that are gone but not yet named as forgotten

    @classmethod
    def of_sizes(cls, window: int, expiry_us: int) -> Self:
        del expiry_us
        return cls(window)

    @property
    def sizes(self) -> tuple[int, int]:
        return self._size, 0

    def __str__(self) -> str:
        return f"{self.name}:id_cache_size={self._size}"

    @property
    def remembered_ids(self) -> int:
        return len(self._kept)

    def restarted(self, id_cache_size: int | None = None) -> Self:
        """What the broker has after a restart, perhaps with another size: the newest places, the id of each alive."""
        after = type(self)(self._size if id_cache_size is None else id_cache_size)
        newest = islice(self._ring, max(0, len(self._ring) - after.sizes[0]), None)
        after.replay(((serial, id_, None, us, None, None, None) for serial, id_, us in newest), None)
        after.serial, after.latest_us = self.serial, self.latest_us
        return after

    def receive_transaction(self, ids: Iterable[str | None]) -> Verdict:
        """One transaction's messages by their ids: accepted whole, or `duplicate` and nothing recorded.

        Ids of None and the empty text aren't checked; `unchecked` if no other is there.
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
            self._enter(self.serial, id_, self.latest_us)
        self.peak_ids = max(self.peak_ids, len(self._kept))
        return Verdict.NEW if checked else Verdict.UNCHECKED

    def begin_transaction(self) -> None:
        """Let `receive` judge by what earlier transactions left, until `commit_transaction`."""
        self._pending = []

    def commit_transaction(self) -> None:
        """Enter what came since `begin_transaction`."""
        pending, self._pending = self._pending or (), None
        for place in pending:
            self._enter(*place)
        self.peak_ids = max(self.peak_ids, len(self._kept))

    def _found(self, id_: str) -> Entry | None:
        latest = self._kept.get(id_)
        # Its first place is the one that will take the id out.
        return None if latest is None else (*latest[:2], self._twins.get(id_, latest[2:])[0])

    def _left(self, found: Entry) -> tuple[int | None, int | None]:
        return self._size - 1 - (self._places - found[2]), 0

    def _remember(self, id_: str, now_us: int, sent_us: int | None) -> None:
        del sent_us
        if self._pending is None:
            self._enter(self.serial, id_, now_us)
        else:
            self._pending.append((self.serial, id_, now_us))

    def _enter(self, serial: int, id_: str, received_at_us: int) -> None:
        if not self._size:
            self._forgotten.append(serial)
            return
        self._places += 1
        self._ring.append((serial, id_, received_at_us))
        if id_ in self._twins:
            self._twins[id_].append(self._places)
        elif id_ in self._kept:
            self._twins[id_] = deque((self._kept[id_][2], self._places))
        self._kept[id_] = serial, received_at_us, self._places
        self._dead.pop(id_, None)
        if len(self._ring) > self._size:
            self._overwrite(*self._ring.popleft()[:2])

    def _overwrite(self, serial: int, id_: str) -> None:
        self._kept.pop(id_, None)
        if id_ in self._twins:
            self._dead.pop(id_, None)
            self._twins[id_].popleft()
            if self._twins[id_]:
                self._dead[id_] = serial
            else:
                del self._twins[id_]
        self._overwritten.append(serial)
        needed_from = next(iter(self._dead.values()), serial + 1)
        while self._overwritten and self._overwritten[0] < needed_from:
            self._forgotten.append(self._overwritten.popleft())

    def replay(self, entries: Iterable[tuple[Any, ...]], clock_us: int | None) -> None:
        self._pending = None
        super().replay(entries, clock_us)

    def entries(self) -> list[int]:
        return [serial for serial, _, _ in self._ring]
