"""The rules on what counts as a duplicate: all of them, and nothing else.

Residence rules: a line belongs here if it changes a verdict, and only then. No clock (time is an argument), no I/O, no
SQL, no logging, no settings file. Whoever needs a verdict calls this file or is proven equal to it.

The rules are those of "duplicate detection" on the page on reliable JMS receivers of the Apama documentation, made
exact in `docs/semantics.md`:

1. A receipt without id is `unchecked` and changes nothing.
2. Time never runs backwards: a receipt from before the latest one counts as received with it.
3. A receipt is a duplicate if its id is remembered: held by any source's queue, or by the time queue.
4. Every receipt, duplicate or not, enters the queue of its source, where it replaces an older entry of its id. While
   the queue holds more than W entries, its oldest leaves.
5. With E > 0, an entry that leaves a source's queue enters the domain's time queue.
6. The time queue forgets entries more than E older than the newest entry that it ever held: the clock. A clock on the
   wall plays no part, so an outage forgets nothing.

A source can be retired: its entries leave its queue by rules 5 and 6, as if newer ids had pushed them out, and the queue
is dropped. The caller decides when: that is no rule of a verdict.

Data structures. An entry is one integer, its *stamp*: time received, serial number, number of its source. So stamps
order entries, tell their age and are unique. `_newest` maps each remembered id to the stamp of its newest receipt. If
an id has entries in the queues of several sources, `_elsewhere` has the older ones. Entries leave a source's queue in
the order of their stamps, so an entry is in its queue exactly if its stamp isn't below the first stamp there. That also
holds where a new source has the number of a retired one, because its entries are newer.

Entries don't leave the sources' queues in order of time (a quiet source's old entry leaves late), but receipts come in
that order. So the time queue itself need not exist. `_young` has the ids of the receipts that aren't too old for it. An
id whose newest receipt ages out of `_young` is forgotten: at once or, if a source's queue still holds it, when it leaves
that queue. So an entry that leaves a queue seldom needs its id; `_names` has the id of each entry that does.

`replay` makes a detector again from the entries that matter, in order of receipt, and the time queue's newest time, if
each entry says whether its source was retired since. Entries that can't matter any more are listed in `forgotten`, so
that a store can delete them.

An entry that a newer receipt of its id replaces can't be taken out of the middle of a deque at once. A source's queue
lists such stamps in `replaced`; for `_young`, `_renewed` counts the occurrences of an id before its last one. Each deque
is swept when more than half of it is replaced. So memory is bounded by what is remembered.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import deque
from collections.abc import Collection, Iterable
from typing import Self

from receiver.errors import SettingsError, detects_nothing
from receiver.message import (
    NEW,
    UNCHECKED,
    Decision,
    Receipt,
    ReceiptValues,
    Tier,
    Verdict,
    check_receipt,
    for_each,
    not_text_error,
)

RETIRED = 1
"""Policy state of an entry for `replay`: its source was retired later, so the entry is in the time queue, if anywhere."""
GONE = 2
"""Policy state of an entry that is forgotten: it is kept only for the latest receipt's number and time."""


class ForgottenId(str):
    """Stands for the id of an entry that was forgotten by hand. It equals nothing but itself."""

    __slots__ = ()

    def __new__(cls) -> Self:
        return str.__new__(cls, "forgotten")

    def __eq__(self, other: object) -> bool:
        return self is other

    def __ne__(self, other: object) -> bool:
        return self is not other

    def __hash__(self) -> int:
        return id(self)


_SOURCE_BITS = 32
_TIME_SHIFT = 72  # leaves 40 bits for the serial number: 10^12 receipts
_NEXT_SERIAL = 1 << _SOURCE_BITS
_SOURCE_MASK = _NEXT_SERIAL - 1
_LONGEST_SECS = 10**12
_END_OF_TIME = 1 << 1_000  # above every stamp, whatever unit its time is in
_SERIAL_MASK = (1 << _TIME_SHIFT - _SOURCE_BITS) - 1


def serial_of(stamp: int) -> int:
    return stamp >> _SOURCE_BITS & _SERIAL_MASK


