"""What only a real broker has: logins, durable subscriptions, kills, and two protocols for one message."""

import socket
import threading
import time
import uuid
from contextlib import closing

import proton
import pytest
from proton.utils import BlockingConnection

from examples.demo.artemis import PASSWORD, USER, new_broker
from examples.demo.processes import HOST
from receiver.bridge.connectors import Message
from receiver.bridge.connectors.address import BrokerAddress
from receiver.bridge.connectors.amqp_sections import SEQUENCE, section_of
from receiver.bridge.connectors.stomp import StompSource
from receiver.bridge.opening import BridgeOptions, open_bridge
from receiver.bridge.options import Mode
from receiver.errors import BrokerError, BrokerRefusedError, MessageRefusedError, StoreError
from receiver.store.inbox import Inbox
from receiver.store.upkeep import parked_rows, retry_parked
from tests.bridge.bridged import Route, run_until
from tests.bridge.conftest import CONNECTORS, address_of
from tests.bridge.test_connectors import NEVER_SECS, SOON_SECS, bodies, take, texts
from tests.patience import until

pytestmark = [pytest.mark.artemis, pytest.mark.slow]


def source(address, **options):
    return CONNECTORS[address.protocol][0](address, **options)


def sink(address, **options):
    return CONNECTORS[address.protocol][1](address, **options)


@pytest.mark.quick
def test_a_durable_subscription_has_what_was_sent_while_nobody_listened(running_artemis, protocol):
    topic = f"topic/prices-{uuid.uuid4().hex}"
    subscription = address_of(running_artemis, protocol, f"{topic}?subscription=bridge-{uuid.uuid4().hex}")
    source(subscription).close()
    with sink(address_of(running_artemis, protocol, topic)) as sending:
        sending.send(texts("a", "b", "c"))
    with source(subscription) as taking:
        first = take(taking, 2)
        taking.acknowledge(first[:1])
    with source(subscription) as taking:
        rest = take(taking, 2)
        taking.acknowledge(rest)
        assert bodies(first[:1] + rest) == ["a", "b", "c"]
        assert taking.take(1, wait_secs=NEVER_SECS) == []


@pytest.mark.quick
def test_a_subscription_of_another_topic_by_stomp_gives_nothing(running_artemis):
    """Artemis goes on with the queue of the other topic's subscription, so the bridge refuses its messages."""
    topic, name = f"topic/{uuid.uuid4().hex}", f"bridge-{uuid.uuid4().hex}"
    theirs, ours = (
        address_of(running_artemis, "stomp", f"{each}?subscription={name}") for each in (topic, f"{topic}2")
    )
    source(theirs).close()
    with sink(address_of(running_artemis, "stomp", topic)) as sending:
        sending.send(texts("a"))
    with source(ours) as taking, pytest.raises(MessageRefusedError, match="is one of another topic"):
        taking.take(1, wait_secs=SOON_SECS)
    with source(theirs) as taking:
        (delivery,) = take(taking, 1)
        taking.acknowledge([delivery])
    assert bodies([delivery]) == ["a"]


@pytest.mark.parametrize("name", ["prices.*", "prices.#"])
def test_a_subscription_of_many_topics(running_artemis, protocol, name):
    prefix = uuid.uuid4().hex
    many = address_of(
        running_artemis, protocol, f"topic/{prefix}.{name.replace('#', '%23')}?subscription=bridge-{prefix}"
    )
    source(many).close()
    with sink(address_of(running_artemis, protocol, f"topic/{prefix}.prices.gold")) as sending:
        sending.send(texts("a"))
    with source(many) as taking:
        assert bodies(take(taking, 1)) == ["a"]


