"""The basis of the tests on real brokers: each broker keeps durable messages through kill -9, at the same address."""

import time
import uuid
from importlib import import_module

import pytest

from receiver.errors import MissingProgramError
from tests.brokers.clients import Amqp, Kafka, Stomp

pytestmark = [pytest.mark.broker, pytest.mark.slow]


def check_kept_through_a_kill(broker, *ways):
    """For each client and queue, send a message before the kill and take it afterwards."""
    for client, node in ways:
        client(broker, node).send(f"10 EUR to {node}")
    broker.kill()
    broker.start()
    for client, node in ways:
        taker = client(broker, node)
        try:
            assert taker.take() == f"10 EUR to {node}"
        finally:
            taker.close()


@pytest.fixture
def name():
    return f"orders-{uuid.uuid4()}"


def test_rabbitmq_keeps_messages(rabbitmq, name):
    for kind in ("classic", "quorum"):
        rabbitmq.declare(f"{name}-{kind}", kind)
    time.sleep(3)  # killed sooner, it never again answers who wants to take from the new quorum queue
    ways = [(Amqp, f"/queues/{name}-classic"), (Amqp, f"/queues/{name}-quorum"), (Stomp, f"/queue/{name}")]
    check_kept_through_a_kill(rabbitmq, *ways)


def test_rabbitmq_stops_and_starts(rabbitmq, name):
    rabbitmq.declare(name, "stream")
    rabbitmq.stop()
    rabbitmq.start()
    assert f"{name}\tstream" in rabbitmq.ctl("list_queues", "name", "type")


def test_classic_keeps_messages(classic, name):
    check_kept_through_a_kill(classic, (Amqp, f"queue://{name}-amqp"), (Stomp, f"/queue/{name}-stomp"))


def test_qpid_keeps_a_message(qpid, name):
    check_kept_through_a_kill(qpid, (Amqp, name))


def test_kafka_keeps_a_message(kafka, name):
    kafka.declare(name, partitions=2)
    check_kept_through_a_kill(kafka, (Kafka, name))


@pytest.mark.quick
@pytest.mark.parametrize("product", ["rabbitmq", "classic", "qpid", "kafka"])
def test_without_its_programs_it_can_not_be_fetched_and_leaves_nothing(product, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(MissingProgramError, match=r"debootstrap|root|Java"):
        import_module(f"tests.brokers.{product}").fetch(tmp_path / "cache")
    assert list(tmp_path.rglob("*/*")) == []
