"""The course of the demo: senders and two bridges at a broker are killed by a plan, and every message is counted."""

from __future__ import annotations

import json
import random
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from examples.demo.artemis import VERSION, Broker, new_broker
from examples.demo.processes import HOST, ChildProcess, Say, check_interrupted
from examples.demo.sender import Sent, message_id, sent_by
from receiver.bridge.options import Mode
from receiver.durable.audit import look
from receiver.errors import BrokerError, StoreError
from receiver.store.tables import DomainState

SUPERVISOR = "supervisor"
SENDERS = ("sender-1", "sender-2", "sender-3")
BRIDGES = ("bridge-1", "bridge-2")
BROKER = "the broker"
DOMAIN = "destination"
"""The domain KEY of both bridges: they share one domain, for what one took before it died comes to the other."""
_SECS_PER_KILL = 3.0
_LEAST_KILLS = 4
_QUEUE = "orders"
_KINDS = dict.fromkeys(SENDERS, "senders") | dict.fromkeys(BRIDGES, "bridges") | {BROKER: BROKER}
_UNLIMITED_DELIVERIES = {'addressSettings."#".maxDeliveryAttempts': -1}
"""A message that was under way at ten kills is no poison."""
_NO_BROKER = 2
"""The exit status of a bridge that couldn't connect as it started."""
_STATUS_SECS = 3
_STAMP = re.compile(r"\d{4}-\d\d-\d\d [^-]*? - ")
_RESTART_AFTER_SECS = 0.5
_TICK_SECS = 0.05
_CALM_SECS = 1.0
_PATIENCE_SECS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoPlan:
    seed: int
    """The kills, and where senders crash, are drawn from it; the rest depends on the machine's timing."""
    secs: int
    """How long senders send."""
    protocol: str
    """`stomp` or `amqp`."""
    mode: Mode
    """The bridges' mode, which is one with an inbox."""


class Files(NamedTuple):
    """The files that the bridges and senders leave, in one folder."""

    folder: Path

    @property
    def target(self) -> Path:
        return self.folder / "orders.jsonl"

    @property
    def store(self) -> str:
        return f"sqlite:///{self.folder / 'receiver.db'}"

    @property
    def receipts(self) -> Path:
        """The recordings of both bridges."""
        return self.folder / "receipts"

    def journal(self, sender: str) -> Path:
        return self.folder / f"{sender}.journal"


class Effects(NamedTuple):
    """The messages in a bridge's target, counted one by one."""

    lines: int
    missing: int
    """Expected ids of which there is no line."""
    double: int
    """Lines whose id an earlier line has."""

    @classmethod
    def in_file(cls, path: Path, expected: Collection[str]) -> Effects:
        """Count the messages in a file of JSON Lines, which should hold one for each expected id."""
        lines_by_id: Counter[str] = Counter()
        if path.exists():
            with path.open("rb") as file:
                lines_by_id.update(json.loads(line)["unique_message_id"] for line in file)
        missing = sum(id_ not in lines_by_id for id_ in expected)
        return cls(lines_by_id.total(), missing, lines_by_id.total() - len(lines_by_id))


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOutcome:
    messages: int
    """Messages that the broker has confirmed to their senders."""
    sent: int
    """Messages sent, each counted as often as it was."""
    receipts: int
    redelivered: int
    """Receipts that the broker flagged as JMSRedelivered."""
    duplicates: int
    effects: Effects
    crashes: Counter[str]
    """By what crashed: senders, bridges, the broker. Most were killed from outside by kill -9; all were as sudden."""

    def holds(self, mode: Mode) -> bool:
        """Whether the effects are what bridges of the mode promise."""
        return not self.effects.missing and not (mode.detects and self.effects.double)


class _Kill(NamedTuple):
    at_secs: float
    victim: str


