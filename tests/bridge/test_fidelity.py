"""What a real bridge between two queues of a real broker hands on of each kind of message: the table in
docs/brokers.md.

One message of each kind is sent, and looked at where it arrives, in the protocol's own form, not through the bridge's
connectors. In between the bridge dies, so the next one has only what the inbox has kept.
"""

import re
import time
import uuid
from pathlib import Path

import pytest

proton = pytest.importorskip("proton")
confluent_kafka = pytest.importorskip("confluent_kafka")

from receiver.bridge.connectors import Message, amqp, source_of, stomp  # noqa: E402
from receiver.bridge.connectors.address import BrokerAddress  # noqa: E402
from receiver.bridge.connectors.amqp import AmqpSink  # noqa: E402
from receiver.bridge.connectors.amqp_sections import PROPERTIES, SEQUENCE, section_of  # noqa: E402
from receiver.bridge.connectors.stomp import StompSink  # noqa: E402
from receiver.bridge.opening import BridgeOptions, open_bridge  # noqa: E402
from receiver.bridge.received import Received  # noqa: E402
from receiver.bridge.targets.broker_target import BrokerTarget, TurnTarget  # noqa: E402
from receiver.errors import MessageRefusedError  # noqa: E402
from receiver.settings import BridgeSettings  # noqa: E402
from receiver.store.upkeep import move_waiting, parked_rows, retry_parked, target_rows  # noqa: E402
from tests.bridge.bridged import DiedError, run_until  # noqa: E402
from tests.bridge.conftest import address_of  # noqa: E402
from tests.bridge.kinds_of_messages import (  # noqa: E402
    KINDS,
    KINDS_OF,
    Kind,
    amqp_bytes,
    came_by,
    kafka_record,
    of_field,
    outcome,
    seen_by_amqp,
    stomp_frame,
)
from tests.bridge.test_connectors import take  # noqa: E402
from tests.choosing import quick  # noqa: E402

pytestmark = [pytest.mark.artemis, pytest.mark.slow]

BY_QUEUES = [("stomp", "stomp"), ("stomp", "amqp"), ("amqp", "stomp"), ("amqp", "amqp")]
PAIRS = [*BY_QUEUES, ("amqp", "kafka"), ("kafka", "amqp")]
ARTEMIS = "running_artemis"
ROUTES = [
    *((ARTEMIS, pair) for pair in PAIRS),
    *(("rabbitmq", pair) for pair in BY_QUEUES),
    ("classic", ("stomp", "stomp")),
    ("classic", ("amqp", "amqp")),
    ("qpid", ("amqp", "amqp")),
]
"""The products, each by its broker's fixture and with the pairs of protocols to try. Kafka stands beside the
product."""
DIFFERS = {
    # By STOMP they don't say that a message isn't persistent, so it is handed on as persistent.
    ("classic", ("stomp", "stomp")): {"delivery mode": "no"},
    ("rabbitmq", ("stomp", "stomp")): {"delivery mode": "no"},
    ("rabbitmq", ("stomp", "amqp")): {"delivery mode": "no"},
    # Before a bridge sees it, the broker makes a message without properties of it.
    ("classic", ("amqp", "amqp")): {"several AMQP data sections": "lost"},
}
"""Where a product differs from the table."""
DOC = Path(__file__).resolve().parents[2] / "docs" / "brokers.md"
SOON_SECS = 60


def queue_of(product, protocol, name=None):
    """The address of a queue, or of a topic of Kafka. Without a name it is new."""
    name = name or f"fidelity-{uuid.uuid4().hex}"
    if hasattr(product, "declare"):
        product.declare(name)
    if protocol == "kafka":
        return product.address(name)
    if hasattr(product, "address"):
        return product.address(protocol, name)
    return str(address_of(product, protocol, f"queue/{name}"))


def records_of(address, count):
    servers = {"bootstrap.servers": f"{address.host}:{address.port}", "group.id": "fidelity"}
    consumer = confluent_kafka.Consumer(servers | {"auto.offset.reset": "earliest"})
    consumer.assign([confluent_kafka.TopicPartition(address.name, 0, 0)])
    try:
        return consumer.consume(count, timeout=SOON_SECS)
    finally:
        consumer.close()