def test_a_topic_without_a_subscription_has_what_comes_while_it_is_listened_to(running_artemis, protocol):
    topic = address_of(running_artemis, protocol, f"topic/{uuid.uuid4().hex}")
    with source(topic) as taking, sink(topic) as sending:
        sending.send([Message(body=b"now")])
        (delivery,) = taking.take(10, wait_secs=SOON_SECS)
        taking.acknowledge([delivery])
        assert delivery.message.body == b"now"
    with sink(topic) as sending:
        sending.send([Message(body=b"gone")])
    with source(topic) as taking:
        assert taking.take(10, wait_secs=0.3) == []


@pytest.mark.parametrize("make", [source, sink])
def test_only_the_right_password_is_let_in(artemis_with_login, protocol, make):
    for login in ("", f"{USER}:wrong@"):
        with pytest.raises(BrokerRefusedError) as caught:
            make(address_of(artemis_with_login, protocol, "queue/orders", login))
        assert caught.value.hint
        assert "wrong" not in str(caught.value)
    make(address_of(artemis_with_login, protocol, "queue/orders", f"{USER}:{PASSWORD}@")).close()


@pytest.mark.quick
@pytest.mark.parametrize("make", [source, sink])
@pytest.mark.parametrize("where", ["127.0.0.1:1", "nowhere.invalid", f"{'x' * 64}.invalid"])
def test_where_no_broker_is(protocol, make, where):
    with pytest.raises(BrokerError, match=r"can't be reached: .") as caught:
        make(BrokerAddress.parse(f"{protocol}://{where}/queue/orders"))
    assert not isinstance(caught.value, BrokerRefusedError)


@pytest.mark.usefixtures("impatient")
def test_whoever_does_not_answer_is_not_waited_for_for_ever(protocol):
    with socket.create_server(("127.0.0.1", 0)) as mute, pytest.raises(BrokerError, match="no answer"):
        source(BrokerAddress.parse(f"{protocol}://127.0.0.1:{mute.getsockname()[1]}/queue/orders"))


@pytest.mark.parametrize(("protocol", "ends"), [("amqp", "close"), ("stomp", "cut")])
def test_who_says_that_a_message_is_redelivered(running_artemis, protocol, ends):
    """By AMQP the client says so as it closes in order. By STOMP the broker says so, if the client leaves without a
    word. In the other two cases it may be said or not."""
    address = address_of(running_artemis, protocol, f"queue/orders-{uuid.uuid4().hex}")
    with sink(address) as sending:
        sending.send(texts("a", "b"))
    with source(address) as taking:
        assert not take(taking, 1)[0].message.redelivered
        if ends == "cut":
            _socket(taking).shutdown(socket.SHUT_RDWR)
            time.sleep(NEVER_SECS)
    came, until = [], time.monotonic() + (SOON_SECS if ends == "cut" else 0)
    while not came or (bodies(came) == ["b", "a"] and time.monotonic() < until):  # until the broker has noticed the cut
        with source(address) as taking:
            came = take(taking, 2)
    assert bodies(came) == ["a", "b"]
    assert came[0].message.redelivered


def _socket(taking):
    return taking._session._socket if isinstance(taking, StompSource) else taking._socket


def test_a_killed_broker_loses_nothing_that_it_had_safe(artemis_home, protocol):
    with new_broker(artemis_home) as broker:
        broker.start()
        address = address_of(broker, protocol, "queue/orders")
        sent = [str(number) for number in range(300)]
        with source(address) as taking, sink(address) as sending:
            for start in range(0, 300, 50):
                sending.send(texts(*sent[start : start + 50]))
            acknowledged = take(taking, 100)
            taking.acknowledge(acknowledged)
            taken = take(taking, 100)
            assert bodies(acknowledged + taken) == sent[:200]
            broker.kill()
            with pytest.raises(BrokerError):
                taking.acknowledge(taken)
            with pytest.raises(BrokerError):
                taking.take(1, wait_secs=1)
            with pytest.raises(BrokerError):
                sending.send(texts("never"))
        broker.start()
        with source(address) as taking:
            assert bodies(take(taking, 200)) == sent[100:]


IDS = ["a:b", "a\\cb", "a\nb", "a\r\nb", "é", "e\u0301", "\U0001f600", " a ", ""]


