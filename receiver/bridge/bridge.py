"""`Bridge`: takes a batch, keeps it, acknowledges it, hands it on; and goes on, whatever breaks."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from queue import Empty, SimpleQueue

from receiver.bridge.connectors import BATCH_BYTES, Delivery, Source
from receiver.bridge.modes import Flow
from receiver.bridge.received import Intake
from receiver.errors import LONGEST_ERROR, BrokerError, OutputError, PositionMovedError, ReceiverError, StoreError
from receiver.retrying import Backoff, Retries, may_pass
from receiver.settings import BridgeSettings

_LOGGER = logging.getLogger("receiver.bridge")
_WAIT_SECS = 0.25
"""How long it may take to notice a stop, or messages that another bridge left in the inbox."""
_TEND_SECS = 1.0
_PROGRESS_SECS = 1.0
"""A pause may be longer than the time after which a bridge counts as stuck, so it shows so often that it goes on."""
_AIM_SECS = 0.5
_BACKOFF = Backoff(0.1, 30.0)
_WELL_SECS = 10.0
"""After so long an idle connection resets the back-off: a broker may confirm a subscription and refuse it a moment later."""


class Health:
    """The health of a bridge, for a supervisor such as Kubernetes. Only the bridge's thread writes it; any thread reads it.

    A bridge is *ready* while its source, its target and its store can be reached. It is *live* while its thread goes on, even
    if no message comes, or a broker is away and is tried again: restarting the bridge would bring no broker back.
    """

    def __init__(self, stuck_after_secs: float) -> None:
        self._stuck_after_secs = stuck_after_secs
        self._progress_at = time.monotonic()
        self._troubles = {"source": "it hasn't connected yet"}
        """The problems now, by the part that has one, such as `source`."""

    def note_progress(self) -> None:
        """Note that the bridge goes on: it has done a step, or failed to and will try again."""
        self._progress_at = time.monotonic()

    def works(self, what: str) -> None:
        self._troubles.pop(what, None)

    def fails(self, what: str, error: ReceiverError) -> None:
        self._troubles[what] = error.message[:LONGEST_ERROR]

    def why_unready(self) -> str | None:
        """Why the bridge isn't ready; None if it is."""
        return "; ".join(list(self._troubles.values())) or None  # a copy, because another thread may change it

    def why_dead(self) -> str | None:
        """Why the bridge isn't live; None if it is."""
        still_secs = time.monotonic() - self._progress_at
        if still_secs < (self._stuck_after_secs or math.inf):
            return None
        return f"it has been stuck for {still_secs:.0f} s"


