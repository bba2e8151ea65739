"""A selector takes the messages that it selects, and leaves the others in the queue."""

import uuid

import pytest

from receiver.bridge import BrokerAddress, Message, sink_of, source_of
from receiver.errors import BrokerRefusedError, SettingsError
from tests.bridge.conftest import address_of
from tests.bridge.test_connectors import SOON_SECS

pytestmark = [pytest.mark.artemis, pytest.mark.slow]

RED = "?selector=colour%20%3D%20'red'"


def send(broker, protocol, path, colours):
    with sink_of(address_of(broker, protocol, path)) as sink:
        sink.send([Message(body=name.encode(), properties={"colour": name.rstrip("0123456789")}) for name in colours])


def taken(address, count):
    with source_of(address) as source:
        came = []
        while len(came) < count and (more := source.take(10, wait_secs=SOON_SECS)):
            came += more
        source.acknowledge(came)
        assert source.take(10, wait_secs=0.1) == []
    return [delivery.message.body.decode() for delivery in came]


@pytest.mark.quick
@pytest.mark.parametrize("protocol", ["stomp", "amqp"])
def test_a_queue_keeps_what_is_not_selected(running_artemis, protocol):
    queue = f"queue/{uuid.uuid4().hex}"
    send(running_artemis, protocol, queue, ["red1", "blue1", "red2"])
    assert taken(address_of(running_artemis, protocol, queue + RED), 2) == ["red1", "red2"]
    assert taken(address_of(running_artemis, protocol, queue), 1) == ["blue1"]


@pytest.mark.parametrize("protocol", ["stomp", "amqp"])
def test_a_durable_subscription_never_gets_what_is_not_selected(running_artemis, protocol):
    topic = f"topic/{uuid.uuid4().hex}"
    address = address_of(running_artemis, protocol, f"{topic}{RED}&subscription=reds-{uuid.uuid4().hex}")
    source_of(address).close()
    send(running_artemis, protocol, topic, ["blue1", "red1"])
    assert taken(address, 1) == ["red1"]


@pytest.mark.quick
@pytest.mark.parametrize("protocol", ["stomp", "amqp"])
def test_what_is_no_condition_is_refused(running_artemis, protocol):
    address = address_of(running_artemis, protocol, f"queue/{uuid.uuid4().hex}?selector=colour%20IS%20IS")
    with pytest.raises(BrokerRefusedError, match=r"IS IS|Invalid filter"):
        source_of(address).close()


@pytest.mark.quick
def test_what_is_sent_can_not_be_selected():
    with pytest.raises(SettingsError, match="selector is for where messages come from"):
        sink_of(BrokerAddress.parse("amqp://h/orders" + RED))
