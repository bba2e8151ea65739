"""`receiver probe`: measures how a broker redelivers, on a scratch queue.

A consumer takes messages in a process of its own, and ends in one of several ways while it holds unacknowledged ones. Then
another consumer takes all that come. Apama's page on reliable receivers asks users to test their brokers in this way.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from receiver.bridge.connectors import DUPLICATE_ID, Delivery, Source, sink_of, source_factory, source_of
from receiver.bridge.connectors.address import BrokerAddress
from receiver.bridge.options import IdRule
from receiver.closing import Closing
from receiver.errors import BrokerError, BrokerRefusedError, SettingsError
from receiver.store.messages import Message

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

LEAST_MESSAGES = 100
_RUN, _NUMBER, _HALF = "receiverProbe", "receiverProbeNumber", "receiverProbeHalf"
"""Properties of a probe's messages: the probe's id, the message's number in it, and a value for a selector."""
_TAKE_SECS = 0.25
_STARTS_SECS = 60.0
_BODY = b"." * 200
_MARGIN = 2
"""The margin, as of `receiver simulate`."""
_QUIET_SECS = 1.0
"""After so long without a message, no more are expected."""
_SELECTS_SECS = 10.0
_CUTS = 5
"""How many acknowledgements are cut off, each at another moment."""


class Ending(StrEnum):
    """How a consumer with unacknowledged messages ends."""

    CLOSED = "closed"
    """It closes its connection without acknowledging."""
    KILLED = "killed"
    """Its process is killed, and the system ends its connection."""
    ACKNOWLEDGING = "acknowledging"
    """Its process is killed while it acknowledges. The broker may have received the acknowledgement or not."""
    FROZEN = "frozen"
    """It sends no more bytes, and its connection stays open: as if its host had lost the network."""


