"""Plays a story with a program, one run after another, until the broker is empty; then checks the effects."""

from __future__ import annotations

import asyncio
import inspect
from collections import Counter
from collections.abc import Awaitable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple

from sqlalchemy.exc import DBAPIError

from receiver.errors import SettingsError
from receiver.testing.crash_points import ProgramCrash
from receiver.testing.running import End, Program, called, run
from receiver.testing.story import Story
from receiver.testing.world import Came, Ended, Struck, World

_OWN_PLACE = "give consume and effects a second argument, story, and keep each story's effects in a place of its own"
_IN_MEMORY = "the end of a run cuts its connections, and a database in memory ends with them: use a file"


class Outcome(NamedTuple):
    """The outcome of a story."""

    world: World
    """The world after the story, with its journal."""
    problem: str | None
    """What is wrong, in words; None if nothing is."""
    cause: BaseException | None
    """The program's own error that caused the problem."""


def play(story: Story, program: Program, name: str, *, looks_often: bool = False) -> Outcome:
    """Play a story under a fresh name. With `looks_often`, the journal has the effects that stand after each run."""
    world = World(story, program.messages, program.body)
    return Outcome(world, *_played(world, program, name, looks_often=looks_often))


def _played(world: World, program: Program, name: str, *, looks_often: bool) -> tuple[str | None, BaseException | None]:
    if stands := _effects_so_far(program, name):
        return f"effects() had {min(stands)!r:.80} before the story began: {_OWN_PLACE}", None
    while True:
        begun, progress = len(world.journal), world.progress
        end = run(program, world, name)
        strikes = [event.strike.kind for event in world.journal[begun:] if isinstance(event, Struck)]
        is_done = not strikes and end.error is None and world.is_empty
        world.note(Ended(end.error, _effects_so_far(program, name) if looks_often and not is_done else None))
        if end.outlived:
            return (
                f"the program caught its own crash (ProgramCrash) at {end.outlived}: catch Exception, not BaseException",
                None,
            )
        if "limit" in strikes:
            return "consume doesn't end: let it return once receive() gives nothing", None
        if end.error and not strikes:
            if isinstance(end.cause, ProgramCrash):
                end = End(f"{end.cause}. Make threads in consume, or use kill=True")
            return f"the program failed without a fault from outside: {end.error}", end.cause
        if is_done:
            return _wrong_effects(world, program, _effects_at_end(program, name)), None
        if not strikes and world.progress == progress:
            has_taken = any(isinstance(event, Came) for event in world.journal)
            what = "acknowledges nothing of what it takes" if has_taken else "takes no message, though there are some"
            return f"consume {what}", None
        world.begin_run()


def _wrong_effects(world: World, program: Program, stands: Counter[str]) -> str | None:
    def named(id_: str) -> str:
        number, sender = world.labels[id_]
        return f"the effect of message {number} of sender {sender}"

    if strange := sorted(stands.keys() - world.labels.keys()):
        return f"effects() has {strange[0]!r:.80}, which nobody sent in this story"
    if missing := [id_ for id_ in world.labels if id_ not in stands]:
        return f"{named(missing[0])} is missing"
    if repeated := [id_ for id_ in world.labels if stands[id_] > 1 and program.is_once]:
        times = {2: "twice"}.get(stands[repeated[0]], f"{stands[repeated[0]]} times")
        return f"{named(repeated[0])} stands {times}"
    return None


def _effects(program: Program, name: str) -> Counter[str]:
    given = called(program.effects, [], name)
    if inspect.isawaitable(given):
        given = asyncio.run(_awaited(given))
    if program.is_once and isinstance(given, AbstractSet | Mapping):
        kind = type(given).__name__
        program.doubts.add(f"effects() gives a {kind}, which can't show that an effect stands twice: give a list")
    ids = list(given) if isinstance(given, Iterable) and not isinstance(given, str) else given
    if not isinstance(ids, list) or not all(isinstance(id_, str) for id_ in ids):
        raise SettingsError(
            f"effects() must give the unique_message_id of each effect that stands, as text, not {ids!r:.80}"
        )
    return Counter(ids)


def _effects_at_end(program: Program, name: str) -> Counter[str]:
    try:
        return _effects(program, name)
    except DBAPIError as error:
        if "no such table" in str(error):
            error.add_note(_IN_MEMORY)
        raise


def _effects_so_far(program: Program, name: str) -> Counter[str] | None:
    """The effects that stand; None if they can't be read: the program may have crashed before it made its tables."""
    try:
        return _effects(program, name)
    except SettingsError:
        raise
    except Exception:  # noqa: BLE001 - if it means anything, it comes again at the end of the story
        return None


async def _awaited(what: Awaitable[Any]) -> Any:
    return await what
