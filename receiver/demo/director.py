"""The play: senders and two bridges at a broker, some of them killed, and at the end every message counted."""

from __future__ import annotations

import re
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from receiver.demo.actor import Actor, Say
from receiver.demo.artemis import HOST, VERSION, Broker, new_broker
from receiver.demo.effects import Effects
from receiver.demo.journal import Journal, Sent
from receiver.demo.plan import BRIDGES, BROKER, DOMAIN, SENDERS, Files, Outcome, Plan, kills
from receiver.demo.sender import message_id
from receiver.durable.audit import look
from receiver.errors import BrokerError, StoreError
from receiver.store.tables import DomainState

__all__ = ["DIRECTOR", "perform"]

DIRECTOR = "director"
_QUEUE = "orders"
_KINDS = dict.fromkeys(SENDERS, "senders") | dict.fromkeys(BRIDGES, "bridges") | {BROKER: BROKER}
_FOR_EVER = {'addressSettings."#".maxDeliveryAttempts': -1}
"""A message that was under way at ten kills is no poison."""
_FOUND_NO_BROKER = 2
"""The status of a bridge that could not even begin."""
_STATUS_SECS = 3
_STAMP = re.compile(r"\d{4}-\d\d-\d\d [^-]*? - ")
_BACK_SECS = 0.5
_TICK_SECS = 0.05
_CALM_SECS = 1.0
_PATIENCE_SECS = 60.0


def perform(plan: Plan, home: Path, files: Files, say: Say) -> Outcome:
    """Play it with the broker's program at `home`; whatever happens, nothing runs afterwards.

    `BrokerError` where somebody ends who wasn't killed.
    """
    files.receipts.mkdir(parents=True)
    with ExitStack() as stack:
        broker = stack.enter_context(new_broker(home))
        director = _Director(plan, broker, files, say)
        stack.callback(director.end_all)
        return director.play()


