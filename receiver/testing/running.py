"""A run of a program: in this process, in an event loop, or in a process of its own that can be killed."""

from __future__ import annotations

import asyncio
import gc
import importlib.util
import inspect
import os
import signal
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing import Pipe, get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, NoReturn

from sqlalchemy.util import greenlet_spawn

from receiver.errors import SettingsError
from receiver.testing.broker import AsyncFlakyBroker, FlakyBroker
from receiver.testing.crash_points import ProgramCrash, Run, line_of, this_task
from receiver.testing.world import Strike, Struck, World

IDLE_SECS = 30
"""How long a program may make no call. Only the main thread is watched."""
_AT_ONCE_SECS = 1e-6
"""0 would stop a timer."""
_LOOK_SECS = 0.1
"""How often to look whether a process that says nothing still runs."""


@dataclass(frozen=True)
class Program:
    """The program under test, and how to run it."""

    consume: Callable[..., Any]
    effects: Callable[..., Any]
    body: Callable[[str], bytes]
    messages: int
    is_once: bool
    """Whether an effect may not stand twice."""
    is_killed: bool
    """Whether each run is a process of its own, which is killed."""
    doubts: set[str] = field(default_factory=set, compare=False)
    """Reasons to doubt that `effects` can show what is to be proved."""

    @property
    def is_async(self) -> bool:
        return any(map(inspect.iscoroutinefunction, [self.consume, type(self.consume).__call__]))


class End(NamedTuple):
    """How a run of the program ended."""

    error: str | None = None
    """The program's own exception that ended the run, in words."""
    cause: BaseException | None = None
    outlived: str | None = None
    """The line where the program caught its own crash, and went on."""


