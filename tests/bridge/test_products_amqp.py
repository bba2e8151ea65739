"""AMQP 1.0 by product. What a product refuses ends a bridge, with the reason and a remedy. What all products have
works."""

import threading
import time
import uuid
from contextlib import closing
from dataclasses import replace
from typing import NamedTuple

import pika
import pytest

from examples.demo.processes import HOST
from receiver.bridge import BridgeOptions, Message, Mode, open_bridge, sink_of, source_of
from receiver.bridge.connectors import amqp, amqp_link, products
from receiver.bridge.connectors.amqp import AmqpSink
from receiver.bridge.opening import Origin
from receiver.errors import BrokerError, BrokerRefusedError, MessageRefusedError
from receiver.settings import ReceiverSettings
from tests.bridge.bridged import message, run_until
from tests.bridge.broker_proxy import broker_proxy
from tests.bridge.conftest import address_of
from tests.bridge.test_connectors import NEVER_SECS, SOON_SECS, bodies, take, texts
from tests.brokers.memory import MemoryBroker

pytestmark = [pytest.mark.broker, pytest.mark.slow]
THERE = "products-amqp"
"""A queue that exists on every product."""


@pytest.fixture(scope="module")
def rabbit(rabbitmq):
    """A RabbitMQ with a second virtual host, a user who may do nothing, and a user without a virtual host."""
    module = "rabbit_auth_backend_internal"
    steps = ['rabbit_vhost:add(<<"second">>, <<"test">>)']
    steps += [f'{module}:add_user(<<"{name}">>, <<"{name}">>, <<"test">>)' for name in ("poor", "homeless")]
    for user, host, may in (("guest", "second", ".*"), ("poor", "/", "^$")):
        rights = f'<<"{may}">>, ' * 3
        steps.append(f'{module}:set_permissions(<<"{user}">>, <<"{host}">>, {rights}<<"test">>)')
    rabbitmq.ctl("eval", f"{', '.join(steps)}.")
    rabbitmq.declare(THERE)
    return rabbitmq


@pytest.fixture
def address(request):
    """Makes the address of a path at a product, with its own login or another."""

    def address(product, path, login=None):
        fixture = {"rabbitmq": "rabbit", "artemis": "running_artemis"}.get(product, product)
        broker = request.getfixturevalue(fixture)
        own = "" if product == "artemis" else f"{broker.user}:{broker.password}@"
        return address_of(broker, "amqp", path, own if login is None else login)

    return address


def with_password(address):
    """The address as text with its password, which plain text leaves out."""
    return f"amqp://{address.user}:{address.password}@{str(address).partition('//')[2].rpartition('@')[2]}"


class Refused(NamedTuple):
    product: str
    path: str
    why: str
    hint: str
    login: str | None = None
    role: str = "source"


REFUSED = [
    Refused(
        "rabbitmq",
        "queue/nowhere",
        "no queue 'nowhere'",
        """name=nowhere queue_type=quorum arguments='{"x-delivery-limit": -1}'""",
    ),
    Refused("rabbitmq", "queue/nowhere", "no queue 'nowhere'", "rabbitmqadmin", role="target"),
    Refused("rabbitmq", f"queue/{THERE}?selector=a%3D1", "RabbitMQ has no selectors", "bind a queue"),
    Refused("rabbitmq", "topic/news?subscription=s", "RabbitMQ has no topics", "bind a queue"),
    Refused("rabbitmq", f"queue/{THERE}?vhost=nowhere", "virtual host can't be used", "check that it exists"),
    Refused("rabbitmq", f"queue/{THERE}?vhost=second", f"no queue '{THERE}' in vhost 'second'", "rabbitmqadmin"),
    Refused("rabbitmq", f"queue/{THERE}?vhost=%2F", "virtual host can't be used", "may use it", "homeless:homeless@"),
    Refused("rabbitmq", f"queue/{THERE}", "refused", "what this user may do", "poor:poor@"),
    Refused("rabbitmq", f"queue/{THERE}", "refused", "what this user may do", "poor:poor@", role="target"),
    Refused("rabbitmq", f"queue/{THERE}", "Authentication failed", "user and password", "guest:wrong@"),
    Refused("classic", f"queue/{THERE}?vhost=a", "Classic has no virtual hosts", "leave out"),
    Refused("classic", f"queue/{THERE}?selector=a%20IS%20IS", "IS", "check"),
    Refused("classic", f"queue/{THERE}", "Authentication failed", "user and password", "admin:wrong@"),
    Refused("classic", f"queue/{THERE}", "Authentication failed", "user and password", "admin:wrong@", "target"),
    Refused("qpid", f"queue/{THERE}?vhost=nowhere", "Unknown hostname in connection open: 'nowhere'", "virtual host"),
    Refused("qpid", f"queue/{THERE}?selector=a%20IS%20IS", "selector", "check"),
    Refused("qpid", f"queue/{THERE}", "Authentication failed", "user and password", "admin:wrong@"),
    Refused("qpid", f"queue/{THERE}", "Authentication failed", "refuses anonymous users", ""),
    pytest.param(
        Refused("artemis", f"queue/{THERE}?vhost=a", "Artemis has no virtual hosts", "leave out"),
        marks=pytest.mark.artemis,
    ),
]