@pytest.fixture
def raw(monkeypatch):
    """Clients that send the given bytes or frames as they are, and take them so."""

    class Raw:
        def send(self, queue, things):
            address = BrokerAddress.parse(queue)
            if address.protocol == "kafka":
                producer = confluent_kafka.Producer({"bootstrap.servers": f"{address.host}:{address.port}"})
                for thing in things:
                    producer.produce(address.name, **thing)
                assert producer.flush(SOON_SECS) == 0
                return
            with monkeypatch.context() as patch:
                if address.protocol == "amqp":
                    patch.setattr(amqp, "encoded", lambda data: data)
                    with AmqpSink(address) as sink:
                        sink.send(things)
                else:
                    with StompSink(address) as sink:
                        own = {name: value for name, value in sink._headers.items() if name != "persistent"}
                        sink._session.ask(*(frame._replace(headers=frame.headers | own) for frame in things))

        def take(self, queue, count):
            """Messages whose body is all that came, and whose properties are STOMP's headers; for Kafka, its
            records."""
            address = BrokerAddress.parse(queue)
            if address.protocol == "kafka":
                return records_of(address, count)
            with monkeypatch.context() as patch:
                patch.setattr(amqp, "decoded", lambda data: Message(body=data))
                patch.setattr(stomp, "decoded", lambda frame, _: Message(body=frame.body, properties=frame.headers))
                with source_of(address, durable=False) as source:
                    until, taken = time.monotonic() + SOON_SECS, []
                    while len(taken) < count and time.monotonic() < until:
                        taken += source.take(count - len(taken), wait_secs=0.5)
                    source.acknowledge(taken)
            return [delivery.message for delivery in taken]

    return Raw()


@pytest.fixture
def bridge_that_dies(monkeypatch):
    """Run a bridge that dies when it first has a message to hand on, and another that hands on `count` messages."""

    def run(from_, to, store, count, *, not_before_ms=0):
        def dying(*_arguments):
            raise DiedError

        options = BridgeOptions(settings=BridgeSettings(max_tries=1))
        with monkeypatch.context() as patch:
            for target in (BrokerTarget, TurnTarget):
                patch.setattr(target, "deliver", dying)
            with pytest.raises(DiedError):
                open_bridge(from_, to, store, options).run()
        time.sleep(max(0, not_before_ms / 1_000 - time.time()))
        bridge, name = open_bridge(from_, to, store, options), from_.partition("?")[0]

        def is_done():
            parked = {row.unique_message_id for row in parked_of(store, name)}
            return bridge.figures.delivered + len(parked) == count

        run_until(bridge, is_done)

    return run


def documented(pair):
    """The table's answer for each kind."""
    section = DOC.read_text().partition("\n## What each pair of protocols carries\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| ([^|]+?) \|" + r" (yes|plain|no|parked|-) \|" * len(PAIRS) + "$", section, re.MULTILINE)
    return {name: row[1 + PAIRS.index(pair)] for row in rows for name in row[0].split("; ")}


def parked_of(store, queue):
    return [row for row in parked_rows(store) if row.destination == f"queue://{queue.rpartition('/')[2]}"]


@pytest.mark.parametrize(
    "way",
    [quick(way) if way == (ARTEMIS, ("amqp", "stomp")) else way for way in ROUTES],
    ids=lambda way: "-".join((way[0], *way[1])),
)
def test_the_table_says_what_is_handed_on(request, store, raw, bridge_that_dies, way):
    name, pair = way
    source, target = pair
    products = {protocol: request.getfixturevalue("kafka" if protocol == "kafka" else name) for protocol in pair}
    from_, to = (queue_of(products[protocol], protocol) for protocol in pair)
    has_kind = {"amqp": lambda _: True, "stomp": lambda kind: kind.stomp is not None}
    has_kind["kafka"] = lambda kind: kind.kafka is not None
    kinds = KINDS_OF.get(target if target == "kafka" else name, KINDS)
    sent = {name: kind for name, kind in kinds.items() if has_kind[source](kind)}
    make = {"amqp": amqp_bytes, "stomp": stomp_frame, "kafka": kafka_record}[source]
    raw.send(from_, [make(name, kind) for name, kind in sent.items()])
    bridge_that_dies(f"{from_}?group=fidelity" if source == "kafka" else from_, to, store, len(sent))
    parked = {row.unique_message_id: row.error for row in parked_of(store, from_)}
    outcomes = dict.fromkeys(KINDS, "-") | dict.fromkeys(sent, "lost") | dict.fromkeys(parked, "parked")
    for message in raw.take(to, len(sent) - len(parked)):
        seen = came_by(target, message)
        kind = seen.properties["uniqueMessageId"]
        if kind in sent:
            outcomes[kind] = outcome(sent[kind], pair, seen)
    assert outcomes == documented(pair) | DIFFERS.get(way, {})
    named = {"kafka": "Kafka", "stomp": "STOMP"}.get(target)
    assert all(f"can't be sent by {named}: its body is an amqp-" in error for error in parked.values())


