"""Two bridges of one group are killed and frozen beyond their session, and their broker restarts: every message has
one effect."""

import os
import random
import signal
import threading
import time
from collections import Counter
from contextlib import suppress

import pytest

from receiver.bridge import Message, sink_of
from receiver.bridge.options import Mode
from receiver.durable.audit import audit
from receiver.errors import BrokerError
from receiver.store.tables import parked, receipts, unpacked, waiting
from tests.bridge import booking, effects
from tests.bridge.mortal_bridge import MortalBridge
from tests.bridge.resending import body_of
from tests.campaigns import survived
from tests.choosing import scaled
from tests.stores import execute, rows_of

pytestmark = [pytest.mark.broker, pytest.mark.slow]

PARTITIONS = 3
SESSION_SECS = 1
AT_ONCE = 20
MESSAGES = {"quick": 500, "small": 2_000, "long": 12_000}
KILLS = {"quick": 1, "small": 4, "long": 100}
SENT_AGAIN = 0.05
PATIENCE_SECS = 300
SHORT = [scaled((Mode.EXACTLY_ONCE, "sqlite", "file")), pytest.param((Mode.APP_CONTROLLED, "postgresql", "table"))]
LONG = [(Mode.EXACTLY_ONCE, "sqlite", "table"), (Mode.EXACTLY_ONCE, "postgresql", "file")]


class Sender(threading.Thread):
    """Sends until all messages are safe. It sends a part of them again, and every message that it doesn't know to be
    safe."""

    def __init__(self, address, ids, draw):
        super().__init__(daemon=True)
        self.address, self.draw = address, draw
        self.ids = ids
        self.most = 0
        """How many messages it may have sent so far, so that each event has messages to disturb."""
        self.sent_again = 0

    def run(self):
        left, sink = list(self.ids), None
        while left:
            if len(self.ids) - len(left) >= self.most:
                time.sleep(0.02)
                continue
            part, again = left[:AT_ONCE], [id_ for id_ in left[:AT_ONCE] if self.draw.random() < SENT_AGAIN]
            try:
                sink = sink or sink_of(self.address)
                sink.send([message(id_) for id_ in part])
                sink.send([message(id_) for id_ in again])
            except BrokerError:
                with suppress(AttributeError):
                    sink.close()
                sink = None
                time.sleep(0.1)
                continue
            self.sent_again += len(again)
            left = left[AT_ONCE:]
        sink.close()


def message(id_):
    source = id_.partition(":")[2]
    named = {"uniqueMessageId": id_, "messageSourceId": source}
    return Message(body=body_of(id_), properties=named, default_source=source)


class Group:
    """Two bridges, and what happens to them."""

    def __init__(self, bridges, sender, count):
        self.bridges, self.sender, self.count = bridges, sender, count

    def until(self, count):
        """Wait until there are `count` effects."""
        until = time.monotonic() + PATIENCE_SECS
        while self.count() < count:
            assert time.monotonic() < until, "\n".join(bridge.last_words() for bridge in self.bridges)
            self.revive()
            time.sleep(0.02)

    def revive(self):
        for bridge in self.bridges:
            if bridge.has_refused():
                bridge.start()

    def freeze(self, bridge, secs):
        """Freeze a bridge. It loses its partitions to the other, and wakes up with the messages that it had taken of
        them."""
        process = bridge._process._process
        os.kill(process.pid, signal.SIGSTOP)
        time.sleep(secs)
        os.kill(process.pid, signal.SIGCONT)

    def play(self, kills, draw, kafka):
        happenings = ["kill"] * kills + ["freeze"] * max(1, kills // 20) + ["restart"] * max(1, kills // 20)
        self.happened = Counter(happenings)
        draw.shuffle(happenings)
        for number, what in enumerate(happenings):
            share = len(self.sender.ids) // len(happenings)
            self.sender.most = (number + 1) * share
            self.until(number * share + 1)
            time.sleep(draw.uniform(0, 0.3))
            bridge = draw.choice(self.bridges)
            print(f"{what} {bridge.name if what != 'restart' else 'the broker'}; {self.count():,} effects")
            if what == "kill":
                bridge.kill()
                bridge.start()
            elif what == "freeze":
                self.freeze(bridge, 3 * SESSION_SECS)
            else:
                kafka.kill()
                kafka.start()
        self.sender.most = len(self.sender.ids)


@pytest.mark.parametrize("plan", [*SHORT, *LONG], ids=" ".join)
def test_every_effect_once_by_a_group(request, plan, size, seed, tmp_path):
    if plan in LONG and size != "long":
        pytest.skip("for --campaign=long")
    kafka, (mode, database, kind) = request.getfixturevalue("kafka"), plan
    store = request.getfixturevalue("sqlite_url" if database == "sqlite" else "fresh_postgres_url")
    file = tmp_path / "orders.jsonl"
    if kind == "table":
        execute(store, booking.TABLE)
        target, arrived = booking.FUNCTION, lambda: effects.in_table(store)
    else:
        target, arrived = f"file:{file}", lambda: effects.in_file(file) if file.exists() else []
    draw = random.Random(seed)
    topic = kafka.new_topic(PARTITIONS)
    ids = [f"{number}:source-{number % 7}" for number in range(MESSAGES[size])]
    sender = Sender(kafka.address(topic), ids, draw)
    address = kafka.address(topic, "g", session=str(SESSION_SECS))
    bridges = [
        MortalBridge(f"bridge-{number}", [address, target, "--store", store, "--mode", mode]) for number in (1, 2)
    ]
    group = Group(bridges, sender, lambda: counted(store, kind, file))
    try:
        sender.start()
        for bridge in bridges:
            bridge.start("--max-batch-size", "30")
        group.play(KILLS[size], draw, kafka)
        sender.join(PATIENCE_SECS)
        for bridge in bridges:
            bridge.kill()
        for bridge in bridges:
            bridge.start("--stop-when-idle", "0.5")
        for bridge in bridges:
            bridge.ends_in()
    finally:
        for bridge in bridges:
            bridge.kill()
    assert effects.check(arrived(), set(ids)) == 0
    assert [rows_of(store, table.name) for table in (waiting, unpacked, parked)] == [0, 0, 0]
    assert audit(store).findings == ()
    counts = audit(store).domains[0].state
    print(f"{counts.receipts:,} receipts, {counts.duplicates:,} duplicates, {sender.sent_again:,} sent again")
    assert counts.duplicates >= sender.sent_again
    assert rows_of(store, receipts.name) > 0
    survived(group.happened, len(ids))


def counted(store, kind, file):
    with suppress(Exception):  # until there is a store
        if kind == "table":
            return rows_of(store, "booked")
        return file.read_bytes().count(b"\n")
    return 0