@pytest.mark.thinned(5)
@pytest.mark.parametrize("case", REFUSED, ids=str)
def test_what_is_refused_ends_the_bridge(address, case, tmp_path):
    """The bridge doesn't wait, nor end as if all were well. It says what to do."""
    refused, memory = address(case.product, case.path, case.login), MemoryBroker()
    text = str(refused) if refused.user is None else with_password(refused)
    if case.role == "source":
        from_, to = text, f"file:{tmp_path / 'out'}"
    else:
        from_, to = Origin(lambda: memory.source("in"), "memory", "queue://in"), text
    options = BridgeOptions(mode=Mode.BEST_EFFORT)
    with (
        closing(open_bridge(from_, to, options=options)) as bridge,
        pytest.raises(BrokerRefusedError, match=case.why) as caught,
    ):
        bridge.run(stop_when_idle_secs=0.5)
    assert case.hint in caught.value.hint


def test_a_user_without_a_virtual_host_hears_what_may_be_wrong(address):
    """RabbitMQ ends the connection without an explanation."""
    with pytest.raises(BrokerError) as caught:
        source_of(address("rabbitmq", f"queue/{THERE}", "homeless:homeless@"))
    assert "?vhost=NAME" in caught.value.hint


def as_if(monkeypatch, **more):
    """Have the connectors believe what isn't true of RabbitMQ, so that RabbitMQ refuses it."""
    dialect = replace(products.RABBITMQ.amqp, **more)
    known = tuple(
        replace(product, amqp=dialect) if product is products.RABBITMQ else product for product in products.KNOWN
    )
    monkeypatch.setattr(products, "KNOWN", known)


def test_a_session_that_ends_is_noticed(address, monkeypatch):
    """RabbitMQ refuses a transaction by ending the session."""
    as_if(monkeypatch, has_transactions=True)
    with pytest.raises(BrokerRefusedError, match="ransactions not supported"):
        source_of(address("rabbitmq", f"queue/{THERE}"))


@pytest.mark.parametrize("product", ["classic", "qpid"])
def test_a_subscription_that_comes_out_not_durable_is_refused(address, monkeypatch, product):
    """A broker answers so if nobody asks it for a durable subscription."""
    monkeypatch.setattr(amqp_link.proton.Terminus, "DELIVERIES", amqp_link.proton.Terminus.NONDURABLE)
    with pytest.raises(BrokerRefusedError, match="no durable subscriptions"):
        source_of(address(product, f"topic/{uuid.uuid4().hex}?subscription=s"))


