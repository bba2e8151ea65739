"""Plays a story with a program: one run after another, until the broker is empty; then what is wrong, if anything is."""

from __future__ import annotations

import asyncio
import inspect
from collections import Counter
from collections.abc import Awaitable, Iterable
from typing import Any, NamedTuple

from receiver.errors import SettingsError
from receiver.testing.running import Program, called, run
from receiver.testing.story import Story
from receiver.testing.world import Came, Ended, Event, Struck, World

_OWN_PLACE = "give consume and effects a second argument, story, and keep each story's effects in a place of its own"


class Outcome(NamedTuple):
    """What became of a story."""

    journal: list[Event]
    labels: dict[str, tuple[int, str]]
    points: list[bool]
    setup_points: int
    problem: str | None
    """What is wrong, in words; None if nothing is."""
    cause: BaseException | None
    """The program's own error that it comes from."""


def play(story: Story, program: Program, name: str, *, looks_often: bool = False) -> Outcome:
    """Play a story under a fresh name. If it looks often, the journal has the effects that stand after each run."""
    world = World(story, program.messages, program.body)
    problem, cause = _played(world, program, name, looks_often=looks_often)
    return Outcome(world.journal, world.labels, world.points, world.setup_points or 0, problem, cause)


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
            return f"the program caught its own crash at {end.outlived}: `except Exception` is enough", None
        if "limit" in strikes:
            return "consume doesn't end: let it return once receive() gives nothing", None
        if end.error and not strikes:
            return f"the program failed without a fault from outside: {end.error}", end.cause
        if is_done:
            return _wrong_effects(world, program, _effects(program, name)), None
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
    ids = list(given) if isinstance(given, Iterable) and not isinstance(given, str) else given
    if not isinstance(ids, list) or not all(isinstance(id_, str) for id_ in ids):
        raise SettingsError(
            f"effects() must give the unique_message_id of each effect that stands, as text, not {ids!r:.80}"
        )
    return Counter(ids)


def _effects_so_far(program: Program, name: str) -> Counter[str] | None:
    """None if they can't be read: a program that makes its tables may have crashed before it had any."""
    try:
        return _effects(program, name)
    except SettingsError:
        raise
    except Exception:  # noqa: BLE001 - if it means anything, it comes again at the end of the story
        return None


async def _awaited(what: Awaitable[Any]) -> Any:
    return await what
