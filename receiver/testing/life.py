"""A life of the program under test: each of its calls goes by here, and one of them may be its last.

The calls to a database are SQLAlchemy's, on any engine. Where a program dies, its connections are cut as by the death of a
process: nothing uncommitted stays, and no lock.
"""

from __future__ import annotations

import asyncio
import sys
import sysconfig
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, ClassVar

from sqlalchemy import Connection, Dialect, Engine, Pool, PoolProxiedConnection, event
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.exc import OperationalError

from receiver.testing.world import Committed, Fate, Struck

_LOST = "the connection is lost (a fault by receiver.testing)"
_LEFT = "a thread of an earlier life goes on; let each life start its own"
_MOST_WHEN_DEAD = 100
"""Calls of a program that catches its own death again and again. Then it is told that there are no more messages."""
_CURSORS = "receiver.testing"
"""Of a connection's information: its cursors. One that is half read would keep SQLite's lock as long as it lives."""
_SHOWN_STATEMENT = 40
_NO_PROGRAM = ("<", str(Path(__file__).parents[1]), *map(sysconfig.get_path, ("stdlib", "purelib", "platlib")))
"""What the names of files begin with whose code isn't the program under test."""
_EVENTS = {
    Engine: ("do_connect", "before_cursor_execute", "after_cursor_execute", "commit", "rollback", "handle_error"),
    Pool: ("connect", "checkout"),
}


class ProgramDied(BaseException):
    """The program under test dies here. It is no `Exception`: nobody outlives his own death."""


class Life:
    """One life of a program, from its start to its end or its death."""

    current: Life | None = None
    """The one that is under way in this process."""
    left_threads: ClassVar[weakref.WeakSet[threading.Thread]] = weakref.WeakSet()
    """Threads of programs whose lives have ended."""

    def __init__(self, ask: Callable[..., Any]) -> None:
        """`ask(what, *arguments)` asks the `World`."""
        self.calls = 0
        self._asking = threading.Lock()
        self._ask = ask
        self.died: ProgramDied | None = None
        self.died_in: object = None
        """The thread or the task."""
        self.goes_on = False
        """Whether it asks for messages after its death. To clean up is all right."""
        self.losses: list[Exception] = []
        """The errors that the program was given for lost connections."""
        self.on_death: Callable[[], None] = self.cut
        self._calls_when_dead = 0
        self._due: dict[int, Fate] = {}
        """What is to become of calls once they are made."""
        self._proxies: weakref.WeakSet[Any] = weakref.WeakSet()
        self._entries: weakref.WeakSet[Any] = weakref.WeakSet()
        self._threads_before = set(threading.enumerate())

    def ask(self, what: str, *arguments: Any) -> Any:
        """A program may have several threads."""
        self.calls += 1
        with self._asking:
            return self._ask(what, *arguments)

    def call(self, name: str, *arguments: Any) -> Any:
        """A call to the broker."""
        if self.died and name == "receive":
            self.goes_on = self.goes_on or this_task() is self.died_in
        if self._calls_when_dead > _MOST_WHEN_DEAD:
            return []
        fate = self.fate(f"{name}()")
        if fate and fate.when == "before":
            self.meet(fate)
        result = self.ask(name, *arguments)
        if fate:
            self.meet(fate)
        return result

    def fate(self, call: str, *, is_database: bool = False) -> Fate | None:
        """What is to become of a call that is about to be made. The dead make none."""
        if self.died or threading.current_thread() in self.left_threads:
            self._calls_when_dead += 1
            raise ProgramDied(_LEFT)
        fate: Fate | None = self.ask("fate", call, is_database)
        return fate

    def meet(self, fate: Fate, place: str | None = None) -> None:
        """Die; or, where only the call is to fail, return."""
        self.ask("note", Struck(fate, _place() if place is None else place))
        if fate.kind == "fails":
            return
        self.died, self.died_in = ProgramDied(f"{fate.when} {fate.call}"), this_task()
        self.on_death()
        raise self.died

    def cut(self) -> None:
        """Cut all connections that the program has made, as the system does for a process that has died."""
        for proxy in list(self._proxies):
            if proxy.is_valid:
                _undo(proxy)
                proxy.invalidate()
        for entry in list(self._entries):
            entry.invalidate()

    def end(self) -> None:
        """What goes on in threads of its own is dead from now on."""
        self.left_threads.update(set(threading.enumerate()) - self._threads_before)

    # SQLAlchemy's events, by their names there.

    def do_connect(self, dialect: Dialect, entry: Any, *_: Any) -> None:
        fate = self.fate("connect", is_database=True)
        if fate and (fate.kind == "fails" or fate.when == "before"):
            self.meet(fate)
            raise self._loss(dialect)
        self._set_due(entry, fate)

    def connect(self, _: Any, entry: Any) -> None:
        self._entries.add(entry)
        if fate := self._due.pop(id(entry), None):
            self.meet(fate)

    def checkout(self, _: Any, entry: Any, proxy: Any) -> None:
        self._entries.add(entry)
        self._proxies.add(proxy)

    def before_cursor_execute(self, connection: Connection, cursor: Any, statement: str, *_: Any) -> None:
        if not connection.dialect.is_async:  # whose cursors read all at once
            connection.info.setdefault(_CURSORS, weakref.WeakSet()).add(cursor)
        fate = self.fate(_shortened(statement), is_database=True)
        if fate and fate.when == "before":
            self._strike(connection, fate)
        self._set_due(cursor, fate)

    def after_cursor_execute(self, connection: Connection, cursor: Any, *_: Any) -> None:
        if fate := self._due.pop(id(cursor), None):
            self._strike(connection, fate)

    def commit(self, connection: Connection) -> None:
        fate = self.fate("COMMIT", is_database=True)
        if fate and fate.when == "before":
            self._strike_ending(connection, fate)
        if fate:  # there is no event after a commit, so this one must have happened here
            connection.dialect.do_commit(connection.connection)
        self.ask("note", Committed())
        if fate:
            self._strike_ending(connection, fate)

    def rollback(self, connection: Connection) -> None:
        if connection.invalidated:
            return
        fate = self.fate("ROLLBACK", is_database=True)
        if fate and fate.when == "after":
            connection.dialect.do_rollback(connection.connection)
        if fate:
            self._strike_ending(connection, fate)

    def handle_error(self, context: ExceptionContext) -> None:
        if context.original_exception in self.losses:
            context.is_disconnect = True

    def _set_due(self, call: object, fate: Fate | None) -> None:
        self._due.pop(id(call), None)  # of an earlier one, which failed by itself
        if fate:
            self._due[id(call)] = fate

    def _strike(self, connection: Connection, fate: Fate) -> None:
        self.meet(fate)
        _undo(connection.connection)
        raise self._loss(connection.dialect)  # by which SQLAlchemy gives up the connection, see `handle_error`

    def _strike_ending(self, connection: Connection, fate: Fate) -> None:
        """At the end of a transaction SQLAlchemy takes an event's error as it is."""
        self.meet(fate)
        loss = self._loss(connection.dialect)
        _undo(connection.connection)
        connection.invalidate(loss)
        raise OperationalError(fate.call, None, loss, connection_invalidated=True)

    def _loss(self, dialect: Dialect) -> Exception:
        """What the driver raises where the connection is lost."""
        loss: Exception = dialect.loaded_dbapi.OperationalError(_LOST)
        self.losses.append(loss)
        return loss


