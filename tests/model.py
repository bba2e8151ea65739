"""The rules of `docs/semantics.md`, written as directly as possible: slow, and without cleverness.

Tests compare everything that judges receipts with this model. It shares no code with the package.
"""

from dataclasses import dataclass, field


@dataclass
class Entry:
    id: str
    source: str
    received_at_us: int
    number: int = 0
    """The receipt's number. It orders receipts with equal times."""


def forgotten_id(number: int) -> str:
    return f"\0forgotten {number}"


@dataclass
class Model:
    window: int
    expiry_us: int
    queues: dict[str, list[Entry]] = field(default_factory=dict)
    time_queue: list[Entry] = field(default_factory=list)
    newest_us: int | None = None
    latest_us: int = 0
    recorded: int = 0
    peak_ids: int = 0
    clock_clamped: int = 0

    def remembered(self) -> set[str]:
        return {entry.id for queue in [*self.queues.values(), self.time_queue] for entry in queue}

    def receive(self, id_: str | None, source: str | None, received_at_us: int) -> str:
        if not id_:
            return "unchecked"
        if received_at_us < self.latest_us:
            self.clock_clamped += 1
        self.latest_us = max(self.latest_us, received_at_us)
        verdict = "duplicate" if id_ in self.remembered() else "new"

        queue = self.queues.setdefault(source or "", [])
        leaving = [entry for entry in queue if entry.id == id_]
        for entry in leaving:
            queue.remove(entry)
        self.recorded += 1
        queue.append(Entry(id_, source or "", self.latest_us, self.recorded))
        while len(queue) > self.window:
            leaving.append(queue.pop(0))
        for entry in leaving:
            self.leave(entry)
        self.peak_ids = max(self.peak_ids, len(self.remembered()))
        return verdict

    def leave(self, entry: Entry) -> None:
        if self.expiry_us > 0:
            self.time_queue.append(entry)
            self.newest_us = max(self.newest_us or 0, entry.received_at_us)
            self.time_queue = [e for e in self.time_queue if self.newest_us - e.received_at_us <= self.expiry_us]

    def retire(self, source: str | None) -> None:
        for entry in self.queues.pop(source or "", []):
            self.leave(entry)

    def forget(self, id_: str) -> None:
        """Forget an id by hand: its entries stay, as if they were of ids that never come."""
        forgotten = [entry for entry in self.entries() if entry.id == id_]
        for entry in forgotten:
            entry.id = forgotten_id(entry.number)
        self.time_queue = [entry for entry in self.time_queue if entry.id != id_]

    # Changed settings, and which receipts a store must keep for them.

    def entries(self) -> list[Entry]:
        """The remembered receipts, oldest first: the sources' queues, and the time queue's entries that no newer
        entry supersedes."""
        queued = [entry for queue in self.queues.values() for entry in queue]
        newest = {entry.id: entry for entry in sorted(queued + self.time_queue, key=lambda entry: entry.number)}
        in_time = [entry for entry in self.time_queue if entry is newest[entry.id]]
        return sorted(queued + in_time, key=lambda entry: entry.number)

    def resized(self, window: int, expiry_us: int) -> "Model":
        """The domain with other settings: an empty domain that has received what this one remembers."""
        after = Model(window, expiry_us)
        for entry in self.entries():
            after.recorded = entry.number - 1
            after.receive(entry.id, entry.source, entry.received_at_us)
        after.recorded = self.recorded
        after.latest_us = self.latest_us
        after.clock_clamped = self.clock_clamped
        return after

    # The other fields of a decision, by definition rather than by bookkeeping.

    def tier(self, id_: str) -> str:
        return "source" if any(entry.id == id_ for queue in self.queues.values() for entry in queue) else "time"

    def window_left(self, id_: str) -> int:
        newer = [
            len(queue) - 1 - position
            for queue in self.queues.values()
            for position, entry in enumerate(queue)
            if entry.id == id_
        ]
        return max((self.window - 1 - n for n in newer), default=0)

    def newest_entry_us(self, id_: str) -> int:
        return max(e.received_at_us for queue in [*self.queues.values(), self.time_queue] for e in queue if e.id == id_)

    def expiry_left_us(self, id_: str) -> int:
        against = 0 if self.newest_us is None else max(0, self.newest_us - self.newest_entry_us(id_))
        return max(0, self.expiry_us - against)
