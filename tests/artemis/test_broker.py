"""The broker that the tests start: clients can reach it, it ends when asked to, and it takes ids as exact text."""

import socket

import pytest
import stomp
from proton import Message
from proton.utils import BlockingConnection

from examples.demo.artemis import PASSWORD, USER, new_broker
from examples.demo.processes import HOST
from receiver.bridge import connectors as bridged
from receiver.bridge.connectors import sink_of, source_of
from receiver.bridge.connectors.address import BrokerAddress
from tests.artemis.sending import DUPLICATE_ID, Kind, Session, Step

pytestmark = [pytest.mark.artemis, pytest.mark.slow]

SOON_SECS = 60

CLOSE_TEXTS = ["a:b", "a\\cb", "a\\b", "a\nb", "a\\nb", "ab", " ab", "ab ", "AB", "\u00e9", "e\u0301", "\U0001f600"]


def sends(first, ids):
    return [Step(first + index, Kind.SEND, [id_]) for index, id_ in enumerate(ids)]


def test_ids_are_exact_text(artemis):
    artemis.start()
    session = Session(artemis, "exact")
    steps = sends(0, CLOSE_TEXTS) + sends(100, CLOSE_TEXTS)
    assert session.let_through(steps) == [True] * len(CLOSE_TEXTS) + [False] * len(CLOSE_TEXTS)


def test_amqp_and_stomp_lead_to_one_address(artemis):
    artemis.start()
    session = Session(artemis, "both")
    assert session.let_through(sends(0, ["a"])) == [True]
    connection = BlockingConnection(f"{HOST}:{artemis.amqp_port}")
    sender = connection.create_sender("both")
    for id_, body in [("a", "a duplicate"), ("b", "a new one")]:
        sender.send(Message(body, durable=True, properties={DUPLICATE_ID: id_}))
    connection.close()
    assert "a new one" in (arrived := session.arrived())
    assert "a duplicate" not in arrived


def test_what_was_confirmed_outlives_the_broker(artemis):
    artemis.start()
    for end in (artemis.stop, artemis.kill):
        address = f"outlives.{end.__name__}"
        Session(artemis, address).take(Step(1, Kind.COMMIT, ["a", "b"]))
        end()
        artemis.start()
        session = Session(artemis, address)
        assert session.arrived()[:2] == ["1.0", "1.1"]
        assert session.let_through(sends(2, ["a", "b", "c"])) == [False, False, True]


@pytest.mark.parametrize(("most", "comes"), [(2, 2), (-1, 12)])
def test_it_has_the_properties_that_it_is_given(artemis, most, comes):
    artemis.start(properties={'addressSettings."#".maxDeliveryAttempts': most})
    address = BrokerAddress.parse(f"amqp://{HOST}:{artemis.amqp_port}/queue/attempts{most}")
    with sink_of(address) as sink:
        sink.send([bridged.Message(body=b"never acknowledged")])
    for _ in range(comes):
        with source_of(address) as source:
            assert len(source.take(1, wait_secs=SOON_SECS)) == 1
    with source_of(address) as source:
        assert len(source.take(1, wait_secs=SOON_SECS if most < 0 else 0.5)) == (most < 0)


def test_it_lets_in_whom_it_should(artemis_home):
    with new_broker(artemis_home, require_login=True) as broker:
        broker.start()
        right, wrong = (stomp.Connection11([(HOST, broker.stomp_port)], reconnect_attempts_max=1) for _ in range(2))
        right.connect(USER, PASSWORD, wait=True)
        right.disconnect()
        with pytest.raises(stomp.exception.ConnectFailedException):
            wrong.connect(USER, "another", wait=True)
    with pytest.raises(OSError, match="refused"):
        socket.create_connection((HOST, broker.stomp_port))
