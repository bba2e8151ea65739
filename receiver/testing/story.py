"""What happens to a program under test: a story, as a value that can be drawn, made smaller and played again."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st

SENDERS = "ABC"
MOST_DEATHS = 3
"""At one crash point. Programs that give up a message after two or three tries are found by it."""
_MOST_MOVES = 10
_FEW = 3
_DAY_SECS = 86_400


@dataclass(frozen=True, slots=True)
class Sends:
    """A sender sends so many new messages. The broker may give them out together."""

    sender: str
    count: int = 1


@dataclass(frozen=True, slots=True)
class Resends:
    """The sender of the newest message begins again, as another process, and sends its last messages again.

    To the broker they are new ones.
    """

    last: int


@dataclass(frozen=True, slots=True)
class Redelivers:
    """The broker gives out again the message that was acknowledged as the last, or so many before."""

    last: int


@dataclass(frozen=True, slots=True)
class Pauses:
    """The broker has nothing for so long, so the program ends, and is started again."""

    secs: int


@dataclass(frozen=True, slots=True)
class Dies:
    """The program dies at that crash point, counted from 1; in so many lives, one after another.

    Each call to the broker or a database has a crash point before it and one after it.
    """

    point: int
    times: int = 1


@dataclass(frozen=True, slots=True)
class Fails:
    """The call to the database at that crash point, or the next one, fails as it does where the connection is lost."""

    point: int


Move = Sends | Resends | Redelivers | Pauses | Dies | Fails


@dataclass(frozen=True, slots=True)
class Story:
    """The moves of the senders, the broker and fate, in order.

    The broker makes the next move when it has no message left to give. A fault doesn't wait for that: counting to its
    crash point begins once the move before it is made, and the fault before it has struck.
    """

    moves: tuple[Move, ...]
    is_flagged: bool = True
    """Whether the broker flags what it redelivers."""
    is_behind: bool = False
    """Whether what wasn't acknowledged comes again behind newer messages, not before them."""


SHORT_STORIES = (
    Story((Sends("A"),)),
    Story((Sends("A", 2), Sends("B"))),
    Story((Sends("A"), Redelivers(1))),
    Story((Sends("A"), Redelivers(1)), is_flagged=False),
    Story((Sends("A"), Resends(1))),
    Story((Sends("A"), Pauses(_DAY_SECS), Redelivers(1))),
    Story((Sends("A"), Pauses(_DAY_SECS), Resends(1))),
)
"""Stories without a fault, which are tried first."""


def stories(messages: int, points: int) -> st.SearchStrategy[Story]:
    """Stories of up to so many messages. A program comes upon about so many crash points for one message."""
    counts = st.integers(1, min(_FEW, messages)) | st.integers(1, messages)
    point = st.integers(1, points)
    sends = st.builds(Sends, st.sampled_from(SENDERS), counts)
    dies = st.builds(Dies, point, st.just(1) | st.integers(1, MOST_DEATHS))
    fails = st.builds(Fails, point)
    resends, redelivers = st.builds(Resends, counts), st.builds(Redelivers, counts)
    pauses = st.builds(Pauses, st.integers(1, 7 * _DAY_SECS))
    return st.builds(
        lambda first, begin, then, is_flagged, is_behind: Story((*first, begin, *then), is_flagged, is_behind),
        st.lists(dies | fails, max_size=1),
        sends,
        st.lists(st.one_of(sends, dies, resends, redelivers, fails, pauses), max_size=_MOST_MOVES),
        st.booleans(),
        st.booleans(),
    )
