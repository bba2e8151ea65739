"""What RabbitMQ, ActiveMQ Classic, Artemis and an unknown product answer by STOMP, and what a bridge makes of it.

A refusal ends a bridge with an error, or parks the message that is to blame. No bridge ends well, hangs or idles after
one.
"""

import socket
import threading
import time
import uuid
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple

import pika
import pytest
from proton import Message as AmqpMessage
from proton.utils import BlockingConnection

from examples.demo.processes import HOST
from receiver import retrying
from receiver.bridge import Message, sink_of, source_of
from receiver.bridge.connectors import products
from receiver.bridge.connectors.products import product_by_stomp
from receiver.bridge.opening import BridgeOptions, Origin, open_bridge
from receiver.errors import BrokerError, BrokerRefusedError, MessageRefusedError, ReceiverError, SettingsError
from receiver.settings import BridgeSettings
from tests.bridge.test_connectors import NEVER_SECS, bodies, take, texts
from tests.brokers import classic as classic_broker
from tests.brokers.cached import new_broker
from tests.brokers.memory import MemoryBroker
from tests.patience import until

pytestmark = [pytest.mark.broker, pytest.mark.slow]

SOON_SECS = 20
LARGE = 5_000_000
"""Bytes of a body that RabbitMQ refuses by default, and Classic by our limit of 4 MB."""


class Strict(classic_broker.Broker):
    """A Classic that lets the user `weak` in, but to no queue, and takes no frame above 4 MB."""

    def __init__(self, home, folder):
        super().__init__(home, folder)
        config = self._config.read_text(encoding="utf-8")
        entry = '<authorizationEntry {0}=">" read="admins" write="admins" admin="admins{1}"/>'
        entries = entry.format("queue", "") + entry.format("topic", "")
        entries += entry.format("topic", ",weak").replace('">"', '"ActiveMQ.Advisory.>"')
        rights = f"<authorizationPlugin><map><authorizationMap><authorizationEntries>{entries}"
        rights += "</authorizationEntries></authorizationMap></map></authorizationPlugin>"
        config = config.replace(
            "</users>", '<authenticationUser username="weak" password="weak" groups="weak"/></users>'
        )
        config = config.replace("</plugins>", f"{rights}</plugins>")
        config = config.replace(f":{self.stomp_port}", f":{self.stomp_port}?wireFormat.maxDataLength=4194304")
        self._config.write_text(config, encoding="utf-8")


class Impatient(classic_broker.Broker):
    """A Classic that ends the subscription of whoever hasn't acknowledged for a second, and leaves the connection."""

    def __init__(self, home, folder):
        super().__init__(home, folder)
        config = self._config.read_text(encoding="utf-8")
        limits = 'checkPeriod="500" maxTimeSinceLastAck="1000" maxSlowCount="1"'
        policy = f"<slowConsumerStrategy><abortSlowAckConsumerStrategy {limits}/></slowConsumerStrategy>"
        policy = (
            f'<policyMap><policyEntries><policyEntry queue="&gt;">{policy}</policyEntry></policyEntries></policyMap>'
        )
        before = "<transportConnectors>"
        config = config.replace(before, f"<destinationPolicy>{policy}</destinationPolicy>{before}")
        self._config.write_text(config, encoding="utf-8")


@pytest.fixture(scope="session")
def strict_classic():
    with new_broker(classic_broker, Strict) as broker:
        broker.start()
        yield broker


@pytest.fixture(scope="session")
def strict_rabbitmq(rabbitmq):
    """A RabbitMQ with queues, a user who may do nothing, and one who may only read."""
    made = [
        f'rabbit_auth_backend_internal:add_user(<<"{user}">>, <<"{user}">>, <<"test">>), '
        "rabbit_auth_backend_internal:set_permissions("
        f'<<"{user}">>, <<"/">>, <<"^$">>, <<"^$">>, <<"{read}">>, <<"test">>)'
        for user, read in {"weak": "^$", "reader": ".*"}.items()
    ]
    rabbitmq.ctl("eval", f"{', '.join(made)}, ok.")  # all at once, since each call takes a second
    rabbitmq.declare("orders")
    rabbitmq.declare("votes", "quorum")
    rabbitmq.declare("stream", "stream")
    return rabbitmq


@pytest.fixture
def running(request):
    """The broker of a product."""
    fixtures = {"artemis": "running_artemis", "rabbitmq": "strict_rabbitmq", "classic": "strict_classic"}
    return lambda product: request.getfixturevalue(fixtures[product])


