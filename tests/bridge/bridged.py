"""Bridges over a broker in memory that begin, die on purpose and begin again; and the messages that have reached
their target."""

import json
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sqlalchemy import text

from receiver.bridge.bridge import Bridge
from receiver.bridge.connectors import Message, Source
from receiver.bridge.opening import BridgeOptions, Origin, open_bridge
from receiver.bridge.options import IdRule, Mode
from receiver.bridge.targets import Target
from receiver.bridge.targets.broker_target import BrokerTarget, TurnTarget
from receiver.bridge.targets.file_target import FileTarget
from receiver.bridge.targets.python_target import PythonTarget
from receiver.settings import BridgeSettings, ReceiverSettings
from receiver.store.codec import to_bytes
from receiver.store.inbox import Inbox
from tests.brokers.memory import MemoryBroker, MemorySink, MemorySource, MemoryTurns
from tests.stores import engine_of, execute

TEN = [str(number) for number in range(10)]
STEPS = ["taken", "committing", "committed", "acknowledged", "delivering", "delivered", "confirmed"]
"""The steps of a batch that goes through the inbox. `committing`: the ids' transaction isn't committed yet.
`delivering`: half of the batch is handed on. `delivered`: all of it is, and nothing is confirmed."""


IDLE_SECS = 30
"""How long a real broker may give nothing while messages are still expected."""


class DiedError(BaseException):
    """The process dies here. No code of the package catches this error."""


def message(id_: str | None, source: str | None = None, *, body: str | None = None, **more: Any) -> Message:
    """A message whose body tells it from all others. The body is the id by default."""
    named = {"uniqueMessageId": id_, "messageSourceId": source}
    properties = {name: value for name, value in named.items() if value is not None} | more
    return Message(body=((id_ or "") if body is None else body).encode(), is_text=True, properties=properties)