@contextmanager
def watched() -> Iterator[None]:
    """Within it, the calls that programs make through SQLAlchemy go by their `Life`."""
    listeners = [(target, name, _listener(name)) for target, names in _EVENTS.items() for name in names]
    for target, name, listener in listeners:
        event.listen(target, name, listener)
    others, threading.excepthook = threading.excepthook, lambda thrown: _is_dead() or others(thrown)
    try:
        yield
    finally:
        threading.excepthook = others
        for target, name, listener in listeners:
            event.remove(target, name, listener)


def _listener(name: str) -> Callable[..., None]:
    def listener(*arguments: Any) -> None:
        if threading.current_thread() in Life.left_threads:
            raise ProgramDied(_LEFT)
        if Life.current:
            getattr(Life.current, name)(*arguments)

    return listener


def _is_dead() -> bool:
    """Whether this thread is a dead program's, of which nobody hears."""
    return threading.current_thread() in Life.left_threads or bool(Life.current and Life.current.died)


def _undo(proxy: PoolProxiedConnection) -> None:
    """Leave nothing of a connection's transaction, before the connection goes too.

    A rollback is waited for; a server would notice only a moment later that the connection is gone.
    """
    for end in (*[cursor.close for cursor in proxy.info.get(_CURSORS, ())], proxy.rollback):
        with suppress(Exception):  # it may be lost already
            end()


def this_task() -> object:
    """The task of an event loop, or else the thread, that runs this."""
    with suppress(RuntimeError):
        return asyncio.current_task()
    return threading.current_thread()


def _shortened(statement: str) -> str:
    words = " ".join(statement.split())
    return words if len(words) <= _SHOWN_STATEMENT else words[:_SHOWN_STATEMENT] + "…"


def _place() -> str:
    """The line of the program under test that makes the call."""
    return next(filter(None, map(place_of, _frames())), "")


def place_of(frame: FrameType) -> str:
    """`file.py:17`; nothing if that isn't of the program."""
    file = frame.f_code.co_filename
    return "" if file.startswith(_NO_PROGRAM) else f"{Path(file).name}:{frame.f_lineno}"


def _frames() -> Iterator[FrameType]:
    """The frames from here outwards; out of the greenlet, too, in which SQLAlchemy awaits an asynchronous driver."""
    frame: FrameType | None = sys._getframe()  # noqa: SLF001 - `inspect` takes a thousand times as long
    while frame:
        yield frame
        frame = frame.f_back
    if "greenlet" in sys.modules:
        parent = sys.modules["greenlet"].getcurrent().parent
        frame = parent and parent.gr_frame
        while frame:
            yield frame
            frame = frame.f_back
