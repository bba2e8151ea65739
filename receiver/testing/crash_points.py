"""One run of the program under test: each of its calls passes through here, and may be its last.

Calls to a database are those through SQLAlchemy, on any engine. A crash cuts the program's connections, as the death of a
process does: nothing uncommitted stays, and no lock.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import sysconfig
import threading
import traceback
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, ClassVar

from sqlalchemy import Connection, Dialect, Engine, Pool, PoolProxiedConnection, event
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.exc import DisconnectionError, OperationalError

from receiver.testing.world import CONNECT, Committed, Strike, Struck

_LOST = "the connection is lost (a fault by receiver.testing)"
_OVER = "a thread of an earlier run made a call"
_MOST_CALLS_AFTERWARDS = 100
"""How many calls a program that catches its own crash may make. Then the broker has no more messages for it."""
_USE = "receiver.testing"
"""Key in a connection's `info`: its `_Use`."""
_SHOWN_STATEMENT = 40
_NO_PROGRAM = ("<", str(Path(__file__).parents[1]), *map(sysconfig.get_path, ("stdlib", "purelib", "platlib")))
"""How names of files begin whose code isn't the program's."""
_EVENTS = {
    Engine: ("do_connect", "before_cursor_execute", "after_cursor_execute", "commit", "rollback", "handle_error"),
    Pool: ("connect", "checkout"),
}


class ProgramCrash(BaseException):
    """The program under test crashes here. It is no `Exception`, because no program goes on after its own crash."""


class _Use:
    """The program's use of a connection."""

    def __init__(self) -> None:
        self.thread = threading.current_thread()
        """The thread that used it last."""
        self.is_executing = False
        self.cursors: weakref.WeakSet[Any] = weakref.WeakSet()
        """Its cursors: a half-read one would keep SQLite's lock as long as it lives."""