@pytest.fixture
def queue_of(running):
    """Makes the address of a new queue of a product."""

    def make(product):
        broker, name = running(product), new_name()
        if product == "rabbitmq":
            broker.declare(name)
        return url(broker, f"queue/{name}")

    return make


def new_name():
    return f"orders-{uuid.uuid4().hex}"


def url(broker, path, login=None):
    given = f"{getattr(broker, 'user', 'admin')}:{getattr(broker, 'password', 'admin')}" if login is None else login
    return f"stomp://{given}@{HOST}:{broker.stomp_port}/{path}"


class Refused(NamedTuple):
    """A path that a product refuses to this user: the kind of the error, and its words."""

    product: str
    path: str
    error: type[ReceiverError]
    says: str
    login: str | None = None


BY_BOTH = {
    "rabbitmq: wrong password": Refused(
        "rabbitmq", "queue/orders", BrokerRefusedError, "Access refused for user 'guest'", "guest:wrong"
    ),
    "rabbitmq: wrong vhost": Refused(
        "rabbitmq", "queue/orders?vhost=nope", BrokerRefusedError, "host 'nope' access denied"
    ),
    "rabbitmq: no rights": Refused("rabbitmq", "queue/orders", BrokerRefusedError, "access_refused", "weak:weak"),
    "rabbitmq: no queue": Refused(
        "rabbitmq", "queue/nowhere", BrokerRefusedError, "no queue 'nowhere'.*rabbitmqadmin declare queue name=nowhere"
    ),
    "rabbitmq: no name": Refused("rabbitmq", "queue/a%252Fb", SettingsError, "would read %2F as /"),
    "classic: wrong password": Refused(
        "classic", "queue/orders", BrokerRefusedError, "password is invalid", "admin:wrong"
    ),
    "classic: vhost": Refused("classic", "queue/orders?vhost=nope", SettingsError, "no virtual hosts"),
    "artemis: vhost": Refused("artemis", "queue/orders?vhost=nope", SettingsError, "no virtual hosts"),
}
AS_SOURCE = {
    "rabbitmq: selector": Refused("rabbitmq", "queue/orders?selector=a=1", SettingsError, "no selectors"),
    "rabbitmq: stream": Refused("rabbitmq", "queue/stream", BrokerRefusedError, "is a stream"),
    "rabbitmq: subscription": Refused("rabbitmq", "topic/t?subscription=a@@b", SettingsError, "allows no @@"),
    "rabbitmq: no rights to subscribe": Refused(
        "rabbitmq", "topic/t?subscription=a", BrokerRefusedError, "access_refused", "weak:weak"
    ),
    "classic: selector": Refused("classic", "queue/orders?selector=a%20IS%20IS", BrokerRefusedError, "IS IS"),
    "classic: no rights": Refused("classic", "queue/orders", BrokerRefusedError, "not authorized to read", "weak:weak"),
    "artemis: selector": Refused("artemis", "queue/orders?selector=a%20IS%20IS", BrokerRefusedError, "IS IS|Invalid"),
}


@pytest.mark.thinned(5)
@pytest.mark.parametrize("case", [*BY_BOTH.values(), *AS_SOURCE.values()], ids=[*BY_BOTH, *AS_SOURCE])
def test_a_bridge_from_what_is_refused_ends_with_that(running, tmp_path, sqlite_url, case):
    bridge = open_bridge(url(running(case.product), case.path, case.login), f"file:{tmp_path / 'out'}", sqlite_url)
    with pytest.raises(case.error, match=case.says) as caught:
        bridge.run(stop_when_idle_secs=SOON_SECS)
    assert caught.value.hint
    assert "wrong" not in str(caught.value)


def from_memory(*messages):
    """A source in memory with these messages."""
    memory = MemoryBroker()
    with memory.sink("orders") as sink:
        sink.send(messages)
    return Origin(lambda: memory.source("orders"), "memory", "queue://orders")


@pytest.mark.parametrize("case", BY_BOTH.values(), ids=BY_BOTH)
def test_a_bridge_to_what_is_refused_ends_with_that(running, sqlite_url, case):
    bridge = open_bridge(from_memory(), url(running(case.product), case.path, case.login), sqlite_url)
    with pytest.raises(case.error, match=case.says):
        bridge.run(stop_when_idle_secs=SOON_SECS)


@pytest.mark.parametrize(
    "case",
    [
        Refused("rabbitmq", "queue/orders", BrokerRefusedError, "write access", "reader:reader"),
        Refused("classic", "queue/orders", BrokerRefusedError, "not authorized to write", "weak:weak"),
    ],
)
@pytest.mark.usefixtures("hasty")
def test_no_right_to_send_ends_a_bridge(running, sqlite_url, monkeypatch, case):
    monkeypatch.setattr(retrying, "_REFUSED_SECS", 0.1)
    bridge = open_bridge(from_memory(*texts("a")), url(running(case.product), case.path, case.login), sqlite_url)
    with pytest.raises(case.error, match=case.says):
        bridge.run(stop_when_idle_secs=SOON_SECS)


