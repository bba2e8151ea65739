"""Hours at 70 % of the full speed: no message is missed, and memory, rows and latency stay flat.

A long run takes 8 hours for each test, and prints the figures of each eighth of them.
"""

import json
import math
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import NamedTuple

import pytest
from sqlalchemy import create_engine

from receiver.bridge.connectors import sink_of
from receiver.bridge.opening import BridgeOptions, open_bridge
from receiver.settings import ReceiverSettings
from tests.bridge.bridged import message
from tests.bridge.conftest import address_of
from tests.durable.opened import NEW, opened
from tests.stores import rows_of

pytestmark = pytest.mark.slow

SECS = {"quick": 24, "small": 80, "long": 8 * 3600}
SLICES = 8
FULL_SPEED_SECS = 5
SHARE = 0.7
CONSUMERS = 16
AT_ONCE = 100
REPEATED_EACH = 20
REPEATED_AFTER = 10
SETTINGS = ReceiverSettings(dup_detection_per_source_expiry_window_size=100, dup_detection_expiry_time_secs=2)
"""Each slice is longer than ids are remembered. So memory and rows have their final size by the end of the first
slice."""
ENOUGH_BYTES = 16 << 20
"""Python and its libraries may still take so much now and then."""
STEP = 1.01
"""Delays are counted in steps of 1 %: an hour has millions, and a list of them would take more memory than a leak."""


def id_of(number: int) -> str:
    """The message's id. One message in 20 repeats an earlier one."""
    return f"order {number - REPEATED_AFTER if number % REPEATED_EACH == REPEATED_AFTER else number}"


def new_among(numbers: int) -> int:
    return sum(number % REPEATED_EACH != REPEATED_AFTER for number in range(numbers))


class Slice(NamedTuple):
    messages: int
    p99_secs: float
    """The delay of a message, counted from when it was due."""
    memory_bytes: int
    rows: int


def p99_secs(took: Counter[int]) -> float:
    """The delay that one message in 100 exceeds, by delays counted in steps."""
    left = took.total() // 100
    for step in sorted(took, reverse=True):
        left -= took[step]
        if left < 0:
            return STEP**step
    raise ValueError("no message was handled")


class Watch:
    """The figures of a process under load, slice by slice."""

    def __init__(self, rows: Callable[[], int]) -> None:
        self._rows = rows
        self._took: Counter[int] = Counter()
        self._lock = threading.Lock()
        self.slices: list[Slice] = []

    def note(self, due: float) -> None:
        step = math.ceil(math.log(time.monotonic() - due, STEP))
        with self._lock:
            self._took[step] += 1

    def begin(self) -> Counter[int]:
        """Begin to count anew, and give the delays counted so far, by steps."""
        with self._lock:
            took, self._took = self._took, Counter()
        return took

    def run(self, secs: float) -> None:
        self.begin()
        for _ in range(SLICES):
            time.sleep(secs / SLICES)
            took = self.begin()
            pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
            seen = Slice(took.total(), p99_secs(took), pages * os.sysconf("SC_PAGE_SIZE"), self._rows())
            self.slices.append(seen)
            print(json.dumps(seen._asdict()), flush=True)

    def check(self, *, times_it: bool) -> None:
        """Check that the last slice is like the second. `times_it` compares latencies too: only in long runs, since
        other work makes single slices slower."""
        second, last = self.slices[1], self.slices[-1]
        assert last.memory_bytes <= 1.1 * second.memory_bytes + ENOUGH_BYTES, self.slices
        assert last.rows <= 1.5 * max(each.rows for each in self.slices[:2]), self.slices
        assert not times_it or last.p99_secs <= 1.2 * second.p99_secs, self.slices


def dues(rate: float, ends: threading.Event) -> Iterator[float]:
    """The time at which each message of a steady stream is due. Each is given at its time."""
    begin = time.monotonic()
    for number in count():
        due = begin + number / rate
        time.sleep(max(0.0, due - time.monotonic()))
        if ends.is_set():
            return
        yield due


def test_consumers(fresh_postgres_url, size):
    engine = create_engine(fresh_postgres_url, pool_size=CONSUMERS)
    numbers, new = count(), []
    watch = Watch(
        lambda: rows_of(fresh_postgres_url, "receiver_claim") + rows_of(fresh_postgres_url, "receiver_receipt")
    )
    with opened(fresh_postgres_url, concurrent=True, settings=SETTINGS) as orders:

        def consume(stream: Iterator[float]) -> int:
            times = 0
            delivered = 0
            for due in stream:
                with engine.begin() as connection, orders.batch(connection) as batch:
                    delivered += batch.receive(id_of(next(numbers))).verdict is NEW
                watch.note(due)
                times += 1
            new.append(delivered)
            return times

        def all_consume(rate: float, secs: float, meanwhile: Callable[[float], None]) -> int:
            ends = threading.Event()
            with ThreadPoolExecutor(CONSUMERS) as pool:
                under_way = [pool.submit(consume, dues(rate / CONSUMERS, ends)) for _ in range(CONSUMERS)]
                meanwhile(secs)
                ends.set()
                return sum(each.result() for each in under_way)

        full_rate = all_consume(1e6, FULL_SPEED_SECS, time.sleep) / FULL_SPEED_SECS
        all_consume(SHARE * full_rate, SECS[size], watch.run)
        engine.dispose()
    assert sum(new) == new_among(next(numbers))
    watch.check(times_it=size == "long")


@pytest.mark.artemis
def test_a_bridge(running_artemis, sqlite_url, size):
    address = address_of(running_artemis, "amqp", "queue/soak")
    numbers, handled = count(), []
    watch = Watch(lambda: rows_of(sqlite_url, "receiver_receipt") + rows_of(sqlite_url, "receiver_bundle"))

    def handle(received):
        handled[0] += 1
        watch.note(float(received.body))

    def send(rate: float, ends: threading.Event) -> None:
        with closing(sink_of(address)) as sink:
            for due in dues(rate / AT_ONCE, ends):
                sink.send([message(id_of(next(numbers)), body=str(due)) for _ in range(AT_ONCE)])

    def send_for(rate: float, secs: float, meanwhile: Callable[[float], None]) -> None:
        ends = threading.Event()
        sender = threading.Thread(target=send, args=(rate, ends))
        sender.start()
        meanwhile(secs)
        ends.set()
        sender.join()

    handled.append(0)
    bridge = open_bridge(str(address), handle, sqlite_url, BridgeOptions(windows=SETTINGS))
    running = threading.Thread(target=bridge.run)
    running.start()
    send_for(1e6, FULL_SPEED_SECS, time.sleep)
    full_rate = handled[0] / FULL_SPEED_SECS
    send_for(SHARE * full_rate, SECS[size], watch.run)
    sent = next(numbers)
    give_up = time.monotonic() + 60
    while handled[0] < new_among(sent) and time.monotonic() < give_up:
        time.sleep(0.1)
    bridge.stop()
    running.join()
    assert handled[0] == new_among(sent)
    watch.check(times_it=size == "long")
