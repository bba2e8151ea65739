"""A domain whose receivers work in an event loop, beside the naive model. Each step waits until the loop has done
it."""

from asyncio import Runner
from types import TracebackType
from typing import Any, Self

from sqlalchemy.ext.asyncio import AsyncConnection

from receiver import AsyncReceiver
from tests.durable.async_opened import engine_for
from tests.durable.stores_in_lockstep import Domain, Housekeeping


class _Batch:
    def __init__(self, loop: Runner, batch: Any) -> None:
        self._loop, self._batch = loop, batch

    def __enter__(self) -> Self:
        self._loop.run(self._batch.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._loop.run(self._batch.__aexit__(kind, error, traceback))

    def receive(self, *arguments: Any, **named: Any) -> Any:
        return self._loop.run(self._batch.receive(*arguments, **named))

    def receive_many(self, receipts: Any) -> Any:
        return self._loop.run(self._batch.receive_many(receipts))


class _Receiver:
    def __init__(self, loop: Runner, receiver: AsyncReceiver) -> None:
        self._loop, self._async = loop, receiver
        self.session = receiver._receiver.session

    def batch(self, connection: "_Connection | None" = None) -> _Batch:
        return _Batch(self._loop, self._async.batch(None if connection is None else connection.joined))

    def status(self) -> Any:
        return self._loop.run(self._async.status())

    def close(self) -> None:
        self._loop.run(self._async.close())


class _Connection:
    """The caller's transaction, or a savepoint of it."""

    def __init__(self, loop: Runner, joined: Any) -> None:
        self._loop, self.joined = loop, joined

    def __enter__(self) -> Self:
        self._loop.run(self._begin())
        return self

    async def _begin(self) -> AsyncConnection:
        return await self.joined

    def __exit__(self, *_error: object) -> None:
        self._loop.run(self.joined.close())

    def in_transaction(self) -> bool:
        return self.joined.in_transaction()

    def begin_nested(self) -> "_Connection":
        return _Connection(self._loop, self._loop.run(_awaited(self.joined.begin_nested())))

    def commit(self) -> None:
        self._loop.run(self.joined.commit())

    def rollback(self) -> None:
        self._loop.run(self.joined.rollback())


async def _awaited(awaitable: Any) -> Any:
    return await awaitable


class AsyncDomain(Domain):
    """As a `Domain`, with `AsyncReceiver`s. An engine with an asynchronous driver gives them connections to join."""

    def __init__(  # noqa: PLR0917
        self,
        loop: Runner,
        driver: str,
        url: str,
        name: str,
        receivers: int,
        window: int,
        expiry_us: int,
        keeping: Housekeeping,
    ) -> None:
        self._loop = loop
        self._async_engine = engine_for(url, driver)
        super().__init__(url, name, receivers, window, expiry_us, keeping)

    def _open(self, **options: Any) -> Any:
        return _Receiver(self._loop, self._loop.run(AsyncReceiver.open(self.url, **options)))

    def connect(self) -> Any:
        return _Connection(self._loop, self._async_engine.connect())

    def close(self) -> None:
        super().close()
        self._loop.run(self._async_engine.dispose())
