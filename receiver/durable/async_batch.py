"""`AsyncBatch`: a `Batch` with coroutines, in two kinds: for exclusive and for concurrent receivers."""

from __future__ import annotations

import asyncio
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from functools import partial, wraps
from itertools import islice
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar

from sqlalchemy import Connection
from sqlalchemy.util import greenlet_spawn

from receiver.durable.batch import Batch
from receiver.durable.concurrent import ConcurrentBatch
from receiver.durable.session import UNTIL_FREE
from receiver.errors import ClosedError, SettingsError
from receiver.message import Decision, Receipt, receipts_in
from receiver.retrying import Patience
from receiver.store.databases.database import FileBusyError

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

    from receiver.durable.async_receiver import ConcurrentTasks, SerialTasks

_P = ParamSpec("_P")
_T = TypeVar("_T")
_DECIDED_AT_ONCE = 250
"""Receipts after which the event loop gets its turn: about a millisecond of work."""


def _awaited(
    method: Callable[Concatenate[Batch, _P], _T],
) -> Callable[Concatenate[AsyncBatch, _P], Coroutine[Any, Any, _T]]:
    """A method of `Batch` as a coroutine."""
    name = method.__name__

    @wraps(method)
    async def awaited(self: AsyncBatch, /, *arguments: _P.args, **named: _P.kwargs) -> _T:
        result: _T = await self._asked(getattr(self._batch, name), *arguments, **named)
        return result

    return awaited


class AsyncBatch(ABC):
    """A batch under way: `async with orders.batch() as batch:`. It is a `Batch` with coroutines."""

    _tasks: SerialTasks | ConcurrentTasks
    _begun: Batch | None = None

    def __repr__(self) -> str:
        return f"<AsyncBatch of {self._tasks.receiver.domain!r}>"

    @property
    def _batch(self) -> Batch:
        if self._begun is None:
            raise ClosedError("the batch hasn't begun", hint="use it inside `async with receiver.batch() as batch:`")
        return self._begun

    @abstractmethod
    async def __aenter__(self) -> Self: ...

    @abstractmethod
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

    @abstractmethod
    async def _asked(self, function: Callable[_P, _T], *arguments: _P.args, **named: _P.kwargs) -> _T:
        """Call a function that may run statements, and await those."""

    receive = _awaited(Batch.receive)
    """Decide on one receipt, as `Batch.receive` does. It is recorded when the batch ends."""
    advance = _awaited(Batch.advance)

    async def receive_many(
        self, receipts: Iterable[Receipt | tuple[str | None, str | None, int | None]]
    ) -> list[Decision]:
        """Decide on receipts in order, as `Batch.receive_many` does."""
        return await self._asked(self._batch.receive_many, receipts)

    async def run_sync(
        self, function: Callable[Concatenate[Connection, _P], _T], *arguments: _P.args, **named: _P.kwargs
    ) -> _T:
        """Call `function(connection, ...)` with a connection in the batch's transaction, and return its result.

        Rows that it writes are committed with the ids or not at all. The function runs in a thread. If the receiver is
        concurrent, or the batch joins a transaction of yours, it runs in the loop instead, where SQLAlchemy awaits its
        statements. Leave committing and rolling back to the batch.
        """
        _check_plain(function)
        return await self._asked(function, self._batch.connection, *arguments, **named)


def _check_plain(function: object) -> None:
    """`SettingsError` for a function with `async`: nobody would await its coroutine."""
    if not callable(function) or inspect.iscoroutinefunction(function):
        raise SettingsError(
            f"run_sync takes a function without async, not {function!r:.80}",
            hint="write def f(connection): connection.execute(...); or join a connection of yours: batch(connection)",
        )


async def _connection_of(given: AsyncConnection | AsyncSession | None) -> AsyncConnection | None:
    """The open connection behind the argument of `batch`."""
    if given is None:
        return None
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

    if isinstance(given, AsyncSession):
        return await given.connection()
    if not isinstance(given, AsyncConnection):
        raise SettingsError(
            f"batch() of an AsyncReceiver takes an AsyncConnection or an AsyncSession, not {given!r:.80}",
            hint="a Connection is for a Receiver",
        )
    if given.sync_connection is None or given.closed:
        raise SettingsError(
            "the connection given to batch() is closed, or was never opened",
            hint="give one that is open: async with engine.begin() as connection",
        )
    return given


