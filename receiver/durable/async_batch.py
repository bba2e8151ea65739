"""`AsyncBatch`: a `Batch` with coroutines, whichever way it is worked on in the event loop."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterable
from functools import wraps
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar

from sqlalchemy import Connection

from receiver.durable.batch import Batch
from receiver.errors import ClosedError, SettingsError
from receiver.message import Decision, Receipt

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

_P = ParamSpec("_P")
_T = TypeVar("_T")


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

    _batch: Batch

    @abstractmethod
    async def __aenter__(self) -> Self: ...

    @abstractmethod
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

    @abstractmethod
    async def _asked(self, method: Callable[_P, _T], *arguments: _P.args, **named: _P.kwargs) -> _T:
        """What a method of the batch returns that decides."""

    receive = _awaited(Batch.receive)
    """What was decided is recorded when the batch ends."""
    advance = _awaited(Batch.advance)

    @abstractmethod
    async def receive_many(
        self, receipts: Iterable[Receipt | tuple[str | None, str | None, int | None]]
    ) -> list[Decision]:
        """As `Batch.receive_many`."""

    @abstractmethod
    async def run_sync(
        self, function: Callable[Concatenate[Connection, _P], _T], *arguments: _P.args, **named: _P.kwargs
    ) -> _T:
        """What `function(connection, ...)` returns, called with a connection in the batch's transaction.

        What it writes is committed with the ids or not at all. In a transaction of the batch's own it is called in a
        thread, unless the receiver is concurrent: then, and in a transaction of yours, it is called in the loop, where
        SQLAlchemy awaits what it asks the database. Leave committing and rolling back to the batch.
        """


def check_loop(loop: asyncio.AbstractEventLoop) -> None:
    """`ClosedError` unless this is the event loop that runs."""
    if asyncio.get_running_loop() is not loop:
        raise ClosedError("the receiver belongs to another event loop", hint="open another in this one")


async def connection_of(given: AsyncConnection | AsyncSession | None) -> AsyncConnection | None:
    """The open connection of what was given to `batch`."""
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
        raise SettingsError("the connection given to batch() is closed, or was never opened")
    return given