class _Director:
    def __init__(self, plan: Plan, broker: Broker, files: Files, say: Say) -> None:
        self._plan, self._broker, self._files, self._say = plan, broker, files, say
        port = broker.amqp_port if plan.protocol == "amqp" else broker.stomp_port
        address = f"{plan.protocol}://{HOST}:{port}/queue/{_QUEUE}"
        self._senders = {name: Actor(name, self._sender(name, address), say, reads_input=True) for name in SENDERS}
        self._bridges = {name: Actor(name, self._bridge(name, address), _without_stamp(say)) for name in BRIDGES}
        self._actors = self._senders | self._bridges
        self._crashes: Counter[str] = Counter()
        self._back: dict[str, float] = {}
        """Who is dead, and when to start them again."""
        self._broker_back_secs = 0.0

    def _sender(self, name: str, address: str) -> list[str]:
        module = [sys.executable, "-m", "receiver.demo.sender"]
        return [*module, address, name, str(self._files.journal(name)), str(self._plan.seed)]

    def _bridge(self, name: str, address: str) -> list[str]:
        options = {
            "--mode": self._plan.mode.value,
            "--store": self._files.store,
            "--domain": DOMAIN,
            "--connection-id": name,
            "--record": str(self._files.receipts / f"{name}.jsonl.zst"),
            "--status-secs": str(_STATUS_SECS),
        }
        command = [sys.executable, "-m", "receiver", "bridge", address, f"file:{self._files.target}"]
        return [*command, *(word for option in options.items() for word in option)]

    def play(self) -> Outcome:
        self._tell(f"starting ActiveMQ Artemis {VERSION}")
        self._broker.start(properties=_FOR_EVER)
        self._tell(f"starting {len(SENDERS)} senders to queue {_QUEUE}, and {len(BRIDGES)} bridges that compete for it")
        for actor in self._actors.values():
            actor.start()
        self._wait(lambda: self._domain() is not None, "the bridges haven't taken a message")
        begun = time.monotonic()
        for kill in kills(self._plan):
            self._go_on(begun + kill.at_secs)
            self._kill(kill.victim)
        self._go_on(begun + self._plan.secs)
        self._wait(lambda: not self._back, "not all are back")
        self._finish()
        return self._outcome()

    def end_all(self) -> None:
        """At once, whatever they are at."""
        for actor in self._actors.values():
            actor.kill()

    def _tell(self, what: str) -> None:
        self._say(DIRECTOR, what)

    def _go_on(self, until: float) -> None:
        while time.monotonic() < until:
            self._look_around()
            time.sleep(_TICK_SECS)

    def _wait(self, condition: Callable[[], bool], otherwise: str) -> None:
        give_up = time.monotonic() + _PATIENCE_SECS
        while not condition():
            if time.monotonic() > give_up:
                raise BrokerError(f"{otherwise} after {_PATIENCE_SECS:g} s")
            self._look_around()
            time.sleep(_TICK_SECS)

    def _look_around(self) -> None:
        """Notice who has crashed, and start again whose time has come."""
        for name, actor in self._actors.items():
            status = None if name in self._back else actor.ended()
            if status is None:
                continue
            if actor.started_secs < self._broker_back_secs:
                _check_ending(name, status, -signal.SIGKILL, _FOUND_NO_BROKER)
            else:
                _check_ending(name, status, -signal.SIGKILL)
            self._has_died(name)
        for name, at in list(self._back.items()):
            if time.monotonic() >= at:
                del self._back[name]
                self._actors[name].start()
                self._tell(f"{name} is started again")

    def _has_died(self, name: str) -> None:
        self._actors[name].kill()  # what it said last is passed on
        self._crashes[_KINDS[name]] += 1
        self._back[name] = time.monotonic() + _BACK_SECS

    def _kill(self, victim: str) -> None:
        self._look_around()
        if victim in self._back:
            return
        self._tell(f"kill -9 {victim}")
        if victim != BROKER:
            self._has_died(victim)
            return
        self._crashes[_KINDS[BROKER]] += 1
        killed = time.monotonic()
        self._broker.kill()
        self._broker.start(properties=_FOR_EVER)
        self._broker_back_secs = time.monotonic()
        self._tell(f"{BROKER} is back after {self._broker_back_secs - killed:.1f} s")

    def _finish(self) -> None:
        self._tell("the senders finish their batches and stop")
        self._stop_senders()
        messages = sum(sent.confirmed for sent in self._sent().values())
        self._wait(lambda: self._new() >= messages, "not all messages have come")
        self._tell("all has come; the bridges stop when nothing more does")
        self._wait_for_calm()
        for bridge in self._bridges.values():
            bridge.stop()
        for name, bridge in self._bridges.items():
            _check_ending(name, bridge.wait_stopped(), 0, -signal.SIGTERM)

    def _stop_senders(self) -> None:
        """Each is to confirm what it has sent, also one that crashes yet."""
        left = dict(self._senders)
        while left:
            for sender in left.values():
                sender.stop()
            for name, sender in list(left.items()):
                status = sender.wait_stopped()
                _check_ending(name, status, 0, -signal.SIGKILL)
                if status == 0:
                    del left[name]
                else:
                    self._crashes[_KINDS[name]] += 1
                    sender.start()

    def _wait_for_calm(self) -> None:
        """Until no message has come for a while: what was taken by those who were killed comes as duplicates."""
        receipts, since = -1, time.monotonic()
        while time.monotonic() < since + _CALM_SECS:
            domain = self._domain()
            if domain is not None and domain.receipts != receipts:
                receipts, since = domain.receipts, time.monotonic()
            time.sleep(_TICK_SECS)

    def _new(self) -> int:
        domain = self._domain()
        return 0 if domain is None else domain.receipts - domain.duplicates

    def _domain(self) -> DomainState | None:
        """What the bridges' store knows; None before they have made it and taken a message."""
        try:
            domains = look(self._files.store, with_ids=False).domains
        except StoreError:
            return None
        return domains[0].state if domains and domains[0].state.receipts else None

    def _sent(self) -> dict[str, Sent]:
        return {name: Journal(self._files.journal(name)).read() for name in SENDERS}

    def _outcome(self) -> Outcome:
        sent, domain = self._sent(), self._domain()
        if domain is None:
            raise BrokerError("the bridges have taken no message")
        expected = {message_id(number, name) for name in sent for number in range(1, sent[name].confirmed + 1)}
        return Outcome(
            messages=len(expected),
            sent=sum(sender.tries for sender in sent.values()),
            receipts=domain.receipts,
            redelivered=domain.redelivered,
            duplicates=domain.duplicates,
            effects=Effects.in_file(self._files.target, expected),
            crashes=self._crashes,
        )


def _without_stamp(say: Say) -> Say:
    """Without what a log has before ` - `: it is read now, and who says it is known."""

    def say_it(name: str, line: str) -> None:
        stamped = _STAMP.match(line)
        say(name, line[stamped.end() :] if stamped else line)

    return say_it


def _check_ending(name: str, status: int, *expected: int) -> None:
    if status not in expected:
        raise BrokerError(f"{name} has ended with status {status}", hint="what it said last tells why")
