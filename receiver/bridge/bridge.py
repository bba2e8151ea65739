"""The bridge itself: take a batch, keep it, acknowledge it, hand it on; and go on, whatever breaks."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from queue import Empty, SimpleQueue

from receiver.bridge.connectors import Advance, Delivery, Message, PositionedSource, Source
from receiver.bridge.modes import Figures, Flow, Taken
from receiver.bridge.options import IdRule
from receiver.bridge.received import PASSED, Passed, Received, sent_at_ms
from receiver.bridge.targets import Target
from receiver.durable.receiver import Receiver
from receiver.errors import BrokerError, MessageRefusedError, OutputError, PositionMovedError, ReceiverError, StoreError
from receiver.retrying import Backoff, Refusals, may_pass
from receiver.settings import BridgeSettings

__all__ = ["Bridge"]

_LOGGER = logging.getLogger("receiver.bridge")
_WAIT_SECS = 0.25
"""How long it may take to notice a stop, or what another bridge left in the inbox."""
_BATCH_BYTES = 16 << 20
"""A batch with so many bytes in bodies ends, so that no more of them are in memory at once."""
_TEND_SECS = 1.0
_BACKOFF = Backoff(0.1, 30.0)


class Bridge:
    """One bridge from a source to a target; `open_bridge` makes it of addresses.

    `run` may be called once; `close` is for whoever doesn't get to that. `stop` may be called from any thread, and from
    a signal's handler.
    """

    def __init__(
        self,
        connect: Callable[[], Source],
        flow: Flow,
        receiver: Receiver,
        target: Target,
        *,
        destination: str,
        ids: IdRule | None = None,
        passed: Passed,
        settings: BridgeSettings | None = None,
        figures: Figures,
    ) -> None:
        self.receiver = receiver
        self.figures = figures
        self._connect = connect
        self._flow = flow
        self._target = target
        self._destination = destination
        self._ids = ids or IdRule()
        self._passed = passed
        self._warned_of: set[str] = set()
        self._settings = settings or BridgeSettings()
        self._source: Source | None = None
        self._refusals = Refusals()
        """Those of the broker that messages are taken from."""
        self._pauses_secs = _BACKOFF.pauses_secs()
        """Before the next connection; they grow while each is lost before anything went through it."""
        self._most = self._settings.max_batch_size
        self._busy_at = 0.0
        """When a message was last handled, or a connection made."""
        self._stop_asked: SimpleQueue[None] = SimpleQueue()
        """Unlike an Event it may be put into by the handler of a signal that came while its own thread uses it."""
        self.is_stopping = False
        self.has_started = False
        """Whether all that it needs has been reached."""

    def status_line(self) -> str:
        """Apama's status line, of what was received and what was handed on."""
        return self.figures.line(self.receiver.status())

    def stop(self) -> None:
        """End `run` once the batch under way is kept, acknowledged and handed on."""
        self.is_stopping = True
        self._stop_asked.put(None)

    def run(self, *, stop_when_idle_secs: float | None = None) -> None:
        """Bridge until `stop` is called, or until no message has come for so long and none waits.

        What can't be reached is an error at the start, and waited for later. `BrokerRefusedError`, `MessageRefusedError`,
        `MessagesLostError`, `StoreCorruptError`, `StoreVersionError`, `ClosedError` and `SettingsError` end it at any time.
        Nothing is lost by that but in BEST_EFFORT: the broker has what isn't acknowledged, and the inbox what is.
        """
        with ExitStack() as closing:
            closing.callback(self.close)
            self._target.connect()
            self._flow.prepare()
            self._source = self._connected()
            self.has_started = True
            policy = self.receiver.figures().policy
            _LOGGER.info("taking messages for %s, domain %s, %s", self._target.name, self.receiver.domain, policy)
            self._busy_at = tended_at = time.monotonic()
            while not self.is_stopping:
                self._most = self._most_at_once()
                deliveries = self._take()
                now = time.monotonic()
                if now - tended_at >= _TEND_SECS:
                    self._until_done(self._flow.tend)
                    tended_at = now
                if deliveries:
                    self._handle(deliveries)
                    self._busy_at = time.monotonic()
                elif self.figures.waiting:
                    self._deliver()
                elif stop_when_idle_secs is not None and self._is_idle(now - stop_when_idle_secs):
                    return

    def _most_at_once(self) -> int:
        """As many messages as a batch may have, and no more than the window has ids.

        When its acknowledgement is lost, all of a batch comes again, perhaps only after a short expiry is over; then the
        window must still have its ids.
        """
        most, window = self._settings.max_batch_size, self.receiver.window
        if self.receiver.observe_only or not 0 < window < most:
            return most
        if self._most != window:
            _LOGGER.warning("batches have at most %d messages, as many as the window has ids", window)
        return window

    def _is_idle(self, since: float) -> bool:
        """Whether nothing has come since then, although the source is connected."""
        return self._source is not None and not getattr(self._source, "is_settling", False) and self._busy_at <= since

    def close(self) -> None:
        """End all connections; `run` does so at its end. Closing again does nothing."""
        self.figures.has_ended = True
        self._lose_source()
        self._target.close()
        self._flow.close()
        self.receiver.close()

    def _take(self) -> list[Delivery]:
        """The next batch, empty if none came in a while."""
        if self._source is None:
            self._until_done(self._reconnect)
        source, most = self._source, self._most
        if source is None:
            return []
        try:
            taken = source.take(most, wait_secs=_WAIT_SECS)
        except (BrokerError, StoreError) as error:  # of the store, where a source couldn't read its positions
            if not may_pass(error):
                raise
            self._lost(error)
            return []
        if not taken:
            self._is_well()
        until = time.monotonic() + self._settings.max_batch_interval_millis / 1_000
        with suppress(BrokerError, StoreError):  # the next one who asks will hear of it
            while taken and _has_room(taken, most) and time.monotonic() < until:
                more = source.take(most - len(taken), wait_secs=0)
                if not more:
                    break
                taken += more
        return taken

    def _handle(self, deliveries: list[Delivery]) -> None:
        self._deliver()  # first what came before
        if self.figures.waiting and self.is_stopping:
            return
        taken = self._received(deliveries)
        try:
            if not self._until_done(partial(self._flow.before_acknowledging, taken)):
                return
            self._source.acknowledge(deliveries)  # type: ignore[union-attr] # what was taken has a source
        except PositionMovedError as error:  # these are another's now
            self._lost(error)
        except BrokerError as error:  # they may come again
            self._lost(error)
        else:
            self._is_well()
        self._deliver()

    def _deliver(self) -> None:
        """Hand on what waits, if anything does."""
        if self.figures.waiting:
            self._until_done(partial(self._flow.deliver_waiting, lambda: self.is_stopping))

    def _received(self, deliveries: list[Delivery]) -> Taken:
        now_us = time.time_ns() // 1_000
        messages, refused, returned = [], {}, {}
        for index, delivery in enumerate(deliveries):
            message = delivery.message
            try:
                id_, source = self._ids_of(message)
            except MessageRefusedError as error:
                refused[index] = error.message
                id_ = source = None
            else:
                if self._passed.has(id_, message.properties):
                    returned[index] = f"it has come back to {self.receiver.domain}, which it has passed before"
            messages.append(
                Received(
                    unique_message_id=id_,
                    message_source_id=source,
                    received_at_us=now_us,
                    redelivered=message.redelivered,
                    jms_timestamp_ms=self._sent_at_ms(message),
                    destination=self._destination,
                    message_id=message.message_id,
                    properties=message.properties,
                    headers=message.headers,
                    body=message.body,
                    is_text=message.is_text,
                    body_kind=message.body_kind,
                    amqp=message.amqp,
                )
            )
        if returned:
            self._warn_of_ring(messages[min(returned)])
        return Taken(messages, refused, returned, self._advances(deliveries))

    def _advances(self, deliveries: list[Delivery]) -> Sequence[Advance]:
        source = self._source
        return source.advances(deliveries) if isinstance(source, PositionedSource) else ()

    def _ids_of(self, message: Message) -> tuple[str | None, str | None]:
        if message.refused is not None:
            raise MessageRefusedError(message.refused)
        return self._ids.ids_of(message)

    def _warn_of_ring(self, message: Received) -> None:
        self._warn_once(
            "a ring",
            "bridges form a ring: %r has come back to %s. Such messages are parked (in BEST_EFFORT: handed on). Name other "
            "queues, or take only what no bridge has sent: ?selector=%s IS NULL",
            message.unique_message_id,
            self.receiver.domain,
            PASSED,
        )

    def _sent_at_ms(self, message: Message) -> int | None:
        sent, sent_ms = message.jms_timestamp_ms, sent_at_ms(message)
        if sent and sent != sent_ms:
            done = "left out" if sent_ms is None else "read as seconds"
            self._warn_once(
                done,
                "JMSTimestamp %d of %r can't be in milliseconds; times like it are %s",
                sent,
                message.message_id,
                done,
            )
        return sent_ms

    def _warn_once(self, of: str, text: str, *values: object) -> None:
        if of not in self._warned_of:
            self._warned_of.add(of)
            _LOGGER.warning(text, *values)

    def _until_done(self, action: Callable[[], None]) -> bool:
        """Try again after growing pauses until it works; False if a stop was asked for before it did."""
        refusals = Refusals()
        for pause_secs in _BACKOFF.pauses_secs():
            try:
                action()
            except ReceiverError as error:
                if not may_pass(error) or refusals.are_meant(error):
                    raise
                self._complain(error)
            else:
                return True
            if self._stops_within(pause_secs):
                break
        return False

    def _stops_within(self, secs: float) -> bool:
        """Wait so long, or until a stop is asked for; whether it is."""
        if not self.is_stopping:
            with suppress(Empty):
                self._stop_asked.get(timeout=secs)
        return self.is_stopping

    def _reconnect(self) -> None:
        self._source = self._connected()
        self._busy_at = time.monotonic()
        _LOGGER.info("connected again")

    def _connected(self) -> Source:
        source = self._connect()
        try:
            self._flow.attach(source)
        except BaseException:
            source.close()
            raise
        return source

    def _lost(self, error: BrokerError | StoreError) -> None:
        """Give up the connection, and wait before the next: longer each time where one after the other is lost."""
        self._complain(error)
        self._lose_source()
        if self._refusals.are_meant(error):
            raise error
        self._stops_within(next(self._pauses_secs))

    def _is_well(self) -> None:
        """Note that the source works, so that refusals and pauses begin anew."""
        self._refusals = Refusals()
        self._pauses_secs = _BACKOFF.pauses_secs()

    def _lose_source(self) -> None:
        source, self._source = self._source, None
        if source is not None:
            source.close()

    def _complain(self, error: ReceiverError) -> None:
        if not isinstance(error, OutputError):
            self.figures.connection_errors += 1
        _LOGGER.warning("%s", error)


def _has_room(taken: list[Delivery], most: int) -> bool:
    return len(taken) < most and sum(len(delivery.message.body) for delivery in taken) < _BATCH_BYTES