class Route:
    """A route from the queue `orders` to a target of one kind, through one store. Bridges on the route share broker,
    store and target.

    Each step of a batch passes `reach`. There the bridge may die, or another bridge may act.
    """

    def __init__(self, store: str, folder: Path, kind: str, mode: Mode = Mode.EXACTLY_ONCE) -> None:
        self.store = store
        self.connection_id = f"broker-{uuid.uuid4().hex}"
        """A name of its own, so that routes may share a store: each has its own domain."""
        self.domain = f"{self.connection_id}:queue://orders"
        self.mode = mode
        self.broker = MemoryBroker()
        self.kind = kind
        self.file = folder / "orders.jsonl"
        self.seen: list[str] = []
        """By the function without a connection."""
        self._plan: dict[str, tuple[int, Callable[[], None]]] = {}
        if kind == "table":
            self._table = f"effect_{uuid.uuid4().hex}"
            execute(store, f"CREATE TABLE {self._table} (number INTEGER, body TEXT)")

    def send(self, *messages: Message) -> None:
        with self.broker.sink("orders") as sink:
            sink.send(messages)

    @property
    def queued(self) -> list[str]:
        """What the broker still has for the bridge."""
        return [waiting.body.decode() for waiting in self.broker.queue("orders")]

    def waiting(self) -> int:
        """How many messages are in the inbox."""
        return self._count("receiver_bundle JOIN receiver_target USING (target_id)", "coalesce(sum(messages), 0)")

    def ids_kept(self) -> int:
        """How many receipts are recorded."""
        return self._count("receiver_receipt")

    def _count(self, of: str, what: str = "count(*)") -> int:
        count = f"SELECT {what} FROM {of} JOIN receiver_domain USING (domain_id) WHERE domain_name = :name"  # noqa: S608
        with engine_of(self.store).connect() as connection:
            return connection.scalar(text(count), {"name": to_bytes(self.domain)})

    def effects(self) -> list[str]:
        """The bodies that the target has, in order."""
        if self.kind == "file":
            lines = self.file.read_text().splitlines() if self.file.exists() else []
            return [json.loads(line)["body"] for line in lines]
        if self.kind in {"queue", "topic"}:
            return [arrived.body.decode() for arrived in self.broker.queue("out")]
        if self.kind == "table":
            with engine_of(self.store).connect() as connection:
                return list(connection.scalars(text(f"SELECT body FROM {self._table} ORDER BY number")))  # noqa: S608
        return list(self.seen)

    def open(
        self,
        *,
        ids: IdRule | None = None,
        mode: Mode | None = None,
        windows: ReceiverSettings | None = None,
        policy: str | None = None,
        **settings: Any,
    ) -> Bridge:
        mode = mode or self.mode
        options = BridgeOptions(
            mode=mode, ids=ids or IdRule(), windows=windows, policy=policy, settings=BridgeSettings(**settings)
        )
        store = None if mode is Mode.BEST_EFFORT else self.store
        return open_bridge(self.origin, self._target(mode), store, options)

    def run(self, *, dies: str | None = None, at: int = 1, **options: Any) -> Bridge:
        """Run a bridge until it has nothing left to do, or until it dies as it comes to a step for the `at`-th time."""
        bridge = self.open(**options)
        if dies is None:
            bridge.run(stop_when_idle_secs=0)
            return bridge
        self.plan(dies, _die, at=at)
        try:
            bridge.run(stop_when_idle_secs=0)
        except DiedError:
            return bridge
        finally:
            self._plan.clear()
        raise AssertionError(f"it never came to: {dies}")

    def plan(self, step: str, action: Callable[[], None], *, at: int = 1) -> None:
        """Have `action` done when a bridge comes to a step for the `at`-th time from now."""
        self._plan[step] = (at, action)

    def reach(self, step: str) -> None:
        times, action = self._plan.pop(step, (0, _die))
        if times > 1:
            self._plan[step] = (times - 1, action)
        elif times == 1:
            action()

    @property
    def origin(self) -> Origin:
        return Origin(self._source, self.connection_id, "queue://orders")

    def _source(self) -> MemorySource:
        source = self.broker.source("orders")
        take, acknowledge = source.take, source.acknowledge

        def taking(at_most, *, wait_secs):
            taken = take(at_most, wait_secs=wait_secs)
            if taken:
                self.reach("taken")
            return taken

        def acknowledging(deliveries):
            self.reach("committed")
            acknowledge(deliveries)
            self.reach("acknowledged")

        source.take, source.acknowledge = taking, acknowledging
        return source

    def _target(self, mode: Mode) -> Target:
        if self.kind == "file":
            target: Any = FileTarget(self.file)
            append = target._append
            target._append = lambda lines: self._halved(append, lines)
        elif self.kind == "queue":
            target = BrokerTarget("amqp://memory/out", self._sink, IdRule(), adds_duplicate_ids=mode.detects)
        elif self.kind == "topic":
            target = TurnTarget("kafka://memory/out", self._turns, IdRule())
        elif self.kind == "table":
            target = PythonTarget("python:tests:book", self._book)
        else:
            target = PythonTarget("python:tests:see", self._see)
        return self._watched(target)

    def _watched(self, target: Any) -> Target:
        deliver, release, has_delivered = target.deliver, target.release, False

        def delivering(messages, lease):
            nonlocal has_delivered
            outcome = deliver(messages, lease)
            self.reach("delivered")
            has_delivered = True
            return outcome

        def releasing():
            nonlocal has_delivered
            release()
            if has_delivered:
                has_delivered = False
                self.reach("confirmed")

        target.deliver, target.release = delivering, releasing
        return target

    def _sink(self) -> MemorySink:
        sink = self.broker.sink("out")
        send = sink.send
        sink.send = lambda messages: self._halved(send, messages)
        return sink

    def _turns(self) -> MemoryTurns:
        turns = self.broker.turns_to("out")
        send_turn = turns.send_turn

        def sending(messages, **more):
            if messages:
                self.reach("delivering")
            return send_turn(messages, **more)

        turns.send_turn = sending
        return turns

    def _halved(self, hand_on: Callable[[Any], None], things: Any) -> None:
        half = len(things) // 2
        hand_on(things[:half])
        self.reach("delivering")
        hand_on(things[half:])

    def _book(self, received, connection) -> None:
        insert = f"INSERT INTO {self._table} VALUES ((SELECT count(*) FROM {self._table}), :body)"  # noqa: S608
        connection.execute(text(insert), {"body": received.text})
        self.reach("delivering")

    def _see(self, received) -> None:
        self.seen.append(received.text)
        self.reach("delivering")


def send(route: Route, *ids: str) -> None:
    """Send messages without a source."""
    route.send(*(message(id_) for id_ in ids))


def run_until(bridge: Bridge, is_done: Callable[[], bool]) -> None:
    """Run a bridge until the condition holds. No idle time could end it sooner: a real broker may pause for any
    time."""

    def stop() -> None:
        while not (is_done() or bridge.figures.has_ended):
            time.sleep(0.02)
        bridge.stop()

    stopping = threading.Thread(target=stop)
    stopping.start()
    bridge.run(stop_when_idle_secs=IDLE_SECS)
    stopping.join()


def open_from(route: Route, connect: Callable[[], Source], to: str | None = None, **options: Any) -> Bridge:
    """A bridge on a route that takes messages from another connection, or sends them to another target."""
    origin = Origin(connect, route.connection_id, "queue://orders")
    return open_bridge(origin, to or f"file:{route.file}", route.store, BridgeOptions(**options))


def watch_commits(monkeypatch, route: Route) -> None:
    """Have batches pass `committing`, once their messages are in the inbox and before the commit."""
    add = Inbox.add

    def adding(inbox, connection, messages):
        add(inbox, connection, messages)
        route.reach("committing")

    monkeypatch.setattr(Inbox, "add", adding)


def _die() -> None:
    raise DiedError
