"""Sources whose positions the store keeps: a log that forgets nothing. Bridges read it and lose it to one another."""

import itertools
import json
import uuid

import pytest

from receiver.bridge import Closing, Message, Origin, open_bridge
from receiver.bridge.connectors import Advance, Delivery, PositionedSource
from receiver.bridge.opening import BridgeOptions
from receiver.bridge.options import Mode
from receiver.errors import MessagesLostError, StoreError
from tests.brokers.memory import MemorySource

KEEPING = [mode for mode in Mode if mode.keeps]


class Log:
    """Messages by number, without ids: only positions can keep a message from taking effect twice."""

    def __init__(self, count):
        self.messages = [Message(body=str(number).encode(), is_text=True) for number in range(count)]
        self.first = 0
        self.sources = []


class LogSource:
    positions_of = "log"

    def __init__(self, log, on_taken=lambda: None):
        self.log = log
        self.position = None
        self.acknowledged = 0
        self._kept = None
        self._on_taken = on_taken
        log.sources.append(self)

    def start(self, positions):
        self._kept = positions.read().get("offset")
        self.position = int(self._kept or 0)

    def take(self, at_most, *, wait_secs):
        del wait_secs
        self.position = self.position or 0
        if self.position < self.log.first:
            raise MessagesLostError("gone")
        taken = self.log.messages[self.position : self.position + min(at_most, 3)]
        self.position += len(taken)
        if taken:
            self._on_taken()
        return [Delivery(message, None) for message in taken]

    def advances(self, _deliveries):
        return [Advance("offset", self._kept, str(self.position))]

    def acknowledge(self, deliveries):
        self._kept = str(self.position)
        self.acknowledged += len(deliveries)

    def close(self):
        pass


@pytest.fixture
def connection_id():
    return f"broker-{uuid.uuid4().hex}"


@pytest.fixture
def opening(store, connection_id, tmp_path, hasty):
    """Opens bridges from a log to a file."""
    del hasty

    def opened(log, mode=Mode.EXACTLY_ONCE, **more):
        origin = Origin(lambda: LogSource(log, **more), connection_id, "queue://log")
        to = f"file:{tmp_path / 'out.jsonl'}"
        return open_bridge(origin, to, None if mode is Mode.BEST_EFFORT else store, BridgeOptions(mode=mode))

    opened.effects = lambda: [
        int(json.loads(line)["body"]) for line in (tmp_path / "out.jsonl").read_text().splitlines()
    ]
    return opened


def run(bridge):
    bridge.run(stop_when_idle_secs=0)
    return bridge


def test_which_sources_have_positions():
    assert isinstance(LogSource(Log(0)), PositionedSource)
    assert not issubclass(MemorySource, Closing) or not hasattr(MemorySource, "positions_of")


@pytest.mark.parametrize("mode", KEEPING)
def test_the_next_bridge_goes_on_where_the_last_one_was(opening, mode):
    log = Log(10)
    run(opening(log, mode))
    log.messages += Log(20).messages[10:]
    run(opening(log, mode))
    assert opening.effects() == list(range(20))
    assert [source.acknowledged for source in log.sources] == [10, 10]


def test_without_a_store_the_source_goes_by_itself(opening):
    log = Log(10)
    run(opening(log, Mode.BEST_EFFORT))
    run(opening(log, Mode.BEST_EFFORT))
    assert opening.effects() == [*range(10), *range(10)]


@pytest.mark.parametrize("mode", KEEPING)
def test_whoever_was_frozen_hands_nothing_on_that_another_took(opening, mode, caplog):
    """While the first bridge holds a batch, a second one takes the same messages and more."""
    log = Log(10)
    batches = itertools.count()

    def on_taken():
        if next(batches) == 1:
            run(opening(log, mode))

    bridge = run(opening(log, mode, on_taken=on_taken))
    assert opening.effects() == list(range(10))
    assert "another has gone on from the beginning in offset of log" in caplog.text
    assert bridge.figures.connection_errors == 1
    assert [source.acknowledged for source in log.sources] == [0, 10, 0]


def test_what_failed_in_a_batch_that_another_took_is_no_fault_of_the_next(opening):
    log, batches, mode = Log(3), itertools.count(), Mode.APP_CONTROLLED

    def on_taken():
        if next(batches) == 0:
            bridge._flow._attempts[0].given_up = "it has failed too often"
            run(opening(log, mode))
            log.messages += Log(6).messages[3:]

    bridge = opening(log, mode, on_taken=on_taken)
    run(bridge)
    assert opening.effects() == list(range(6))
    assert bridge.figures.parked == 0


@pytest.mark.parametrize("mode", KEEPING)
def test_a_store_that_fails_while_positions_are_read_is_waited_for(opening, mode, monkeypatch):
    log, tries = Log(4), iter([StoreError("gone"), StoreError("gone"), None, None])
    start = LogSource.start

    def failing(self, positions):
        if (error := next(tries)) is not None:
            raise error
        start(self, positions)

    bridge = opening(log, mode)
    monkeypatch.setattr(LogSource, "start", failing)
    with pytest.raises(StoreError):
        run(bridge)  # at the start it is an error
    assert next(tries) is not None
    run(opening(log, mode))
    assert opening.effects() == list(range(4))


@pytest.mark.parametrize("mode", list(Mode))
def test_what_the_broker_has_lost_ends_the_bridge(opening, mode):
    log = Log(10)
    log.first = 5
    with pytest.raises(MessagesLostError):
        run(opening(log, mode))


def test_an_empty_take_of_a_source_that_is_settling_is_no_idleness(opening, monkeypatch):
    log, looks = Log(0), []

    def settling(_source):
        looks.append(None)
        if len(looks) == 3:
            log.messages += Log(2).messages
        return len(looks) < 4

    monkeypatch.setattr(LogSource, "is_settling", property(settling), raising=False)
    run(opening(log))
    assert opening.effects() == [0, 1]
