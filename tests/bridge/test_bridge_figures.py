"""How large batches are, and a bridge's own figures: its status line and metrics."""

import logging
import threading
from dataclasses import replace

import pytest

from receiver.bridge import bridge as bridge_module
from receiver.bridge.connectors import Message
from receiver.bridge.connectors.address import BrokerAddress, Node
from receiver.bridge.connectors.nodes import Nodes
from receiver.bridge.metrics import export
from receiver.bridge.opening import BridgeOptions, open_bridge
from receiver.bridge.options import IdRule, Mode
from receiver.durable.status import LOG_FORMAT
from receiver.errors import StoreBusyError
from receiver.logs import ReadOptions, read_logs
from receiver.settings import BridgeSettings, ReceiverSettings
from tests.bridge.bridged import TEN, Route, message, open_from, send

pytestmark = pytest.mark.usefixtures("hasty")


def batches(route, **settings):
    """How many messages each batch has."""
    sizes = []
    bridge = open_bridge(
        route.origin, f"file:{route.file}", route.store, BridgeOptions(settings=BridgeSettings(**settings))
    )
    before = bridge._flow.before_acknowledging
    bridge._flow.before_acknowledging = lambda taken: (sizes.append(len(taken.messages)), before(taken))[1]
    bridge.run(stop_when_idle_secs=0)
    return sizes


def test_a_batch_has_so_many_messages_at_most(route):
    send(route, *TEN)
    assert batches(route, max_batch_size=4) == [4, 4, 2]


def give_one_by_one(route):
    """Let the source of a route give one message at a time."""
    source = route._source

    def one_by_one():
        made = source()
        take = made.take
        made.take = lambda _at_most, wait_secs: take(1, wait_secs=wait_secs)
        return made

    route._source = one_by_one


def test_a_batch_ends_once_there_is_much_of_it(route, monkeypatch):
    monkeypatch.setattr(bridge_module, "BATCH_BYTES", 1_000)
    route.send(*(Message(body=bytes(600)) for _ in range(5)))
    give_one_by_one(route)
    assert batches(route) == [2, 2, 1]


@pytest.mark.parametrize(("millis", "sizes"), [(0, [1] * 5), (10_000, [5])])
def test_a_batch_grows_no_longer_than_it_may(route, millis, sizes):
    send(route, *TEN[:5])
    give_one_by_one(route)
    assert batches(route, max_batch_interval_millis=millis) == sizes


# Figures


ENTRY = """\
2017-03-05 18:17:36.091 INFO  [27192:JMSReceiver:orders] - 'orders' has received JMS message: Property.uniqueMessageId=1
   JMSDestination=Queue<orders>
   JMSRedelivered=false
   Body="x"
"""


def test_the_status_line_is_read_by_the_reader_of_correlator_logs(route, tmp_path):
    send(route, *TEN, "3")
    bridge = route.run()
    record = logging.LogRecord("receiver.bridge", logging.INFO, "", 0, bridge.status_line(), (), None)
    log = tmp_path / "bridge.log"
    log.write_text(ENTRY + logging.Formatter(LOG_FORMAT).format(record) + "\n")
    (line,) = (line for batch in read_logs([str(log)], ReadOptions()) for line in batch.status_lines)
    assert {"rx": 11, "rDupsDet": 1, "tx": 10, "sOutst": 0, "connErr": 0}.items() <= line.values.items()


def test_the_figures_in_the_status_line(route):
    send(route, *TEN, "3")
    bridge = route.run()
    bridge.figures._rate._asked = (bridge.figures._rate._asked[0], 10)
    bridge.receiver.status()
    assert bridge.status_line() == (
        "JMS Status: s=1 tx=10 sRate=0 sOutst=0 r=1 rx=11 rRate=0 rRedel=0 rMaxDeliverySecs=0.0 rDupsDet=1 rDupIds=10"
        " connErr=0 parked=0"
    )


def test_the_status_may_be_asked_for_all_the_time(route):
    send(route, *(str(number) for number in range(200)))
    bridge, ended, lines = route.open(max_batch_size=20), threading.Event(), []

    def ask():
        while not ended.is_set():
            lines.append(bridge.status_line())

    asking = threading.Thread(target=ask)
    asking.start()
    bridge.run(stop_when_idle_secs=0)
    ended.set()
    asking.join()
    assert "tx=200 " in bridge.status_line()
    assert lines


def test_metrics_tell_what_the_status_tells(route):
    prometheus = pytest.importorskip("prometheus_client")
    send(route, *TEN, "3")
    bridge, registry = route.open(), prometheus.CollectorRegistry()
    export(bridge, registry)
    bridge.run(stop_when_idle_secs=0)
    text = prometheus.generate_latest(registry).decode()
    labels = f'{{domain="{route.domain}"}}'
    assert f"receiver_bridge_delivered_total{labels} 10.0" in text
    assert f"receiver_bridge_waiting{labels} 0.0" in text


