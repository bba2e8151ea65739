"""`AsyncReceiver`: a `Receiver` for an event loop, which none of its waiting blocks.

All rules, statements and caches are the `Receiver`'s. A transaction of our own is worked on in one thread. A batch that
joins the caller's transaction is worked on in the loop, by SQLAlchemy's `run_sync`: there the caller's driver awaits all
that the database is asked. Tasks wait for each other before they come to the `Receiver`, so that none of its locks is
ever waited for in the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from itertools import islice
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar

from sqlalchemy import Connection

from receiver.durable.async_batch import AsyncBatch, check_loop, connection_of
from receiver.durable.batch import Batch
from receiver.durable.concurrent_tasks import ConcurrentTasks, ReceiverForTasks
from receiver.durable.holds import under_way
from receiver.durable.receiver import Receiver
from receiver.durable.status import Status
from receiver.errors import ClosedError, StoreBusyError
from receiver.message import Decision, Receipt
from receiver.retrying import Backoff
from receiver.settings import StoreSettings

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

__all__ = ["AsyncBatch", "AsyncReceiver"]

_P = ParamSpec("_P")
_T = TypeVar("_T")
_BACKOFF = Backoff(0.001, 0.05)
_DECIDED_AT_ONCE = 250
"""Receipts after which the event loop gets its turn: about a millisecond."""
_Task = asyncio.Task[Any]


class _Worked(Receiver):
    """A receiver whose batches are begun and ended for tasks."""

    def batch_of(self, task: _Task, joined: Connection | None) -> Batch:
        """A batch for a task; one that joins a transaction leaves reporting duplicates to `report`."""
        notify = self._notify if joined is None else lambda: None
        return Batch(self._session, self._options, self.counters, joined, task, notify=notify)

    def read_ahead(self) -> None:
        """Read ahead what a joined batch would read first: on a connection of our own, so nobody waits meanwhile."""
        self._session.look_up()
        if self._session.cache.is_dropped:
            self._session.load()

    def report(self) -> None:
        self._notify()

    @property
    def has_unreported(self) -> bool:
        return bool(self.counters.unreported)

    def check_usable(self) -> None:
        self._session.check_usable()

    def others_go_on(self, joined: Connection | None) -> bool:
        """Whether batches are in a transaction under way that isn't this connection's, so that the domain is locked."""
        own = None if joined is None else joined.get_transaction()
        return self._session.outcomes.callers_go_on(but_for=own)

    def figures_now(self) -> Status:
        return self.figures(self.counters.rate())


class _Tasks:
    """Tasks that share a receiver: one batch at a time, and a thread for what would block the loop."""

    def __init__(self, receiver: _Worked, patience_secs: float) -> None:
        self.receiver = receiver
        self._patience_secs = patience_secs
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="receiver")
        """One thread, so what it is given is done in order."""
        self._loop = asyncio.get_running_loop()
        self._lock = asyncio.Lock()
        self._held_by: _Task | None = None
        """The task whose batch is under way."""

    async def acquire_for_batch(self, joined: Connection | None) -> None:
        """Have the receiver for a batch. While other batches are in a caller's transaction under way, the domain is locked."""
        try:
            await self.acquire(lambda: not self.receiver.others_go_on(joined))
        except BaseException:
            self.receiver.counters.fail()
            raise

    async def acquire(self, is_free: Callable[[], bool] = lambda: True) -> None:
        """Have the receiver to ourselves, as soon as no other task has it and the domain is free."""
        check_loop(self._loop)
        task = _this_task()
        if self._held_by is task:
            raise under_way(task)
        try:
            async with asyncio.timeout(self._patience_secs):
                await self._wait(is_free)
        except TimeoutError:
            raise StoreBusyError(
                f"other tasks kept the receiver busy for {self._patience_secs:g} s",
                hint="keep batches and transactions short, or raise lock_timeout_secs",
            ) from None
        try:
            self.receiver.check_usable()
        except BaseException:
            self.release()
            raise
        self._held_by = task

    async def _wait(self, is_free: Callable[[], bool]) -> None:
        for pause_secs in _BACKOFF.pauses_secs():
            await self._lock.acquire()
            if is_free():
                return
            # Not while we have the lock: who is in that transaction may have another batch to join to it.
            self._lock.release()
            await asyncio.sleep(pause_secs)

    def release(self) -> None:
        self._held_by = None
        with suppress(RuntimeError):  # the loop is closed, so nobody waits
            self._lock.release()

    def batch(self, given: AsyncConnection | AsyncSession | None) -> AsyncBatch:
        return _Batch(self, given)

    async def status(self) -> Status:
        """While a batch is under way it doesn't ask the database about earlier ones."""
        if self.receiver.is_closed or self._lock.locked():
            return self.receiver.figures_now()
        await self.acquire()
        try:
            return await self.in_thread(self.receiver.status)
        finally:
            self.release()

    async def close(self) -> None:
        """Close the receiver, also from another event loop than ours, which may be closed. Batches end before."""
        if asyncio.get_running_loop() is self._loop:
            try:
                await self.acquire()
            except ClosedError:
                if self.receiver.is_closed:  # by another task, while we waited
                    return
                raise
        try:
            await self.in_thread(self.receiver.close)
            self._worker.shutdown(wait=False)
        finally:
            self.release()

    async def in_thread(self, function: Callable[[], _T]) -> _T:
        """The result of the function, run in the thread. A task that is cancelled waits for its end all the same."""
        # Until then nobody else may have the receiver. And `asyncio.wrap_future` would cancel what hasn't begun.
        future = self._submit(function)
        done = _event_of(future)
        cancelled = None
        while not future.done():
            try:
                await done.wait()
            except asyncio.CancelledError as error:
                cancelled = error
        if cancelled is not None:
            raise cancelled
        return future.result()

    def _submit(self, function: Callable[[], _T]) -> Future[_T]:
        return self._worker.submit(copy_context().run, function)

    async def begin_own(self, batch: Batch) -> None:
        """Begin a batch in the thread. A task that is cancelled meanwhile doesn't wait for it: the thread ends it."""
        # Who gives the receiver back? `__aexit__` does; without it `abandon_later`, or this method if the batch can't begin.
        beginning = self._submit(batch.__enter__)
        try:
            await _event_of(beginning).wait()
        except BaseException as error:
            self.abandon_later(batch, error)
            raise
        if (failure := beginning.exception()) is not None:
            self.release()
            raise failure

    def abandon_later(self, batch: Batch, error: BaseException) -> None:
        """End a batch in the thread, if it has begun by then; other batches wait until that is done, also of its own task."""
        self._held_by = None

        def abandon() -> None:
            if batch.is_open:
                batch.__exit__(type(error), error, None)

        def done(_: object) -> None:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self.release)

        self._submit(abandon).add_done_callback(done)