TO_BLAME = {
    "rabbitmq: too large": ("rabbitmq", Message(body=bytes(LARGE))),
    "rabbitmq: reply-to": ("rabbitmq", Message(body=b"", headers={"JMSReplyTo": "queue://answers"})),
    "rabbitmq: long header": ("rabbitmq", Message(body=b"", headers={"JMSType": "x" * 256})),
    "rabbitmq: user": ("rabbitmq", Message(body=b"", properties={"user-id": "somebody"})),
    "rabbitmq: copies": ("rabbitmq", Message(body=b"", properties={"CC": "desk2"})),
    "classic: too large": ("classic", Message(body=bytes(LARGE))),
    "classic: a property without a name": ("classic", Message(body=b"", properties={"": "1"})),
    "classic: delay": ("classic", Message(body=b"", properties={"AMQ_SCHEDULED_DELAY": "soon"})),
}


@pytest.mark.quick
@pytest.mark.parametrize(("product", "message"), TO_BLAME.values(), ids=TO_BLAME)
@pytest.mark.usefixtures("hasty")
def test_a_message_that_a_target_refuses_is_parked_and_the_others_arrive(queue_of, sqlite_url, product, message):
    to = queue_of(product)
    options = BridgeOptions(settings=BridgeSettings(max_tries=2))
    bridge = open_bridge(from_memory(*texts("before"), message, *texts("behind")), to, sqlite_url, options)
    bridge.run(stop_when_idle_secs=0.5)
    assert bridge.figures.parked == 1
    with source_of(to) as source:
        taken = []
        while more := source.take(10, wait_secs=NEVER_SECS if len(taken) >= 2 else SOON_SECS):
            taken += more
            source.acknowledge(more)
    assert set(bodies(taken)) == {"before", "behind"}


@pytest.mark.parametrize(("product", "name"), [("rabbitmq", "expiration"), ("classic", "JMSExpiration")])
def test_a_property_sets_no_end_to_a_message(queue_of, product, name):
    """Otherwise the broker would drop the message silently after a millisecond."""
    to = queue_of(product)
    with sink_of(to) as sink:
        sink.send([Message(body=b"it", properties={name: "1", "other": "2"})])
    with source_of(to) as source:
        (taken,) = source.take(10, wait_secs=SOON_SECS)
    assert taken.message.properties["other"] == "2"


@pytest.mark.parametrize(("product", "warns"), [("artemis", False), ("rabbitmq", True), ("classic", True)])
def test_a_bridge_warns_of_a_target_that_drops_no_known_ids(queue_of, sqlite_url, caplog, product, warns):
    open_bridge(from_memory(), queue_of(product), sqlite_url).run(stop_when_idle_secs=0)
    assert ("at least once" in caplog.text) == warns


def test_a_full_queue_is_no_fault_of_a_message_either(running):
    broker = running("rabbitmq")
    broker.declare(name := new_name(), x_max_length=1, x_overflow="reject-publish")
    with sink_of(url(broker, f"queue/{name}")) as sink, pytest.raises(BrokerError) as caught:
        sink.send(texts("a", "b", "c"))
    assert type(caught.value) is BrokerError
    assert "whether the queue is full" in str(caught.value)


@pytest.mark.usefixtures("hasty")
def test_a_queue_that_is_deleted_under_a_bridge_ends_it(running, sqlite_url, tmp_path, monkeypatch):
    monkeypatch.setattr(retrying, "_REFUSED_SECS", 0.1)
    broker = running("rabbitmq")
    broker.declare(name := new_name())
    bridge = open_bridge(url(broker, f"queue/{name}"), f"file:{tmp_path / 'out'}", sqlite_url)

    def delete():
        until(lambda: bridge.has_started)
        with broker.connect() as connection:
            connection.channel().queue_delete(name)

    deleting = threading.Thread(target=delete)
    deleting.start()
    with pytest.raises(BrokerRefusedError, match="no queue"):
        bridge.run(stop_when_idle_secs=SOON_SECS)
    deleting.join()


