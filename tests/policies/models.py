"""The other systems' rules once more, as plainly as possible: lists that are searched from the front, without
bookkeeping.

They share no code with the package. The other fields of a decision follow by definition. For example, ids are added
until one is forgotten, to see how many were left.
"""

from copy import deepcopy
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.model import Model as TwoTierModel


class Answer(NamedTuple):
    """The fields of a decision."""

    verdict: str
    age_us: int | None = None
    distance: int | None = None
    window_left: int | None = None
    expiry_left_us: int | None = None


@dataclass
class Entry:
    number: int
    id: str
    received_at_us: int
    sent_us: int


@dataclass
class Firsts:
    """An id is remembered from its first receipt on; here for ever. Subclasses define what is forgotten, and which
    ids match."""

    entries: list[Entry] = field(default_factory=list)
    latest_us: int = 0
    clock_clamped: int = 0
    peak_ids: int = 0
    serial: int = 0

    def receive(self, id_: str | None, source: str | None, received_at_us: int, sent_ms: int | None = None) -> Answer:
        del source
        if not id_:
            return Answer("unchecked")
        if received_at_us < self.latest_us:
            self.clock_clamped += 1
        self.latest_us = max(self.latest_us, received_at_us)
        self.forget()
        self.serial += 1
        matching = self.match(id_)
        if matching is None:
            self.enter(Entry(self.serial, id_, self.latest_us, sent_ms * 1000 if sent_ms else self.latest_us))
            self.forget()
            self.peak_ids = max(self.peak_ids, self.remembered_ids())
            return Answer("new")
        age_us, distance = self.latest_us - matching.received_at_us, self.serial - matching.number
        return Answer("duplicate", age_us, distance, self.window_left(id_), self.expiry_left_us(matching))

    def enter(self, entry: Entry) -> None:
        self.entries.append(entry)

    def forget(self) -> None:
        pass

    def match(self, id_: str) -> Entry | None:
        return next((entry for entry in self.entries if entry.id == id_), None)

    def remembered_ids(self) -> int:
        return len(self.entries)

    def numbers(self) -> list[int]:
        return [entry.number for entry in self.entries]

    def window_left(self, id_: str) -> int | None:
        del id_

    def expiry_left_us(self, matching: Entry) -> int | None:
        del matching


@dataclass
class TimeToLive(Firsts):
    expiry_us: int = 0

    def forget(self) -> None:
        self.entries = [e for e in self.entries if not self.latest_us - e.received_at_us > self.expiry_us]

    def window_left(self, id_: str) -> int:
        del id_
        return 0

    def expiry_left_us(self, matching: Entry) -> int:
        return self.expiry_us - (self.latest_us - matching.received_at_us)


@dataclass
class MinimumTime(Firsts):
    """CMQ's second formula."""

    limit_us: int = 0
    minimum_us: int | None = None

    def advance(self, minimum_us: int) -> None:
        if self.minimum_us is None or minimum_us > self.minimum_us:
            self.minimum_us = minimum_us
        self.forget()

    def forget(self) -> None:
        if self.minimum_us is not None:
            self.entries = [e for e in self.entries if not self.minimum_us - e.sent_us > self.limit_us]

    def window_left(self, id_: str) -> int:
        del id_
        return 0

    def expiry_left_us(self, matching: Entry) -> int:
        if self.minimum_us is None or self.minimum_us < matching.sent_us:
            return self.limit_us
        return self.limit_us - (self.minimum_us - matching.sent_us)


@dataclass
class Sequence(Firsts):
    @staticmethod
    def split(id_: str) -> tuple[int, str]:
        colon = id_.index(":")
        return int(id_[:colon]), id_[colon + 1 :]

    def match(self, id_: str) -> Entry | None:
        number, source = self.split(id_)
        highest = None
        for entry in self.entries:
            if self.split(entry.id)[1] == source:
                highest = entry
        return highest if highest and number <= self.split(highest.id)[0] else None

    def enter(self, entry: Entry) -> None:
        source = self.split(entry.id)[1]
        self.entries = [kept for kept in self.entries if self.split(kept.id)[1] != source] + [entry]


@dataclass
class Last(Firsts):
    """Solace's stored id. Hexadecimal texts of equal length sort as their numbers do."""

    def match(self, id_: str) -> Entry | None:
        for entry in self.entries:
            _, *stored = entry.id.lower().split("-")
            _, *came = id_.lower().split("-")
            same_origin = entry.id.lower()[:23] == id_.lower()[:23]
            if same_origin and came <= stored:
                return entry
        return None

    def enter(self, entry: Entry) -> None:
        self.entries = [entry]


