"""The bridge itself: take a batch, keep it, acknowledge it, hand it on; and go on, whatever breaks."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from queue import Empty, SimpleQueue

from receiver.bridge.connectors import Advance, Delivery, Message, PipelinedSource, PositionedSource, Source
from receiver.bridge.health import Health
from receiver.bridge.modes import Figures, Flow, Taken
from receiver.bridge.options import IdRule
from receiver.bridge.received import PASSED, Passed, Received, sent_at_ms
from receiver.bridge.targets import Target
from receiver.durable.receiver import Receiver
from receiver.errors import BrokerError, MessageRefusedError, OutputError, PositionMovedError, ReceiverError, StoreError
from receiver.retrying import Backoff, Refusals, may_pass
from receiver.settings import BridgeSettings

_LOGGER = logging.getLogger("receiver.bridge")
_WAIT_SECS = 0.25
"""How long it may take to notice a stop, or what another bridge left in the inbox."""
_BATCH_BYTES = 16 << 20
"""A batch with so many bytes in bodies ends, so that no more of them are in memory at once."""
_TEND_SECS = 1.0
_BACKOFF = Backoff(0.1, 30.0)
_WELL_SECS = 10.0
"""An idle connection counts as healthy after so long; then back-off begins anew. Not before, for a broker may confirm a
subscription and refuse it a moment later."""


class Bridge:
    """One bridge from a source to a target. `open_bridge` makes it.

    Call `run` once. Call `close` if `run` is never called. `stop` may be called from any thread, and from a signal's
    handler.
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
        consumers: int = 1,
    ) -> None:
        """`consumers` is how many bridges of the process take the same messages at once, this one among them."""
        self.receiver = receiver
        self.figures = figures
        self._connect = connect
        self._flow = flow
        self._target = target
        self._destination = destination
        self._ids = ids or IdRule()
        self._passed = passed
        self._consumers = consumers
        self.warned_of: set[str] = set()
        self._settings = settings or BridgeSettings()
        self.health = Health(self._settings.stuck_after_secs)
        self._source: Source | None = None
        self._pipelined: PipelinedSource | None = None
        """The source, if it is one; so with `_positioned`. To ask it that at each batch would cost as much as a commit."""
        self._positioned: PositionedSource | None = None
        self._refusals = Refusals()
        """How long the broker that messages are taken from has refused."""
        self._pauses_secs = _BACKOFF.pauses_secs()
        """Before the next connection; they grow while each is lost before anything went through it."""
        self._unanswered: Callable[[], None] | None = None
        """Waits until the broker has answered the last acknowledgement; None where it has."""
        self._unanswered_count = 0
        """How many messages that is about."""
        self._target_due_secs = 0.0
        """When it is next seen whether the target can be reached."""
        self._target_pauses_secs = _BACKOFF.pauses_secs()
        self._most = self._settings.max_batch_size
        self._busy_at = 0.0
        """When a message was last handled, or a connection made."""
        self.idle_since = math.inf
        """Since when nothing has come and nothing waits; infinite where something does, or where that isn't known."""
        self._stop_asked: SimpleQueue[None] = SimpleQueue()
        """Unlike an Event it may be put into by the handler of a signal that came while its own thread uses it."""
        self.is_stopping = False
        self.has_started = False
        """Whether all that it needs has been reached."""

    def status_line(self) -> str:
        """Apama's status line: what was received and what was handed on."""
        return self.figures.line(self.receiver.status())

    def stop(self) -> None:
        """End `run` once the batch under way is kept, acknowledged and handed on."""
        self.is_stopping = True
        self._stop_asked.put(None)

    def run(self, *, stop_when_idle_secs: float | None = None, waits_at_start: bool = False) -> None:
        """Bridge until `stop` is called.

        What can't be reached is an error at the start, unless the bridge `waits_at_start`. Later the bridge waits for it. An
        error loses no message, except in BEST_EFFORT: the broker has what isn't acknowledged, and the inbox has the rest.

        Args:
            stop_when_idle_secs: Also stop once no message has come for so long and none waits.
            waits_at_start: Also wait at the start for what can't be reached.

        Raises:
            BrokerError: At the start, the broker can't be reached. `BrokerRefusedError`, `MessageRefusedError` and
                `MessagesLostError` end it at any time.
            StoreError: At the start, the store can't be reached. `StoreCorruptError` and `StoreVersionError` end it at
                any time.
            SettingsError: At any time.
            ClosedError: At any time.
        """
        with ExitStack() as closing:
            closing.callback(self.close)
            if self.begin(waits=waits_at_start):
                policy = self.receiver.figures().policy
                _LOGGER.info("taking messages for %s, domain %s, %s", self._target.name, self.receiver.domain, policy)
                self.work(stop_when_idle_secs=stop_when_idle_secs)

    def work(self, *, stop_when_idle_secs: float | None = None) -> None:
        """Bridge until `stop` is called, having begun; nothing is closed afterwards."""
        self._busy_at = tended_at = time.monotonic()
        while not self.is_stopping:
            self.health.moves()
            self._most = self._most_at_once()
            deliveries = self._take()
            now = time.monotonic()
            if now - tended_at >= _TEND_SECS:
                self._until_done(self._flow.tend)
                self._check_target()
                tended_at = now
            self.idle_since = math.inf
            if deliveries:
                self._handle(deliveries)
                self._busy_at = time.monotonic()
            elif not self._is_answered():
                continue
            elif self.figures.any_waits:
                self._deliver()
            elif self._source is not None and not getattr(self._source, "is_settling", False):
                self.idle_since = self._busy_at
                if stop_when_idle_secs is not None and self.idle_since <= now - stop_when_idle_secs:
                    return
        self._is_answered()

    def begin(self, *, waits: bool) -> bool:
        """Connect with all that it needs; False if a stop was asked for before that was done."""
        for step in (self._target.connect, self._flow.prepare, self._connect_source):
            self.health.moves()
            if not waits:
                step()
            elif not self._until_done(step):
                return False
        self.has_started = True
        return True

    def _check_target(self) -> None:
        """See whether the target can be reached, also while nothing is handed on. It isn't waited for here."""
        check = getattr(self._target, "check", None)
        if check is None or time.monotonic() < self._target_due_secs:
            return
        try:
            check()
        except BrokerError as error:  # meant or not: the next message will tell
            self._complain(error, "target")
            self._target_due_secs = time.monotonic() + next(self._target_pauses_secs)
        else:
            self.health.works("target")
            self._target_pauses_secs = _BACKOFF.pauses_secs()

    def _most_at_once(self) -> int:
        """As many messages as a batch may have, and no more than the window has ids for each consumer.

        When its acknowledgement is lost, all of a batch comes again, perhaps only after a short expiry is over; then the
        window must still have its ids.
        """
        most, window = self._settings.max_batch_size, self.receiver.window
        if self.receiver.observe_only or not 0 < window < most * self._consumers:
            return most
        share = max(1, window // self._consumers)
        if self._most != share:
            each = " for each consumer" if self._consumers > 1 else ""
            _LOGGER.warning("batches have at most %d messages, as many as the window has ids%s", share, each)
        return share

    def close(self) -> None:
        """Close all connections. `run` does so at its end. Closing again does nothing."""
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
        if not taken and self._unanswered is None and time.monotonic() - self._busy_at >= _WELL_SECS:
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
        if self.figures.any_waits and self.is_stopping:
            return
        if not self._may_wait_with(deliveries) and not self._is_answered():
            return  # they come again by another connection
        taken = self._received(deliveries)
        try:
            if not self._until_done(partial(self._flow.before_acknowledging, taken)):
                return
            self._hear_answer()
            self._acknowledge(deliveries)
        except PositionMovedError as error:  # these are another's now
            self._lost(error)
        except BrokerError as error:  # they may come again
            self._lost(error)
        self._deliver()

    def _may_wait_with(self, deliveries: list[Delivery]) -> bool:
        """Whether these may be kept before the broker has answered the last acknowledgement.

        If the connection is lost meanwhile, both batches come again. The window must still have their ids then, so together
        they must fit into one batch.
        """
        return self._unanswered_count + len(deliveries) <= min(self._most, self.receiver.window)

    def _acknowledge(self, deliveries: list[Delivery]) -> None:
        """Have the broker forget these. Its answer is waited for at once, or before the next are acknowledged."""
        if self._pipelined is not None:
            self._unanswered, self._unanswered_count = self._pipelined.begin_acknowledging(deliveries), len(deliveries)
        else:
            self._source.acknowledge(deliveries)  # type: ignore[union-attr] # what was taken has a source
            self._is_well()

    def _hear_answer(self) -> None:
        """Wait until the broker has answered the last acknowledgement."""
        wait, self._unanswered, self._unanswered_count = self._unanswered, None, 0
        if wait is not None:
            wait()
            self._is_well()

    def _is_answered(self) -> bool:
        """Wait for that answer; False if the connection is lost instead, so that what was acknowledged may come again."""
        try:
            self._hear_answer()
        except BrokerError as error:
            self._lost(error)
            return False
        return True

    def _deliver(self) -> None:
        """Hand on what waits, if anything does."""
        if self.figures.any_waits:
            self._until_done(partial(self._flow.deliver_waiting, self._has_enough))

    def _has_enough(self) -> bool:
        """Asked after each lease."""
        self.health.moves()
        return self.is_stopping

    def _received(self, deliveries: list[Delivery]) -> Taken:
        now_us, destination = time.time_ns() // 1_000, self._destination
        messages, refused, returned = [], {}, {}
        ids_of, has_passed, takes_long = self._ids.ids_of, self._passed.has, self._ids.function is not None
        for index, delivery in enumerate(deliveries):
            message = delivery.message
            if takes_long:
                self.health.moves()
            try:
                ids = ids_of(message)
            except MessageRefusedError as error:
                refused[index] = error.message
                ids = None, None
            else:
                if PASSED in message.properties and has_passed(ids[0], message.properties):
                    returned[index] = f"it has come back to {self.receiver.domain}, which it has passed before"
            sent_ms = sent_at_ms(message)
            if sent_ms != message.jms_timestamp_ms:
                self._warn_of_time(message, sent_ms)
                message = replace(message, jms_timestamp_ms=sent_ms)
            messages.append(Received.of_message(message, ids, now_us, destination))
        if returned:
            self._warn_of_ring(messages[min(returned)])
        if self.receiver.window and not self.receiver.observe_only:
            self._warn_of_one_window(messages)
        return Taken(messages, refused, returned, self._advances(deliveries))

    def _advances(self, deliveries: list[Delivery]) -> Sequence[Advance]:
        return () if self._positioned is None else self._positioned.advances(deliveries)

    def _warn_of_ring(self, message: Received) -> None:
        self._warn_once(
            "a ring",
            "bridges form a ring: %r has come back to %s. Such messages are parked (in BEST_EFFORT: handed on). Name other "
            "queues, or take only what no bridge has sent: ?selector=%s IS NULL",
            message.unique_message_id,
            self.receiver.domain,
            PASSED,
        )

    def _warn_of_one_window(self, messages: Sequence[Received]) -> None:
        """Say once what it costs where several senders don't say who they are: the bridge can't see how many there are."""
        if any(message.unique_message_id and not message.message_source_id for message in messages):
            self._warn_once(
                "one window",
                "messages come without %s: if several senders send them, they share the window of %d ids, and each pushes out "
                "the ids of the others. Have each set it, or name the property that says who sent a message (--source-property)",
                self._ids.source_property,
                self.receiver.window,
            )

    def _warn_of_time(self, message: Message, sent_ms: int | None) -> None:
        """Say what became of a JMSTimestamp; 0 is for none."""
        if message.jms_timestamp_ms:
            done = "left out" if sent_ms is None else "read as seconds"
            self._warn_once(
                done,
                "JMSTimestamp %d of %r can't be in milliseconds; times like it are %s",
                message.jms_timestamp_ms,
                message.message_id,
                done,
            )

    def _warn_once(self, of: str, text: str, *values: object) -> None:
        if of not in self.warned_of:
            self.warned_of.add(of)
            _LOGGER.warning(text, *values)

    def _until_done(self, action: Callable[[], object]) -> bool:
        """Try again after growing pauses until it works; False if a stop was asked for before it did."""
        refusals = Refusals()
        for pause_secs in _BACKOFF.pauses_secs():
            self.health.moves()
            try:
                action()
            except ReceiverError as error:
                if not may_pass(error) or refusals.are_meant(error):
                    raise
                self._complain(error, "step")
            else:
                self.health.works("step")
                return True
            if self._stops_within(pause_secs):
                break
        return False

    def _stops_within(self, secs: float) -> bool:
        """Wait so long, or until a stop is asked for; whether it is."""
        self.health.moves()
        if not self.is_stopping:
            with suppress(Empty):
                self._stop_asked.get(timeout=secs)
        return self.is_stopping

    def _connect_source(self) -> None:
        source = self._source = self._connected()
        self._pipelined = source if isinstance(source, PipelinedSource) else None
        self._positioned = source if isinstance(source, PositionedSource) else None
        self.health.works("source")

    def _reconnect(self) -> None:
        self._connect_source()
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
        self._complain(error, "source")
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
        self._pipelined = self._positioned = None
        self._unanswered, self._unanswered_count = None, 0
        if source is not None:
            source.close()

    def _complain(self, error: ReceiverError, of: str) -> None:
        """Log what has failed, which the bridge isn't ready for: the `source`, the `target`, or the `step` under way."""
        self.health.fails(of, error)
        if not isinstance(error, OutputError):
            self.figures.connection_errors += 1
        _LOGGER.warning("%s", error)


def _has_room(taken: list[Delivery], most: int) -> bool:
    return len(taken) < most and sum(len(delivery.message.body) for delivery in taken) < _BATCH_BYTES
