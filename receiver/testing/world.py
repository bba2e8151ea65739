"""The world around a program under test, as a story has it: a broker, its senders, and when the program is to die.

It is a value with methods: no clock, no threads, no luck. So a story takes the same course each time.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from receiver.testing.story import Dies, Fails, Pauses, Redelivers, Resends, Sends, Story

_BEGIN_MS = 1_767_600_000_000
_MOST_CALLS = 10_000
"""In a life of a program, before it is told that it doesn't end."""
_MOST_EMPTY = 100
"""How often in a row a program may ask for messages when there are none."""


@dataclass(frozen=True, slots=True)
class Message:
    """A message as a broker gives it out."""

    unique_message_id: str
    message_source_id: str
    body: bytes
    redelivered: bool = False
    """Whether the broker says that it gives the message out again. It needn't say so."""
    jms_timestamp_ms: int = _BEGIN_MS
    """When it was sent, by the story's own clock."""
    delivery: int = field(default=0, repr=False, compare=False)
    """The broker's own number of this delivery: by it the broker knows what is acknowledged."""


class Fate(NamedTuple):
    """What becomes of a call."""

    kind: str
    """`dies`, `fails`, or `endless` for the call with which a program goes too far."""
    when: str
    """`before` or `after` the call."""
    call: str


class Came(NamedTuple):
    messages: tuple[Message, ...]


class Acknowledged(NamedTuple):
    messages: tuple[Message, ...]


class Committed(NamedTuple):
    pass


class Recovered(NamedTuple):
    pass


class Struck(NamedTuple):
    """The program met its fate, at a place of its code."""

    fate: Fate
    place: str


class Paused(NamedTuple):
    secs: int


class Ended(NamedTuple):
    """A life of the program ended."""

    error: str | None
    """Which exception ended it, if it was one of its own."""
    stands: Counter[str] | None
    """The effects that stand now; None if that couldn't be read."""


Event = Came | Acknowledged | Committed | Recovered | Struck | Paused | Ended


class World:
    """Plays a story. Its `journal` is what came to pass."""

    def __init__(self, story: Story, name: str, messages: int, body: Callable[[str], bytes]) -> None:
        self.journal: list[Event] = []
        self.labels: dict[str, tuple[int, str]] = {}
        """Of each id that was sent: the number of the message, and its sender."""
        self.points = 0
        """Crash points that were met, in all lives."""
        self.database_points: list[int] = []
        """Those of calls to a database."""
        self._story = story
        self._name = name
        self._left_to_send = messages
        self._body = body
        self._moves = deque(story.moves)
        self._now_ms = _BEGIN_MS
        self._processes = dict.fromkeys("ABC", 1)
        self._queue: deque[Message] = deque()
        self._given: dict[int, Message] = {}
        """Not acknowledged yet, by delivery."""
        self._acknowledged: list[Message] = []
        self._deliveries = 0
        self._faults: deque[Dies | Fails] = deque()
        """Those to come. Counting to the first one's crash point has begun."""
        self._counted = 0
        self._calls = self._empty = 0
        self._set_faults()

    # What the program asks of the broker.

    def receive(self, most: int) -> list[Message]:
        while not self._queue and self._moves:
            if isinstance(self._moves[0], Pauses):
                self._move()
                return []
            self._move()
        messages = [self._queue.popleft() for _ in range(min(most, len(self._queue)))]
        self._empty = 0 if messages else self._empty + 1
        self._given |= {message.delivery: message for message in messages}
        if messages:
            self.journal.append(Came(tuple(messages)))
        return messages

    def acknowledge(self, deliveries: Iterable[int]) -> None:
        """What was acknowledged before, or is out of date since the broker recovered, doesn't count."""
        messages = [self._given.pop(delivery) for delivery in deliveries if delivery in self._given]
        self._acknowledged += messages
        if messages:
            self.journal.append(Acknowledged(tuple(messages)))

    def recover(self) -> None:
        if self._given:
            self.journal.append(Recovered())
        self._give_again()

    # What becomes of the program.

    def fate(self, call: str, is_database: bool) -> Fate | None:  # noqa: FBT001 - it is asked through a pipe
        """Each call is asked for before it is made, and passes two crash points. None: it just goes on."""
        self._calls += 1
        if self._calls > _MOST_CALLS or self._empty >= _MOST_EMPTY:
            return Fate("endless", "before", call)
        for when in ("before", "after"):
            self.points += 1
            self.database_points += [self.points] * is_database
            self._counted += 1
            if self._faults and self._faults[0].point <= self._counted and (is_database or self._is_death):
                return Fate(self._strike(), when, call)
        return None

    @property
    def _is_death(self) -> bool:
        return isinstance(self._faults[0], Dies)

    def _strike(self) -> str:
        self._counted = 0
        match self._faults.popleft():
            case Dies(point, times):
                self._faults.extendleft([Dies(point, times - 1)] * (times > 1))
                return "dies"
            case _:
                return "fails"

    def note(self, event: Event) -> None:
        self.journal.append(event)

    # What is asked between two lives of the program.

    @property
    def is_empty(self) -> bool:
        return not (self._queue or self._given or self._moves)

    @property
    def progress(self) -> tuple[int, int]:
        """It changes with each life of a program that is on its way to the end."""
        return len(self._moves), len(self._acknowledged)

    def begin_life(self) -> None:
        self._give_again()
        self._calls = self._empty = 0

    # The moves.

    def _set_faults(self) -> None:
        while self._moves and isinstance(fault := self._moves[0], Dies | Fails):
            self._counted = self._counted if self._faults else 0
            self._faults.append(fault)
            self._moves.popleft()

    def _move(self) -> None:
        match self._moves.popleft():
            case Sends(sender, count):
                for _ in range(min(count, self._left_to_send)):
                    self._left_to_send -= 1
                    self._send(
                        1 + max((number for number, of in self.labels.values() if of == sender), default=0), sender
                    )
            case Resends(last):
                sent, sender = next(reversed(self.labels.values()))
                self._processes[sender] += 1
                for number in range(max(1, sent - last + 1), sent + 1):
                    self._send(number, sender)
            case Redelivers(last):
                if self._acknowledged:
                    message = self._acknowledged[-min(last, len(self._acknowledged))]
                    self._queue.append(self._again(message))
            case Pauses(secs):
                self._now_ms += 1_000 * secs
                self.journal.append(Paused(secs))
        self._set_faults()

    def _send(self, number: int, sender: str) -> None:
        id_ = f"{number}:{sender}.{self._name}"
        self.labels[id_] = number, sender
        self._now_ms += 1
        source = f"{sender}-{self._processes[sender]}"
        self._queue.append(self._delivered(Message(id_, source, self._body(id_), jms_timestamp_ms=self._now_ms)))

    def _delivered(self, message: Message) -> Message:
        self._deliveries += 1
        return replace(message, delivery=self._deliveries)

    def _again(self, message: Message) -> Message:
        return self._delivered(replace(message, redelivered=self._story.is_flagged))

    def _give_again(self) -> None:
        """What was given and not acknowledged goes back into the queue."""
        again = [self._again(message) for message in self._given.values()]
        self._given.clear()
        if again and self._story.is_behind:
            while not self._queue and self._moves and not isinstance(self._moves[0], Pauses):
                self._move()
            self._queue.extend(again)
        else:
            self._queue.extendleft(reversed(again))
