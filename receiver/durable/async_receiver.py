"""`AsyncReceiver`: a `Receiver` that never blocks its event loop by waiting.

All rules, statements and caches are the `Receiver`'s. A batch with a transaction of its own runs in one thread. A batch
that joins the caller's transaction runs in the loop, by SQLAlchemy's `run_sync`, which awaits its statements by the
caller's driver. Tasks wait for each other before they use the `Receiver`, so the loop never waits for one of its locks.
Batches of a concurrent receiver wait for nothing but ids. So they all run in the loop, and no task waits for another
task's batch; folding has its own thread, as in any concurrent receiver.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, Self, TypeVar

from sqlalchemy import Connection
from sqlalchemy.util import greenlet_spawn

from receiver.durable.async_batch import AsyncBatch, ConcurrentTaskBatch, SerialBatch, to_the_end
from receiver.durable.batch import Batch
from receiver.durable.holds import UNTIL_CALLERS_END, Hold, held_by_callers, refuse_waiting_for_itself, under_way_error
from receiver.durable.receiver import OPENED_WITH, ConcurrentReceiver, Receiver
from receiver.durable.status import Status
from receiver.errors import ClosedError, needs_open
from receiver.store.connections import kept_busy_error

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

__all__ = ["AsyncBatch", "AsyncReceiver"]

_T = TypeVar("_T")
_NO_QUEUE: AbstractAsyncContextManager[None] = nullcontext()


class AsyncReceiver:
    """A `Receiver` for the tasks of one event loop. `AsyncReceiver.open` makes it.

    Tasks may share it. Their batches wait for each other, unless it was opened with `concurrent=True`. `on_duplicate` is
    called in a thread.
    """

    def __init__(self, tasks: SerialTasks | ConcurrentTasks | None = None, **_options: object) -> None:
        if not isinstance(tasks, _Tasks):
            raise needs_open("AsyncReceiver", OPENED_WITH)
        self._tasks = tasks
        self._receiver = tasks.receiver

    __repr__ = Receiver.__repr__

    @classmethod
    async def open(cls, url: str, **options: Any) -> Self:
        """Open a domain. Arguments and errors are those of `Receiver.open`."""
        opener = ThreadPoolExecutor(1, thread_name_prefix="receiver")
        opening = opener.submit(_open, asyncio.get_running_loop(), url, options)
        opener.shutdown(wait=False)
        try:
            tasks = await asyncio.wrap_future(opening)
            return cls(tasks)
        except BaseException:
            opening.add_done_callback(_close_what_was_opened)  # for a task that was cancelled meanwhile
            raise

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

        Errors are those of `Receiver.batch`, and `ClosedError` in another event loop than the receiver's.
        """
        return self._tasks.batch(connection)

    async def status(self) -> Status:
        """The figures of `Receiver.status`. While a batch is under way, the outcome of earlier batches isn't looked up."""
        return await self._tasks.status()

    def figures(self) -> Status:
        """The figures of `Receiver.figures`, without asking the database."""
        return self._receiver.figures()


def _open(loop: asyncio.AbstractEventLoop, url: str, options: dict[str, Any]) -> SerialTasks | ConcurrentTasks:
    receiver = Receiver.open(url, **options)
    try:
        is_concurrent = isinstance(receiver, ConcurrentReceiver)
        return ConcurrentTasks(receiver, loop) if is_concurrent else SerialTasks(receiver, loop)
    except BaseException:
        receiver.close()
        raise


