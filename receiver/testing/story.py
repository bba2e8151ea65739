"""Stories: what happens to a program under test, as values that can be drawn, shrunk and played again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hypothesis import strategies as st

SENDERS = "ABa"
"""They end the ids. Two differ in case only, as ids may: a program whose database or code folds them misses a message."""
_MOST_CRASHES = 3
"""The most crashes at one crash point, in successive runs. Several find programs that give a message up after some tries."""
_MOST_IN_SETUP = 12
"""How many crash points are tried in turn before the program asks for messages: it may make a hundred tables there."""
_MOST_MOVES = 10
_FEW = 3
_DAY_SECS = 86_400
_WEEK_SECS = 7 * _DAY_SECS
_PAUSES_SECS = (1, 60, 3_600, _DAY_SECS, _WEEK_SECS)
"""Pauses aren't drawn as numbers: from a range of more than 100, Hypothesis also draws numbers that occur in the user's modules.
So equal seeds would draw other stories once another module was imported."""


@dataclass(frozen=True, slots=True)
class Sends:
    """A sender sends `count` new messages. The broker may deliver them together."""

    sender: str
    count: int = 1


@dataclass(frozen=True, slots=True)
class Resends:
    """The sender of the newest message starts again, as another process, and resends its last messages.

    To the broker they are new messages.
    """

    last: int


@dataclass(frozen=True, slots=True)
class Redelivers:
    """The broker delivers an acknowledged message again: with 1 the one acknowledged last, with 2 the one before it."""

    last: int


@dataclass(frozen=True, slots=True)
class Pauses:
    """The broker has no message for `secs` seconds. So the program returns, and is started again."""

    secs: int


@dataclass(frozen=True, slots=True)
class Crashes:
    """The program crashes at the crash point `point`, counted from 1: `times` times, in successive runs.

    Each call to the broker or a database has a crash point before it and one after it.
    """

    point: int
    times: int = 1


@dataclass(frozen=True, slots=True)
class LosesConnection:
    """The database call at the crash point `point`, or the next database call, fails as if the connection were lost."""

    point: int


Fault = Crashes | LosesConnection
Move = Sends | Resends | Redelivers | Pauses | Fault


@dataclass(frozen=True, slots=True)
class Story:
    """The moves of senders and broker, and the faults, in order.

    The broker makes its next move when it is asked for messages and has none left. A fault doesn't wait for that: counting
    to its crash point begins once the move before it is made, and the fault before it has struck. Calls in a run before the
    program asks for messages don't count, unless the fault stands before all other moves.
    """

    moves: tuple[Move, ...]
    is_flagged: bool = True
    """Whether the broker flags redelivered messages."""
    is_behind: bool = False
    """Whether unacknowledged messages come again behind newer messages, not before them."""
    is_busy: bool = False
    """Whether the broker makes all moves up to the next pause at once."""


ONE_MESSAGE = Story((Sends("A"),))
SHORT_STORIES = (
    Story((Sends("A", 2), Sends("a"))),
    Story((Sends("A"), Redelivers(1))),
    Story((Sends("A"), Redelivers(1)), is_flagged=False),
    Story((Sends("A"), Resends(1))),
    Story((Sends("A"), Resends(1)), is_busy=True),
    Story((Sends("A"), Pauses(_WEEK_SECS), Redelivers(1))),
    Story((Sends("A"), Pauses(_WEEK_SECS), Resends(1))),
)
"""Stories without a fault, which are tried first."""


def of_many(messages: int) -> tuple[Story, ...]:
    """Stories without a fault, in which the first of many messages comes again. Their ids must all fit into a window."""
    sends = Sends("A", messages)
    return Story((sends, Redelivers(messages))), Story((sends, Resends(messages)))


def with_each_fault(setup: Sequence[bool], then: Sequence[bool]) -> Iterator[Story]:
    """Stories of one message, with each fault at each crash point: before the program asked for messages, and after.

    `setup` and `then` say of each of these points whether it belongs to a call to a database.
    """
    message, points = Sends("A"), range(1, len(then) + 1)
    for point in points:
        yield Story((message, Crashes(point)))
    for point in (point for point in points if then[point - 1]):
        yield Story((message, LosesConnection(point)))
    for point in points:
        yield Story((message, Crashes(point, _MOST_CRASHES)))
    apart = max(1, len(setup) / _MOST_IN_SETUP)
    for point in (round(number * apart) for number in range(1, round(len(setup) / apart) + 1)):
        yield Story((Crashes(point), message))
        yield Story((LosesConnection(point), message))


def stories(messages: int, setup_points: int, message_points: int) -> st.SearchStrategy[Story]:
    """A strategy for stories of up to `messages` messages.

    A program passes about `setup_points` crash points before it asks for messages, and `message_points` for a message.
    """
    counts = st.integers(1, min(_FEW, messages)) | st.integers(1, messages)
    sends = st.builds(Sends, st.sampled_from(SENDERS), counts)
    resends, redelivers = st.builds(Resends, counts), st.builds(Redelivers, counts)
    pauses = st.builds(Pauses, st.sampled_from(_PAUSES_SECS))
    return st.builds(
        lambda first, begin, then, *flags: Story((*first, begin, *then), *flags),
        st.lists(_faults(setup_points), max_size=1),
        sends,
        st.lists(st.one_of(sends, _faults(message_points), resends, redelivers, pauses), max_size=_MOST_MOVES),
        st.booleans(),
        st.booleans(),
        st.booleans(),
    )


def _faults(points: int) -> st.SearchStrategy[Fault]:
    point = st.integers(1, max(1, points))
    crashes = st.builds(Crashes, point, st.just(1) | st.integers(1, _MOST_CRASHES))
    return crashes | st.builds(LosesConnection, point)