def test_metrics_tell_which_broker_a_bridge_is_at(route):
    prometheus = pytest.importorskip("prometheus_client")
    first, second = Node("a", 5672), Node("b", 5672)
    registry, nodes = prometheus.CollectorRegistry(), Nodes(BrokerAddress.parse("amqp://a,b/queue/orders"), str)
    for _ in range(2):
        bridge = route.open()
        bridge.figures.nodes = {"source": nodes}
        export(bridge, registry)
    labels = {"domain": route.domain, "role": "source"}

    def at(node):
        return registry.get_sample_value("receiver_bridge_node", {**labels, "node": str(node)})

    assert (at(first), at(second)) == (None, None)
    nodes.note(first)
    assert (at(first), at(second)) == (1, None)
    nodes.note(second)
    assert (at(first), at(second)) == (None, 1)
    assert registry.get_sample_value("receiver_bridge_node_changes_total", labels) == 2
    bridge.close()


def test_bridges_of_a_domain_are_added_up_and_others_stand_beside(route, tmp_path, sqlite_url):
    prometheus = pytest.importorskip("prometheus_client")
    registry, other = prometheus.CollectorRegistry(), Route(sqlite_url, tmp_path, "call")
    for on, ids in ((route, "12"), (route, "3"), (other, "4")):
        send(on, *ids)
        bridge = on.open()
        export(bridge, registry)
        export(bridge, registry)
        bridge.run(stop_when_idle_secs=0)
    text = prometheus.generate_latest(registry).decode()
    for domain, count in ((route.domain, 3), (other.domain, 1)):
        assert f'receiver_bridge_delivered_total{{domain="{domain}"}} {count}.0' in text
    assert text.count("# TYPE receiver_bridge_delivered_total") == 1


def test_what_waits_is_what_bridges_see_that_go_on(route):
    prometheus = pytest.importorskip("prometheus_client")
    registry = prometheus.CollectorRegistry()

    def waiting():
        return registry.get_sample_value("receiver_bridge_waiting", {"domain": route.domain})

    send(route, *TEN)
    ended = route.run(dies="delivering")
    export(ended, registry)
    assert waiting() == 10
    goes_on = route.open()
    export(goes_on, registry)
    goes_on.run(stop_when_idle_secs=0)
    assert waiting() == 0


@pytest.mark.parametrize(
    ("sources", "mode", "warnings"),
    [
        ([None, None, None], Mode.EXACTLY_ONCE, 1),
        (["a", "b", "c"], Mode.EXACTLY_ONCE, 0),
        ([None, None, None], Mode.AT_LEAST_ONCE, 0),
    ],
)
def test_senders_that_may_share_a_window_are_warned_of_once(route, caplog, sources, mode, warnings):
    route.send(*(message(str(n), source) for n, source in enumerate(sources)))
    route.run(mode=mode, max_batch_size=1)
    assert caplog.text.count("they share the window of 2000 ids") == warnings


@pytest.mark.parametrize(
    ("message_id", "mode", "warnings"),
    [
        (None, Mode.EXACTLY_ONCE, ["they aren't checked"]),
        ("m-1", Mode.EXACTLY_ONCE, ["they aren't checked"]),  # it may be a number that is given again
        ("ID:m-1", Mode.EXACTLY_ONCE, ["their ids are new with each send"]),
        (None, Mode.AT_LEAST_ONCE, []),
    ],
)
def test_messages_without_an_id_of_their_own_are_warned_of_once(route, caplog, message_id, mode, warnings):
    route.send(*(replace(message(None, "a"), message_id=message_id) for _ in range(3)))
    route.run(mode=mode, max_batch_size=1)
    warned = [record.getMessage() for record in caplog.records if "without uniqueMessageId" in record.getMessage()]
    assert len(warned) == len(warnings)
    assert all(map(str.__contains__, warned, warnings))


def test_a_function_that_gives_no_id_is_warned_of(route, caplog):
    send(route, "1", "2")
    route.run(ids=IdRule(function=lambda _message: (None, "a")))
    assert caplog.text.count("without an id from the function") == 1


def test_a_bridge_starts_while_another_is_delivering(route):
    send(route, "1")
    first = route.run(dies="committed")
    first.close()
    second = route.open()
    deliver, busy = second._flow.deliver_waiting, [StoreBusyError("another has the lease")]

    def delivering():
        if busy:
            raise busy.pop()
        return deliver()

    second._flow.deliver_waiting = delivering
    second.run(stop_when_idle_secs=0)
    assert route.effects() == ["1"]


def test_two_bridges_with_different_windows_have_those_given_last(route):
    def windows(window):
        given = ReceiverSettings(dup_detection_per_source_expiry_window_size=window, dup_detection_expiry_time_secs=0)
        return open_from(route, route._source, windows=given)

    one, other = windows(5), windows(7)
    send(route, "1")
    one.run(stop_when_idle_secs=0)
    assert one.receiver.status().window == 7
    other.run(stop_when_idle_secs=0)
    assert other.receiver.status().window == 7
    unchanged = open_from(route, route._source)
    assert unchanged.receiver.status().window == 7
    unchanged.receiver.close()