def test_a_selector_that_is_ignored_is_refused(address, monkeypatch):
    """Classic ignores a filter that it doesn't know. Qpid says that it ignores the filter."""
    monkeypatch.setattr(amqp, "_SELECTOR", amqp_link.proton.symbol("receiver:no-such-filter"))
    with pytest.raises(BrokerRefusedError, match="Classic has no selectors"):
        source_of(address("classic", f"queue/{THERE}?selector=a%3D1"))
    with pytest.raises(BrokerRefusedError, match="Unsupported filter"):
        source_of(address("qpid", f"queue/{THERE}?selector=a%3D1"))


def test_a_queue_that_is_deleted_ends_what_takes_from_it(rabbit, address):
    name = f"doomed-{uuid.uuid4().hex}"
    rabbit.declare(name)
    with source_of(address("rabbitmq", f"queue/{name}")) as source:
        with rabbit.connect() as connection:
            connection.channel().queue_delete(name)
        with pytest.raises(BrokerError, match="deleted"):
            source.take(1, wait_secs=SOON_SECS)


@pytest.mark.parametrize("product", ["rabbitmq", "qpid"])
def test_a_message_beyond_the_brokers_limit_is_refused_alone(address, product):
    most = {"rabbitmq": 16 << 20, "qpid": 100 << 20}[product]
    name = address(product, f"queue/{THERE}")
    with sink_of(name) as sink:
        with pytest.raises(MessageRefusedError, match="takes no more than"):
            sink.send([*texts("before"), Message(body=bytes(most))])
        sink.send(texts("after"))
    with source_of(name) as source:
        taken = take(source, 1)
        assert bodies(taken) == ["after"]
        source.acknowledge(taken)


def test_a_message_beyond_a_limit_that_is_not_told_of_is_no_silence(address, monkeypatch):
    monkeypatch.setattr(AmqpSink, "_check_sizes", lambda *_: None)
    with sink_of(address("rabbitmq", f"queue/{THERE}")) as sink, pytest.raises(BrokerError, match="message size"):
        sink.send([Message(body=bytes(17 << 20))])


@pytest.mark.parametrize(("product", "hostname"), [("rabbitmq", "second"), ("qpid", "default")])
def test_a_virtual_host_has_queues_of_its_own(request, address, product, hostname):
    name = f"hosted-{uuid.uuid4().hex}"
    if product == "rabbitmq":
        request.getfixturevalue("rabbit").declare(name, vhost=hostname)
    there = address(product, f"queue/{name}?vhost={hostname}")
    with sink_of(there) as sink:
        sink.send(texts("a"))
    with source_of(there) as source:
        assert bodies(take(source, 1)) == ["a"]


def test_names_of_queues_may_have_any_characters(rabbit, address):
    name = f"a/b c%2F?é-{uuid.uuid4().hex}"
    rabbit.declare(name)
    there = replace(address("rabbitmq", "queue/x"), name=name)
    with sink_of(there) as sink:
        sink.send(texts("a"))
    with source_of(there) as source:
        assert bodies(take(source, 1)) == ["a"]


@pytest.mark.parametrize("product", ["classic", "qpid"])
def test_a_durable_subscription_gets_what_was_sent_while_nobody_listened(address, product):
    topic = f"topic/news-{uuid.uuid4().hex}"
    both = [address(product, f"{topic}?subscription=bridge-{uuid.uuid4().hex}") for _ in range(2)]
    for subscribed in both:
        source_of(subscribed).close()
    with sink_of(address(product, topic)) as sink:
        sink.send(texts("a", "b"))
    for subscribed in both:
        with source_of(subscribed) as source:
            taken = take(source, 2)
            assert bodies(taken) == ["a", "b"]
            source.acknowledge(taken)
        with source_of(subscribed) as source:
            assert source.take(1, wait_secs=NEVER_SECS) == []


def test_a_subscription_that_another_has_is_refused_by_classic(address, caplog):
    subscribed = address("classic", f"topic/news-{uuid.uuid4().hex}?subscription=bridge-{uuid.uuid4().hex}")
    with source_of(subscribed), pytest.raises(BrokerRefusedError, match="already connected"):
        source_of(subscribed)
    assert "unknown product" not in caplog.text