def _event_of(future: Future[Any]) -> asyncio.Event:
    """An event that is set once the future is done."""
    event, loop = asyncio.Event(), asyncio.get_running_loop()

    def done(_: object) -> None:
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(event.set)

    future.add_done_callback(done)
    return event


class AsyncReceiver:
    """A `Receiver` for the tasks of one event loop. `AsyncReceiver.open` makes it.

    Tasks may share it. Their batches wait for each other, unless it was opened with `concurrent=True`. `on_duplicate` is
    called in a thread.
    """

    def __init__(self, tasks: _Tasks | ConcurrentTasks) -> None:
        self._tasks = tasks
        self._receiver = tasks.receiver

    @classmethod
    async def open(cls, url: str, **options: Any) -> Self:
        """Open a domain. Arguments and errors are those of `Receiver.open`."""
        opener = ThreadPoolExecutor(1, thread_name_prefix="receiver")
        kind = ReceiverForTasks if options.get("concurrent") is True else _Worked
        opening = opener.submit(partial(kind.open, url, **options))
        opener.shutdown(wait=False)
        try:
            receiver = await asyncio.wrap_future(opening)
        except BaseException:
            opening.add_done_callback(_close_what_was_opened)  # where the task was cancelled
            raise
        if isinstance(receiver, ReceiverForTasks):
            return cls(ConcurrentTasks(receiver))
        assert isinstance(receiver, _Worked)  # noqa: S101 - `open` makes what it is a method of
        store_settings = options.get("store_settings") or StoreSettings()
        return cls(_Tasks(receiver, store_settings.lock_timeout_secs))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection to the store, once no batch is under way. Closing again does nothing.

        A concurrent receiver doesn't wait for batches under way: they go on to their end.
        """
        if not self.is_closed:
            await self._tasks.close()

    @property
    def is_closed(self) -> bool:
        """Whether it was closed."""
        return self._receiver.is_closed

    @property
    def domain(self) -> str:
        """The domain's name."""
        return self._receiver.domain

    def batch(self, connection: AsyncConnection | AsyncSession | None = None) -> AsyncBatch:
        """A batch of receipts: one database transaction, which ends with the `async with` block.

        Args:
            connection: An `AsyncConnection` or `AsyncSession` of yours to the same database. The batch joins its
                transaction, and is recorded when you commit. None: the batch has a transaction of its own.

        Errors are those of `Receiver.batch`. In another event loop than the receiver's, it is a `ClosedError`.
        """
        return self._tasks.batch(connection)

    async def status(self) -> Status:
        """As `Receiver.status`. While a batch is under way it doesn't ask the database about earlier ones."""
        return await self._tasks.status()

    def figures(self) -> Status:
        """The receiver's figures, without asking the database: those of `Receiver.figures`."""
        return self._receiver.figures()