class Selectors(StrEnum):
    """How the broker handles a selector."""

    WORK = "work"
    IGNORED = "ignored"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Redelivery:
    """The messages that came after a consumer had ended."""

    ending: Ending
    held: int
    """Messages that the consumer had taken, and whose acknowledgement wasn't certain."""
    again: int
    """How many of these came again."""
    first_us: int | None
    """The time from the consumer's end to the first message that came again, in microseconds; None if none did."""
    last_us: int | None
    """The time to the last message that came again, likewise."""
    flagged: int
    """How many messages that came again had JMSRedelivered set."""
    flagged_new: int
    """Messages with JMSRedelivered that no consumer had taken before. The broker may have prefetched them to a consumer."""
    out_of_order: int
    """Messages that came after a message that was sent later."""
    acknowledged_again: int
    """Messages that came again though they had been acknowledged; see `Probe.answers_acknowledgements`."""
    missing: int
    """Messages that never came."""
    window_need: int
    """The least W that alone would have caught all messages that came again; 0 if none did."""
    expiry_need_us: int
    """The longest time between two receipts of one message."""
    patience_ran_out: bool
    """Whether a frozen consumer was killed because its messages didn't come for so long. Then their delay isn't known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """The results of a probe of a broker."""

    address: str
    """The address, without its password."""
    messages: int
    """How many messages were sent."""
    redeliveries: tuple[Redelivery, ...]
    selectors: Selectors
    selectors_why: str
    """Why selectors are refused, and a workaround."""
    drops_known_ids: bool
    answers_acknowledgements: bool
    """Whether the broker answers acknowledgements. If not, an acknowledgement may be lost with its connection."""

    @property
    def window(self) -> int:
        """The least W to set, including the margin."""
        return _MARGIN * max((each.window_need for each in self.redeliveries), default=0)

    @property
    def expiry_secs(self) -> int:
        """The least E to set in seconds, including the margin."""
        return math.ceil(_MARGIN * max((each.expiry_need_us for each in self.redeliveries), default=0) / 1e6)


class ProbeReceipt(NamedTuple):
    """A message that a probe received."""

    number: int
    at_us: int
    redelivered: bool


class _Round(NamedTuple):
    """The messages of one consumer, and those that came after its end."""

    answered: list[ProbeReceipt]
    """Messages that it took and acknowledged; if the broker answers acknowledgements, it has answered these."""
    held: list[ProbeReceipt]
    """Other messages that it took."""
    after: list[ProbeReceipt]
    """Messages that the next consumer got."""
    expected: set[int]
    """The numbers of messages that must come afterwards."""
    ended_us: int
    patience_ran_out: bool

    @property
    def again(self) -> list[ProbeReceipt]:
        held = _numbers(self.held)
        return [each for each in self.after if each.number in held]

    @property
    def new(self) -> list[ProbeReceipt]:
        """The first receipts of messages."""
        before = _numbers(self.answered) | _numbers(self.held)
        return [*self.answered, *self.held, *(each for each in self.after if each.number not in before)]


def probe(
    address: BrokerAddress,
    *,
    messages: int = 1_000,
    patience_secs: float = 90.0,
    endings: Sequence[Ending] = tuple(Ending),
    say: Callable[[str, int, int], None] = lambda _what, _done, _total: None,
) -> Probe:
    """Send `messages` messages to an empty queue, and measure how they come again when consumers end. Empties the queue.

    In a cluster, probes the first node that serves the queue. `patience_secs`: how long to wait for a frozen consumer's messages
    before it is killed. `say` is called with each step, the number of steps done, and their total. `SettingsError` for a topic,
    and for a queue that isn't empty or that others use; `BrokerError` if the broker can't be reached or refuses.
    """
    if address.keeps_what_is_taken:
        raise SettingsError(
            f"{address}: this broker keeps every message: consumers go on from a position, and nothing is redelivered",
            hint="no probe is needed: a bridge keeps the position in its store. For what senders repeat, receiver simulate "
            "sizes W and E",
        )
    if address.is_topic or address.selector is not None:
        raise SettingsError(f"{address} isn't a plain queue", hint="name a scratch queue, without a selector")
    if messages < LEAST_MESSAGES:
        raise SettingsError(f"{messages} messages are too few", hint=f"send {LEAST_MESSAGES} or more")
    address, answers_acknowledgements = _check_empty(address)
    run = _Run(address, messages // len(endings), patience_secs)
    redeliveries = []
    for index, ending in enumerate(endings):
        say(f"A consumer ends: {ending}", index, len(endings) + 1)
        redeliveries.append(run.redelivery(ending))
    say("Selectors and known ids", len(endings), len(endings) + 1)
    selectors, why = run.selectors()
    return Probe(
        address=str(address),
        messages=run.sent,
        redeliveries=tuple(redeliveries),
        selectors=selectors,
        selectors_why=why,
        drops_known_ids=run.drops_known_ids(),
        answers_acknowledgements=answers_acknowledgements,
    )


def _check_empty(address: BrokerAddress) -> tuple[BrokerAddress, bool]:
    """The queue's address at one node, and whether the node answers acknowledgements; `SettingsError` if it isn't empty."""
    connect = source_factory(address)
    with connect() as source:
        if source.take(1, wait_secs=_QUIET_SECS):
            raise SettingsError(f"{address} isn't empty", hint="name a scratch queue that nobody else uses")
        assert connect.nodes.at is not None  # noqa: S101 - it has just been connected to
        return address.at(connect.nodes.at), getattr(source, "answers_acknowledgements", True)


class _Run:
    """One probe of one queue, with the messages that it has sent and received."""

    def __init__(self, address: BrokerAddress, share: int, patience_secs: float) -> None:
        self.sent = 0
        self._address = address
        self._share = share
        self._patience_secs = patience_secs
        self._id = uuid.uuid4().hex[:12]

    def redelivery(self, ending: Ending) -> Redelivery:
        """The messages that come after a consumer has ended, or after several that each end at another moment."""
        times = _CUTS if ending is Ending.ACKNOWLEDGING else 1
        return _figures(ending, [self._round(ending, self._share // times) for _ in range(times)])

    def _round(self, ending: Ending, count: int) -> _Round:
        numbers = set(self._send(count))
        held = count // 2
        acknowledged = max(held // 10, 1)  # before the others are held
        with _Consumer(self._address, self._id, ending, acknowledged, held) as consumer:
            before = consumer.receipts
            certain = before if ending is Ending.ACKNOWLEDGING else before[:acknowledged]
            expected = numbers - _numbers(certain)
            ended_us = consumer.end()
            after, patience_ran_out = self._collect(expected), False
            if ending is Ending.FROZEN and expected > _numbers(after):
                patience_ran_out = True
                consumer.kill()
                after += self._collect(expected - _numbers(after))
        return _Round(before[:acknowledged], before[acknowledged:], after, expected, ended_us, patience_ran_out)

    def selectors(self) -> tuple[Selectors, str]:
        """How the broker handles a selector that matches half of the messages, and why it refuses it, if so."""
        numbers = self._send(10)
        chosen = {number for number in numbers if number % 2}
        selecting = replace(self._address, selector=f"{_HALF} = 'odd'")
        try:
            with source_of(selecting) as source:
                came = self._taken(source, chosen, secs=_SELECTS_SECS)
        except (BrokerRefusedError, SettingsError) as error:
            self._collect(set(numbers))
            return Selectors.REFUSED, str(error).removeprefix(f"{selecting}: ")
        self._collect(set(numbers) - _numbers(came))
        return (Selectors.WORK if _numbers(came) == chosen else Selectors.IGNORED), ""

    def drops_known_ids(self) -> bool:
        """Whether only one comes of two messages with the same duplicate id."""
        first, _ = self._send(2, duplicate_id=f"{self._id}-known")
        return len(self._collect({first})) == 1

    def _send(self, count: int, duplicate_id: str | None = None) -> range:
        numbers = range(self.sent, self.sent + count)
        more = {} if duplicate_id is None else {DUPLICATE_ID: duplicate_id}
        with sink_of(self._address) as sink:
            sink.send([self._message(number, more) for number in numbers])
        self.sent += count
        return numbers

    def _message(self, number: int, more: dict[str, str]) -> Message:
        half = "odd" if number % 2 else "even"
        rule = IdRule()
        named = {rule.id_property: f"{self._id}-{number}", rule.source_property: self._id}
        return Message(
            body=_BODY, is_text=True, properties=named | {_RUN: self._id, _NUMBER: str(number), _HALF: half} | more
        )

    def _collect(self, expected: set[int]) -> list[ProbeReceipt]:
        """The messages that a new consumer gets, until all expected ones and no more come, or patience is over."""
        with source_of(self._address) as source:
            return self._taken(source, expected)

    def _taken(self, source: Source, expected: set[int], secs: float | None = None) -> list[ProbeReceipt]:
        came: list[ProbeReceipt] = []
        heard_at = time.monotonic()
        until = heard_at + (self._patience_secs if secs is None else secs)
        while True:
            taken = source.take(self._share, wait_secs=_TAKE_SECS)
            now = time.monotonic()
            if taken:
                heard_at = now
                receipts = _receipts_of(taken, self._id)
                source.acknowledge(taken)
                came += receipts
            elif now >= until or (expected <= _numbers(came) and now - heard_at >= _QUIET_SECS):
                return came


def _numbers(receipts: Sequence[ProbeReceipt]) -> set[int]:
    return {each.number for each in receipts}


def _figures(ending: Ending, rounds: Sequence[_Round]) -> Redelivery:
    ages_us = [max(each.at_us - one.ended_us, 0) for one in rounds for each in one.again]
    needs = [_needs([*one.answered, *one.held, *one.after]) for one in rounds]
    return Redelivery(
        ending=ending,
        held=sum(len(one.held) for one in rounds),
        again=sum(len(_numbers(one.again)) for one in rounds),
        first_us=min(ages_us, default=None),
        last_us=max(ages_us, default=None),
        flagged=sum(len({each.number for each in one.again if each.redelivered}) for one in rounds),
        flagged_new=sum(each.redelivered for one in rounds for each in one.new),
        out_of_order=sum(_out_of_order(one.after) for one in rounds),
        acknowledged_again=sum(each.number in _numbers(one.answered) for one in rounds for each in one.after),
        missing=sum(len(one.expected - _numbers(one.after)) for one in rounds),
        window_need=max(window for window, _ in needs),
        expiry_need_us=max(expiry_us for _, expiry_us in needs),
        patience_ran_out=any(one.patience_ran_out for one in rounds),
    )


def _needs(receipts: Sequence[ProbeReceipt]) -> tuple[int, int]:
    """The least window that catches all messages that come again, and the longest time between two receipts of a message."""
    latest_us: dict[int, int] = {}  # in the order of latest receipts, like the ids in the window
    window = expiry_us = 0
    for number, at_us, _ in receipts:
        if number in latest_us:
            window = max(window, len(latest_us) - list(latest_us).index(number))
            expiry_us = max(expiry_us, at_us - latest_us.pop(number))
        latest_us[number] = at_us
    return window, expiry_us


def _out_of_order(receipts: Sequence[ProbeReceipt]) -> int:
    latest, count = -1, 0
    for number, _, _ in receipts:
        count += number < latest
        latest = max(latest, number)
    return count


def _receipts_of(taken: Sequence[Delivery], run: str) -> list[ProbeReceipt]:
    now_us = time.time_ns() // 1_000
    receipts = []
    for delivery in taken:
        message = delivery.message
        if message.properties.get(_RUN) != run:
            raise SettingsError("others send to this queue", hint="name a scratch queue that nobody else uses")
        receipts.append(ProbeReceipt(int(str(message.properties[_NUMBER])), now_us, message.redelivered))
    return receipts


class _Consumer(Closing):
    """A process that takes messages, acknowledges some, and then ends while it holds the others."""

    def __init__(self, address: BrokerAddress, run: str, ending: Ending, acknowledged: int, held: int) -> None:
        processes = multiprocessing.get_context("spawn")
        self._ending = ending
        self._pipe, its = processes.Pipe()
        consumed = address, run, ending, acknowledged, held, its
        self._process: Any = processes.Process(target=_consume, args=consumed, name="receiver probe", daemon=True)
        self._process.start()
        its.close()
        self.receipts: list[ProbeReceipt] = []
        try:
            while len(self.receipts) < acknowledged + held:
                self.receipts += self._heard()
        except BaseException:
            self.close()
            raise

    def _heard(self) -> Any:
        if not self._pipe.poll(_STARTS_SECS):
            raise BrokerError("the consumer got nothing of what was sent", hint="see that nobody else uses the queue")
        try:
            said = self._pipe.recv()
        except (EOFError, OSError):
            self._process.join()
            raise BrokerError(
                f"the consumer's process ended with the exit code {self._process.exitcode}",
                hint="it was killed, or says why above; a script that probes needs if __name__ == '__main__'",
            ) from None
        if isinstance(said, Exception):
            raise said
        return said

    def end(self) -> int:
        """Let the process end in its way. Returns the time of that, in microseconds since 1970."""
        if self._ending is Ending.FROZEN:
            os.kill(self._process.pid, signal.SIGSTOP)
        elif self._ending is Ending.KILLED:
            self.kill()
        else:
            with suppress(OSError):  # if it has ended by itself, `_heard` raises
                self._pipe.send("end")
            self._heard()
        ended_us = time.time_ns() // 1_000
        if self._ending is Ending.ACKNOWLEDGING:
            self.kill()
        return ended_us

    def kill(self) -> None:
        self._process.kill()
        self._process.join()

    def close(self) -> None:
        self.kill()
        self._pipe.close()


def _consume(  # noqa: PLR0917 - the arguments of a process
    address: BrokerAddress, run: str, ending: Ending, acknowledged: int, held: int, pipe: Connection
) -> None:
    """The consumer's process: reports the messages that it takes, and ends on command."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends this process
    with suppress(EOFError, OSError):
        try:
            with source_of(address) as source:
                _take(source, run, acknowledged, pipe)
                kept = _take(source, run, held, pipe, acknowledges=False)
                pipe.recv()
                if ending is Ending.ACKNOWLEDGING:
                    pipe.send("acknowledging")
                    source.acknowledge(kept)
                    pipe.recv()
            pipe.send("closed")
        except Exception as error:  # noqa: BLE001 - the parent raises it
            pipe.send(error)


def _take(source: Source, run: str, count: int, pipe: Connection, *, acknowledges: bool = True) -> list[Delivery]:
    taken: list[Delivery] = []
    until = time.monotonic() + _STARTS_SECS
    while len(taken) < count and time.monotonic() < until:
        came = source.take(count - len(taken), wait_secs=_TAKE_SECS)
        receipts = _receipts_of(came, run)
        if acknowledges:
            source.acknowledge(came)
        taken += came
        pipe.send(receipts)
    return taken