def test_a_topic_of_rabbitmq_is_a_key_of_its_exchange(rabbit, address):
    key = f"news-{uuid.uuid4().hex}"
    there = address("rabbitmq", f"topic/{key}")
    with sink_of(there) as sink, pytest.raises(BrokerError, match="no queue gets it") as caught:
        sink.send(texts("lost"))
    assert "bind a queue" in caught.value.hint
    rabbit.declare(key)
    with rabbit.connect() as connection:
        connection.channel().queue_bind(key, "amq.topic", key)
    with sink_of(there) as sink, source_of(address("rabbitmq", f"queue/{key}")) as source:
        sink.send(texts("kept"))
        assert bodies(take(source, 1)) == ["kept"]


@pytest.mark.parametrize("product", ["classic", "qpid"])
def test_a_selector_takes_what_it_selects(address, product):
    name = f"queue/selected-{uuid.uuid4().hex}"
    with sink_of(address(product, name)) as sink:
        sink.send([Message(body=each.encode(), properties={"colour": each}) for each in ("red", "blue", "red")])
    with source_of(address(product, f"{name}?selector=colour%20%3D%20'red'")) as source:
        taken = take(source, 2)
        assert bodies(taken) == ["red", "red"]
        assert source.take(1, wait_secs=NEVER_SECS) == []
        source.acknowledge(taken)


FLAGS = {"rabbitmq-classic": False, "rabbitmq-quorum": True, "classic": True, "qpid": True}
"""Whether messages that come again after an orderly end are flagged as redelivered by AMQP."""


@pytest.mark.parametrize("queue", FLAGS)
def test_who_flags_what_comes_again(request, address, queue):
    product, _, kind = queue.partition("-")
    name = f"again-{uuid.uuid4().hex}"
    if kind:
        request.getfixturevalue("rabbit").declare(name, kind)
    there = address(product, f"queue/{name}")
    with sink_of(there) as sink:
        sink.send(texts("a"))
    for flagged in (False, FLAGS[queue]):
        with source_of(there) as source:
            assert take(source, 1)[0].message.redelivered is flagged


@pytest.mark.parametrize(("limit", "connections", "left"), [(2, 3, 0), (-1, 22, 2)])
def test_a_quorum_queue_drops_what_too_many_connections_have_held(rabbit, address, limit, connections, left):
    """Messages that were only sent ahead count too. The limit is 20 unless the queue has another."""
    name = f"limited-{uuid.uuid4().hex}"
    rabbit.declare(name, "quorum", x_delivery_limit=limit)
    there = address("rabbitmq", f"queue/{name}")
    with sink_of(there) as sink:
        sink.send(texts("a", "b"))
    for _ in range(connections):
        with source_of(there) as source:
            take(source, 1)
    with source_of(there) as source:
        take(source, left)
        assert source.take(1, wait_secs=1) == []


@pytest.mark.parametrize(
    ("declared", "warnings"),
    [
        ({"kind": "quorum"}, ["more than 20 connections"]),
        ({"kind": "quorum", "x_delivery_limit": 3}, ["more than 3 connections"]),
        ({"kind": "quorum", "x_delivery_limit": -1}, []),
        ({"kind": "quorum", "x_dead_letter_exchange": "amq.direct"}, []),
        ({"kind": "classic"}, []),
    ],
)
def test_a_quorum_queue_that_drops_what_bridges_held_is_warned_of_once(rabbit, address, caplog, declared, warnings):
    rabbit.declare(name := f"queue-{uuid.uuid4().hex}", **declared)
    for _ in range(2):
        source_of(address("rabbitmq", f"queue/{name}")).close()
    assert [said for said in caplog.messages if "drops a message" in said] == [
        f"{address('rabbitmq', f'queue/{name}')} drops a message once {why} have ended while holding it, unless a policy says "
        "otherwise: declare the queue with x-delivery-limit -1, or give it a dead-letter exchange"
        for why in warnings
    ]


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_what_waited_in_rabbitmq_before_it_was_dead_lettered_has_no_end(rabbit, address, kind):
    """RabbitMQ takes the end of a message away, but still says it of one that came by AMQP 0-9-1. A target would drop it
    then."""
    waiting, name = (f"queue-{uuid.uuid4().hex}" for _ in range(2))
    rabbit.declare(waiting, kind, x_dead_letter_exchange="", x_dead_letter_routing_key=name)
    rabbit.declare(name, kind)
    with rabbit.connect() as connection:
        connection.channel().basic_publish("", waiting, b"a", pika.BasicProperties(expiration="1"))
    with sink_of(address("rabbitmq", f"queue/{waiting}")) as sink:
        sink.send([Message(body=b"b", headers={"JMSExpiration": "1"})])
    with source_of(address("rabbitmq", f"queue/{name}")) as source:
        assert ["JMSExpiration" in each.message.headers for each in take(source, 2)] == [False, False]


