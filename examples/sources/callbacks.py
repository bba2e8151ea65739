"""A source for a client that calls back with its messages, in a thread of its own."""

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Condition

from receiver.bridge import Closing, Delivery, Message
from receiver.errors import BrokerError


class CallbackSource(Closing):
    """What a client calls `arrived` with; `acknowledge` and `close` are the client's own."""

    def __init__(self, acknowledge: Callable[[object], None], close: Callable[[], None], ahead: int = 1_000) -> None:
        self._acknowledge, self._close, self._ahead = acknowledge, close, ahead
        self._arrived: deque[Delivery] = deque()
        self._failure: BrokerError | None = None
        self._changed = Condition()

    def arrived(self, message: Message, token: object) -> None:
        with self._changed:  # the client's thread waits while enough lies here
            self._changed.wait_for(lambda: len(self._arrived) < self._ahead or self._failure)
            if not self._failure:
                self._arrived.append(Delivery(message, token))
            self._changed.notify_all()

    def failed(self, error: BrokerError) -> None:
        with self._changed:
            self._failure = self._failure or error
            self._changed.notify_all()

    def take(self, at_most: int, *, wait_secs: float) -> list[Delivery]:
        with self._changed:
            self._changed.wait_for(lambda: self._arrived or self._failure, wait_secs)
            if self._failure and not self._arrived:
                raise self._failure
            self._changed.notify_all()
            return [self._arrived.popleft() for _ in range(min(at_most, len(self._arrived)))]

    def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        try:
            for delivery in deliveries:
                self._acknowledge(delivery.token)
        except Exception as error:
            raise BrokerError(f"it can't be acknowledged: {error}") from error

    def close(self) -> None:
        self.failed(BrokerError("the connection is closed"))
        with suppress(Exception):
            self._close()