class SerialBatch(AsyncBatch):
    """A batch of an exclusive receiver: it runs in one thread or, if it joins a transaction, in the loop by the caller's driver."""

    def __init__(self, tasks: SerialTasks, given: AsyncConnection | AsyncSession | None) -> None:
        self._tasks: SerialTasks = tasks
        self._given = given
        self._joined: AsyncConnection | None = None

    async def __aenter__(self) -> Self:
        session = self._tasks.session
        self._joined = await _connection_of(self._given)
        patience = Patience(session.patience_secs)
        for pause_secs in UNTIL_FREE.pauses_secs():
            try:
                await self._begin()
            except FileBusyError:
                if patience.left_secs <= 0:
                    session.counters.fail()
                    raise
            else:
                break
            await asyncio.sleep(patience.spend(pause_secs))
        return self

    async def _begin(self) -> None:
        joined = None if self._joined is None else self._joined.sync_connection
        await self._tasks.begin_in_turn(joined, partial(self._begin_acquired, joined))

    async def _begin_acquired(self, joined: Connection | None) -> None:
        tasks = self._tasks
        self._begun = Batch(tasks.session, joined, asyncio.current_task())
        if self._joined is None:
            await tasks.begin_own(self._batch)
            return
        try:
            await tasks.in_thread(self._read_ahead)
            await self._joined.run_sync(lambda _: self._batch.__enter__())
        except BaseException:
            tasks.release()
            raise

    def _read_ahead(self) -> None:
        """Read ahead what the batch will need, on a connection of our own, so that nobody waits meanwhile."""
        session = self._tasks.session
        session.look_up()
        if session.cache.is_dropped:
            session.load()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._joined is None and isinstance(error, GeneratorExit):  # nothing can be awaited any more
            self._tasks.abandon_later(self._batch, error)
            return
        try:
            if self._joined is None:
                await self._tasks.in_thread(lambda: self._batch.__exit__(kind, error, traceback))
            elif error is not None:
                self._batch.__exit__(kind, error, traceback)  # runs no statement
            else:
                await self._end_joined(self._joined)
        finally:
            self._tasks.release()

    async def _end_joined(self, joined: AsyncConnection) -> None:
        try:
            await joined.run_sync(lambda _: self._batch.__exit__(None, None, None))
        except BaseException as error:
            if self._batch.is_open:  # for example because the caller has closed the connection
                self._batch.__exit__(type(error), error, None)
            raise
        session = self._tasks.session
        if session.unreported:
            await self._tasks.in_thread(session.notify)

    async def _asked(self, function: Callable[_P, _T], *arguments: _P.args, **named: _P.kwargs) -> _T:
        return function(*arguments, **named)  # deciding runs no statement

    async def receive_many(
        self, receipts: Iterable[Receipt | tuple[str | None, str | None, int | None]]
    ) -> list[Decision]:
        left = receipts_in(receipts)
        decisions: list[Decision] = []
        while few := self._batch.receive_many(islice(left, _DECIDED_AT_ONCE)):
            decisions += few
            await asyncio.sleep(0)
        return decisions

    async def run_sync(
        self, function: Callable[Concatenate[Connection, _P], _T], *arguments: _P.args, **named: _P.kwargs
    ) -> _T:
        _check_plain(function)
        if self._joined is not None:
            return await self._joined.run_sync(function, *arguments, **named)
        return await self._tasks.in_thread(lambda: function(self._batch.connection, *arguments, **named))


class ConcurrentTaskBatch(AsyncBatch):
    """A batch of a concurrent receiver. The loop awaits its statements: by the caller's driver if it joins a transaction,
    else by psycopg.

    Threads could deadlock: tasks that wait for an id would occupy them all, and the task that has the id couldn't end.
    """

    def __init__(self, tasks: ConcurrentTasks, given: AsyncConnection | AsyncSession | None) -> None:
        self._tasks: ConcurrentTasks = tasks
        self._given = given

    async def __aenter__(self) -> Self:
        tasks = self._tasks
        tasks.check_loop()
        joined = await _connection_of(self._given)
        self._begun = ConcurrentBatch(
            tasks.receiver.session, tasks.awaited_engine, None if joined is None else joined.sync_connection
        )
        await greenlet_spawn(self._batch.__enter__)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if not isinstance(error, GeneratorExit):
            await to_the_end(greenlet_spawn(self._batch.__exit__, kind, error, traceback))
        elif self._given is not None:
            # Nothing can be awaited any more, and the caller's coroutine ends without a commit.
            self._batch.__exit__(kind, error, traceback)
        else:
            ending = greenlet_spawn(self._batch.__exit__, kind, error, traceback)
            with suppress(BaseException):
                ending.send(None)  # psycopg needs no loop to end a connection
            ending.close()

    async def _asked(self, function: Callable[_P, _T], *arguments: _P.args, **named: _P.kwargs) -> _T:
        return await greenlet_spawn(partial(function, *arguments, **named))


async def to_the_end(awaited: Coroutine[Any, Any, _T] | asyncio.Future[_T]) -> _T:
    """Await something to its end and return its result. A task that is cancelled meanwhile is cancelled only then."""
    ending = asyncio.ensure_future(awaited)
    cancelled = None
    while not ending.done():
        try:
            await asyncio.wait([ending])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        if not ending.cancelled():
            ending.exception()  # or asyncio logs that it was never retrieved
        raise cancelled
    return ending.result()