@pytest.mark.quick
@pytest.mark.parametrize("sender", CONNECTORS)
@pytest.mark.parametrize("taker", CONNECTORS)
def test_ids_and_bodies_are_the_same_by_either_protocol(running_artemis, sender, taker):
    queue = f"queue/orders-{uuid.uuid4().hex}"
    sent = [Message(body=id_.encode(), is_text=True, properties={"uniqueMessageId": id_}) for id_ in IDS]
    sent.append(
        Message(body=bytes(range(256)), properties={f"property{number}": str(number) for number in range(1_000)})
    )
    sent.append(Message(body=b"", properties=dict.fromkeys(["a:b", "a\\cb", "a\nb", "é", " a "], "value")))
    with (
        sink(address_of(running_artemis, sender, queue)) as sending,
        source(address_of(running_artemis, taker, queue)) as taking,
    ):
        sending.send(sent)
        came = take(taking, len(sent))
        taking.acknowledge(came)
    for message, delivery in zip(sent, came, strict=True):
        assert delivery.message.body == message.body
        assert message.properties.items() <= delivery.message.properties.items()
        assert delivery.message.jms_timestamp_ms == pytest.approx(time.time() * 1_000, abs=600_000)


@pytest.mark.quick
@pytest.mark.parametrize("sender", CONNECTORS)
@pytest.mark.parametrize("taker", CONNECTORS)
def test_headers_are_the_same_by_either_protocol(running_artemis, sender, taker):
    """Except an address, which the broker spells otherwise in each protocol."""
    queue = f"queue/orders-{uuid.uuid4().hex}"
    addresses = {"stomp": "queue://answers", "amqp": "answers"}
    sent = [
        {header: text} for header in ("JMSCorrelationID", "JMSType") for text in ("a:b", "a\nb", "é", "\U0001f600", "7")
    ]
    sent += [{}, {"JMSCorrelationID": "1", "JMSReplyTo": addresses[sender], "JMSType": "Order"}]
    with (
        sink(address_of(running_artemis, sender, queue)) as sending,
        source(address_of(running_artemis, taker, queue)) as taking,
    ):
        sending.send([Message(body=b"body", headers=headers) for headers in sent])
        came = [delivery.message for delivery in take(taking, len(sent))]
    sent[-1]["JMSReplyTo"] = addresses[taker]
    assert [message.headers for message in came] == sent


@pytest.mark.parametrize(("id_", "text"), [(proton.ulong(7), "7"), (uuid.UUID(int=7), str(uuid.UUID(int=7)))])
def test_a_correlation_id_that_is_no_text(running_artemis, id_, text):
    address = address_of(running_artemis, "amqp", f"queue/orders-{uuid.uuid4().hex}")
    with source(address) as taking, closing(BlockingConnection(f"amqp://{HOST}:{running_artemis.amqp_port}")) as client:
        client.create_sender(address.name).send(proton.Message(body="body", correlation_id=id_, durable=True))
        assert take(taking, 1)[0].message.headers == {"JMSCorrelationID": text}


@pytest.mark.quick
def test_what_artemis_cannot_send_by_stomp_stays_there(running_artemis):
    """An acknowledgement of all messages up to one would have it drop a sequence before that, as JMS' streams are."""
    name = f"queue/orders-{uuid.uuid4().hex}"
    by_amqp, by_stomp = (address_of(running_artemis, protocol, name) for protocol in ("amqp", "stomp"))
    unsent = Message(body=section_of(SEQUENCE, [proton.int32(1 << 30)]), body_kind="amqp-sequence")
    with sink(by_amqp) as sending:
        sending.send([*texts("a"), unsent, *texts("b")])
    with source(by_stomp) as taking:
        came = take(taking, 2)
        taking.acknowledge(came)
    assert bodies(came) == ["a", "b"]
    with source(by_amqp) as taking:
        assert take(taking, 1)[0].message.body == unsent.body
        assert taking.take(1, wait_secs=NEVER_SECS) == []