@pytest.mark.parametrize("protocol", ["amqp", "stomp"])
def test_a_full_queue_of_rabbitmq_gets_more_each_time(rabbit, protocol):
    """By STOMP the broker ends the connection without a word. Then receipts under way are lost."""
    name, numbers = f"full-{uuid.uuid4().hex}", [str(number) for number in range(30)]
    rabbit.declare(name, x_max_length=10, x_overflow="reject-publish")
    left, came = numbers, []
    while left:
        with sink_of(rabbit.address(protocol, name)) as sink:
            try:
                sink.send([message(number) for number in left])
            except BrokerError:
                left = left[sink.accepted :]
            else:
                left = []
        with source_of(rabbit.address(protocol, name)) as source:
            while taken := source.take(10, wait_secs=1):
                source.acknowledge(taken)
                came += bodies(taken)
    assert (came if protocol == "amqp" else sorted(set(came), key=int)) == numbers


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_acceptances_that_rabbitmq_never_hears_double_nothing(rabbit, address, sqlite_url, kind):
    """RabbitMQ answers no acceptance. So it sends no more messages ahead than the window has ids."""
    name, all_of_them = f"unheard-{uuid.uuid4().hex}", [str(number) for number in range(200)]
    rabbit.declare(name, kind)
    with sink_of(address("rabbitmq", f"queue/{name}")) as sink:
        sink.send([message(id_) for id_ in all_of_them])
    seen = []

    def see(received):
        seen.append(received.text)
        if len(seen) == 50:
            for link in proxy.links:
                link.unheard = True
            threading.Timer(1, proxy.cut).start()

    windows = ReceiverSettings(dup_detection_per_source_expiry_window_size=20, dup_detection_expiry_time_secs=0)
    with broker_proxy(rabbit.amqp_port) as proxy:
        from_ = f"amqp://guest:guest@{HOST}:{proxy.port}/queue/{name}"
        bridge = open_bridge(from_, see, sqlite_url, BridgeOptions(windows=windows))
        run_until(bridge, lambda: set(all_of_them) <= set(seen))
    assert (sorted(seen), bridge.figures.connection_errors) == (sorted(all_of_them), 1)


def test_more_bytes_than_are_sent_ahead_come_from_qpid(address):
    """Within a message, Qpid doesn't heed a session's window."""
    there = address("qpid", f"queue/large-{uuid.uuid4().hex}")
    with sink_of(there) as sink:
        sink.send([Message(body=bytes(6 << 20)) for _ in range(3)])
    with source_of(there) as source:
        time.sleep(1)  # long enough to send more than a window allows
        taken = take(source, 3)
        source.acknowledge(taken)
    assert [len(delivery.message.body) for delivery in taken] == [6 << 20] * 3


def test_a_product_that_is_unknown_is_warned_of_once_and_spoken_to_by_the_protocol(address, monkeypatch, caplog):
    monkeypatch.setattr(products, "KNOWN", ())
    products._unknown.cache_clear()
    there = address("qpid", f"queue/unknown-{uuid.uuid4().hex}?vhost=default")
    with sink_of(there) as sink, source_of(there) as source:
        assert not sink.drops_known_ids
        sink.send(texts("a"))
        source.acknowledge(take(source, 1))
    assert caplog.text.count("unknown product Apache Qpid Broker-J Core 10.1.0") == 1
