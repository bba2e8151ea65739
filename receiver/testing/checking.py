"""`check_exactly_once`: plays many stories with a program under test, and reports the smallest that fails."""

from __future__ import annotations

import asyncio
import itertools
import os
import secrets
import threading
import warnings
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from random import Random

import hypothesis
from hypothesis import Phase
from hypothesis.errors import Flaky, NoSuchExample

from receiver.errors import SettingsError
from receiver.testing.crash_points import watched
from receiver.testing.playing import Outcome, play
from receiver.testing.running import Program
from receiver.testing.story import ONE_MESSAGE, SHORT_STORIES, Story, of_many, stories, with_each_fault
from receiver.testing.words import steps_of

_MOST_MESSAGES = 100_000
_FIRST_STEPS, _LAST_STEPS = 12, 8
"""How many steps are shown of a longer story."""
_under_way = threading.Lock()
_names = (f"story_{number}_{secrets.token_hex(3)}" for number in itertools.count(1))
"""Names of stories: unique, also among processes. Nothing else in a story depends on its name."""


class NoDatabaseWarning(UserWarning):
    """The program executes nothing through SQLAlchemy, so it doesn't crash at what it does in a database."""


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
    """Check that each message has its effect once, whatever crashes, fails or comes again.

    A story has a broker, senders and faults. First each crash point of a story of one message is tried in turn: the program
    crashes there, and the call there fails. Then `max_examples` longer stories are drawn. If a story fails, the smallest that
    still fails is searched. Equal arguments give equal stories.

    Args:
        consume: The program under test, `consume(broker)` or `consume(broker, story)`. It takes messages from the
            `FlakyBroker` until `receive` gives none, and returns. It is run again after each crash, so it makes its own
            connections. With `async def` it gets an `AsyncFlakyBroker`, and an event loop for each run.
            `story` is a fresh name for each story: keep the effects of each in a place of that name.
        effects: `effects()` or `effects(story)`: a list with the `unique_message_id` of each effect that stands, twice if the
            effect stands twice. May be `async def`.
        messages: How many messages a story may have, up to 100,000.
        at_least_once: An effect may stand twice. None may be missing.
        kill: Run the program in a process of its own, and crash it by SIGKILL: slower, but nothing of it outlives a crash.
        max_examples: How many longer stories are drawn.
        seed: The seed from which they are drawn.
        body: Makes a message's body of its `unique_message_id`.

    Raises:
        AssertionError: A story failed. The message has the smallest one found, step by step.
        SettingsError: An argument, or a result of `consume` or `effects`, can't be used.
    """
    program = Program(consume, effects, body, messages, is_once=not at_least_once, is_killed=kill)
    _check(program, max_examples, seed)
    if not _under_way.acquire(blocking=False):
        raise SettingsError("another check_exactly_once is under way in this process", hint="check one after the other")
    try:
        with watched():
            search = _Search(program, seed)
            story = search.in_turn() or search.drawn(max_examples)
            said, cause = search.account_of(story) if story else (None, None)
    finally:
        _under_way.release()
    if said:
        raise AssertionError(said) from cause


def _check(program: Program, max_examples: int, seed: int) -> None:
    for name, value in (("consume", program.consume), ("effects", program.effects), ("body", program.body)):
        _check_function(name, value)
    for name, number in (("messages", program.messages), ("max_examples", max_examples)):
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            raise SettingsError(f"{name} must be a whole number, 1 or more, not {number!r:.80}")
    if program.messages > _MOST_MESSAGES:
        raise SettingsError(f"messages must be {_MOST_MESSAGES:,} or fewer: a story holds all of them in memory")
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise SettingsError(f"seed must be a whole number, not {seed!r:.80}")
    if not isinstance(body := program.body("1:A"), bytes):
        raise SettingsError(f"body must give bytes, not {body!r:.80}")
    if program.is_killed and not hasattr(os, "fork"):
        raise SettingsError("kill=True needs os.fork, which this system lacks")
    with suppress(RuntimeError):
        if asyncio.get_running_loop():
            raise SettingsError(
                "check_exactly_once was called in an event loop", hint="call it in a test without async"
            )