@pytest.mark.quick
def test_a_body_that_may_be_missing_by_stomp_is_warned_of_once(running_artemis, caplog):
    """Artemis sends JMS objects without their bodies, Classic maps and streams too: as empty texts, not as empty bytes."""
    address = address_of(running_artemis, "stomp", f"queue/orders-{uuid.uuid4().hex}")
    with sink(address) as sending, source(address) as taking:
        for is_text, warnings in ((False, 0), (True, 1), (True, 1)):
            sending.send([Message(body=b"", is_text=is_text)])
            assert bodies(take(taking, 1)) == [""]
            assert caplog.text.count("a message came without a body") == warnings


def test_amqp_keeps_types_and_zero_bytes(running_artemis):
    address = address_of(running_artemis, "amqp", f"queue/orders-{uuid.uuid4().hex}")
    properties = {"text": "a\0b", "int": 2**62, "float": 1.5, "bool": True, "bytes": b"\0\xff", "none": None}
    with sink(address) as sending, source(address) as taking:
        sending.send([Message(body=b"abc", properties=properties), Message(body=b"a\0b", is_text=True)])
        came = [delivery.message for delivery in take(taking, 2)]
    assert [(type(value), value) for value in properties.values()] == [
        (type(came[0].properties[name]), came[0].properties[name]) for name in properties
    ]
    assert [message.is_text for message in came] == [False, True]
    assert came[0].message_id.startswith("ID:")


@pytest.mark.quick
@pytest.mark.parametrize(
    ("protocol", "message"),
    [
        ("amqp", Message(body=b"", properties={"property": 2**70})),
        ("amqp", Message(body=b"", properties={"property": "\ud800"})),
        ("amqp", Message(body=b"\xff", is_text=True)),
        ("amqp", Message(body=b"", headers={"JMSReplyTo": "a\0b"})),
        ("amqp", Message(body=b"", headers={"JMSType": "\ud800"})),
        ("stomp", Message(body=b"", properties={"property": "a\0b"})),
        ("stomp", Message(body=b"", properties={"property": "\ud800"})),
        ("stomp", Message(body=b"\xff", is_text=True)),
        ("stomp", Message(body=b"", headers={"JMSCorrelationID": "a\0b"})),
    ],
)
def test_what_a_protocol_cannot_express_is_refused(running_artemis, protocol, message):
    """The whole batch is refused. Otherwise the messages behind it would be sent."""
    address = address_of(running_artemis, protocol, f"queue/orders-{uuid.uuid4().hex}")
    with sink(address) as sending, pytest.raises(MessageRefusedError, match="can't be sent"):
        sending.send([*texts("before"), message, *texts("behind")])
    with source(address) as taking:
        assert taking.take(1, wait_secs=NEVER_SECS) == []


@pytest.mark.quick
@pytest.mark.parametrize(
    ("protocol", "properties"), [("stomp", {"AMQ_SCHEDULED_DELAY": "soon"}), ("amqp", {"_AMQ_DUPL_ID": 7})]
)
def test_what_a_broker_cannot_take_is_refused(running_artemis, protocol, properties):
    """A client that then sends messages one by one sees which one it is. The others arrive in order."""
    address = address_of(running_artemis, protocol, f"queue/orders-{uuid.uuid4().hex}")
    batch = [*texts("a", "b"), Message(body=b"", properties=properties), *texts("c")]
    with sink(address) as sending, pytest.raises(MessageRefusedError):
        sending.send(batch)
    refused = []
    with source(address) as taking:
        while went := taking.take(4, wait_secs=NEVER_SECS):
            taking.acknowledge(went)
    for message in batch:
        with sink(address) as sending:
            try:
                sending.send([message])
            except MessageRefusedError:
                refused.append(message)
    assert refused == [batch[2]]
    with source(address) as taking:
        assert bodies(take(taking, 3)) == ["a", "b", "c"]