@pytest.mark.parametrize(
    "where", sorted({(name, source) for name, (source, _) in ROUTES if source != "kafka"}), ids="-".join
)
def test_what_comes_again_has_the_digest_that_it_had(request, raw, where):
    """Otherwise a redelivery would count as another message. ActiveMQ Classic encodes maps and lists anew."""
    name, protocol = where
    queue = queue_of(request.getfixturevalue(name), protocol)
    kinds = KINDS_OF.get(name, KINDS)
    lost = {kind for kind, how in DIFFERS.get((name, (protocol, protocol)), {}).items() if how == "lost"}
    sent = {kind: of for kind, of in kinds.items() if kind not in lost and (protocol == "amqp" or of.stomp is not None)}
    raw.send(queue, [{"amqp": amqp_bytes, "stomp": stomp_frame}[protocol](kind, of) for kind, of in sent.items()])
    came = []
    for _ in range(2):
        with source_of(queue) as source:
            taken = [delivery.message for delivery in take(source, len(sent))]
        received = [Received._make((None, 0, 0, None, None, "queue://orders", message)) for message in taken]
        came.append({each.properties.get("uniqueMessageId"): each.body_digest for each in received})
    assert came[0] == came[1]
    assert len(came[0]) == len(sent)
    assert None not in came[0].values()


def test_what_was_parked_goes_on_unchanged_to_a_target_that_can_have_it(running_artemis, store, raw, bridge_that_dies):
    name, kind = "JMS map", KINDS["JMS map"]
    from_, by_stomp, by_amqp = (queue_of(running_artemis, protocol) for protocol in ("amqp", "stomp", "amqp"))
    raw.send(from_, [amqp_bytes(name, kind)])
    bridge_that_dies(from_, by_stomp, store, 1)
    (row,) = parked_of(store, from_)
    assert "amqp-value" in row.error
    retry_parked(store, [row.parked_id])
    (target,) = [target for target in target_rows(store) if target.name == by_stomp]
    move_waiting(store, target, by_amqp)
    open_bridge(from_, by_amqp, store).run(stop_when_idle_secs=0.5)
    (message,) = raw.take(by_amqp, 1)
    assert outcome(kind, ("amqp", "amqp"), seen_by_amqp(message.body)) == "yes"
    assert seen_by_amqp(message.body).others == kind.amqp


def test_what_cannot_be_read_is_parked_and_the_rest_goes_on(running_artemis, store, raw, bridge_that_dies):
    from_, to = (queue_of(running_artemis, "amqp") for _ in range(2))
    bad = amqp_bytes("2", Kind(body=b"\0\x53\x77\xa1\x02\xc3\x28"))
    raw.send(from_, [amqp_bytes("1", Kind()), bad, amqp_bytes("3", Kind())])
    bridge_that_dies(from_, to, store, 3)
    # Both bridges park it if the first dies before its acknowledgement: an unreadable message has no id to know it by.
    parked = parked_of(store, from_)
    assert len(parked) in (1, 2)
    assert all("can't be read as AMQP" in row.error for row in parked)
    assert [seen_by_amqp(message.body).properties["uniqueMessageId"] for message in raw.take(to, 2)] == ["1", "3"]


def test_an_expired_message_is_sent_with_its_end_and_told_of(running_artemis, store, raw, bridge_that_dies, caplog):
    """The target's broker treats it as any expired message. This broker drops it."""
    from_, to = (queue_of(running_artemis, "amqp") for _ in range(2))
    ends_ms = time.time_ns() // 1_000_000 + 5_000  # the bridge has taken it by then
    raw.send(
        from_, [amqp_bytes("1", Kind({PROPERTIES: of_field(8, proton.timestamp(ends_ms))})), amqp_bytes("2", Kind())]
    )
    bridge_that_dies(from_, to, store, 2, not_before_ms=ends_ms + 500)
    assert "of the messages handed on 1 had expired" in caplog.text
    assert [seen_by_amqp(message.body).properties["uniqueMessageId"] for message in raw.take(to, 1)] == ["2"]
    assert parked_of(store, from_) == []


def test_stomp_takes_no_message_whose_body_the_broker_does_not_send(running_artemis, raw):
    """To acknowledge it would lose it, so it stays for AMQP."""
    name = f"fidelity-{uuid.uuid4().hex}"
    by_amqp, by_stomp = (queue_of(running_artemis, protocol, name) for protocol in ("amqp", "stomp"))
    kinds = {name: KINDS[name] for name in ("JMS map", "JMS object", "other AMQP values")}
    for id_, kind in (kinds | {"sequence": Kind(body=section_of(SEQUENCE, [1, "x"]))}).items():
        raw.send(by_amqp, [amqp_bytes(id_, kind)])
        with source_of(by_stomp) as source, pytest.raises(MessageRefusedError, match="doesn't send by STOMP"):
            source.take(1, wait_secs=SOON_SECS)
        (message,) = raw.take(by_amqp, 1)
        assert seen_by_amqp(message.body).properties["uniqueMessageId"] == id_