def kills(plan: DemoPlan) -> list[_Kill]:
    """Kills at random times, about evenly spread: of bridges and senders alternately, and of the broker half-way."""
    draw = random.Random(f"{plan.seed} kills")
    number = max(_LEAST_KILLS, round(plan.secs / _SECS_PER_KILL))
    slot_secs = plan.secs / (number + 1)
    victims = [draw.choice(SENDERS if index % 2 else BRIDGES) for index in range(number)]
    victims[number // 2] = BROKER
    return [_Kill((slot + draw.uniform(-0.4, 0.4)) * slot_secs, victim) for slot, victim in enumerate(victims, 1)]


def run_demo(plan: DemoPlan, home: Path, files: Files, say: Say) -> DemoOutcome:
    """Run the plan with the broker's program at `home`; whatever happens, no process is left afterwards.

    `BrokerError` if a process ends that wasn't killed.
    """
    files.receipts.mkdir(parents=True)
    with ExitStack() as stack:
        broker = stack.enter_context(new_broker(home))
        supervisor = _Supervisor(plan, broker, files, say)
        stack.callback(supervisor.end_all)
        return supervisor.run()


class _Supervisor:
    def __init__(self, plan: DemoPlan, broker: Broker, files: Files, say: Say) -> None:
        self._plan, self._broker, self._files, self._say = plan, broker, files, say
        port = broker.amqp_port if plan.protocol == "amqp" else broker.stomp_port
        address = f"{plan.protocol}://{HOST}:{port}/queue/{_QUEUE}"
        self._senders = {
            name: ChildProcess(name, self._sender(name, address), say, reads_input=True) for name in SENDERS
        }
        self._bridges = {name: ChildProcess(name, self._bridge(name, address), _without_stamp(say)) for name in BRIDGES}
        self._children = self._senders | self._bridges
        self._crashes: Counter[str] = Counter()
        self._restarts: dict[str, float] = {}
        """When to start each dead process again, on the monotonic clock."""
        self._broker_back_secs = 0.0

    def _sender(self, name: str, address: str) -> list[str]:
        module = [sys.executable, "-m", "examples.demo.sender"]
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

    def run(self) -> DemoOutcome:
        self._say_itself(f"starting ActiveMQ Artemis {VERSION}")
        self._broker.start(properties=_UNLIMITED_DELIVERIES)
        self._say_itself(
            f"starting {len(SENDERS)} senders to queue {_QUEUE}, and {len(BRIDGES)} bridges that compete for it"
        )
        for child in self._children.values():
            child.start()
        self._wait(lambda: self._domain() is not None, "the bridges haven't taken a message")
        begun = time.monotonic()
        for kill in kills(self._plan):
            self._go_on(begun + kill.at_secs)
            self._kill(kill.victim)
        self._go_on(begun + self._plan.secs)
        self._wait(lambda: not self._restarts, "not all are back")
        self._finish()
        return self._outcome()

    def end_all(self) -> None:
        """Kill all senders and bridges."""
        for child in self._children.values():
            child.kill()

    def _say_itself(self, what: str) -> None:
        self._say(SUPERVISOR, what)

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
        """Notice which processes have crashed, and start those again that are due."""
        check_interrupted()
        for name, child in self._children.items():
            status = None if name in self._restarts else child.ended()
            if status is None:
                continue
            if child.started_secs < self._broker_back_secs:
                _check_ending(name, status, -signal.SIGKILL, _NO_BROKER)
            else:
                _check_ending(name, status, -signal.SIGKILL)
            self._has_died(name)
        for name, at in list(self._restarts.items()):
            if time.monotonic() >= at:
                del self._restarts[name]
                self._children[name].start()
                self._say_itself(f"{name} is started again")

    def _has_died(self, name: str) -> None:
        self._children[name].kill()  # what it said last is passed on
        self._crashes[_KINDS[name]] += 1
        self._restarts[name] = time.monotonic() + _RESTART_AFTER_SECS

    def _kill(self, victim: str) -> None:
        self._look_around()
        if victim in self._restarts:
            return
        self._say_itself(f"kill -9 {victim}")
        if victim != BROKER:
            self._has_died(victim)
            return
        self._crashes[_KINDS[BROKER]] += 1
        killed = time.monotonic()
        self._broker.kill()
        self._broker.start(properties=_UNLIMITED_DELIVERIES)
        self._broker_back_secs = time.monotonic()
        self._say_itself(f"{BROKER} is back after {self._broker_back_secs - killed:.1f} s")

    def _finish(self) -> None:
        self._say_itself("the senders finish their batches and stop")
        self._stop_senders()
        messages = sum(sent.confirmed for sent in self._sent().values())
        self._wait(lambda: self._new() >= messages, "not all messages have come")
        self._say_itself("all messages have come; the bridges stop when no more come")
        self._wait_for_calm()
        for bridge in self._bridges.values():
            bridge.stop()
        for name, bridge in self._bridges.items():
            _check_ending(name, bridge.wait_stopped(), 0, -signal.SIGTERM)

    def _stop_senders(self) -> None:
        """Stop each sender once it has confirmed what it has sent; one that crashes meanwhile is started again for that."""
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
        """Wait until no message has come for a while: what killed bridges had taken comes again, as duplicates."""
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
        """The domain's row in the bridges' store; None before they have made it and taken a message."""
        try:
            domains = look(self._files.store, with_ids=False).domains
        except StoreError:
            return None
        return domains[0].state if domains and domains[0].state.receipts else None

    def _sent(self) -> dict[str, Sent]:
        return {name: sent_by(self._files.journal(name)) for name in SENDERS}

    def _outcome(self) -> DemoOutcome:
        sent, domain = self._sent(), self._domain()
        if domain is None:
            raise BrokerError("the bridges have taken no message")
        expected = {message_id(number, name) for name in sent for number in range(1, sent[name].confirmed + 1)}
        return DemoOutcome(
            messages=len(expected),
            sent=sum(sender.tries for sender in sent.values()),
            receipts=domain.receipts,
            redelivered=domain.redelivered,
            duplicates=domain.duplicates,
            effects=Effects.in_file(self._files.target, expected),
            crashes=self._crashes,
        )


def _without_stamp(say: Say) -> Say:
    """As `say`, but lines of a log lose the time and the name in front."""

    def say_it(name: str, line: str) -> None:
        stamped = _STAMP.match(line)
        say(name, line[stamped.end() :] if stamped else line)

    return say_it


def _check_ending(name: str, status: int, *expected: int) -> None:
    if status not in expected:
        raise BrokerError(f"{name} has ended with status {status}", hint="its last lines show why")