@pytest.mark.quick
@pytest.mark.parametrize("mode", [Mode.EXACTLY_ONCE, Mode.APP_CONTROLLED])
def test_a_message_that_artemis_refused_is_parked_though_it_would_drop_it_the_next_time(
    running_artemis, tmp_path, sqlite_url, mode, monkeypatch
):
    """Artemis keeps the `_AMQ_DUPL_ID` of a message with properties above its journal's limit. Sent again, such a
    message counts as one that is there, and is confirmed: after a transaction that failed, and from `parked retry`."""
    park, fails = Inbox.park, iter([True])

    def failing_once(*arguments):
        park(*arguments)
        if next(fails, False):
            raise StoreError("its transaction is rolled back")

    monkeypatch.setattr(Inbox, "park", failing_once)
    out = address_of(running_artemis, "amqp", f"queue/orders-{uuid.uuid4().hex}")
    route = Route(sqlite_url, tmp_path, "queue", mode)
    named = [Message(body=body, properties={"uniqueMessageId": body.decode()}) for body in (b"a", b"large", b"c")]
    named[1].properties["long"] = "x" * 700_000
    route.send(*named)
    for _ in range(2):
        bridge = open_bridge(route.origin, str(out), sqlite_url, BridgeOptions(mode=mode))
        bridge.run(stop_when_idle_secs=0)
        assert [row.unique_message_id for row in parked_rows(sqlite_url)] == ["large"]
        retry_parked(sqlite_url, None)
    with source(out) as taking:
        assert bodies(take(taking, 2)) == ["a", "c"]


@pytest.fixture(scope="module")
def strict_artemis(artemis_home):
    """An Artemis that doesn't make queues named `strict.…` itself, takes only a little into those named `full.…`,
    deletes empty ones named `brief.…`, has two messages in those named `ring.…`, and keeps all in those named `kept.…`.
    The queue `theirs` is a topic's, `red` has a filter, and `off` is disabled. What goes to `divert` goes on to
    `full.divert`."""
    kinds = ("strict", "full", "brief", "ring", "kept")
    strict, full, brief, ring, kept = (f'addressSettings."{name}.#".' for name in kinds)
    theirs, red = (f'addressConfigurations."{name}".' for name in ("theirs", "red"))
    with new_broker(artemis_home) as broker:
        broker.start(
            properties={
                **dict.fromkeys((f"{strict}autoCreateQueues", f"{strict}autoCreateAddresses"), "false"),
                f"{full}addressFullMessagePolicy": "FAIL",
                f"{full}maxSizeBytes": 20_000,
                f"{brief}autoDeleteQueues": "true",
                f"{ring}defaultRingSize": 2,
                f"{kept}defaultNonDestructive": "true",
                'addressConfigurations."off".routingTypes': "ANYCAST",
                'addressConfigurations."off".queueConfigs."off".routingType': "ANYCAST",
                'addressConfigurations."off".queueConfigs."off".enabled': "false",
                f"{theirs}routingTypes": "MULTICAST",
                f'{theirs}queueConfigs."theirs".routingType': "MULTICAST",
                f"{red}routingTypes": "ANYCAST",
                f'{red}queueConfigs."red".routingType': "ANYCAST",
                f'{red}queueConfigs."red".filterString': "colour = 'red'",
                "divertConfigurations.on.address": "divert",
                "divertConfigurations.on.routingName": "on",
                "divertConfigurations.on.forwardingAddress": "full.divert",
                "divertConfigurations.on.exclusive": "true",
                "addressQueueScanPeriod": 100,
            }
        )
        yield broker


def test_a_queue_that_is_not_there(strict_artemis, protocol):
    address = address_of(strict_artemis, protocol, "queue/strict.orders")
    with pytest.raises(BrokerRefusedError, match="exist") as caught:
        source(address)
    assert "make the queue first: artemis queue create --name strict.orders --anycast" in caught.value.hint
    with pytest.raises(BrokerRefusedError, match="exist"), sink(address) as sending:
        sending.send(texts("a"))


