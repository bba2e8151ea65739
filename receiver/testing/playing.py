"""Plays a story with a program: its lives one after another, until the broker is empty, and what then stands."""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import os
import signal
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import Pipe, get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

from sqlalchemy.util import greenlet_spawn

from receiver.errors import SettingsError
from receiver.testing.broker import AsyncFlakyBroker, FlakyBroker
from receiver.testing.life import Life, ProgramDied, place_of, this_task
from receiver.testing.story import Story
from receiver.testing.world import Came, Ended, Event, Fate, Struck, World

IDLE_SECS = 30
"""How long a program may make no call, where that can be seen: in an event loop, or in a process of its own."""
IDLE = Fate("endless", "as it", f"made no call for {IDLE_SECS} s")
_OWN_PLACE = (
    "let consume and effects take a second argument, story, and keep the effects of each story in a place of its own"
)


@dataclass(frozen=True)
class Program:
    """The program under test, and how it is run."""

    consume: Callable[..., Any]
    effects: Callable[..., Any]
    body: Callable[[str], bytes]
    messages: int = 30
    is_once: bool = True
    """Whether an effect may not stand twice."""
    is_killed: bool = False
    """Whether each life is a process, to be killed."""

    @property
    def is_async(self) -> bool:
        call = getattr(self.consume, "__call__", None)  # noqa: B004 - of an object that is called
        return inspect.iscoroutinefunction(self.consume) or inspect.iscoroutinefunction(call)


class Outcome(NamedTuple):
    """What became of a story."""

    journal: list[Event]
    labels: dict[str, tuple[int, str]]
    problem: str | None
    """What is wrong, in words; None if nothing is."""
    cause: BaseException | None
    points: int
    database_points: list[int]


class _End(NamedTuple):
    """How a life of the program ended."""

    error: str | None = None
    """Which exception of its own ended it."""
    cause: BaseException | None = None
    outlived: str | None = None
    """Where it caught its own death, and went on."""


def play(story: Story, program: Program, name: str, *, looks_often: bool = False) -> Outcome:
    """Play a story, under a fresh name. If it looks often, the journal has what stands after each life."""
    world = World(story, name, program.messages, program.body)
    problem, cause = _played(world, program, name, looks_often=looks_often)
    return Outcome(world.journal, world.labels, problem, cause, world.points, world.database_points)


def _played(world: World, program: Program, name: str, *, looks_often: bool) -> tuple[str | None, BaseException | None]:
    """What is wrong, and the program's error that it comes from."""
    if stands := _effects_so_far(program, name):
        return f"effects() had {min(stands)!r:.80} before the story began: {_OWN_PLACE}", None
    while True:
        lived, progress = len(world.journal), world.progress
        end = _killable_life(program, world, name) if program.is_killed else _life(program, world, name)
        strikes = [event.fate.kind for event in world.journal[lived:] if isinstance(event, Struck)]
        has_finished = not strikes and end.error is None and world.is_empty
        world.note(Ended(end.error, _effects_so_far(program, name) if looks_often and not has_finished else None))
        if end.outlived:
            return f"the program caught its own death at {end.outlived}: `except Exception` is enough", None
        if "endless" in strikes:
            return "consume doesn't end: let it return once receive() gives nothing", None
        if end.error and not strikes:
            return f"the program failed without a fault from outside: {end.error}", end.cause
        if has_finished:
            return _wrong_effects(world, program, _effects(program, name)), None
        if not strikes and world.progress == progress:
            has_taken = any(isinstance(event, Came) for event in world.journal)
            what = "acknowledges nothing of what it takes" if has_taken else "takes no message, though there are some"
            return f"consume {what}", None
        world.begin_life()


def _wrong_effects(world: World, program: Program, stands: Counter[str]) -> str | None:
    def named(id_: str) -> str:
        number, sender = world.labels[id_]
        return f"the effect of message {number} of sender {sender}"

    if strange := sorted(stands.keys() - world.labels.keys()):
        return f"effects() has {strange[0]!r:.80}, which nobody sent in this story"
    if missing := [id_ for id_ in world.labels if id_ not in stands]:
        return f"{named(missing[0])} is missing"
    if twice := [id_ for id_ in world.labels if stands[id_] > 1 and program.is_once]:
        times = {2: "twice"}.get(stands[twice[0]], f"{stands[twice[0]]} times")
        return f"{named(twice[0])} stands {times}"
    return None


def _effects(program: Program, name: str) -> Counter[str]:
    given = _called(program.effects, [], name)
    if inspect.isawaitable(given):
        given = asyncio.run(_awaited(given))
    ids = list(given) if isinstance(given, Iterable) and not isinstance(given, str) else given
    if not isinstance(ids, list) or not all(isinstance(id_, str) for id_ in ids):
        raise SettingsError(
            f"effects() must give the unique_message_id of each effect that stands, as text, not {ids!r:.80}"
        )
    return Counter(ids)


def _effects_so_far(program: Program, name: str) -> Counter[str] | None:
    """None if that can't be read: a program that makes its tables may have died before it had any."""
    try:
        return _effects(program, name)
    except SettingsError:
        raise
    except Exception:  # noqa: BLE001 - if it means anything, it comes again at the end of the story
        return None