class Run:
    """One run of the program, from its start to its end or its crash."""

    current: Run | None = None
    """The run that is under way in this process."""
    left_threads: ClassVar[weakref.WeakSet[threading.Thread]] = weakref.WeakSet()
    """Threads of runs that are over."""

    def __init__(self, ask: Callable[..., Any]) -> None:
        """`ask(what, *arguments)` asks the `World`."""
        self.crash: ProgramCrash | None = None
        self.crashed_in: object = None
        """The thread or the task that crashed."""
        self.goes_on = False
        """Whether the program asked for messages after its crash. Cleaning up is allowed."""
        self.losses: list[Exception] = []
        """The errors that the program was given for lost connections."""
        self.on_crash: Callable[[], None] = self.cut_connections
        self.process = os.getpid()
        self.is_forked = False
        """Whether this process was forked for the run: then connections in its pools may be another process's."""
        self.calls = 0
        self.asking: threading.Thread | None = None
        """The thread that is asking the world, which must not be disturbed meanwhile."""
        self._ask = ask
        self._turn = threading.Lock()
        self._calls_afterwards = 0
        self._due: dict[int, Strike] = {}
        """By id of the call's object, the fault to raise once the call is made."""
        self._proxies: weakref.WeakKeyDictionary[Any, None] = weakref.WeakKeyDictionary()
        self._records: weakref.WeakKeyDictionary[Any, None] = weakref.WeakKeyDictionary()
        """Connections that pools hold; `_proxies` has those in use."""
        self._made: weakref.WeakSet[Any] = weakref.WeakSet()
        """The records of connections that were made in this run."""
        self._inherited: list[Any] = []
        """Connections of the process that forked this one. They are kept, because closing them might end them there, too."""
        self._threads_before = set(threading.enumerate())

    def ask(self, what: str, *arguments: Any) -> Any:
        """Ask the world. The threads of a program take turns."""
        with self._turn:
            self.asking = threading.current_thread()
            try:
                return self._ask(what, *arguments)
            finally:
                self.calls += 1
                self.asking = None

    def call(self, name: str, *arguments: Any) -> Any:
        """A call to the broker."""
        if self.crash and name == "receive":
            self.goes_on |= this_task() is self.crashed_in
        if self._calls_afterwards > _MOST_CALLS_AFTERWARDS:
            return []
        strike = self.strike(f"{name}()")
        if strike and strike.when == "before":
            self.meet(strike)
        result = self.ask(name, *arguments)
        if strike:
            self.meet(strike)
        return result

    def strike(self, call: str, *, is_database: bool = False) -> Strike | None:
        """The fault of a call that is about to be made, if any. A crashed program may make no call: `ProgramCrash`."""
        if self.crash or threading.current_thread() in self.left_threads:
            self._calls_afterwards += 1
            raise ProgramCrash(_OVER)
        strike: Strike | None = self.ask("strike", call, is_database)
        return strike

    def meet(self, strike: Strike, line: str | None = None) -> None:
        """Crash; or return, if only the call fails."""
        self.ask("note", Struck(strike, _line() if line is None else line))
        if strike.kind == "loss":
            return
        self.crash, self.crashed_in = ProgramCrash(f"{strike.when} {strike.call}"), this_task()
        self.on_crash()
        raise self.crash

    def cut_connections(self) -> None:
        """Cut all connections that the program made, as the system does for a process that has died.

        A connection that another thread uses is only rolled back, because closing it during a call to SQLite may crash Python.
        """
        for proxy in sorted(_living(self._proxies), key=_is_elsewhere):  # ours first, because others may wait for them
            if proxy.is_valid and not (_is_elsewhere(proxy) and _use(proxy).is_executing):
                _undo(proxy)
            if proxy.is_valid and not _is_elsewhere(proxy):  # still: another thread may have given it up meanwhile
                proxy.invalidate()
        for record in _living(self._records):
            if not (record.in_use and _is_elsewhere(record)):
                record.invalidate()

    def end(self) -> None:
        """End the run: threads of the program that go on may make no calls from now on."""
        self.left_threads.update(set(threading.enumerate()) - self._threads_before)

    # SQLAlchemy's events, by their names there.

    def do_connect(self, dialect: Dialect, record: Any, *_: Any) -> None:
        strike = self.strike(CONNECT, is_database=True)
        if strike and (strike.kind == "loss" or strike.when == "before"):
            self.meet(strike)
            raise self._loss(dialect)
        self._set_due(record, strike)

    def connect(self, _: Any, record: Any) -> None:
        self._made.add(record)
        # If this raises, SQLAlchemy itself closes the connection. Its record can't do so yet.
        if strike := self._due.pop(id(record), None):
            self.meet(strike)

    def checkout(self, _: Any, record: Any, proxy: Any) -> None:
        if self.is_forked and record not in self._made:
            self._inherited.append(record.dbapi_connection)
            record.dbapi_connection = proxy.dbapi_connection = None
            raise DisconnectionError("the connection is another process's")  # SQLAlchemy then makes one
        self._records[record] = self._proxies[proxy] = None
        _use(proxy).thread = threading.current_thread()

    def before_cursor_execute(self, connection: Connection, cursor: Any, statement: str, *_: Any) -> None:
        use = _use(connection)
        use.thread = threading.current_thread()
        if not connection.dialect.is_async:  # asynchronous cursors read all rows at once
            use.cursors.add(cursor)
        strike = self.strike(_shortened(statement), is_database=True)
        if strike and strike.when == "before":
            self._meet_at_statement(connection, strike)
        self._set_due(cursor, strike)
        use.is_executing = True

    def after_cursor_execute(self, connection: Connection, cursor: Any, *_: Any) -> None:
        _use(connection).is_executing = False
        if strike := self._due.pop(id(cursor), None):
            self._meet_at_statement(connection, strike)

    def commit(self, connection: Connection) -> None:
        strike = self.strike("COMMIT", is_database=True)
        if strike and strike.when == "before":
            self._meet_at_end(connection, strike)
        if strike:  # SQLAlchemy has no event after a commit, so it is made here
            connection.dialect.do_commit(connection.connection)
        self.ask("note", Committed())
        if strike:
            self._meet_at_end(connection, strike)

    def rollback(self, connection: Connection) -> None:
        if connection.invalidated:
            return
        strike = self.strike("ROLLBACK", is_database=True)
        if strike and strike.when == "after":
            connection.dialect.do_rollback(connection.connection)
        if strike:
            self._meet_at_end(connection, strike)

    def handle_error(self, context: ExceptionContext) -> None:
        if context.connection and not context.connection.closed and not context.connection.invalidated:
            _use(context.connection).is_executing = False
        if context.original_exception in self.losses:
            context.is_disconnect = True

    def _set_due(self, call: object, strike: Strike | None) -> None:
        self._due.pop(id(call), None)  # left by an earlier call that failed by itself
        if strike:
            self._due[id(call)] = strike

    def _meet_at_statement(self, connection: Connection, strike: Strike) -> None:
        self.meet(strike)
        _undo(connection.connection)
        raise self._loss(connection.dialect)  # SQLAlchemy then gives up the connection, see `handle_error`

    def _meet_at_end(self, connection: Connection, strike: Strike) -> None:
        """Raise a fault at the end of a transaction, where SQLAlchemy passes an event's error on as it is."""
        self.meet(strike)
        loss = self._loss(connection.dialect)
        _undo(connection.connection)
        connection.invalidate(loss)
        raise OperationalError(strike.call, None, loss, connection_invalidated=True)

    def _loss(self, dialect: Dialect) -> Exception:
        """The error that the driver raises if the connection is lost."""
        loss: Exception = dialect.loaded_dbapi.OperationalError(_LOST)
        self.losses.append(loss)
        return loss