def test_a_full_queue_is_no_fault_of_a_message(strict_artemis, protocol):
    address = address_of(strict_artemis, protocol, f"queue/full.{uuid.uuid4().hex}")
    with sink(address) as sending, pytest.raises(BrokerError) as caught:  # noqa: PT012
        for _ in range(100):
            sending.send([Message(body=bytes(5_000))])
    assert type(caught.value) is BrokerError


@pytest.mark.parametrize("mode", [Mode.EXACTLY_ONCE, Mode.APP_CONTROLLED])
def test_what_a_full_address_behind_a_divert_refuses_comes_once(strict_artemis, tmp_path, sqlite_url, mode):
    """Artemis keeps the id of what it refuses there, and would confirm and drop the next try."""
    full, numbers = address_of(strict_artemis, "amqp", "queue/full.divert"), [str(number) for number in range(60)]
    route, came = Route(sqlite_url, tmp_path, "queue", mode), []
    route.send(
        *(Message(body=number.zfill(1_000).encode(), properties={"uniqueMessageId": number}) for number in numbers)
    )
    to = str(address_of(strict_artemis, "amqp", "queue/divert"))
    bridge = open_bridge(route.origin, to, sqlite_url, BridgeOptions(mode=mode))

    def has_all():
        if bridge.figures.connection_errors:
            with source(full) as taking:
                while taken := taking.take(10, wait_secs=0.2):
                    taking.acknowledge(taken)
                    came.extend(int(body) for body in bodies(taken))
        return len(came) >= len(numbers) or bridge.figures.delivered == len(numbers)

    source(full).close()  # makes the queue
    run_until(bridge, has_all)
    has_all()
    assert sorted(came) == list(range(60))


def test_artemis_forgets_known_ids_with_a_queue_that_it_deletes(strict_artemis, protocol):
    """Then what is sent again comes again."""
    address = address_of(strict_artemis, protocol, f"queue/brief.{uuid.uuid4().hex}")
    again, deleted = [Message(body=b"a", properties={"_AMQ_DUPL_ID": "1"})], f"Auto removing queue {address.name}"

    def came():
        with sink(address) as sending:
            sending.send(again)
            sending.send(again)
        with source(address) as taking:
            taken = take(taking, 1)
            assert taking.take(1, wait_secs=NEVER_SECS) == []
            taking.acknowledge(taken)

    came()
    until(lambda: deleted in strict_artemis.said())
    came()


@pytest.mark.parametrize(("persists", "count"), [("true", 1), ("false", 2)])
def test_artemis_forgets_known_ids_as_it_ends_unless_it_keeps_them_on_disk(artemis_home, persists, count):
    again = [Message(body=b"a", properties={"_AMQ_DUPL_ID": "1"})]
    with new_broker(artemis_home) as broker:
        address = address_of(broker, "amqp", "queue/orders")
        for _ in range(2):
            broker.start(properties={"persistIDCache": persists})
            with sink(address) as sending:
                sending.send(again)
                sending.send(again)
            with source(address) as taking:
                came = take(taking, 1) + taking.take(1, wait_secs=NEVER_SECS)
            broker.kill()
    assert len(came) == count


def test_artemis_confirms_what_a_ring_a_filter_a_disabled_or_a_topics_queue_drops(strict_artemis, protocol):
    names = (f"ring.{uuid.uuid4().hex}", "red", "off", "theirs")
    ring, red, off, theirs = (address_of(strict_artemis, protocol, f"queue/{name}") for name in names)
    with sink(off) as sending, source(off) as taking:
        sending.send(texts("a"))
        assert taking.take(1, wait_secs=NEVER_SECS) == []
    with sink(red) as sending:
        sending.send([*texts("a"), Message(body=b"b", properties={"colour": "red"}), *texts("c")])
    with source(red) as taking:
        taking.acknowledge(came := take(taking, 1))
        assert bodies(came) == ["b"]
        assert taking.take(1, wait_secs=NEVER_SECS) == []
    with sink(ring) as sending:
        sending.send(texts("a", "b", "c"))
    with source(ring) as taking:
        assert bodies(take(taking, 2)) == ["b", "c"]
    if protocol == "amqp":
        with pytest.raises(BrokerRefusedError, match="AMQ119002"):
            sink(theirs)
    else:
        with sink(theirs) as sending:
            sending.send(texts("a"))


