"""The campaign against a real broker: senders that crash and send again, bridges and the broker killed, links cut.

What happens is drawn by the seed, and printed as it happens; the moments within are the machine's.
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
"""A message that was under way at ten kills is no poison."""
BATCH_SIZES = [1, 3, 10, 30, 100, 1_000]
LONGEST_LIFE_SECS = 0.3
"""After it has begun to take messages."""
ANY_MOMENT = 0.3
"""The share of kills that don't wait for the victim to have begun."""
LONGEST_START_SECS = 1.2
LONGEST_MUTED_SECS = 0.1
LONGEST_DOWN_SECS = 0.5
LONGEST_CALM_SECS = 0.3
MOST_WAITING = 2_500
"""More than one bridge has sent ahead: the others get a share too."""
TICK_SECS = 0.02
LOOK_SECS = 0.1
STUCK_SECS = 5.0
IDLE_SECS = "1"
PATIENCE_SECS = 400
"""Kafka waits 300 s for a member of a group that died while the broker was away, if others join at once."""
MOST_DRAINS = 3
LARGEST_TURN = 1_000
"""Messages that go to Kafka at once."""


class Event(StrEnum):
    """What may happen; the values are for whoever reads what was printed."""

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
    """Where senders send and bridges take, as they get there: through the proxy."""

    broker: Any
    """One of those in `tests.brokers`, or Artemis."""
    proxy: BrokerProxy
    broker_port: int
    protocol: str
    name: str
    login: str = ""
    """`USER:PASSWORD@`, where the broker asks for it."""
    start_options: Mapping[str, Any] = MappingProxyType({"properties": FOR_EVER})
    """What the broker is started with."""

    def address(self, name: str, login: str | None = None) -> str:
        login = self.login if login is None else login
        return f"{self.protocol}://{login}{HOST}:{self.proxy.port}/queue/{name}"

    def straight(self, name: str) -> str:
        """The address past the proxy."""
        return f"{self.protocol}://{self.login}{HOST}:{self.broker_port}/queue/{name}"

    def source(self) -> str:
        """Where bridges take from."""
        return self.address(self.name)

    def is_empty(self) -> bool:
        return effects.has_nothing(self.straight(self.name))


class Store(NamedTuple):
    url: str
    proxy: Proxy | None = None
    """What bridges get to it by, where there is one."""

    @property
    def bridges_url(self) -> str:
        return self.url if self.proxy is None else self.proxy.url

    def counts(self) -> Counter[str]:
        """Of its only domain; empty before a bridge has made it."""
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
    """Messages that bridges have taken into their store."""
    at: float


@dataclass(frozen=True, kw_only=True)
class Plan:
    target: str
    events: dict[Event, int]
    mode: Mode = Mode.EXACTLY_ONCE
    bridges: int = 2
    consumers: int | None = None
    """In each bridge, where they take messages at once."""
    sources: int = 3
    record: Path | None = None
    """A folder to record the receipts in."""
    drops_known_ids: bool = True
    """Whether the target, where it is a broker, drops what is sent to it again."""
    package: Path | None = None
    """The folder of another version, which bridges are of at first."""


class Campaign:
    """One of them, from the first start to the last message."""

    stuck_secs = STUCK_SECS
    """After so long without a message, senders wait for nobody."""

    def __init__(self, plan: Plan, queue: Queue, store: Store, seed: int) -> None:
        self.plan, self.queue, self.store = plan, queue, store
        self.senders = [
            Sender(queue.address(queue.name), f"source-{number}", seed) for number in range(1, plan.sources + 1)
        ]
        self.bridges = [self._bridge(f"bridge-{number}") for number in range(1, plan.bridges + 1)]
        self.held_back = 0
        """Messages that Artemis gave to nobody before it was restarted. Where a connection by STOMP ends while its broker
        handles an acknowledgement, others that were sent ahead by it may stay assigned to the consumer that is gone."""
        self.is_empty = False
        """Whether in the end nothing was left in the queue."""
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
        """All of it; afterwards everything is drained and nothing runs."""
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
        """Of all messages, each of which its sender knows to be safe."""
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
        """One line of what there was."""
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
        """Those that may end, for they can begin again."""
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
            else:  # then all that it has received is in the log
                bridge.stop()
        self._drain()
        if self.queue.protocol == "stomp" and (held_back := self._waiting()):
            self.held_back = held_back
            self._say(f"the broker is restarted, for it holds {held_back:,} messages back")
            self.queue.broker.stop()
            self.queue.broker.start(**self.queue.start_options)
            self._drain()

    def _drain(self) -> None:
        """Again where a broker took so long to give what it has that the bridges were idle before."""
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
        """Messages come again."""
        before = self._new()
        self._until(lambda: self._new() > before or not self._waiting(), "nothing goes on")

    def _pause(self, secs: float) -> None:
        until = time.monotonic() + secs
        while (left := until - time.monotonic()) > 0:
            self._look_around()
            time.sleep(min(left, TICK_SECS))

    def _meanwhile(self, do: Callable[[], object]) -> None:
        """Look around until that is done, which takes a while."""
        with ThreadPoolExecutor(1) as thread:
            doing = thread.submit(do)
            while not doing.done():
                self._look_around()
                time.sleep(TICK_SECS)
            doing.result()

    def _until(self, condition: Callable[[], bool], otherwise: str) -> None:
        give_up = time.monotonic() + PATIENCE_SECS
        while not condition():
            assert time.monotonic() < give_up, f"{otherwise}\n{self._last_words()}"
            self._look_around()
            time.sleep(TICK_SECS)

    def _look_around(self) -> None:
        """Start again who could not begin, and hold senders back whose messages nobody takes so fast."""
        if time.monotonic() < self._looked_at + LOOK_SECS:
            return
        self._looked_at = time.monotonic()
        for bridge in self.bridges:
            if bridge.has_refused():
                self._start(bridge)
        new = self._new()
        if new != self._progress.new:
            self._progress = Progress(new, self._looked_at)
        # What the broker holds back is waited for by nobody.
        is_stuck = self._looked_at > self._progress.at + self.stuck_secs
        too_many = self._confirmed() - new > MOST_WAITING and not is_stuck
        for sender in self.senders:
            assert sender.error is None, sender.error
            (sender.held.set if too_many else sender.held.clear)()

    def _new(self) -> int:
        counts = self.store.counts()
        return counts["receipts"] - counts["duplicates"]

    def _waiting(self) -> int:
        """Messages that no bridge has taken into its store yet."""
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
    """A campaign after which every message has taken effect, and nothing is left anywhere on the way; and the effects."""
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
