"""The world around a program under test, as a story says: a broker, its senders, and the faults.

It uses no clock, threads or random numbers, so a story takes the same course each time.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from receiver.testing.story import SENDERS, Crashes, LosesConnection, Pauses, Redelivers, Resends, Sends, Story

RECEIVE, CONNECT = "receive()", "connect"
_BEGIN_MS = 1_767_600_000_000
_MOST_CALLS = 5_000
"""The most calls between two signs of progress: a new message is sent, or one is acknowledged."""
_MOST_EMPTY = 20
"""How often in a row a program may ask for messages when there are none."""


@dataclass(frozen=True, slots=True)
class Message:
    """A message as the broker delivers it."""

    unique_message_id: str
    message_source_id: str
    """The sender's process: a sender that starts again has another one."""
    body: bytes
    redelivered: bool = False
    """Whether the broker flags the message as redelivered. It needn't flag every redelivery."""
    jms_timestamp_ms: int = _BEGIN_MS
    """When it was sent, by the story's clock."""
    delivery: int = field(default=0, repr=False, compare=False)
    """The broker's own number of this delivery, which identifies it when it is acknowledged."""


class Strike(NamedTuple):
    """The fault of a call."""

    kind: str
    """`crash`, `loss` of the connection, or `limit`: the program goes on for ever, and is stopped."""
    when: str
    """`before` or `after` the call."""
    call: str


# The events in a journal.


class Came(NamedTuple):
    messages: tuple[Message, ...]


class Acknowledged(NamedTuple):
    messages: tuple[Message, ...]


class Committed(NamedTuple):
    pass


class Recovered(NamedTuple):
    pass


class Paused(NamedTuple):
    secs: int


class Struck(NamedTuple):
    """A fault struck a call."""

    strike: Strike
    line: str
    """The line of the program; empty if not known."""


class Ended(NamedTuple):
    """A run of the program ended."""

    error: str | None
    """The program's own exception that ended the run."""
    stands: Counter[str] | None
    """The effects that stand now; None if they weren't read."""


Event = Came | Acknowledged | Committed | Recovered | Paused | Struck | Ended