def _check_function(name: str, value: object) -> None:
    if not callable(value):
        raise SettingsError(f"{name} must be a function, not {value!r:.80}")
    if isinstance(value, type) and "__call__" in dir(value):  # of its objects, not of `type`
        raise SettingsError(f"{name} is the class {value.__name__}, not an object", hint=f"give {value.__name__}()")


class _Search:
    """Plays stories until one fails, and finds the smallest that fails."""

    def __init__(self, program: Program, seed: int) -> None:
        self._program = program
        self._seed = seed
        self._setup_points = self._message_points = 0
        self._played = self._first_wrong = 0
        """How many stories were played, and the number of the first that failed."""
        self._wrong: dict[Story, Outcome] = {}

    def in_turn(self) -> Story | None:
        """The first story that fails among the short ones, and those of one message and each fault."""
        plain = self._play(ONE_MESSAGE)
        for doubt in self._program.doubts:
            warnings.warn(doubt, stacklevel=3)
        if plain.problem:
            return ONE_MESSAGE
        world = plain.world
        if not world.executes:
            warnings.warn(
                "the program executes nothing through SQLAlchemy: it doesn't crash at what it does in a database",
                NoDatabaseWarning,
                stacklevel=3,
            )
        self._setup_points = world.setup_points or 0
        setup, then = world.points[: self._setup_points], world.points[self._setup_points :]
        self._message_points = len(then)
        short = next(filter(self._goes_wrong, SHORT_STORIES), None)
        return short or self._of_many() or next(filter(self._goes_wrong, with_each_fault(setup, then)), None)

    def _of_many(self) -> Story | None:
        """A story of many messages that fails, with the fewest messages that a search by halves finds."""
        fewest, most = 1, self._program.messages  # of one message it is a short story
        for kind, story in enumerate(of_many(most)):
            if self._goes_wrong(story):
                while most - fewest > 1:
                    middle = (fewest + most) // 2
                    if self._goes_wrong(of_many(middle)[kind]):
                        most = middle
                    else:
                        fewest = middle
                return of_many(most)[kind]
        return None

    def drawn(self, max_examples: int) -> Story | None:
        """The smallest longer story that fails. Hypothesis draws the stories and shrinks them."""
        settings = hypothesis.settings(
            max_examples=max_examples,
            database=None,
            deadline=None,
            derandomize=False,
            phases=[Phase.generate, Phase.shrink],
        )
        longer = stories(self._program.messages, self._setup_points, self._message_points)
        random = Random(self._seed)  # noqa: S311 - the same stories each time
        try:
            return hypothesis.find(longer, self._goes_wrong, settings=settings, random=random)
        except NoSuchExample:
            return None
        except Flaky:
            return next(reversed(self._wrong))

    def account_of(self, story: Story) -> tuple[str, BaseException | None]:
        """The report on a story that fails: the problem, and the story step by step. Also the program's own error, if any."""
        again = play(story, self._program, name := next(_names), looks_often=True)
        outcome = again if again.problem else self._wrong[story]
        steps = [
            f"{number:>3}. {step}"
            for number, step in enumerate(steps_of(outcome.world.journal, outcome.world.labels), 1)
        ]
        steps[_FIRST_STEPS:-_LAST_STEPS] = steps[_FIRST_STEPS:-_LAST_STEPS] and ["     …"]
        lines = [str(outcome.problem), *(["The smallest story found:", "", *steps, ""] if steps else [])]
        if not again.problem:
            lines.append("It doesn't always end so. Does the program use threads, a clock or chance?")
        elif steps and story != ONE_MESSAGE and play(ONE_MESSAGE, self._program, next(_names)).problem:
            lines.append(
                "Something stays from one story to the next, such as a module's variable: now a single message goes wrong"
                " that was right at first. Keep such things in consume, or use kill=True."
            )
        more = self._played - self._first_wrong
        smaller = f", made smaller by {more} more" if more else ""
        lines.append(
            f"Found as story {self._first_wrong} of seed={self._seed}{smaller} (Hypothesis {hypothesis.__version__});"
            f" played again as {name}."
        )
        return "\n".join(lines), outcome.cause

    def _goes_wrong(self, story: Story) -> bool:
        return self._play(story).problem is not None

    def _play(self, story: Story) -> Outcome:
        self._played += 1
        outcome = play(story, self._program, next(_names))
        if outcome.problem:
            self._first_wrong = self._first_wrong or self._played
            self._wrong[story] = outcome
        return outcome
