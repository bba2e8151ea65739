"""The broker that a program under test is given: three calls, and each message at least once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from receiver.errors import SettingsError
from receiver.testing.crash_points import Run
from receiver.testing.world import Message


class FlakyBroker:
    """A broker in memory that delivers each message at least once, as real ones do.

    Unacknowledged messages come again: when the program starts again, or after `recover()`. Now and then, acknowledged ones do
    too. They come in their old order or behind newer messages, flagged as redelivered or not. A sender that starts again
    resends its last messages, under the same `unique_message_id` and another `message_source_id`.

    The program may crash before or after each call.
    """

    def __init__(self, run: Run) -> None:
        self._run = run

    def receive(self, most: int = 1) -> list[Message]:
        """The next messages, at most `most`. If the broker has none now, the list is empty, and the program should return."""
        if isinstance(most, bool) or not isinstance(most, int) or most < 1:
            raise SettingsError(f"receive() takes how many messages it may give, 1 or more, not {most!r:.80}")
        messages: list[Message] = self._run.call("receive", most)
        return messages

    def acknowledge(self, messages: Iterable[Message]) -> None:
        """Acknowledge these messages: the broker may forget them."""
        if isinstance(messages, Message):
            raise SettingsError("acknowledge() takes several messages", hint="write acknowledge([message])")
        self._run.call("acknowledge", [message.delivery for message in messages])

    def recover(self) -> None:
        """Have the broker deliver again all messages that were received and aren't acknowledged."""
        self._run.call("recover")

    @property
    def now_ms(self) -> int:
        """The story's clock, in milliseconds since 1970: for programs that forget ids after some time."""
        now_ms: int = self._run.ask("now_ms")
        return now_ms


class AsyncFlakyBroker:
    """A `FlakyBroker` with coroutines. Each lets other tasks run first."""

    def __init__(self, run: Run) -> None:
        self._broker = FlakyBroker(run)

    async def receive(self, most: int = 1) -> list[Message]:
        """See `FlakyBroker.receive`."""
        await asyncio.sleep(0)
        return self._broker.receive(most)

    async def acknowledge(self, messages: Iterable[Message]) -> None:
        """See `FlakyBroker.acknowledge`."""
        await asyncio.sleep(0)
        self._broker.acknowledge(messages)

    async def recover(self) -> None:
        """See `FlakyBroker.recover`."""
        await asyncio.sleep(0)
        self._broker.recover()

    @property
    def now_ms(self) -> int:
        """See `FlakyBroker.now_ms`."""
        return self._broker.now_ms
