"""The campaign against a real broker: senders crash and send again, bridges and broker are killed, links are cut.

The seed draws the events, which are printed as they happen. When they happen exactly depends on the machine.
"""

import random
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from sqlalchemy import func, inspect, select

from examples.demo.processes import HOST
from receiver.bridge.options import Mode
from receiver.durable.audit import audit
from receiver.errors import StoreError
from receiver.store.databases import read_only, store_url, translated
from receiver.store.tables import domains, parked, unpacked, waiting
from tests.bridge import effects
from tests.bridge.broker_proxy import BrokerProxy
from tests.bridge.mortal_bridge import MortalBridge
from tests.bridge.resending import Sender
from tests.campaigns import survived
from tests.durable.proxy import Cut, Proxy

FOR_EVER = {'addressSettings."#".maxDeliveryAttempts': -1}
"""A message is no poison, even if it was under way at ten kills."""
BATCH_SIZES = [1, 3, 10, 30, 100, 1_000]
LONGEST_LIFE_SECS = 0.3
"""The longest time that a bridge lives after it has begun to take messages."""
ANY_MOMENT = 0.3
"""The share of kills that don't wait until the bridge has begun."""
LONGEST_START_SECS = 1.2
LONGEST_MUTED_SECS = 0.1
LONGEST_DOWN_SECS = 0.5
LONGEST_CALM_SECS = 0.3
MOST_WAITING = 2_500
"""More messages than a broker sends ahead to one bridge, so that the others get a share."""
TICK_SECS = 0.02
LOOK_SECS = 0.1
STUCK_SECS = 5.0
IDLE_SECS = "1"
PATIENCE_SECS = 400
"""Long enough for Kafka: if a member of a group died while the broker was away, and others join at once, it waits
300 s."""
MOST_DRAINS = 3
LARGEST_TURN = 1_000
"""The most messages that go to Kafka in one turn."""


class Event(StrEnum):
    """The events of a campaign. The values are printed."""

    KILL = "kills -9 of bridges"
    STOP = "bridges stopped and started"
    KILL_BROKER = "kills -9 of the broker"
    CUT = "cuts of all links to the broker"
    CUT_STORE = "links to the store cut at a commit"
    FAIL_OVER = "failovers: kills -9 of the leading node"
    CUT_OFF = "leading nodes cut off from the others"
    FREEZE = "leading nodes frozen"
    ROLL = "rolling restarts of all nodes"


class Queue(NamedTuple):
    """The queue that senders send to and bridges take from. Both connect through the proxy."""

    broker: Any
    """A broker of `tests.brokers`, or Artemis."""
    proxy: BrokerProxy
    broker_port: int
    protocol: str
    name: str
    login: str = ""
    """`USER:PASSWORD@`, if the broker asks for a login."""
    start_options: Mapping[str, Any] = MappingProxyType({"properties": FOR_EVER})
    """Arguments for the broker's `start`."""

    def address(self, name: str, login: str | None = None) -> str:
        login = self.login if login is None else login
        return f"{self.protocol}://{login}{HOST}:{self.proxy.port}/queue/{name}"

    def straight(self, name: str) -> str:
        """The queue's address without the proxy."""
        return f"{self.protocol}://{self.login}{HOST}:{self.broker_port}/queue/{name}"

    def source(self) -> str:
        """The address that bridges take from."""
        return self.address(self.name)

    def is_empty(self) -> bool:
        return effects.has_nothing(self.straight(self.name))


class Store(NamedTuple):
    url: str
    proxy: Proxy | None = None
    """The proxy through which bridges connect to the store, if there is one."""

    @property
    def bridges_url(self) -> str:
        return self.url if self.proxy is None else self.proxy.url

    def counts(self) -> Counter[str]:
        """The counts of the store's only domain. Empty until a bridge has made the domain."""
        url = store_url(self.url)
        try:
            with translated(url), read_only(url).connect() as connection:
                row = connection.execute(select(domains.c["receipts", "duplicates"])).one_or_none()
                waits = {
                    table.name: connection.scalar(select(func.count()).select_from(table))
                    for table in (waiting, unpacked, parked)
                    if inspect(connection).has_table(table.name)  # a bridge of an older version may have made the store
                }
        except StoreError:
            return Counter()
        return Counter({} if row is None else {**row._mapping, **waits})