def _names_of(source: str | None) -> tuple[str | None, ...]:
    """The keys of a source in `_queues`: a missing source and an empty one are the same."""
    return (source,) if source else ("", None)


class _SourceQueue:
    """The entries of one source's newest W ids, oldest receipt first."""

    __slots__ = ("most", "number", "replaced", "stamps", "window")

    def __init__(self, number: int, window: int) -> None:
        self.number = number
        self.window = window
        self.stamps: deque[int] = deque()
        self.replaced: list[int] = []  # sorted; stamps still in the deque whose entries have left
        self.most = window  # stamps that the deque may hold: W and the replaced ones

    def holds(self, stamp: int) -> bool:
        """Whether an entry of this source, not replaced, is still in the queue."""
        return bool(self.stamps) and stamp >= self.stamps[0]

    def newer_ids(self, stamp: int) -> int:
        """How many distinct ids came from this source after the entry."""
        later = len(self.stamps) - bisect_right(self.stamps, stamp)
        return later - (len(self.replaced) - bisect_right(self.replaced, stamp))

    def replace(self, stamp: int) -> None:
        """Remove an entry from the middle."""
        insort(self.replaced, stamp)
        if len(self.replaced) > len(self.stamps) // 2 + 8:
            gone = set(self.replaced)
            self.stamps = deque(kept for kept in self.stamps if kept not in gone)
            self.replaced = []
        self.most = self.window + len(self.replaced)