def _close_what_was_opened(opening: Future[SerialTasks | ConcurrentTasks]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().receiver.close()


class _Tasks:
    """The tasks of one event loop, which share a receiver."""

    def __init__(self, receiver: Receiver, loop: asyncio.AbstractEventLoop) -> None:
        self.receiver = receiver
        self.session = receiver.session
        self._loop = loop

    def check_loop(self) -> None:
        """`ClosedError` unless our event loop is the one that runs."""
        if asyncio.get_running_loop() is not self._loop:
            raise ClosedError("the receiver belongs to another event loop", hint="open another in this one")


class SerialTasks(_Tasks):
    """The tasks that share an exclusive receiver: one batch at a time, and a thread for what would block the loop."""

    def __init__(self, receiver: Receiver, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(receiver, loop)
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="receiver")
        """One thread, so that its jobs are done in order."""
        self._lock = asyncio.Lock()
        self._queue = asyncio.Lock()
        """Held by the task that is next to have a batch, so that tasks have batches in the order in which they ask."""
        self._asking: list[Connection | None] = []
        """The connections that tasks ask to join, each until its batch has begun; None for a transaction of our own."""
        self._held_by: asyncio.Task[Any] | None = None
        """The task whose batch is under way."""

    def batch(self, given: AsyncConnection | AsyncSession | None) -> AsyncBatch:
        return SerialBatch(self, given)

    async def begin_in_turn(self, joined: Connection | None, begin: Callable[[], Awaitable[None]]) -> None:
        """Acquire the receiver for a batch, once other callers' transactions that have the domain's lock have ended; then begin it.

        `begin` has the turn too, as in `DomainSession.acquire_for`. If it fails, it releases the receiver.
        """
        task, lock = asyncio.current_task(), self.session.lock
        has_turn = False

        def is_ours(held: Hold) -> bool:
            return held.owner is task or held.holder() is joined

        def is_free() -> bool:
            nonlocal has_turn
            holds = held_by_callers(lock)
            if any(map(is_ours, holds)):
                return True
            has_turn = not holds and self.session.turn.acquire(blocking=False)
            return has_turn

        # The queue may wait for the transaction that has the lock, or for one that is about to have it.
        shares = joined is not None and joined in self._asking
        self._asking.append(joined)
        try:
            try:
                if self._held_by is not task:
                    refuse_waiting_for_itself(task, lock, joined)
                goes_on = shares or any(map(is_ours, held_by_callers(lock)))
                await self._acquire(is_free, _NO_QUEUE if goes_on else self._queued())
            except BaseException:
                self.session.counters.fail()
                raise
            await begin()
        finally:
            self._asking.remove(joined)
            if has_turn:
                self.session.turn.release()

    async def _acquire(
        self, is_free: Callable[[], bool] = lambda: True, queue: AbstractAsyncContextManager[None] = _NO_QUEUE
    ) -> None:
        """Acquire the receiver, as soon as no other task has it and the domain is free, in the order of the queue."""
        self.check_loop()
        task = asyncio.current_task()
        if self._held_by is task:
            raise under_way_error(task)
        patience_secs = self.session.patience_secs
        try:
            async with asyncio.timeout(patience_secs), queue:
                for pause_secs in UNTIL_CALLERS_END.pauses_secs():
                    await self._lock.acquire()
                    if is_free():
                        break
                    # Without the lock: the task of that transaction may have another batch that joins it.
                    self._lock.release()
                    await asyncio.sleep(pause_secs)
        except TimeoutError:
            raise kept_busy_error("other tasks kept the receiver", patience_secs) from None
        try:
            self.session.check_usable()
        except BaseException:
            self.release()
            raise
        self._held_by = task

    @asynccontextmanager
    async def _queued(self) -> AsyncGenerator[None, None]:
        await self._queue.acquire()
        try:
            yield
        finally:
            with suppress(RuntimeError):  # the loop is closed, so nobody waits
                self._queue.release()

    def release(self) -> None:
        self._held_by = None
        with suppress(RuntimeError):  # the loop is closed, so nobody waits
            self._lock.release()

    async def status(self) -> Status:
        if self.receiver.is_closed or self._lock.locked():
            return self.receiver.figures(self.session.counters.rate())
        await self._acquire()
        try:
            return await self.in_thread(self.receiver.status)
        finally:
            self.release()

    async def close(self) -> None:
        """Close the receiver once its batches have ended. Another event loop may call this, even if ours is closed."""
        if asyncio.get_running_loop() is self._loop:
            try:
                await self._acquire()
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
        """Run the function in the thread and return its result. A task that is cancelled still waits for the end."""
        return await to_the_end(asyncio.wrap_future(self._submit(function)))

    def _submit(self, function: Callable[[], _T]) -> Future[_T]:
        return self._worker.submit(copy_context().run, function)

    async def begin_own(self, batch: Batch) -> None:
        """Begin a batch in the thread. A task that is cancelled meanwhile doesn't wait for it: the thread ends it."""
        beginning = asyncio.wrap_future(self._submit(batch.__enter__))
        try:
            await beginning
        except BaseException as error:
            if beginning.done() and not beginning.cancelled() and beginning.exception() is not None:
                self.release()
            else:  # it has begun, or will, and no `__aexit__` ends it
                self.abandon_later(batch, error)
            raise

    def abandon_later(self, batch: Batch, error: BaseException) -> None:
        """End a batch in the thread, if it has begun by then. All other batches, its own task's too, wait for that."""
        self._held_by = None

        def abandon() -> None:
            if batch.is_open:
                batch.__exit__(type(error), error, None)

        def done(_: object) -> None:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self.release)

        self._submit(abandon).add_done_callback(done)


class ConcurrentTasks(_Tasks):
    """The tasks that share a concurrent receiver: each has a batch of its own, whose statements are awaited."""

    def __init__(self, receiver: Receiver, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(receiver, loop)
        self.awaited_engine = self.session.pooled_engine(is_awaited=True)

    def batch(self, given: AsyncConnection | AsyncSession | None) -> AsyncBatch:
        return ConcurrentTaskBatch(self, given)

    async def status(self) -> Status:
        return await asyncio.to_thread(self.receiver.status)

    async def close(self) -> None:
        """Close the receiver, from any event loop. Batches under way may go on to their end."""
        await to_the_end(asyncio.to_thread(self.receiver.close))
        await to_the_end(greenlet_spawn(self.awaited_engine.dispose))
