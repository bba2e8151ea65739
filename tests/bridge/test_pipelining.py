"""A source whose acknowledgements are answered later: what a bridge does meanwhile, and what a lost answer costs."""

import pytest

from receiver import retrying
from receiver.bridge import bridge
from receiver.bridge.opening import BridgeOptions, open_bridge
from receiver.bridge.options import Mode
from receiver.errors import BrokerError, BrokerRefusedError
from receiver.settings import BridgeSettings, ReceiverSettings
from tests.bridge.bridged import TEN, open_from, send
from tests.brokers.memory import MemorySource

pytestmark = pytest.mark.usefixtures("hasty")

DOWN, NO = BrokerError("it is down"), BrokerRefusedError("it says no")


class LaterSource(MemorySource):
    """Gives five messages at a time. When its answer to an acknowledgement is heard, the broker forgets those
    messages, or raises an error of `errors`."""

    def __init__(self, route, errors=(), hear=lambda: None):
        super().__init__(route.broker, "orders")
        self._errors = errors
        self._hear = hear

    def take(self, at_most, *, wait_secs):
        return super().take(min(at_most, 5), wait_secs=wait_secs) if wait_secs else []

    def begin_acknowledging(self, deliveries):
        assert deliveries == self._taken[-len(deliveries) :]
        count = len(self._taken)
        return lambda: self._answer(count)

    def _answer(self, count):
        self._hear()
        if self._errors:
            raise self._errors.pop(0)
        del self._taken[:count]


def windows(size):
    return ReceiverSettings(dup_detection_per_source_expiry_window_size=size, dup_detection_expiry_time_secs=0)


@pytest.mark.parametrize(
    ("options", "handed_on"),
    [
        ({"windows": windows(10)}, [10]),
        ({"windows": windows(9)}, [5, 10]),
        ({"settings": BridgeSettings(max_batch_size=10)}, [10]),
        ({"settings": BridgeSettings(max_batch_size=9)}, [5, 10]),
        ({"settings": BridgeSettings(max_batch_size=9), "mode": Mode.AT_LEAST_ONCE}, [5, 10]),
        ({"policy": "perfect"}, [5, 10]),
    ],
    ids=repr,
)
def test_no_more_is_kept_without_an_answer_than_in_one_batch(route, monkeypatch, options, handed_on):
    """All messages without an answer may come again."""
    monkeypatch.setattr("receiver.bridge.bridge._TEND_SECS", 60)  # tending asks for the answer too
    send(route, *TEN)
    heard = []

    def hear():
        heard.append(route.waiting() + len(route.effects()))

    bridge = open_from(route, lambda: LaterSource(route, hear=hear), **options)
    bridge.run(stop_when_idle_secs=0)
    assert heard == handed_on
    assert (route.effects(), route.queued) == (TEN, [])


@pytest.mark.parametrize("mode", [Mode.EXACTLY_ONCE, Mode.APP_CONTROLLED])
@pytest.mark.parametrize("size", [5, 9, 10])
def test_an_answer_that_was_lost_doubles_nothing(route, mode, size):
    send(route, *TEN)
    errors = [DOWN] * 3
    connect = lambda: LaterSource(route, errors)  # noqa: E731
    bridge = open_from(route, connect, mode=mode, windows=windows(size))
    bridge.run(stop_when_idle_secs=0)
    assert (route.effects(), route.queued, errors) == (TEN, [], [])
    assert bridge.receiver.status().rDupsDet >= 15


def test_a_bridge_that_is_stopped_hears_the_last_answer(route):
    send(route, *TEN)
    seen = []

    def handle(message):
        seen.append(message.text)
        opened.stop()

    origin = route.origin._replace(connect=lambda: LaterSource(route))
    opened = open_bridge(origin, handle, route.store, BridgeOptions())
    opened.run()
    assert (seen, route.queued) == (TEN[:5], TEN[5:])


def test_where_messages_never_cease_answers_are_heard_all_the_same(route, monkeypatch):
    """If a connection is lost now and then, the answers show that it has worked meanwhile."""
    monkeypatch.setattr(bridge, "_TEND_SECS", 0)
    send(route, *TEN)
    heard = []
    running = open_from(
        route, lambda: LaterSource(route, hear=lambda: heard.append(route.waiting() + len(route.effects())))
    )
    running.run(stop_when_idle_secs=0)
    assert heard == [5, 10]


def test_refused_acknowledgements_are_believed_after_a_while(route, monkeypatch):
    send(route, "1")
    monkeypatch.setattr(retrying, "_REFUSED_SECS", 0.1)
    with pytest.raises(BrokerRefusedError):
        open_from(route, lambda: LaterSource(route, [NO] * 1_000)).run()
    assert route.effects() == ["1"]