class TwoTierDetector:
    """Duplicate detection in one domain: per-source queues of W ids, then one time queue of E seconds.

    Several threads may not use it at the same time.

    Args:
        window: W, a count of ids; 0 for no per-source tier.
        expiry_secs: E in seconds, to a microsecond; 0 for no time tier.

    Raises:
        SettingsError: Both are 0, or a value is negative or not finite.
    """

    __slots__ = (
        "_clock",
        "_elsewhere",
        "_expiry_us",
        "_free_queues",
        "_names",
        "_newest",
        "_queues",
        "_queues_by_number",
        "_reach",
        "_renewed",
        "_serial",
        "_too_old",
        "_window",
        "_young",
        "clock_clamped",
        "forgotten",
        "forgotten_ids",
        "latest_us",
        "peak_ids",
    )

    def __init__(self, window: int, expiry_secs: float) -> None:
        if not isinstance(window, int) or isinstance(window, bool) or window < 0:  # True is an int, but no count
            raise SettingsError(f"window must be a whole number of at least 0, not {window!r}")
        is_number = isinstance(expiry_secs, int | float) and not isinstance(expiry_secs, bool)
        if not is_number or not 0 <= expiry_secs <= _LONGEST_SECS:
            raise SettingsError(f"expiry_secs must be a number from 0 to {_LONGEST_SECS:,}, not {expiry_secs!r}")
        self._window = window
        self._expiry_us = round(expiry_secs * 1_000_000)
        if window == 0 and self._expiry_us == 0:
            raise detects_nothing()
        self._newest: dict[str, int] = {}
        self._elsewhere: dict[str, dict[int, int]] = {}  # id -> number of source -> stamp
        # stamp -> id, of each entry in a source's queue, unless it is its id's newest and the id is in `_young` for it.
        self._names: dict[int, str] = {}
        self._queues: dict[str | None, _SourceQueue] = {}
        self._queues_by_number: list[_SourceQueue] = []
        self._free_queues: list[_SourceQueue] = []  # of retired sources: a new source takes one, and its number
        self._young: deque[str] = deque()
        self._renewed: dict[str, int] = {}
        self._serial = 0
        # The newest stamp that the time queue ever held, and the stamp below which entries are too old by it. Serial numbers
        # grow with time. So an entry is more than E older than another exactly if its stamp is lower by more than E + 1 us.
        self._clock = -1
        self._reach = (self._expiry_us + 1) << _TIME_SHIFT
        self._too_old = self._clock - self._reach
        if self._expiry_us == 0:  # whatever leaves its source's queue is too old
            self._clock = self._too_old = _END_OF_TIME
        self.forgotten: deque[int] = deque(maxlen=0)
        """The stamps of entries that can't matter any more. To collect them, put a deque without bound here."""
        self.forgotten_ids: deque[str] = deque(maxlen=0)
        """The ids that were forgotten, in that order, whether they have come again or not. To collect them, put a deque
        without bound here."""
        self.latest_us = 0
        """The latest receipt's time."""
        self.clock_clamped = 0
        """Receipts that came with a time before the latest one's (rule 2)."""
        self.peak_ids = 0
        """The most ids remembered after any receipt."""

    def __repr__(self) -> str:
        return f"TwoTierDetector(window={self._window}, expiry_secs={self._expiry_us / 1_000_000})"

    @property
    def remembered_ids(self) -> int:
        """Distinct ids remembered now."""
        return len(self._newest)

    @property
    def sources(self) -> int:
        """Sources that have a queue: those with a receipt since they were last retired; 0 without a window."""
        anonymous_twice = None in self._queues
        return len(self._queues) - anonymous_twice if self._window else 0

    @property
    def serial(self) -> int:
        """The serial number of the latest entry; 0 before the first."""
        return self._serial >> _SOURCE_BITS

    @property
    def time_queue_newest_us(self) -> int | None:
        """The newest time received that the time queue has ever held (rule 6)."""
        return None if self._clock in {-1, _END_OF_TIME} else self._clock >> _TIME_SHIFT

    def __contains__(self, unique_message_id: str) -> bool:
        """Whether the id is remembered now."""
        return unique_message_id in self._newest

    def remembered(self) -> Collection[str]:
        """The ids that are remembered now, without those forgotten by hand."""
        return [id_ for id_ in self._newest if not isinstance(id_, ForgottenId)]

    def entries(self) -> list[int]:
        """The serial numbers of the entries that matter, oldest receipt first: all entries in sources' queues, and those
        in the time queue that are the newest of their id."""
        stamps = [stamp for stamp in self._newest.values() if stamp >= self._too_old or self._is_held(stamp)]
        stamps += [stamp for others in self._elsewhere.values() for stamp in others.values()]
        return sorted(map(serial_of, stamps))

    def replay(self, entries: Iterable[ReceiptValues], time_queue_newest_us: int | None) -> None:
        """Follow another detector of the same domain and settings: record its entries from after the latest one here.

        Afterwards both remember the same, and give the same verdicts from then on. Entries that the other has forgotten
        since may be missing. If the other has since retired a source that has entries here, make a new detector instead: its
        later entries needn't show that.

        Args:
            entries: The policy state of an entry is `RETIRED`, `GONE` or, for most entries, None. An entry with an empty id was
                forgotten by hand: it is entered all the same, so that the other entries leave when they would have left.
            time_queue_newest_us: The other detector's.
        """
        receive = self.receive
        next_seq = self.serial + 1
        for seq, received_at_us, _, source, id_, _, policy_state in entries:
            if seq != next_seq:
                self._serial = seq - 1 << _SOURCE_BITS
            next_seq = seq + 1
            if policy_state == GONE:
                self._serial += _NEXT_SERIAL
                self.latest_us = received_at_us
                self.forgotten.append(self._serial)
                continue
            receive(id_ or ForgottenId(), source, received_at_us=received_at_us)
            if policy_state == RETIRED:  # with all earlier ones of its source
                self.retire(source)
        if time_queue_newest_us is not None:
            # The last stamp of that time: the entry that set the clock may be gone, and its serial number changes nothing.
            clock = (time_queue_newest_us + 1 << _TIME_SHIFT) - 1
            if clock > self._clock:
                self._move_clock(clock)

    def tier_of(self, unique_message_id: str) -> Tier | None:
        """The tier that still holds an id; None if the id isn't remembered."""
        newest = self._newest.get(unique_message_id)
        if newest is None:
            return None
        is_queued = self._is_held(newest) or unique_message_id in self._elsewhere
        return Tier.SOURCE if is_queued else Tier.TIME

    def sources_by_silence(self) -> list[tuple[int, str | None]]:
        """Each source with a queue, behind the time of its latest receipt in microseconds; the longest silent first."""
        if not self._window:
            return []
        latest = [(queue.stamps[-1], source) for source, queue in self._queues.items() if source != ""]
        latest.sort()
        return [(stamp >> _TIME_SHIFT, source) for stamp, source in latest]

    def retire(self, message_source_id: str | None = None) -> None:
        """Drop a source's queue. Its entries leave the queue, oldest first, as if newer ids had pushed them out.

        The domain's latest time stays. A later receipt of the source begins a new queue. For a source without a queue,
        nothing changes.

        Raises:
            SettingsError: The source is neither text nor None.
        """
        if not isinstance(message_source_id, str | None):
            raise not_text_error("message_source_id", message_source_id)
        if message_source_id not in self._queues:
            return
        for name in _names_of(message_source_id):
            queue = self._queues.pop(name)
        queue.most = len(queue.replaced)
        self._spill(queue)
        self._free_queues.append(queue)

    def receive_many(self, receipts: Iterable[Receipt | tuple[str | None, str | None, int]]) -> list[Decision]:
        """Decide on receipts in order, as `receive` does one by one.

        A receipt that is refused stops the rest. Those before it are recorded.

        Args:
            receipts: `Receipt`s, or tuples `(unique_message_id, message_source_id, received_at_us)`.
        """
        receive = self.receive
        return for_each(receipts, lambda receipt: receive(receipt[0], receipt[1], received_at_us=receipt[2]))

    def receive(
        self, unique_message_id: str | None, message_source_id: str | None = None, *, received_at_us: int
    ) -> Decision:
        """Decide on one receipt and record it.

        Args:
            unique_message_id: The message's id. None or empty: it isn't checked.
            message_source_id: Who sent it. None or empty: the anonymous source.
            received_at_us: When it came, in whole microseconds from any fixed origin. A time before the latest receipt
                counts as that receipt's time (rule 2).

        Raises:
            SettingsError: An argument has the wrong type, or the first time is below 0. Nothing has changed.
        """
        id_ = unique_message_id
        if not id_ and (id_ is None or isinstance(id_, str)):
            return UNCHECKED
        if id_.__class__ is not str or received_at_us.__class__ is not int:
            check_receipt(id_, message_source_id, received_at_us, first=False)
        try:
            queue = self._queues[message_source_id]
        except (KeyError, TypeError):
            check_receipt(id_, message_source_id, received_at_us, first=not self._queues_by_number)
            queue = self._queue_of_new_source(message_source_id)

        if received_at_us < self.latest_us:
            received_at_us = self.latest_us
            self.clock_clamped += 1
        self.latest_us = received_at_us
        newest = self._newest
        previous = newest.get(id_)
        decision = NEW if previous is None else self._repeat(id_, previous, queue)

        self._serial += _NEXT_SERIAL
        stamp = received_at_us << _TIME_SHIFT | self._serial | queue.number
        newest[id_] = stamp
        if self._expiry_us:
            self._young.append(id_)
        else:
            self._names[stamp] = id_
        stamps = queue.stamps
        stamps.append(stamp)
        if len(stamps) > queue.most:
            self._spill(queue)
        if len(newest) > self.peak_ids:
            self.peak_ids = len(newest)
        return decision

    def _queue_of_new_source(self, source: str | None) -> _SourceQueue:
        if self._window == 0 and self._queues_by_number:
            return self._queues_by_number[0]  # with W = 0 all sources share one queue, so that sources cost nothing
        if self._free_queues:
            queue = self._free_queues.pop()
            queue.most = self._window
        else:
            queue = _SourceQueue(len(self._queues_by_number), self._window)
            self._queues_by_number.append(queue)
        for name in _names_of(source):
            self._queues[name] = queue
        return queue

    def _repeat(self, id_: str, previous: int, queue: _SourceQueue) -> Decision:
        """Rules 3 and 4 for an id that is remembered; `previous` is its newest entry's stamp."""
        owner = self._queues_by_number[previous & _SOURCE_MASK]
        owner_holds = owner.holds(previous)
        elsewhere = self._elsewhere.get(id_, {})
        decision = self._duplicate(previous, [(owner, previous)] if owner_holds else [], elsewhere)
        if not owner_holds:
            self.forgotten.append(previous)
        elif owner is queue:
            self._replace(queue, previous)
        else:
            self._elsewhere.setdefault(id_, {})[owner.number] = previous
            self._names[previous] = id_
        if queue.number in elsewhere:
            self._replace(queue, self._take_elsewhere(id_, queue))
        if previous >= self._too_old:
            self._renewed[id_] = self._renewed.get(id_, 0) + 1
            if len(self._young) > 2 * len(self._newest) + 16:
                self._young = deque(young for young in self._young if not self._is_renewed(young))
        return decision

    def _is_renewed(self, id_: str) -> bool:
        """Whether the id comes again later in `_young`; if so, one occurrence less is counted."""
        later = self._renewed.pop(id_, 0)
        if later > 1:
            self._renewed[id_] = later - 1
        return later > 0

    def _duplicate(self, previous: int, held: list[tuple[_SourceQueue, int]], elsewhere: dict[int, int]) -> Decision:
        held += [(self._queues_by_number[number], stamp) for number, stamp in elsewhere.items()]
        previous_us = previous >> _TIME_SHIFT
        return Decision(
            Verdict.DUPLICATE,
            Tier.SOURCE if held else Tier.TIME,
            distance=self.serial + 1 - serial_of(previous),
            age_us=self.latest_us - previous_us,
            window_left=max((self._window - 1 - queue.newer_ids(stamp) for queue, stamp in held), default=0),
            expiry_left_us=max(0, self._expiry_us - max(0, (self._clock >> _TIME_SHIFT) - previous_us)),
        )

    def _take_elsewhere(self, id_: str, queue: _SourceQueue) -> int:
        stamps = self._elsewhere[id_]
        stamp = stamps.pop(queue.number)
        if not stamps:
            del self._elsewhere[id_]
        return stamp

    def _replace(self, queue: _SourceQueue, stamp: int) -> None:
        """Rule 4: remove an older entry of an id."""
        queue.replace(stamp)
        self._names.pop(stamp, None)
        self.forgotten.append(stamp)
        if stamp > self._clock:
            self._move_clock(stamp)

    def _spill(self, queue: _SourceQueue) -> None:
        """Rule 4: remove the oldest entries beyond the newest W."""
        stamps = queue.stamps
        while len(stamps) > queue.most:
            stamp = stamps.popleft()
            if queue.replaced and queue.replaced[0] == stamp:
                del queue.replaced[0]
                queue.most -= 1
                continue
            if stamp > self._clock:
                self._move_clock(stamp)
            id_ = self._names.pop(stamp, None)
            if id_ is None:
                continue
            newest = self._newest[id_]
            if newest != stamp:
                self._take_elsewhere(id_, queue)
                self.forgotten.append(stamp)
            if newest < self._too_old and id_ not in self._elsewhere and (newest == stamp or not self._is_held(newest)):
                del self._newest[id_]
                self.forgotten.append(newest)
                self.forgotten_ids.append(id_)

    def _move_clock(self, stamp: int) -> None:
        """Rule 6: an entry enters the time queue as the newest so far; forget entries that are too old by it."""
        self._clock = stamp
        self._too_old = too_old = stamp - self._reach
        young, newest = self._young, self._newest
        while True:  # ends at the latest receipt, which is never too old
            id_ = young[0]
            if id_ not in self._renewed:
                aged = newest[id_]
                if aged >= too_old:
                    break
                queue = self._queues_by_number[aged & _SOURCE_MASK]
                if queue.holds(aged):
                    self._names[aged] = id_
                elif id_ not in self._elsewhere:
                    del newest[id_]
                    self.forgotten.append(aged)
                    self.forgotten_ids.append(id_)
            else:
                self._is_renewed(id_)
            young.popleft()

    def _is_held(self, newest: int) -> bool:
        """Whether the newest entry of an id is in its source's queue."""
        return self._queues_by_number[newest & _SOURCE_MASK].holds(newest)