class Pace:
    """Chooses how many messages to take at once, so that a batch takes about `_AIM_SECS`.

    A batch costs little more than a message. But its messages wait for the last one, and so do transactions with its ids.
    """

    def __init__(self) -> None:
        self.at_once = 1

    def took(self, messages: int, secs: float) -> None:
        """Adapt to the time that a batch took."""
        if secs > _AIM_SECS:
            self.at_once = max(1, self.at_once // 2)
        elif messages == self.at_once and secs < _AIM_SECS / 2:
            self.at_once *= 2


class Bridge:
    """One bridge from a source to a target. `open_bridge` makes it.

    Call `run` once, or else `close`. `stop` may be called from any thread, and from a signal's handler.
    """

    def __init__(
        self,
        connect: Callable[[], Source],
        flow: Flow,
        *,
        intake: Intake,
        settings: BridgeSettings,
        consumers: int = 1,
        pace: Pace | None = None,
    ) -> None:
        """`consumers`: how many bridges of the process take the same messages at once, including this one. `pace`: chooses how
        many messages to take at once, by how long they take; None takes whole batches."""
        self.receiver = flow.receiver
        self.figures = flow.figures
        self.health = Health(settings.stuck_after_secs)
        self._connect = connect
        self._flow = flow
        self._target = flow.target
        self._intake = intake
        self._consumers = consumers
        self._pace = pace
        self._settings = settings
        self._source: Source | None = None
        self._retries = Retries(_BACKOFF)
        """Counts successive connections to the source's broker that failed before anything went through them."""
        self._unanswered: Callable[[], None] | None = None
        """Waits until the broker has answered the last acknowledgement; None if it has."""
        self._unanswered_count = 0
        """The number of messages in unanswered acknowledgements."""
        self._target_due_secs = 0.0
        """When to check next whether the target can be reached."""
        self._target_retries = Retries(_BACKOFF)
        self._most = settings.max_batch_size
        """The most messages in a batch."""
        self._busy_at = 0.0
        """When a message was last handled, or a connection made."""
        self.idle_since = math.inf
        """Since when no message has come and none waits; infinite if one has or does, or if that isn't known."""
        self._stop_asked: SimpleQueue[None] = SimpleQueue()
        """A queue, because unlike an Event, a signal's handler may put into it while the same thread uses it."""
        self.is_stopping = False
        self.has_started = False
        """Whether source, target and store have been reached."""

    def status_line(self) -> str:
        """Apama's status line: the messages received, and those handed on."""
        return self.figures.line(self.receiver.status())

    def stop(self) -> None:
        """End `run` once the batch under way is kept, acknowledged and handed on."""
        self.is_stopping = True
        self._stop_asked.put(None)

    def run(self, *, stop_when_idle_secs: float | None = None, waits_at_start: bool = False) -> None:
        """Bridge until `stop` is called.

        At the start, a broker or store that can't be reached is an error, unless the bridge `waits_at_start`; later it waits. An
        error loses no message, except in BEST_EFFORT: the broker has unacknowledged messages, and the inbox has the rest.

        Args:
            stop_when_idle_secs: Also stop once no message has come for so long and none waits.
            waits_at_start: Also at the start, wait for a broker or store that can't be reached.

        Raises:
            BrokerError: At the start, the broker can't be reached. `BrokerRefusedError`, `MessageRefusedError` and
                `MessagesLostError` end it at any time.
            StoreError: At the start, the store can't be reached. `StoreCorruptError` and `StoreVersionError`: at any time.
            SettingsError, ClosedError: At any time.
        """
        with ExitStack() as closing:
            closing.callback(self.close)
            if self.begin(waits=waits_at_start):
                policy = self.receiver.figures().policy
                _LOGGER.info("taking messages for %s, domain %s, %s", self._target.name, self.receiver.domain, policy)
                self.work(stop_when_idle_secs=stop_when_idle_secs)

    def work(self, *, stop_when_idle_secs: float | None = None) -> None:
        """Bridge until `stop` is called. Call `begin` before, and `close` afterwards."""
        self._busy_at = tended_at = time.monotonic()
        while not self.is_stopping:
            self.health.note_progress()
            self._limit_batches()
            is_due = time.monotonic() - tended_at >= _TEND_SECS
            if is_due:
                self._await_answer()  # if messages never cease, nothing else asks for long
            deliveries = self._take()
            if is_due:  # before the batch just taken: older messages may wait
                self._until_done(self._flow.tend)
                self._check_target()
                tended_at = time.monotonic()
            self.idle_since = math.inf
            if deliveries:
                self._handle(deliveries)
                self._busy_at = time.monotonic()
            elif not self._await_answer():
                continue
            elif self.figures.any_waits:
                self._deliver()
            elif self._source is not None and not getattr(self._source, "is_settling", False):
                self.idle_since = self._busy_at
                if stop_when_idle_secs is not None and self.idle_since <= time.monotonic() - stop_when_idle_secs:
                    return
        self._await_answer()

    def begin(self, *, waits: bool) -> bool:
        """Connect to target, store and source. False if a stop was asked for before that was done."""
        for step in (self._target.connect, self._flow.prepare, self._connect_source):
            if not self._until_done(step, waits=waits):
                return False
        self.has_started = True
        return True

    def close(self) -> None:
        """Close all connections. `run` does so at its end. Closing again does nothing."""
        self.figures.has_ended = True
        self._lose_source()
        self._target.close()
        self._flow.close()
        self.receiver.close()

    def _check_target(self) -> None:
        """Check whether the target can be reached, even while nothing is handed on. Doesn't wait for it."""
        check = getattr(self._target, "check", None)
        if check is None or time.monotonic() < self._target_due_secs:
            return
        try:
            check()
        except BrokerError as error:  # the next message will show whether the failure lasts
            self._complain(error, "target")
            self._target_due_secs = time.monotonic() + self._target_retries.pause_secs()
        else:
            self.health.works("target")
            self._target_retries = Retries(_BACKOFF)

    def _limit_batches(self) -> None:
        """Limit batches to the settings' size, and to each consumer's share of the window.

        If an acknowledgement is lost, its batch comes again, perhaps after E is over. Then W alone must still hold the ids.
        """
        most, window = self._settings.max_batch_size, self.receiver.window
        if not self.receiver.observe_only and 0 < window < most * self._consumers:
            most = max(1, window // self._consumers)
            if self._most != most and self._pace is None:
                each = " for each consumer" if self._consumers > 1 else ""
                _LOGGER.warning("batches have at most %d messages, as many as the window has ids%s", most, each)
        self._most = most

    def _take(self) -> list[Delivery]:
        """The next batch, empty if none came in a while."""
        if self._source is None and self._until_done(self._connect_source):
            self._busy_at = time.monotonic()
            _LOGGER.info("connected again")
        source, most = self._source, self._most
        if source is None:
            return []
        if self._pace is not None:
            most = min(most, self._pace.at_once)
        try:
            taken = source.take(most, wait_secs=_WAIT_SECS)
        except (BrokerError, StoreError) as error:  # `StoreError` if a source can't read its positions
            if not may_pass(error):
                raise
            self._lost(error)
            return []
        if not taken and self._unanswered is None and time.monotonic() - self._busy_at >= _WELL_SECS:
            self._note_well()
        until = time.monotonic() + self._settings.max_batch_interval_millis / 1_000
        with suppress(BrokerError, StoreError):  # the next call raises it again
            while taken and len(taken) < most and _body_bytes(taken) < BATCH_BYTES and time.monotonic() < until:
                more = source.take(most - len(taken), wait_secs=0)
                if not more:
                    break
                taken += more
        return taken

    def _handle(self, deliveries: list[Delivery]) -> None:
        self._deliver()  # earlier messages first
        if self.figures.any_waits and self.is_stopping:
            return
        # If the connection is lost before the last acknowledgements are answered, all these batches come again. The window must
        # still have their ids then, so together they must fit into one batch. Without a window, only time keeps ids: then each
        # acknowledgement must be answered before the next batch.
        most_unanswered = min(self._most, self.receiver.window)
        if self._unanswered_count + len(deliveries) > most_unanswered and not self._await_answer():
            return  # the deliveries come again by another connection
        source = self._source
        assert source is not None  # noqa: S101 - these are its deliveries
        advances = source.advances(deliveries) if hasattr(source, "advances") else ()
        window = None if self.receiver.observe_only else self.receiver.window
        taken = self._intake.taken(deliveries, advances, window=window, on_progress=self.health.note_progress)
        began_secs = time.monotonic()
        try:
            is_done = self._until_done(partial(self._flow.before_acknowledging, taken))
        except PositionMovedError as error:
            self._lost(error)
            return
        if not is_done:
            return
        if self._pace is not None:
            self._pace.took(len(deliveries), time.monotonic() - began_secs)
        try:
            # Not by `isinstance`: checking a protocol at each batch would cost as much as a commit.
            if hasattr(source, "begin_acknowledging"):
                self._unanswered = source.begin_acknowledging(deliveries)
                self._unanswered_count += len(deliveries)
            else:
                source.acknowledge(deliveries)
                self._note_well()
        except BrokerError as error:  # the deliveries may come again, here or to another consumer
            self._lost(error)
        self._deliver()

    def _await_answer(self) -> bool:
        """Wait until the last acknowledgement is answered. False if the connection is lost: then its messages may come again."""
        wait, self._unanswered, self._unanswered_count = self._unanswered, None, 0
        if wait is not None:
            try:
                wait()
            except BrokerError as error:
                self._lost(error)
                return False
            self._note_well()
        return True

    def _deliver(self) -> None:
        """Hand on waiting messages, if there are any."""
        if self.figures.any_waits:
            self._until_done(self._deliver_due)

    def _deliver_due(self) -> None:
        """Hand on part after part, until nothing is due or a stop is asked for."""
        while self._flow.deliver_waiting() and not self.is_stopping:
            self.health.note_progress()

    def _until_done(self, action: Callable[[], object], *, waits: bool = True) -> bool:
        """Do an action; if `waits`, try again after growing pauses until it works. False if a stop was asked for before."""
        retries, handed_on, warned_at = Retries(_BACKOFF), self._flow.handed_on, -math.inf
        while True:
            self.health.note_progress()
            try:
                action()
            except ReceiverError as error:
                # A full target takes a few messages each time. Then no pause may grow, and few warnings are enough.
                now, before, handed_on = time.monotonic(), handed_on, self._flow.handed_on
                took_more = handed_on > before
                if took_more:
                    retries = Retries(_BACKOFF)
                if not may_pass(error) or retries.is_final(error) or not (waits or self.is_stopping):
                    raise
                warns = not took_more or now - warned_at >= _BACKOFF.longest_secs
                warned_at = now if warns else warned_at
                self._complain(error, "step", warns=warns)
            else:
                self.health.works("step")
                return True
            if self._stops_within(retries.pause_secs()):
                return False

    def _stops_within(self, secs: float) -> bool:
        """Wait `secs`, or until a stop is asked for. Returns whether it is."""
        until = time.monotonic() + secs
        while not self.is_stopping and (left_secs := until - time.monotonic()) > 0:
            self.health.note_progress()
            with suppress(Empty):
                self._stop_asked.get(timeout=min(left_secs, _PROGRESS_SECS))
        return self.is_stopping

    def _connect_source(self) -> None:
        source = self._connect()
        try:
            self._flow.attach(source)
        except BaseException:
            source.close()
            raise
        self._source = source
        self.health.works("source")

    def _lost(self, error: BrokerError | StoreError) -> None:
        """Give up the source's connection, and wait before the next one: longer each time if several are lost in a row."""
        self._complain(error, "source")
        self._lose_source()
        if self._retries.is_final(error):
            raise error
        self._stops_within(self._retries.pause_secs())

    def _note_well(self) -> None:
        """Note that the source works: this resets pauses and the count of refusals."""
        self._retries = Retries(_BACKOFF)

    def _lose_source(self) -> None:
        source, self._source = self._source, None
        self._unanswered, self._unanswered_count = None, 0
        if source is not None:
            source.close()

    def _complain(self, error: ReceiverError, of: str, *, warns: bool = True) -> None:
        """Log a failure, and note that the bridge isn't ready: `of` is `source`, `target`, or `step` for the step under way.

        `warns`: log it as a warning, not only for `--verbose`.
        """
        self.health.fails(of, error)
        if isinstance(error, OutputError):
            self.figures.output_errors += 1
        else:
            self.figures.connection_errors += 1
        _LOGGER.log(logging.WARNING if warns else logging.DEBUG, "%s", str(error)[:LONGEST_ERROR])


def _body_bytes(taken: list[Delivery]) -> int:
    return sum(len(delivery.message.body) for delivery in taken)