@pytest.mark.parametrize("id_", ["ID:69121578-8760-4be7-bc87-cd9ce81f58ba", None])
def test_classic_can_not_give_by_stomp_what_came_by_amqp(running, sqlite_url, tmp_path, id_):
    """Classic ends the connection of a client that acknowledges such an id. The body is as AMQP had encoded it."""
    broker = running("classic")
    client = BlockingConnection(
        f"amqp://{HOST}:{broker.amqp_port}", SOON_SECS, user=broker.user, password=broker.password
    )
    client.create_sender(f"queue://{(name := new_name())}").send(AmqpMessage("10 EUR", id=id_, durable=True))
    client.close()
    origin = url(broker, f"queue/{name}")
    with sink_of(origin) as sink:
        sink.send(texts("behind"))
    bridge = open_bridge(origin, f"file:{tmp_path / 'out'}", sqlite_url)
    with pytest.raises(MessageRefusedError, match="came in by AMQP") as caught:
        bridge.run(stop_when_idle_secs=SOON_SECS)
    assert "take it by AMQP" in caught.value.hint


@pytest.mark.parametrize("product", ["artemis", "rabbitmq", "classic"])
def test_a_durable_subscription_outlives_connections(running, product):
    """It outlives a connection that closes in order, and one that is cut with messages in hand."""
    broker, topic = running(product), new_name()
    where = url(broker, f"topic/{topic}?subscription=ledger-{topic}")
    source_of(where).close()
    with sink_of(url(broker, f"topic/{topic}")) as sink:
        sink.send(texts("a", "b", "c"))
        cut = source_of(where)
        first = take(cut, 2)
        cut.acknowledge(first[:1])
        cut._session._socket.shutdown(socket.SHUT_RDWR)
        cut.close()
        sink.send(texts("d"))
        with again(where) as source:
            assert sorted(bodies(take(source, 3))) == ["b", "c", "d"]


def again(where):
    """Connect once the broker has noticed that the earlier connection is gone."""
    until = time.monotonic() + SOON_SECS
    while True:
        try:
            return source_of(where)
        except BrokerRefusedError:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)


@pytest.mark.parametrize("product", ["artemis", "rabbitmq", "classic"])
def test_a_topic_gives_each_subscription_a_copy(running, product):
    broker, topic = running(product), new_name()
    addresses = [url(broker, f"topic/{topic}?subscription={each}-{topic}") for each in ("one", "two")]
    with source_of(addresses[0]) as one, source_of(addresses[1]) as two, sink_of(url(broker, f"topic/{topic}")) as sink:
        sink.send(texts("a", "b"))
        assert bodies(take(one, 2)) == bodies(take(two, 2)) == ["a", "b"]


def test_a_quorum_queue(running):
    with sink_of(url(running("rabbitmq"), "queue/votes")) as sink:
        sink.send(texts("a", "b"))
    with source_of(url(running("rabbitmq"), "queue/votes")) as source:
        source.acknowledge(take(source, 2))
        assert source.take(1, wait_secs=NEVER_SECS) == []


def test_a_queue_with_arguments_and_a_slash_in_another_virtual_host(running):
    broker = running("rabbitmq")
    broker.ctl("add_vhost", vhost := new_name())
    broker.ctl("set_permissions", "--vhost", vhost, broker.user, ".*", ".*", ".*")
    broker.declare("eu/orders", vhost=vhost, x_max_priority=3)
    where = url(broker, f"queue/eu/orders?vhost={vhost}")
    with sink_of(where) as sink, source_of(where) as source:
        sink.send(texts("a"))
        assert bodies(take(source, 1)) == ["a"]


def test_rabbitmq_has_timestamps_in_seconds(running):
    broker = running("rabbitmq")
    broker.declare(name := new_name())
    with broker.connect() as connection:
        connection.channel().basic_publish("", name, b"a", pika.BasicProperties(timestamp=1_793_525_211))
    with source_of(url(broker, f"queue/{name}")) as source:
        assert take(source, 1)[0].message.jms_timestamp_ms == 1_793_525_211_000


def test_classic_keeps_bytes_that_could_be_text_apart(queue_of):
    sent = [
        Message(body=b"abc"),
        Message(body=b"abc", is_text=True),
        Message(body=b""),
        Message(body=b"", is_text=True),
    ]
    with sink_of(where := queue_of("classic")) as sink, source_of(where) as source:
        sink.send(sent)
        assert [delivery.message.is_text for delivery in take(source, 4)] == [False, True, False, True]


def test_a_selector_at_classic(queue_of):
    where = queue_of("classic")
    with sink_of(where) as sink:
        sink.send([Message(body=each.encode(), properties={"colour": each}) for each in ("red", "blue", "red")])
    with source_of(f"{where}?selector=colour='red'") as source:
        assert bodies(take(source, 2)) == ["red", "red"]
        assert source.take(1, wait_secs=NEVER_SECS) == []


