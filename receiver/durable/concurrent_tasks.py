"""Concurrent receivers in an event loop: each task has a batch of its own, and no task waits for another's.

Batches are those of `receiver.durable.concurrent`. Their statements are awaited: by the caller's driver where a batch
joins a transaction, else by psycopg on connections of our own. No thread would do there: tasks that wait for an id would
keep all threads, and the task that has the id could not end. Folding goes on in the thread that it has in any receiver.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.util import greenlet_spawn

from receiver.durable.async_batch import AsyncBatch, check_loop, connection_of
from receiver.durable.batch import Batch
from receiver.durable.concurrent import ConcurrentBatch
from receiver.durable.receiver import ConcurrentReceiver
from receiver.durable.status import Status
from receiver.message import Decision, Receipt
from receiver.settings import StoreSettings
from receiver.store.databases import database_of

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

_P = ParamSpec("_P")
_T = TypeVar("_T")


class ReceiverForTasks(ConcurrentReceiver):
    """A concurrent receiver whose batches are awaited. What they leave to be reported is reported by the folder's thread."""

    _awaited: Engine | None = None

    def take_up(self, store_settings: StoreSettings) -> None:
        super().take_up(store_settings)
        url = self._session.url
        assert url is not None  # noqa: S101 - memory:// has no domain of this kind
        self._awaited = database_of(url).pooled(url, store_settings, is_awaited=True)

    def batch(self, connection: Connection | None = None) -> Batch:
        assert self._awaited is not None  # noqa: S101 - it is made as the receiver is opened
        return ConcurrentBatch(
            self._session, self._options, self.counters, connection, engine=self._awaited, notify=_nothing
        )

    def dispose(self) -> None:
        """Close the connections that no batch has."""
        if self._awaited is not None:
            self._awaited.dispose()


def _nothing() -> None:
    pass


class ConcurrentTasks:
    """What the tasks that share a concurrent receiver have."""

    def __init__(self, receiver: ReceiverForTasks) -> None:
        self.receiver = receiver
        self._loop = asyncio.get_running_loop()

    def batch(self, connection: AsyncConnection | AsyncSession | None) -> AsyncBatch:
        return _Batch(self.receiver, connection, self._loop)

    async def status(self) -> Status:
        return await asyncio.to_thread(self.receiver.status)

    async def close(self) -> None:
        """Close the receiver, also from another event loop than ours. Batches under way may go on to their end."""
        await _to_the_end(asyncio.to_thread(self.receiver.close))
        await _to_the_end(greenlet_spawn(self.receiver.dispose))


class _Batch(AsyncBatch):
    def __init__(
        self,
        receiver: ReceiverForTasks,
        given: AsyncConnection | AsyncSession | None,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._receiver = receiver
        self._given = given
        self._loop = loop

    async def __aenter__(self) -> Self:
        check_loop(self._loop)
        joined = await connection_of(self._given)
        self._batch = self._receiver.batch(None if joined is None else joined.sync_connection)
        await greenlet_spawn(self._batch.__enter__)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if not isinstance(error, GeneratorExit):
            await _to_the_end(greenlet_spawn(self._batch.__exit__, kind, error, traceback))
        elif (
            self._given is not None
        ):  # nothing can be awaited any more, and the caller's coroutine ends without a commit
            self._batch.__exit__(kind, error, traceback)
        else:
            ending = greenlet_spawn(self._batch.__exit__, kind, error, traceback)
            with suppress(BaseException):
                ending.send(None)  # psycopg needs no loop to end a connection
            ending.close()

    async def _asked(self, method: Callable[_P, _T], *arguments: _P.args, **named: _P.kwargs) -> _T:
        return await greenlet_spawn(partial(method, *arguments, **named))

    async def receive_many(
        self, receipts: Iterable[Receipt | tuple[str | None, str | None, int | None]]
    ) -> list[Decision]:
        return await greenlet_spawn(self._batch.receive_many, receipts)

    async def run_sync(
        self, function: Callable[Concatenate[Connection, _P], _T], *arguments: _P.args, **named: _P.kwargs
    ) -> _T:
        return await greenlet_spawn(partial(function, self._batch.connection, *arguments, **named))


async def _to_the_end(awaited: Coroutine[Any, Any, _T]) -> _T:
    """What it returns; a task that is cancelled waits for it all the same."""
    ending = asyncio.ensure_future(awaited)
    cancelled = None
    while not ending.done():
        try:
            await asyncio.wait([ending])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        if not ending.cancelled():
            ending.exception()  # or asyncio says that nobody asked for it
        raise cancelled
    return ending.result()