def called(function: Callable[..., Any], arguments: list[object], story: str) -> Any:
    """Call a function, with the story's name as the last argument if it takes that."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # it is written in C, and doesn't say
        return function(*arguments)
    by_place = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    required = [each for each in parameters.values() if each.kind in by_place and each.default is each.empty]
    if len(required) > len(arguments):
        return function(*arguments, story)
    return function(*arguments, story=story) if "story" in parameters else function(*arguments)


def run(program: Program, world: World, story: str) -> End:
    """Run the program once."""
    return (_run_in_own_process if program.is_killed else _run_here)(program, world, story)


def _run_here(program: Program, world: World, story: str) -> End:
    current = Run(lambda what, *arguments: getattr(world, what)(*arguments))
    Run.current, end = current, End()
    try:
        with _exits_raise():
            ended_in = _consume(program, current, story)
        current.goes_on |= current.crashed_in is ended_in
    except (SettingsError, KeyboardInterrupt):
        raise
    except (Exception, SystemExit, ProgramCrash) as error:  # noqa: BLE001 - the story tells it
        if not current.crash:
            end = End(_described(error), error)
    except BaseException:
        if not current.crash:
            raise
    finally:
        current.end()  # first: a thread that goes on would commit what it does after its transaction was undone
        Run.current = None
        current.cut_connections()
        if current.crash and current.goes_on:
            (frame, line), *_ = traceback.walk_tb(current.crash.__traceback__)
            end = End(outlived=f"{Path(frame.f_code.co_filename).name}:{line}")
        for thrown in [current.crash, end.cause, *current.losses]:
            if thrown:  # half-read cursors in its frames would keep a lock of SQLite
                traceback.clear_frames(thrown.__traceback__)
        if current.crash and not world.executes:  # connections of a driver used directly keep locks, too
            gc.collect()
    return end


@contextmanager
def _exits_raise() -> Iterator[None]:
    """Within it `os._exit` ends only the run. Otherwise it would end all tests without a word, as if they had passed."""
    real, process = os._exit, os.getpid()

    def exit_(status: int) -> NoReturn:
        if os.getpid() != process:  # a process that the program has forked
            real(status)
        raise SystemExit(f"os._exit({status}), which would end the tests, too")

    os._exit = exit_
    try:
        yield
    finally:
        os._exit = real


def _run_in_own_process(program: Program, world: World, story: str) -> End:
    """Run the program in a process of its own, which asks this one about the fault of each call."""
    ours, theirs = Pipe()
    process = get_context("fork").Process(target=_run_and_tell, args=(program, theirs, story))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of a fork where there are threads: it makes its own
        process.start()
    theirs.close()
    end: End | None = None
    refused: SettingsError | None = None
    try:
        with ours, suppress(EOFError, ConnectionError):
            while end is None and refused is None:
                what, *arguments = _word_of(process, ours, world)
                if what == "end":
                    end = End(*arguments)
                elif what == "refused":
                    refused = arguments[0]
                else:
                    ours.send(getattr(world, what)(*arguments))
        process.join(IDLE_SECS)
    finally:  # nobody would answer the process, and Python waits for its processes when it ends
        goes_on = process.exitcode is None
        process.kill()
        assert process.pid  # noqa: S101 - it was started
        with suppress(ProcessLookupError, PermissionError):  # processes that it has forked
            os.killpg(process.pid, signal.SIGKILL)
        process.join()
    if refused is not None:
        raise refused
    if end is not None and goes_on:
        return End(f"its process still ran {IDLE_SECS} s after consume had returned: does it leave a thread?")
    if end is None and not isinstance(next(reversed(world.journal), None), Struck):
        return End(f"its process ended with exit code {process.exitcode}")
    return end or End()


def _word_of(process: BaseProcess, pipe: Connection, world: World) -> Any:
    """What the process says next. `EOFError` once it has ended, or has said nothing for long: then it is killed."""
    waits_until = time.monotonic() + 3 * IDLE_SECS  # if it can, the process itself reports this earlier
    while not pipe.poll(_LOOK_SECS):
        if not process.is_alive() and not pipe.poll():  # processes that it has forked may keep the pipe open
            raise EOFError
        if time.monotonic() > waits_until:
            world.note(Struck(_idle(), ""))
            process.kill()
            raise EOFError
    return pipe.recv()


def _run_and_tell(program: Program, pipe: Connection, story: str) -> None:
    os.setpgid(0, 0)

    def ask(*what: object) -> Any:
        pipe.send(what)
        return pipe.recv()

    current = Run.current = Run(ask)
    current.is_forked = True
    current.on_crash = lambda: os.kill(os.getpid(), signal.SIGKILL)
    try:
        _consume(program, current, story)
    except SettingsError as error:
        pipe.send(("refused", error))
    except BaseException as error:  # noqa: BLE001 - nobody is above it
        pipe.send(("end", _described(error)))
    else:
        pipe.send(("end",))


def _consume(program: Program, current: Run, story: str) -> object:
    """Run the program to its end. Returns the thread or task in which it ran."""
    if program.is_async:
        with _Alarm(current, 2 * IDLE_SECS):  # the loop itself notices most, and says where
            return asyncio.run(_consume_in_loop(program, current, story))
    with _Alarm(current, IDLE_SECS):
        given = called(program.consume, [FlakyBroker(current)], story)
    if inspect.iscoroutine(given):
        given.close()
        raise SettingsError("consume gives a coroutine", hint="write it as `async def consume(broker)`")
    if inspect.isgenerator(given) or inspect.isasyncgen(given):
        raise SettingsError("consume is a generator, so calling it does nothing", hint="write it without `yield`")
    return this_task()


async def _consume_in_loop(program: Program, current: Run, story: str) -> object:
    """As `_consume`, in an event loop. All tasks of the program end when its main task ends or any task crashes."""
    loop = asyncio.get_running_loop()
    crash = loop.create_future()

    def end_main_too() -> None:
        loop.call_soon_threadsafe(crash.cancel)

    if not program.is_killed:
        current.on_crash = end_main_too
    main = asyncio.ensure_future(called(program.consume, [AsyncFlakyBroker(current)], story))
    calls = -1
    while not (main.done() or current.crash):
        if current.calls == calls:
            with suppress(ProgramCrash):
                current.meet(_idle(), _line_of(main))
        calls = current.calls
        await asyncio.wait([main, crash], timeout=IDLE_SECS, return_when=asyncio.FIRST_COMPLETED)
    # A crashed task closes its connections on the way out, by SQLAlchemy. Cancelling it would leave them open.
    crashed = {task for task in asyncio.all_tasks() - {asyncio.current_task()} if task is current.crashed_in}
    if crashed:
        await asyncio.wait(crashed, timeout=IDLE_SECS)
    has_ended = main.done()
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*crashed, *others, return_exceptions=True)
    cut = current.cut_connections
    await (greenlet_spawn(cut) if importlib.util.find_spec("greenlet") else asyncio.to_thread(cut))
    if has_ended:
        main.result()
        return main
    raise ProgramCrash


def _line_of(task: asyncio.Task[Any]) -> str:
    """The line where a task waits."""
    coroutine: Any = task.get_coro()
    line = ""
    while frame := getattr(coroutine, "cr_frame", None):
        line = line_of(frame) or line
        coroutine = coroutine.cr_await
    return line


class _Alarm:
    """Within it, a timer's signal crashes the main thread: once the program has made no call for `secs`, or another of its threads
    has crashed. Does nothing in another thread, and if the signal has another use."""

    def __init__(self, current: Run, secs: float) -> None:
        self._current = current
        self._secs = secs
        self._calls = -1
        """How many calls there had been when it rang last."""
        self._on_crash = current.on_crash
        self._is_set = False
        self._changing = threading.Lock()

    def __enter__(self) -> None:
        is_free = hasattr(signal, "SIGALRM") and signal.getsignal(signal.SIGALRM) is signal.SIG_DFL
        if threading.current_thread() is threading.main_thread() and is_free:
            self._is_set = True
            self._current.on_crash = self._crash_in_main_too
            signal.signal(signal.SIGALRM, self._ring)
            signal.setitimer(signal.ITIMER_REAL, self._secs, self._secs)

    def __exit__(self, *_error: object) -> None:
        if self._is_set:
            with self._changing:
                self._is_set = False
                signal.setitimer(signal.ITIMER_REAL, 0)
                signal.signal(signal.SIGALRM, signal.SIG_DFL)

    def _ring(self, _number: int, frame: FrameType | None) -> None:
        """Called in the main thread, amid whatever that does."""
        current = self._current
        # A crash in `__exit__` would leave the timer on.
        is_leaving = frame is not None and frame.f_code is _Alarm.__exit__.__code__
        if is_leaving or not self._is_set or current.asking is threading.main_thread():
            return
        if current.crash:
            signal.setitimer(signal.ITIMER_REAL, self._secs, self._secs)  # until then it may clean up
            raise current.crash
        if current.calls == self._calls:
            current.meet(_idle())
        self._calls = current.calls

    def _crash_in_main_too(self) -> None:
        """Called in the thread that crashes."""
        self._on_crash()
        with self._changing:  # once the handler is gone, the signal would end this process
            if self._is_set and threading.current_thread() is not threading.main_thread():
                # Again and again, because a signal just before the main thread begins to wait doesn't wake it.
                signal.setitimer(signal.ITIMER_REAL, _AT_ONCE_SECS, _LOOK_SECS)


def _idle() -> Strike:
    return Strike("limit", "as it", f"made no call for {IDLE_SECS} s")


def _described(error: BaseException) -> str:
    said = str(error).partition("\n")[0].rstrip(".")
    return f"{type(error).__name__}: {said:.100}" if said else type(error).__name__