def test_a_queue_of_artemis_that_is_not_destructive_gives_each_connection_all_again(strict_artemis, protocol):
    address = address_of(strict_artemis, protocol, f"queue/kept.{uuid.uuid4().hex}")
    with sink(address) as sending:
        sending.send(texts("a", "b"))
    for _ in range(2):
        with source(address) as taking:
            taking.acknowledge(came := take(taking, 2))
        assert bodies(came) == ["a", "b"]


def test_headers_that_came_by_stomp_spoil_no_frame_when_they_go_back(running_artemis):
    """By AMQP, Artemis shows them as properties. One of them is another body's length."""
    name = f"queue/orders-{uuid.uuid4().hex}"
    properties = {"uniqueMessageId": "1", "content-length": "1", "receipt": "x", "transaction": "x", "destination": "x"}
    with (
        sink(address_of(running_artemis, "stomp", name)) as sending,
        source(address_of(running_artemis, "stomp", name)) as taking,
    ):
        sending.send([Message(body=b"body", is_text=True, properties=properties)])
        (came,) = take(taking, 1)
    assert (came.message.body, came.message.properties) == (b"body", {"uniqueMessageId": "1"})


def test_stomp_says_where_it_meets_a_zero_byte(running_artemis):
    """STOMP can't express a zero byte in a property, and would merge ids that differ behind it."""
    name = f"queue/orders-{uuid.uuid4().hex}"
    awkward = Message(body=b"", properties={"uniqueMessageId": "a\0b"})
    with sink(address_of(running_artemis, "amqp", name)) as sending:
        sending.send([*texts("before"), awkward])
    with source(address_of(running_artemis, "stomp", name)) as taking:
        first = take(taking, 1)
        taking.acknowledge(first)
        with pytest.raises(MessageRefusedError, match="zero byte"):
            take(taking, 1)
    with source(address_of(running_artemis, "amqp", name)) as taking:
        assert take(taking, 1)[0].message.properties == awkward.properties


def test_nothing_is_left_running(running_artemis, protocol):
    before = threading.active_count()
    address = address_of(running_artemis, protocol, f"queue/orders-{uuid.uuid4().hex}")
    for _ in range(20):
        with source(address), sink(address):
            pass
    until(lambda: threading.active_count() <= before)


@pytest.mark.parametrize("to", CONNECTORS)
def test_duplicates_are_kept_in_a_queue_of_their_own(running_artemis, protocol, to, store_url):
    queues = [f"queue/{name}-{uuid.uuid4().hex}" for name in ("orders", "out", "again")]
    from_, out, again = (
        address_of(running_artemis, each, q) for each, q in zip((protocol, to, to), queues, strict=True)
    )
    with sink(from_) as sending:
        sending.send([Message(body=body, properties={"uniqueMessageId": "1"}) for body in (b"a", b"a", b"b")])
    bridge = open_bridge(str(from_), str(out), store_url, BridgeOptions(duplicates_to=str(again)))
    bridge.run(stop_when_idle_secs=1)
    with source(out) as taking:
        assert bodies(take(taking, 1)) == ["a"]
    with source(again) as taking:
        kept = [delivery.message for delivery in take(taking, 2)]
    assert [message.body for message in kept] == [b"a", b"b"]
    differs = [message.properties["receiverBodyDiffers"] for message in kept]
    assert differs == ([False, True] if to == "amqp" else ["false", "true"])
    assert all(message.properties["receiverDuplicateOf"].endswith("Z") for message in kept)