@pytest.fixture
def hidden_rabbitmq(running):
    """A RabbitMQ that doesn't name itself."""
    broker = running("rabbitmq")
    hide = "application:set_env(rabbitmq_stomp, hide_server_info, {})."
    broker.ctl("eval", hide.format("true"))
    products._unknown.cache_clear()
    yield broker
    broker.ctl("eval", hide.format("false"))


def test_an_unknown_product(hidden_rabbitmq, caplog):
    """Connectors then speak plain STOMP, which has no selectors and no subscriptions."""
    with sink_of(where := url(hidden_rabbitmq, "queue/orders")) as sink, source_of(where) as source:
        assert sink.product == source.product
        assert not sink.product.drops_known_ids
        sink.send(texts("a"))
        taken = take(source, 1)
        source.acknowledge(taken)
        assert bodies(taken) == ["a"]
    assert [record.levelname for record in caplog.records if "unknown product" in record.message] == ["WARNING"]
    with pytest.raises(SettingsError, match="no selectors"):
        source_of(where + "?selector=a=1")
    with pytest.raises(SettingsError, match="keeps a subscription"):
        source_of(where.replace("queue/", "topic/") + "?subscription=a")


@pytest.mark.quick
@pytest.mark.parametrize(
    ("server", "name"),
    [
        ("ActiveMQ-Artemis/2.44.0 ActiveMQ Artemis Messaging Engine", "ActiveMQ Artemis"),
        ("ActiveMQ/6.3.1", "ActiveMQ Classic"),
        ("RabbitMQ/4.3.6", "RabbitMQ"),
        ("", "a broker without a name"),
    ],
)
def test_products_by_what_they_say(server, name):
    assert product_by_stomp(server).name == name


def test_a_topic_of_rabbitmq_drops_what_no_queue_gets(running):
    """By STOMP it confirms that all the same."""
    path = url(running("rabbitmq"), f"topic/{new_name()}")
    with sink_of(path) as sink:
        sink.send(texts("lost"))
    with source_of(f"{path}?subscription={new_name()}") as source:
        assert source.take(1, wait_secs=NEVER_SECS) == []


def hurry(source):
    """Have a source of Classic subscribe anew soon."""
    dialect = replace(source.product.stomp, renews_after_secs=0.2)
    source.product = replace(source.product, stomp=dialect)


@contextmanager
def ended_by_classic(*sent):
    """A source that has taken the first of what was sent, and acknowledged it once Classic had ended the subscription; and
    its address."""
    with new_broker(classic_broker, Impatient) as broker:
        broker.start()
        path = url(broker, f"queue/{new_name()}")
        with sink_of(path) as sink:
            sink.send(texts(*sent))
        with source_of(path) as source:
            hurry(source)
            held = take(source, 1)
            until(lambda: "aborting slow consumer" in broker.said())
            time.sleep(2)  # at first it only asks
            source.acknowledge(held)
            yield source, path


def test_a_subscription_that_classic_has_ended_is_noticed():
    """Classic doesn't say by STOMP that it ends a slow consumer, and answers that consumer's acknowledgements."""
    with ended_by_classic("a") as (source, path):
        with sink_of(path) as sink:
            sink.send(texts("b"))
        with pytest.raises(BrokerError, match="not been registered"):
            until(lambda: source.take(1, wait_secs=0.1))
        source.close()
        with source_of(path) as anew:
            assert bodies(take(anew, 2)) == ["a", "b"]


def test_what_came_ahead_of_a_subscription_that_classic_has_ended_is_not_taken():
    """Its acknowledgements would be answered too, and all would come again: more messages than a window may hold."""
    with ended_by_classic(*"abcdef") as (source, _), pytest.raises(BrokerError, match="not been registered"):
        source.take(1, wait_secs=SOON_SECS)


@pytest.mark.parametrize("kind", ["queue/{}", "topic/{}?subscription={}"])
def test_one_that_is_renewed_gets_each_message_once(running, kind):
    broker, name = running("classic"), new_name()
    path = url(broker, kind.format(name, name))
    sent, taken = [], []
    with source_of(path) as source, sink_of(path.partition("?")[0]) as sink:
        hurry(source)
        for number in range(20):
            sent += [f"{number}a", f"{number}b"]
            sink.send(texts(*sent[-2:]))
            while len(taken) < len(sent):
                came = source.take(2, wait_secs=SOON_SECS)
                source.acknowledge(came)
                taken += bodies(came)
            busy_at = source._busy_at
            until(lambda: source.take(1, wait_secs=0.01) or source._busy_at > busy_at)  # noqa: B023 - called here
    assert taken == sent
