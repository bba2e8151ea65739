"""`check_exactly_once`: a program under test through many stories, and the smallest that shows what is wrong with it."""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
import warnings
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from random import Random

import hypothesis
from hypothesis import Phase
from hypothesis.errors import Flaky, NoSuchExample

from receiver.errors import SettingsError
from receiver.testing.life import watched
from receiver.testing.playing import Outcome, Program, play
from receiver.testing.story import MOST_DEATHS, SHORT_STORIES, Dies, Fails, Move, Sends, Story, stories
from receiver.testing.words import steps_of

_under_way = threading.Lock()
_FIRST_STEPS, _LAST_STEPS = 12, 8
"""How many steps are shown of a story that has more."""
_names = (f"story{number}" for number in itertools.count(1))
"""No two stories of a process have the same name."""


class NoDatabaseWarning(UserWarning):
    """The program makes no call to a database through SQLAlchemy, so it dies at calls to the broker alone."""


def check_exactly_once(
    consume: Callable[..., None] | Callable[..., Awaitable[None]],
    effects: Callable[..., Iterable[str]] | Callable[..., Awaitable[Iterable[str]]],
    *,
    messages: int = 30,
    at_least_once: bool = False,
    kill: bool = False,
    max_examples: int = 100,
    seed: int = 0,
    body: Callable[[str], bytes] = str.encode,
) -> None:
    """Show that each message has its effect once, whatever dies, fails or comes again; or raise the story that shows otherwise.

    A story has a broker, senders and faults. First each crash point of a story of one message is tried in turn: the
    program dies there, and the call there fails. Then `max_examples` longer stories are drawn, and the smallest is looked
    for that still shows what is wrong. The same arguments tell the same stories.

    Args:
        consume: The program under test, `consume(broker)` or `consume(broker, story)`; with `async def` it runs in an event
            loop of its own. It takes messages of the `FlakyBroker` (`AsyncFlakyBroker`) until `receive` gives none. Whatever
            it needs, such as a connection, it makes itself, for it is run again after each death. `story` is a fresh name
            for each story: keep its effects in a place of that name.
        effects: The `unique_message_id` of each effect that stands, `effects()` or `effects(story)`; `async def` will do.
        messages: How many messages a story may have.
        at_least_once: An effect may stand twice. None may be missing.
        kill: Run the program in a process of its own, to die by SIGKILL. Slower, and nothing of it outlives its death.
        max_examples: How many stories are drawn.
        seed: What they are drawn from.
        body: What to make of a `unique_message_id` the body of its message.

    Raises:
        AssertionError: With the smallest story found, step by step.
        SettingsError: An argument, or what it gives, isn't as it should be.
    """
    program = Program(consume, effects, body, messages, is_once=not at_least_once, is_killed=kill)
    _check(program, max_examples)
    if not _under_way.acquire(blocking=False):
        raise SettingsError("another check_exactly_once is under way in this process", hint="check one after the other")
    try:
        with watched():
            search = _Search(program, seed)
            story = search.in_turn() or search.drawn(max_examples)
            found = story and search.once_more(story)
    finally:
        _under_way.release()
    if found:
        raise AssertionError(search.told(found)) from found.cause


def _check(program: Program, max_examples: int) -> None:
    for name, value in (("consume", program.consume), ("effects", program.effects), ("body", program.body)):
        if not callable(value):
            raise SettingsError(f"{name} must be a function, not {value!r:.80}")
    for name, number in (("messages", program.messages), ("max_examples", max_examples)):
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            raise SettingsError(f"{name} must be a whole number, 1 or more, not {number!r:.80}")
    if program.is_killed and not hasattr(os, "fork"):
        raise SettingsError("kill=True needs os.fork, which this system hasn't")
    with suppress(RuntimeError):
        if asyncio.get_running_loop():
            raise SettingsError(
                "check_exactly_once was called in an event loop", hint="call it in a test without async"
            )


class _Search:
    """Plays stories until one goes wrong, and finds the smallest that does."""

    def __init__(self, program: Program, seed: int) -> None:
        self._program = program
        self._seed = seed
        self._points = 1
        """For a message."""
        self._played = 0
        self._first_wrong = 0
        """Which of them was the first to go wrong."""
        self._wrong: dict[Story, Outcome] = {}
        self._is_flaky = False
        """Whether the smallest story doesn't always go wrong."""

    def in_turn(self) -> Story | None:
        """Short stories without a fault, and then one message with each fault at each of its crash points."""
        outcome = self._play(SHORT_STORIES[0])
        if outcome.problem:
            return SHORT_STORIES[0]
        if not outcome.database_points:
            warnings.warn(
                "the program makes no call to a database through SQLAlchemy: it dies at calls to the broker alone",
                NoDatabaseWarning,
                stacklevel=3,
            )
        self._points = outcome.points
        points = range(1, outcome.points + 1)
        faults: list[Move] = [
            *map(Dies, points),
            *map(Fails, outcome.database_points),
            *(Dies(p, MOST_DEATHS) for p in points),
        ]
        in_turn = [*SHORT_STORIES[1:], *(Story((fault, Sends("A"))) for fault in faults)]
        return next(filter(self._goes_wrong, in_turn), None)

    def drawn(self, max_examples: int) -> Story | None:
        """Longer stories, by Hypothesis."""
        settings = hypothesis.settings(
            max_examples=max_examples,
            database=None,
            deadline=None,
            derandomize=False,
            phases=[Phase.generate, Phase.shrink],
        )
        longer = stories(self._program.messages, self._points)
        random = Random(self._seed)  # noqa: S311 - the same stories each time
        try:
            return hypothesis.find(longer, self._goes_wrong, settings=settings, random=random)
        except NoSuchExample:
            return None
        except Flaky:
            return next(reversed(self._wrong))

    def once_more(self, story: Story) -> Outcome:
        """What went wrong, with all that there is to tell."""
        outcome = play(story, self._program, next(_names), looks_often=True)
        self._is_flaky = outcome.problem is None
        return self._wrong[story] if self._is_flaky else outcome

    def told(self, found: Outcome) -> str:
        steps = steps_of(found.journal, found.labels)
        lines = [f"{number:>3}. {step}" for number, step in enumerate(steps, 1)]
        lines[_FIRST_STEPS:-_LAST_STEPS] = lines[_FIRST_STEPS:-_LAST_STEPS] and ["     …"]
        story = ["The smallest story found:", "", *lines, ""] if steps else []
        flaky = ["It doesn't always end so: does the program use threads, a clock or chance?"] if self._is_flaky else []
        smaller = self._played - self._first_wrong
        again = (
            f"Story {self._first_wrong} with seed={self._seed} went wrong, and {smaller} more made it smaller"
            f" (Hypothesis {hypothesis.__version__})."
        )
        return "\n".join([str(found.problem), *story, *flaky, again])

    def _goes_wrong(self, story: Story) -> bool:
        return self._play(story).problem is not None

    def _play(self, story: Story) -> Outcome:
        self._played += 1
        outcome = play(story, self._program, next(_names))
        if outcome.problem:
            self._first_wrong = self._first_wrong or self._played
            self._wrong[story] = outcome
        return outcome