class _Batch(AsyncBatch):
    def __init__(self, tasks: _Tasks, given: AsyncConnection | AsyncSession | None) -> None:
        self._tasks = tasks
        self._given = given
        self._joined: AsyncConnection | None = None

    async def __aenter__(self) -> Self:
        tasks = self._tasks
        self._joined = await connection_of(self._given)
        joined = None if self._joined is None else self._joined.sync_connection
        await tasks.acquire_for_batch(joined)
        self._batch = tasks.receiver.batch_of(_this_task(), joined)
        if self._joined is None:
            await tasks.begin_own(self._batch)
            return self
        try:
            await tasks.in_thread(tasks.receiver.read_ahead)
            await self._joined.run_sync(lambda _: self._batch.__enter__())
        except BaseException:
            tasks.release()
            raise
        return self

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
                self._batch.__exit__(kind, error, traceback)  # asks the database nothing
            else:
                await self._end_joined(self._joined)
        finally:
            self._tasks.release()

    async def _end_joined(self, joined: AsyncConnection) -> None:
        try:
            await joined.run_sync(lambda _: self._batch.__exit__(None, None, None))
        except BaseException as error:
            if self._batch.is_open:  # such as when the caller has closed the connection
                self._batch.__exit__(type(error), error, None)
            raise
        if self._tasks.receiver.has_unreported:
            await self._tasks.in_thread(self._tasks.receiver.report)

    async def _asked(self, method: Callable[_P, _T], *arguments: _P.args, **named: _P.kwargs) -> _T:
        return method(*arguments, **named)  # it waits for nothing

    async def receive_many(
        self, receipts: Iterable[Receipt | tuple[str | None, str | None, int | None]]
    ) -> list[Decision]:
        left: Iterator[Receipt | tuple[str | None, str | None, int | None]] = iter(receipts)
        decisions: list[Decision] = []
        while few := self._batch.receive_many(islice(left, _DECIDED_AT_ONCE)):
            decisions += few
            await asyncio.sleep(0)
        return decisions

    async def run_sync(
        self, function: Callable[Concatenate[Connection, _P], _T], *arguments: _P.args, **named: _P.kwargs
    ) -> _T:
        if self._joined is not None:
            return await self._joined.run_sync(function, *arguments, **named)
        return await self._tasks.in_thread(lambda: function(self._batch.connection, *arguments, **named))


def _this_task() -> _Task:
    task = asyncio.current_task()
    assert task is not None  # noqa: S101 - only a task awaits
    return task


def _close_what_was_opened(opening: Future[Receiver]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()