async def _awaited(what: Awaitable[Any]) -> Any:
    return await what


def _called(function: Callable[..., Any], arguments: list[object], name: str) -> Any:
    """Call it, with the story's name too if it takes that."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # it is written in C, and doesn't say
        return function(*arguments)
    by_place = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    required = [each for each in parameters.values() if each.kind in by_place and each.default is each.empty]
    if len(required) > len(arguments):
        return function(*arguments, name)
    return function(*arguments, story=name) if "story" in parameters else function(*arguments)


def _run(program: Program, life: Life, name: str) -> object:
    """Run the program to its end; in which thread or task."""
    if program.is_async:
        return asyncio.run(_run_in_loop(program, life, name))
    given = _called(program.consume, [FlakyBroker(life)], name)
    if inspect.iscoroutine(given):
        given.close()
        raise SettingsError("consume gives a coroutine: write it as `async def consume(broker)`")
    return this_task()


async def _run_in_loop(program: Program, life: Life, name: str) -> object:
    """With the program's main task, or with a death in any task, all of its tasks end."""
    loop = asyncio.get_running_loop()
    death = loop.create_future()

    def on_death() -> None:
        loop.call_soon_threadsafe(death.cancel)

    life.on_death = on_death
    main = asyncio.ensure_future(_called(program.consume, [AsyncFlakyBroker(life)], name))
    calls = -1
    while not (main.done() or life.died):
        if life.calls == calls:
            with suppress(ProgramDied):
                life.meet(IDLE, _place_of(main))
        calls = life.calls
        await asyncio.wait([main, death], timeout=IDLE_SECS, return_when=asyncio.FIRST_COMPLETED)
    # Who dies closes connections on its way out, as SQLAlchemy does; to cancel that would leave them open.
    dying = {task for task in asyncio.all_tasks() - {asyncio.current_task()} if task is life.died_in}
    if dying:
        await asyncio.wait(dying, timeout=IDLE_SECS)
    has_ended = main.done()
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*dying, *others, return_exceptions=True)
    await (greenlet_spawn(life.cut) if importlib.util.find_spec("greenlet") else asyncio.to_thread(life.cut))
    if has_ended:
        main.result()
        return main
    raise ProgramDied


def _place_of(task: asyncio.Task[Any]) -> str:
    """Where a task waits."""
    coroutine: Any = task.get_coro()
    place = ""
    while frame := getattr(coroutine, "cr_frame", None):
        place = place_of(frame) or place
        coroutine = coroutine.cr_await
    return place


def _life(program: Program, world: World, name: str) -> _End:
    """A life in this process."""
    life = Life(lambda what, *arguments: getattr(world, what)(*arguments))
    Life.current, end = life, _End()
    try:
        life.goes_on |= life.died_in is _run(program, life, name)
    except SettingsError:
        raise
    except (Exception, ProgramDied) as error:  # noqa: BLE001 - the story tells it
        if not life.died:
            end = _End(_described(error), error)
    except BaseException:
        if not life.died:
            raise
    finally:
        Life.current = None
        life.cut()
        life.end()
        if life.died and life.goes_on:
            frame, line = next(iter(traceback.walk_tb(life.died.__traceback__)))
            end = _End(outlived=f"{Path(frame.f_code.co_filename).name}:{line}")
        for thrown in [life.died, end.cause, *life.losses]:
            if thrown:  # what its frames had half read would keep a lock of SQLite's
                traceback.clear_frames(thrown.__traceback__)
    return end


def _killable_life(program: Program, world: World, name: str) -> _End:
    """A life in a process of its own, which asks this one what its fate is."""
    ours, theirs = Pipe()
    process = get_context("fork").Process(target=_live_and_tell, args=(program, theirs, name))
    process.start()
    theirs.close()
    end = None
    with ours, suppress(EOFError, ConnectionError):
        while end is None:
            if not ours.poll(2 * IDLE_SECS):  # so that an event loop is the first to say so
                world.note(Struck(IDLE, ""))
                process.kill()
            what, *arguments = ours.recv()
            if what == "end":
                end = _End(*arguments)
            else:
                ours.send(getattr(world, what)(*arguments))
    process.join()
    if end is None and not isinstance(world.journal[-1], Struck):
        return _End(f"its process ended with exit code {process.exitcode}")
    return end or _End()


def _live_and_tell(program: Program, pipe: Connection, name: str) -> None:
    def ask(*what: object) -> Any:
        pipe.send(what)
        return pipe.recv()

    life = Life.current = Life(ask)
    life.on_death = lambda: os.kill(os.getpid(), signal.SIGKILL)
    try:
        _run(program, life, name)
    except BaseException as error:  # noqa: BLE001 - nobody is above it
        pipe.send(("end", _described(error)))
    else:
        pipe.send(("end",))


def _described(error: BaseException) -> str:
    said = str(error).partition("\n")[0].rstrip(".")
    return f"{type(error).__name__}: {said:.100}" if said else type(error).__name__