@dataclass
class Ring(Firsts):
    """Artemis: the slots, oldest first, and the ids in the hash table beside them."""

    size: int = 0
    alive: set[str] = field(default_factory=set)
    journal: list[Entry] = field(default_factory=list)
    """With a size of 0: what the broker's journal has from the time before."""
    pending: list[Entry] | None = None

    def match(self, id_: str) -> Entry | None:
        return [entry for entry in self.entries if entry.id == id_][-1] if id_ in self.alive else None

    def enter(self, entry: Entry) -> None:
        if self.pending is not None:
            self.pending.append(entry)
        elif self.size:
            self.entries.append(entry)
            self.alive.add(entry.id)
            if len(self.entries) > self.size:
                self.alive.discard(self.entries.pop(0).id)

    def remembered_ids(self) -> int:
        return len(self.alive)

    def window_left(self, id_: str) -> int:
        later = deepcopy(self)
        later.pending = None
        for fresh in range(self.size + 1):
            later.enter(Entry(0, f"fresh {fresh}", 0, 0))
            if id_ not in later.alive:
                return fresh
        raise AssertionError("a ring forgets")

    def expiry_left_us(self, matching: Entry) -> int:
        del matching
        return 0

    def transaction(self, ids: list[str | None]) -> str:
        checked = [id_ for id_ in ids if id_]
        if any(id_ in self.alive for id_ in checked):
            return "duplicate"
        for id_ in checked:
            self.serial += 1
            self.enter(Entry(self.serial, id_, self.latest_us, 0))
        self.peak_ids = max(self.peak_ids, len(self.alive))
        return "new" if checked else "unchecked"

    def begin(self) -> None:
        self.pending = []

    def commit(self) -> None:
        pending, self.pending = self.pending, None
        for entry in pending:
            self.enter(entry)
        self.peak_ids = max(self.peak_ids, len(self.alive))

    def restarted(self, size: int) -> "Ring":
        journal = self.entries if self.size else self.journal
        newest = journal[max(0, len(journal) - size) :]
        alive = {entry.id for entry in newest}
        return Ring(newest, self.latest_us, 0, len(alive), self.serial, size=size, alive=alive, journal=journal)


@dataclass
class LatestUsed(Firsts):
    """The ids received last, in a list that begins with the one received longest ago."""

    size: int = 0

    def receive(self, id_: str | None, source: str | None, received_at_us: int, sent_ms: int | None = None) -> Answer:
        answer = super().receive(id_, source, received_at_us, sent_ms)
        if answer.verdict == "duplicate":
            self.entries = [entry for entry in self.entries if entry.id != id_]
            self.enter(Entry(self.serial, id_, self.latest_us, 0))
        return answer

    def forget(self) -> None:
        self.entries = self.entries[-self.size :]

    def window_left(self, id_: str) -> int:
        return [entry.id for entry in self.entries].index(id_) + self.size - len(self.entries)

    def expiry_left_us(self, matching: Entry) -> int:
        del matching
        return 0


class TwoTier:
    """Apama's rule, by a model of its own."""

    def __init__(self, window: int, expiry_us: int) -> None:
        self.rule = TwoTierModel(window, expiry_us)
        self.newest: dict[
            str, tuple[int, int]
        ] = {}  # time and number of each id's newest receipt, even if its entry has left

    def receive(self, id_: str | None, source: str | None, received_at_us: int, sent_ms: int | None = None) -> Answer:
        del sent_ms
        rule = self.rule
        left = None
        if id_ in rule.remembered():
            left = rule.window_left(id_), rule.expiry_left_us(id_)
        verdict = rule.receive(id_, source, received_at_us)
        newest = self.newest.get(id_)
        if id_:
            self.newest[id_] = rule.latest_us, rule.recorded
        if left is None:
            return Answer(verdict)
        return Answer(verdict, rule.latest_us - newest[0], rule.recorded - newest[1], *left)

    def match(self, id_: str) -> bool | None:
        return id_ in self.rule.remembered() or None

    def remembered_ids(self) -> int:
        return len(self.rule.remembered())

    def numbers(self) -> list[int]:
        return [entry.number for entry in self.rule.entries()]

    latest_us = property(lambda self: self.rule.latest_us)
    clock_clamped = property(lambda self: self.rule.clock_clamped)
    peak_ids = property(lambda self: self.rule.peak_ids)
    serial = property(lambda self: self.rule.recorded)