@contextmanager
def watched() -> Iterator[None]:
    """Within it, calls through SQLAlchemy pass through the current `Run`."""
    listeners = [(target, name, _listener(name)) for target, names in _EVENTS.items() for name in names]
    for target, name, listener in listeners:
        event.listen(target, name, listener)
    others, threading.excepthook = threading.excepthook, lambda thrown: _is_over(thrown) or others(thrown)
    try:
        with warnings.catch_warnings():
            # A crash leaves connections to the garbage collector. Of these Python (from 3.13 on), psycopg and aiosqlite warn.
            left = "unclosed database|.* was deleted (while still open|before being closed)"
            warnings.filterwarnings("ignore", left, ResourceWarning)
            yield
            gc.collect()
    finally:
        threading.excepthook = others
        for target, name, listener in listeners:
            event.remove(target, name, listener)


def _listener(name: str) -> Callable[..., None]:
    def listener(*arguments: Any) -> None:
        if threading.current_thread() in Run.left_threads:
            raise ProgramCrash(_OVER)
        if Run.current and Run.current.process == os.getpid():  # a forked process has a copy, and its calls don't count
            getattr(Run.current, name)(*arguments)

    return listener


def _is_over(thrown: threading.ExceptHookArgs) -> bool:
    """Whether this thread's run is over, or the event loop it works for: then its errors aren't shown."""
    has_crashed = thrown.exc_type is ProgramCrash or bool(Run.current and Run.current.crash)
    # A loop ends before its run does. A thread of aiosqlite may be about to answer it.
    has_no_loop = str(thrown.exc_value) == "Event loop is closed"
    return has_crashed or has_no_loop or threading.current_thread() in Run.left_threads


def _undo(proxy: PoolProxiedConnection) -> None:
    """Roll back a connection's transaction before the connection is cut.

    A rollback is done when it returns, while a server notices a cut only a moment later.
    """
    for cursor in [] if _is_elsewhere(proxy) else _use(proxy).cursors:
        with suppress(Exception):
            cursor.close()
    with suppress(Exception):  # the connection may be lost already
        proxy.rollback()


def _use(connection: Connection | PoolProxiedConnection) -> _Use:
    use: _Use = connection.info.setdefault(_USE, _Use())
    return use


def _is_elsewhere(proxy: PoolProxiedConnection) -> bool:
    """Whether another thread uses the connection."""
    thread = _use(proxy).thread
    return thread.is_alive() and thread is not threading.current_thread()


def _living(objects: weakref.WeakKeyDictionary[Any, None]) -> list[Any]:
    """The objects that still exist. A copy, because another thread may add to the dictionary."""
    return [each for reference in objects.keyrefs() if (each := reference()) is not None]


def this_task() -> object:
    """The current task of an event loop, or else the current thread."""
    with suppress(RuntimeError):
        return asyncio.current_task()
    return threading.current_thread()


def _shortened(statement: str) -> str:
    words = " ".join(statement.split())
    return words if len(words) <= _SHOWN_STATEMENT else words[:_SHOWN_STATEMENT] + "…"


def _line() -> str:
    """The line of the program that makes the call."""
    return next(filter(None, map(line_of, _frames())), "")


def line_of(frame: FrameType) -> str:
    """The line as `file.py:17`; empty if it isn't the program's."""
    file = frame.f_code.co_filename
    return "" if file.startswith(_NO_PROGRAM) else f"{Path(file).name}:{frame.f_lineno}"


def _frames() -> Iterator[FrameType]:
    """The frames from here outwards, also beyond the greenlet in which SQLAlchemy awaits an asynchronous driver."""
    innermost = [sys._getframe()]  # noqa: SLF001 - `inspect` takes a thousand times as long
    if "greenlet" in sys.modules:
        parent = sys.modules["greenlet"].getcurrent().parent
        innermost += [parent.gr_frame] if parent and parent.gr_frame else []
    for frame in innermost:
        yield from (outer for outer, _ in traceback.walk_stack(frame))