class Progress(NamedTuple):
    new: int
    """The number of messages that bridges have taken into their store."""
    at: float


@dataclass(frozen=True, kw_only=True)
class Plan:
    target: str
    events: dict[Event, int]
    mode: Mode = Mode.EXACTLY_ONCE
    bridges: int = 2
    consumers: int | None = None
    """The number of consumers in each bridge; None for bridges without concurrent consumers."""
    sources: int = 3
    record: Path | None = None
    """The folder to record receipts in."""
    drops_known_ids: bool = True
    """Whether the target is a broker that drops a message with a known id."""
    package: Path | None = None
    """The folder of another version of the package, with which the bridges begin."""


class Campaign:
    """One campaign, from the first start to the last message."""

    stuck_secs = STUCK_SECS
    """If no message arrives for this long, senders are not held back any more."""

    def __init__(self, plan: Plan, queue: Queue, store: Store, seed: int) -> None:
        self.plan, self.queue, self.store = plan, queue, store
        self.senders = [
            Sender(queue.address(queue.name), f"source-{number}", seed) for number in range(1, plan.sources + 1)
        ]
        self.bridges = [self._bridge(f"bridge-{number}") for number in range(1, plan.bridges + 1)]
        self.held_back = 0
        """The number of messages that Artemis gave to no bridge until it was restarted. If a STOMP connection ends
        while its broker handles an acknowledgement, messages sent ahead may stay assigned to the consumer that is
        gone."""
        self.is_empty = False
        """Whether the queue was empty at the end."""
        self._draw = random.Random(f"{seed} events")
        self._happened: Counter[Event] = Counter()
        self._looked_at = 0.0
        self._progress = Progress(0, time.monotonic())
        self._began = time.monotonic()

    def _bridge(self, name: str) -> MortalBridge:
        plan, queue = self.plan, self.queue
        arguments = [queue.source(), plan.target, "--store", self.store.bridges_url, "--mode", plan.mode]
        if plan.consumers is not None:
            arguments += ["--consumers", str(plan.consumers)]
        if plan.record is not None:
            arguments += ["--record", str(plan.record / f"{name}.jsonl.zst")]
        return MortalBridge(name, arguments, plan.package)

    def run(self) -> None:
        """Play the whole campaign. Afterwards the queue is drained and no process runs."""
        try:
            for sender in self.senders:
                sender.start()
            for bridge in self.bridges:
                self._start(bridge)
            self._play()
            self._finish()
        finally:
            for sender in self.senders:
                sender.ending.set()
            for bridge in self.bridges:
                bridge.kill()

    def ids(self) -> set[str]:
        """The ids of all messages. Each sender knows that the broker has its messages."""
        return {id_ for sender in self.senders for id_ in sender.ids()}

    @property
    def faults(self) -> dict[str, int]:
        """All that happened but for clean stops."""
        happened = {str(event): times for event, times in sorted(self._happened.items()) if event is not Event.STOP}
        return {**happened, "crashes of senders": sum(sender.crashes for sender in self.senders)}

    @property
    def forgotten_turns(self) -> int:
        return sum(bridge.forgotten_turns for bridge in self.bridges)

    def totals(self, effects: int) -> str:
        """A line with the campaign's figures."""
        counts = self.store.counts()
        figures = {
            "messages": len(self.ids()),
            "sends": sum(sender.sends for sender in self.senders),
            "receipts": counts["receipts"],
            "duplicates among them": counts["duplicates"],
            **self.faults,
            "kills of bridges that were starting": sum(bridge.kills_while_starting for bridge in self.bridges),
            str(Event.STOP): self._happened[Event.STOP],
            "starts in vain": sum(bridge.refused_starts for bridge in self.bridges),
            "times that lines were cut off": sum(bridge.repairs for bridge in self.bridges),
            "held back by the broker until its restart": self.held_back,
            "turns that Kafka forgot": self.forgotten_turns,
            "effects": effects,
        }
        counted = ", ".join(f"{number:,} {what}" for what, number in figures.items() if number)
        kind = self.plan.target.partition(":")[0]
        store = self.store.url.partition(":")[0]
        secs = time.monotonic() - self._began
        return f"TOTALS {self.plan.mode}, {self.queue.protocol}, {store}, to {kind}: {counted}; {secs:.0f} s"

    def _play(self) -> None:
        events = [event for event, times in self.plan.events.items() for _ in range(times)]
        self._draw.shuffle(events)
        for event in events:
            getattr(self, f"_{event.name.lower()}")()
            self._happened[event] += 1

    def _mortals(self) -> list[MortalBridge]:
        """The processes that may end. Each can begin again."""
        return self.bridges

    def _kill(self) -> None:
        self._kill_one(self._draw.choice(self._mortals()))

    def _kill_one(self, bridge: MortalBridge) -> None:
        self._until(lambda: self._waiting() > 0, "the queue is empty")
        if self._draw.random() < ANY_MOMENT:
            pause_secs = self._draw.uniform(0, LONGEST_START_SECS)
        else:
            self._until(lambda: bridge.is_taking, f"{bridge.name} takes nothing")
            self._goes_on()
            pause_secs = self._draw.uniform(0, LONGEST_LIFE_SECS)
        self._pause(pause_secs)
        was_starting = not bridge.is_taking
        self._say(f"kill -9 {bridge.name}{', which is starting' * was_starting}; {self._waiting():,} messages wait")
        bridge.kill()
        bridge.kills_while_starting += was_starting
        self._start(bridge)

    def _stop(self) -> None:
        bridge = self._draw.choice(self._mortals())
        self._until(lambda: bridge.is_taking, f"{bridge.name} takes nothing")
        self._pause(self._draw.uniform(0, LONGEST_LIFE_SECS))
        self._say(f"stop {bridge.name}")
        bridge.stop()
        self._start(bridge)

    def _kill_broker(self) -> None:
        self._pause(self._draw.uniform(0, LONGEST_CALM_SECS))
        self._say("kill -9 the broker")
        self.queue.broker.kill()
        self._pause(self._draw.uniform(0, LONGEST_DOWN_SECS))
        self.queue.broker.start(**self.queue.start_options)
        self._say("the broker is back")
        self._goes_on()

    def _cut(self) -> None:
        muted_secs = self._draw.choice([0, self._draw.uniform(0, LONGEST_MUTED_SECS)])
        self._say(f"cut all links, mute for {muted_secs * 1000:.0f} ms before")
        self.queue.proxy.cut_muted(muted_secs)
        self._pause(self._draw.uniform(0, LONGEST_CALM_SECS))

    def _cut_store(self) -> None:
        proxy = self.store.proxy
        assert proxy is not None
        cut = self._draw.choice(list(Cut))
        self._say(f"cut the link to the store at the next commit: {cut.name}")
        proxy.arm(cut)
        self._until(lambda: not proxy.armed, "nothing is committed")
        self._pause(self._draw.uniform(0, LONGEST_CALM_SECS))

    def _finish(self) -> None:
        self._say("the senders end")
        for sender in self.senders:
            sender.ending.set()
        self._until(lambda: not any(sender.is_alive() for sender in self.senders), "the senders don't end")
        for bridge in self.bridges:
            self._until(lambda bridge=bridge: bridge.is_taking, f"{bridge.name} takes nothing")
            if Event.KILL in self.plan.events:
                bridge.kill()
            else:  # so that all that it has received is in the log
                bridge.stop()
        self._drain()
        if self.queue.protocol == "stomp" and (held_back := self._waiting()):
            self.held_back = held_back
            self._say(f"the broker is restarted, for it holds {held_back:,} messages back")
            self.queue.broker.stop()
            self.queue.broker.start(**self.queue.start_options)
            self._drain()

    def _drain(self) -> None:
        """Have the bridges take what is left. If a slow broker let them stop for idleness too early, they start
        again."""
        for _ in range(MOST_DRAINS):
            self._say("the bridges take what is left")
            for bridge in self.bridges:
                bridge.start("--stop-when-idle", IDLE_SECS)
            for bridge in self.bridges:
                bridge.ends_in()
            self.is_empty = self.queue.is_empty()
            if self.is_empty and not self._waiting():
                return

    def _start(self, bridge: MortalBridge) -> None:
        bridge.start("--max-batch-size", str(self._draw.choice(BATCH_SIZES)))

    def _goes_on(self) -> None:
        """Wait until messages arrive again."""
        before = self._new()
        self._until(lambda: self._new() > before or not self._waiting(), "nothing goes on")

    def _pause(self, secs: float) -> None:
        until = time.monotonic() + secs
        while (left := until - time.monotonic()) > 0:
            self._look_around()
            time.sleep(min(left, TICK_SECS))

    def _meanwhile(self, do: Callable[[], object]) -> None:
        """Look around again and again until `do`, which takes a while, has returned."""
        with ThreadPoolExecutor(1) as thread:
            doing = thread.submit(do)
            while not doing.done():
                self._look_around()
                time.sleep(TICK_SECS)
            doing.result()

    def _until(self, condition: Callable[[], bool], otherwise: str) -> None:
        give_up = time.monotonic() + PATIENCE_SECS
        while not condition():
            if time.monotonic() >= give_up:
                for bridge in self.bridges:
                    bridge.abort()
                raise AssertionError(f"{otherwise}\n{self._last_words()}")
            self._look_around()
            time.sleep(TICK_SECS)

    def _look_around(self) -> None:
        """Start bridges that could not begin. If bridges don't keep up with the senders, hold the senders back."""
        if time.monotonic() < self._looked_at + LOOK_SECS:
            return
        self._looked_at = time.monotonic()
        for bridge in self.bridges:
            if bridge.has_refused():
                self._start(bridge)
        new = self._new()
        if new != self._progress.new:
            self._progress = Progress(new, self._looked_at)
        # Senders must not wait for messages that the broker holds back.
        is_stuck = self._looked_at > self._progress.at + self.stuck_secs
        too_many = self._confirmed() - new > MOST_WAITING and not is_stuck
        for sender in self.senders:
            assert sender.error is None, sender.error
            (sender.held.set if too_many else sender.held.clear)()

    def _new(self) -> int:
        counts = self.store.counts()
        return counts["receipts"] - counts["duplicates"]

    def _waiting(self) -> int:
        """The number of messages that no bridge has taken into its store yet."""
        return self._confirmed() - self._new()

    def _confirmed(self) -> int:
        return sum(sender.confirmed for sender in self.senders)

    def _last_words(self) -> str:
        return "\n".join(
            f"{bridge.name}: {bridge.last_words()}\nits latest start in vain: {bridge.refusal}"
            for bridge in self.bridges
        )

    def _say(self, what: str) -> None:
        print(f"{time.monotonic() - self._began:8.3f} s  {what}")


def perform(
    plan: Plan,
    queue: Queue,
    store: Store,
    seed: int,
    read_effects: Callable[[], list[effects.Effect]],
    *,
    kind: Callable[[Plan, Queue, Store, int], Campaign] = Campaign,
) -> tuple[Campaign, list[effects.Effect]]:
    """Play a campaign, and check that every message has taken effect and none is left on the way. Returns it with
    the effects."""
    campaign = kind(plan, queue, store, seed)
    campaign.run()
    arrived, counts = read_effects(), store.counts()
    print(campaign.totals(len(arrived)))
    doubles = effects.check(arrived, campaign.ids())
    twice = 0
    if plan.drops_known_ids:
        twice = doubles - (counts["duplicates"] if plan.mode is Mode.AT_LEAST_ONCE else 0)
        assert 0 <= twice <= campaign.forgotten_turns * LARGEST_TURN
    assert campaign.is_empty, effects.in_queue(queue.straight(queue.name))
    assert [counts[table.name] for table in (waiting, unpacked, parked)] == [0, 0, 0]
    assert counts["receipts"] - counts["duplicates"] == len(campaign.ids())
    assert audit(store.url).findings == ()
    survived(campaign.faults, len(campaign.ids()), twice=twice)
    return campaign, arrived
