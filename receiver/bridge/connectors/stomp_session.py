"""One connection by STOMP: what comes, what is asked, and what the broker's errors mean."""

from __future__ import annotations

import queue
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from receiver.bridge.connectors.address import ANSWER_SECS, CLOSE_SECS, BrokerAddress, mute
from receiver.bridge.connectors.stomp_transport import (
    ConnectionListener,
    StompConnection,
    StompException,
    StompTransport,
)
from receiver.errors import BrokerError, BrokerRefusedError, MessageRefusedError

__all__ = ["StompSession"]

_CONNECTED = "CONNECTED"
_LONGEST_ERROR = 200
"""Letters shown of one; Artemis puts all properties of a message in some."""
_NO_DESTINATION = "AMQ339001"
_NO_MESSAGE = "AMQ339031"
"""Artemis can't make a message of what was sent. Of its other errors none tells whose fault it is."""


class StompSession(ConnectionListener):  # type: ignore[misc]
    """One connection; what comes in by it waits in two queues, messages apart from answers."""

    def __init__(
        self,
        address: BrokerAddress,
        *,
        client_id: str | None = None,
        max_body_bytes: int,
        answer_secs: float = ANSWER_SECS,
    ) -> None:
        self.address = address
        self.messages: queue.Queue[Any] = queue.Queue()
        """Frames; a `MessageRefusedError` in the place of one; None to wake whoever waits."""
        self.is_ready = False
        """Whether an error is about something else than login and destination."""
        self._answers: queue.Queue[str | None] = queue.Queue()
        self._answer_secs = answer_secs
        self._broken: BrokerError | None = None
        self._transport = StompTransport(
            address, max_body_bytes=max_body_bytes, answer_secs=answer_secs, refuse=self._refuse
        )
        self.connection = StompConnection(self._transport)
        self.connection.set_listener("", self)
        headers = {} if client_id is None else {"client-id": client_id}
        try:
            self.ask(lambda _: self.connection.connect(address.user, address.password, headers=headers), [_CONNECTED])
        except BrokerError:
            self.close()
            raise

    def on_connected(self, _frame: Any) -> None:
        self._answers.put(_CONNECTED)

    def on_message(self, frame: Any) -> None:
        self.messages.put(frame)

    def on_receipt(self, frame: Any) -> None:
        self._answers.put(frame.headers.get("receipt-id"))

    def on_error(self, frame: Any) -> None:
        said = frame.headers.get("message") or frame.body.decode("utf-8", "replace").strip() or "it says ERROR"
        why = f"{self.address} refuses: {said:.{_LONGEST_ERROR}}"
        if not self.is_ready or said.startswith(_NO_DESTINATION):
            self._break(BrokerRefusedError(why, hint="check user, password, name, and what this user may do"))
        elif said.startswith(_NO_MESSAGE):
            self._break(MessageRefusedError(why, hint="leave this message out"))
        else:
            self._break(BrokerError(why, hint="connect again"))

    def on_disconnected(self) -> None:
        self._break(self._transport.failure or self._lost("the connection has ended"))

    def check(self) -> None:
        if self._broken is not None:
            raise type(self._broken)(self._broken.message, hint=self._broken.hint)

    def ask(self, send: Callable[[str], None], receipts: Sequence[str], *, is_patient: bool = True) -> None:
        """Send a frame for each of these receipts, and wait until the broker has given all of them.

        Who is patient waits for them as long as anything moves, such as a large message that comes before them.
        """
        self.check()
        for receipt in receipts:
            try:
                send(receipt)
            except BrokerError as error:
                self._break(error)
            except StompException as error:
                self._break(self._lost(str(error) or "the connection has ended"))
            self.check()
        wanted, heard_at = set(receipts), time.monotonic()
        while wanted:
            moved_at = max(heard_at, self._transport.moved_at) if is_patient else heard_at
            quiet_secs = time.monotonic() - moved_at
            if quiet_secs >= self._answer_secs:
                self._break(mute(self.address, self._answer_secs))
            self.check()
            with suppress(queue.Empty):
                wanted.discard(self._answers.get(timeout=self._answer_secs - quiet_secs))
                heard_at = time.monotonic()

    def close(self, *, last_words: Callable[[str], None] | None = None) -> None:
        """End the connection, after a frame that asks for the receipt that it's given."""
        self._transport.patience_secs = self._answer_secs = min(self._answer_secs, CLOSE_SECS)
        with suppress(BrokerError):
            if last_words is not None:
                self.ask(last_words, [uuid.uuid4().hex], is_patient=False)
        is_broken = self._broken is not None
        self._break(self._lost("the connection is closed"))
        if is_broken:
            self._transport.disconnect_socket()
        else:
            with suppress(BrokerError, StompException):
                self.connection.disconnect(uuid.uuid4().hex)
        self._transport.stop()

    def _refuse(self, error: MessageRefusedError) -> None:
        self.messages.put(MessageRefusedError(f"{self.address}: {error.message}", hint=error.hint))

    def _lost(self, why: str) -> BrokerError:
        return BrokerError(f"{self.address}: {why}", hint="connect again")

    def _break(self, why: BrokerError) -> None:
        self._broken = self._broken or why
        # Whoever waits for either is woken.
        self.messages.put(None)
        self._answers.put(None)