class World:
    """Plays a story. `journal` has its events."""

    def __init__(self, story: Story, messages: int, body: Callable[[str], bytes]) -> None:
        self.journal: list[Event] = []
        self.labels: dict[str, tuple[int, str]] = {}
        """For each id that was sent: the number of the message, and its sender."""
        self.points: list[bool] = []
        """The crash points that were passed: whether each belongs to a call to a database."""
        self.executes = False
        """Whether the program has executed anything through SQLAlchemy since it asked for messages."""
        self.setup_points: int | None = None
        """How many crash points were passed before the program asked for messages; None if it never did."""
        self._story = story
        self._left_to_send = messages
        self._body = body
        self._moves = deque(story.moves)
        self._now_ms = _BEGIN_MS
        self._processes = dict.fromkeys(SENDERS, 1)
        self._queue: deque[Message] = deque()
        self._given: dict[int, Message] = {}
        """The unacknowledged messages, by number of delivery."""
        self._acknowledged: list[Message] = []
        self._deliveries = 0
        self._faults: deque[Crashes | LosesConnection] = deque()
        """The faults to come. Counting to the crash point of the first one has begun."""
        self._passed = 0
        """The crash points passed since then."""
        self._calls = self._empty = 0
        self._is_setup = True
        """Whether this run of the program hasn't asked for messages yet."""
        self._take_faults()

    # The calls of a program to the broker.

    def receive(self, most: int) -> list[Message]:
        self._fill()
        if not self._queue and self._moves:
            self._move()  # a pause
        messages = [self._queue.popleft() for _ in range(min(most, len(self._queue)))]
        self._empty = 0 if messages else self._empty + 1
        self._given |= {message.delivery: message for message in messages}
        if messages:
            self.journal.append(Came(tuple(messages)))
        return messages

    def acknowledge(self, deliveries: Iterable[int]) -> None:
        """Acknowledge deliveries. Ignores those that were acknowledged before, or whose message was delivered again since."""
        messages = [self._given.pop(delivery) for delivery in deliveries if delivery in self._given]
        if messages:
            self._calls = 0
            self._acknowledged += messages
            self.journal.append(Acknowledged(tuple(messages)))

    def recover(self) -> None:
        if self._given:
            self.journal.append(Recovered())
        self._give_again()

    def now_ms(self) -> int:
        return self._now_ms

    # The faults.

    def strike(self, call: str, is_database: bool) -> Strike | None:  # noqa: FBT001 - it is asked through a pipe
        """The fault of a call that is about to be made; None if it has none."""
        self._calls += 1
        if self._calls > _MOST_CALLS or self._empty >= _MOST_EMPTY:
            return Strike("limit", "before", call)
        if call == RECEIVE:
            self._is_setup = False
            self.setup_points = len(self.points) if self.setup_points is None else self.setup_points
            self._fill()
        self.executes |= is_database and call != CONNECT and not self._is_setup
        for when in ("before", "after"):
            self.points.append(is_database)
            self._passed += not self._is_setup or self.setup_points is None
            if kind := self._fault_here(is_database=is_database):
                return Strike(kind, when, call)
        return None

    def _fault_here(self, *, is_database: bool) -> str | None:
        """Let the fault that is due at this crash point strike. Returns its kind; None if none is due."""
        if not self._faults or self._passed < self._faults[0].point:
            return None
        fault = self._faults[0]
        if isinstance(fault, LosesConnection) and not is_database:
            return None
        self._faults.popleft()
        self._passed = 0
        if isinstance(fault, LosesConnection):
            return "loss"
        if fault.times > 1:
            self._faults.appendleft(replace(fault, times=fault.times - 1))
        return "crash"

    def note(self, event: Event) -> None:
        self.journal.append(event)

    # Between two runs of the program.

    @property
    def is_empty(self) -> bool:
        return not (self._queue or self._given or self._moves)

    @property
    def progress(self) -> tuple[int, int]:
        """A value that changes with each run of a program that makes progress."""
        return len(self._moves), len(self._acknowledged)

    def begin_run(self) -> None:
        """Begin a run: messages that the last run hadn't acknowledged come again."""
        self._give_again()
        self._calls = self._empty = 0
        self._is_setup = True

    # The moves.

    def _fill(self) -> None:
        """Make moves until the queue has messages, or a pause or the end comes first."""
        while self._moves and not isinstance(self._moves[0], Pauses) and (self._story.is_busy or not self._queue):
            self._move()

    def _take_faults(self) -> None:
        while self._moves and isinstance(fault := self._moves[0], Crashes | LosesConnection):
            self._passed = self._passed if self._faults else 0
            self._faults.append(fault)
            self._moves.popleft()

    def _move(self) -> None:
        match self._moves.popleft():
            case Sends(sender, count):
                begun = max((number for number, of in self.labels.values() if of == sender), default=0)
                for number in range(begun + 1, begun + 1 + min(count, self._left_to_send)):
                    self._left_to_send -= 1
                    self._send(number, sender)
            case Resends(last):
                newest, sender = next(reversed(self.labels.values()))
                self._processes[sender] += 1
                for number in range(max(1, newest - last + 1), newest + 1):
                    self._send(number, sender)
            case Redelivers(last):
                if self._acknowledged:
                    message = self._acknowledged[-min(last, len(self._acknowledged))]
                    self._queue.append(self._again(message))
            case Pauses(secs):
                self._now_ms += 1_000 * secs
                self.journal.append(Paused(secs))
        self._take_faults()

    def _send(self, number: int, sender: str) -> None:
        id_, source = f"{number}:{sender}", f"{sender}-{self._processes[sender]}"
        self.labels[id_] = number, sender
        self._now_ms += 1
        self._calls = 0
        self._queue.append(self._delivered(Message(id_, source, self._body(id_), jms_timestamp_ms=self._now_ms)))

    def _delivered(self, message: Message) -> Message:
        self._deliveries += 1
        return replace(message, delivery=self._deliveries)

    def _again(self, message: Message) -> Message:
        return self._delivered(replace(message, redelivered=self._story.is_flagged))

    def _give_again(self) -> None:
        """Put unacknowledged messages back into the queue."""
        again = [self._again(message) for message in self._given.values()]
        self._given.clear()
        if again and self._story.is_behind:
            self._fill()
            self._queue.extend(again)
        else:
            self._queue.extendleft(reversed(again))
