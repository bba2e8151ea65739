"""Addresses of brokers: they are read, shown without their password, and refused with a hint."""

from pathlib import Path

import pytest

from receiver.bridge import opening, sink_of, source_of
from receiver.bridge.connectors import connectors_of
from receiver.bridge.connectors.address import PORTS, BrokerAddress
from receiver.bridge.options import Mode
from receiver.cli.bridge import _Source, _Target
from receiver.errors import SettingsError

READ = {
    "stomp://localhost/queue/orders": "stomp://localhost:61613/queue/orders",
    "stomp://localhost/orders": "stomp://localhost:61613/queue/orders",
    "stomps://h:1/orders": "stomps://h:1/queue/orders",
    "amqp://bridge@h/queue/orders/eu": "amqp://bridge@h:5672/queue/orders/eu",
    "amqps://h/queue/queue": "amqps://h:5671/queue/queue",
    "amqp://[::1]:7/a%3Fb%20c": "amqp://[::1]:7/queue/a%3Fb%20c",
    "stomp://u%40x:p%3Aw@h/topic/prices?subscription=a%26b": "stomp://u%40x@h:61613/topic/prices?subscription=a%26b",
    "amqp://h/q?selector=a+%3D+1": "amqp://h:5672/queue/q?selector=a%20%3D%201",
    "amqp://h/topic/prices": "amqp://h:5672/topic/prices",
    "amqp://h/q?vhost=/": "amqp://h:5672/queue/q?vhost=%2F",
    "amqp://u@h/stream/a/b?start=latest&vhost=c": "amqp://u@h:5672/stream/a/b?vhost=c&start=latest",
    "amqp://h/queue/stream/a": "amqp://h:5672/queue/stream/a",
    "stomp://h/topic/t?vhost=a%26b&subscription=s": "stomp://h:61613/topic/t?subscription=s&vhost=a%26b",
    "amqp://u:p,w@A,b:7,[::1]/q": "amqp://u@a:5672,b:7,[::1]:5672/queue/q",
    "kafkas://[::1]:1,[::2]:2/t?group=g": "kafkas://[::1]:1,[::2]:2/t?group=g",
    "amqps://a,b/queue/q,r": "amqps://a:5671,b:5671/queue/q%2Cr",
}


@pytest.mark.parametrize("text", READ)
def test_what_is_read_is_shown_and_read_again(text):
    address = BrokerAddress.parse(text)
    assert str(address) == READ[text]
    again = BrokerAddress.parse(str(address))
    assert again.with_password(address.password) == address


@pytest.mark.parametrize("given", [None, 7, b"amqp://h/q", Path("orders")])
@pytest.mark.parametrize("connect", [source_of, sink_of])
def test_what_is_no_text(connect, given):
    with pytest.raises(SettingsError, match=r"isn't a broker's address .*amqp://"):
        connect(given)


def test_the_parts():
    address = BrokerAddress.parse("stomps://u%40x:p%3Aw@h/topic/prices?subscription=s")
    assert (address.protocol, address.tls, address.host, address.port) == ("stomp", True, "h", 61613)
    assert (address.user, address.password) == ("u@x", "p:w")
    assert (address.name, address.subscription, address.destination) == ("prices", "s", "topic://prices")
    assert "p:w" not in repr(address)
    assert BrokerAddress.parse("amqp://h/a").destination == "queue://a"
    assert BrokerAddress.parse("amqp://h/a?vhost=%2F").vhost == "/"


def test_several_hosts():
    address = BrokerAddress.parse("amqp://u:p,w@a,b:7/queue/q")
    assert (address.nodes, address.hosts) == ((("a", 5672), ("b", 7)), "a:5672,b:7")
    assert str(address.at(address.nodes[1])) == "amqp://u@b:7/queue/q"
    assert address.at(address.nodes[1]).password == "p,w"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("amqp://a,b:x/q", "'b:x' is no HOST:PORT"),
        ("amqp://a,,b/q", "'' is no HOST:PORT"),
        ("amqp://a, b/q", "' b' is no HOST:PORT"),
        ("amqp://a,b:99999/q", "'b:99999' is no HOST:PORT"),
        ("amqp://a,[::1/q", "'[::1' is no HOST:PORT"),
        ("amqp://u:secret@a,b,A:5672/q", "'amqp://***@a,b,A:5672/q' names a:5672 twice"),
        ("amqp://u:1,secret/x@a,b/q", "has an @ behind the host"),
    ],
)
def test_a_list_with_a_broken_host_is_refused_in_one_line(text, said):
    with pytest.raises(SettingsError) as caught:
        BrokerAddress.parse(text)
    assert said in caught.value.message
    assert "secret" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_password_of_its_own_comes_first():
    address = BrokerAddress.parse("amqp://u@h/a")
    assert address.with_password("x").password == "x"
    assert address.with_password("x").with_password("y").password == "x"
    assert address.with_password(None) is address


def test_a_password_of_bytes_that_are_no_text_is_refused_without_showing_it():
    with pytest.raises(SettingsError, match=r"^amqp://u@h:5672/queue/a: its password isn't UTF-8") as caught:
        BrokerAddress.parse("amqp://u@h/a").with_password("secret\udce9")
    assert "secret" not in str(caught.value)
    assert caught.value.__suppress_context__  # that shows it


@pytest.mark.parametrize(
    "text",
    [
        "", "orders", "http://h/a", "stomp:h/a", "stomp:///a", "stomp://h", "stomp://h/", "stomp://h/queue/", "stomp://h/queue", "amqp://h/topic", "stomp://h:x/a", "stomp://h:99999/a",
        "stomp://h/a#b", "stomp://h/a?subscription=s", "stomp://h/topic/a?subscription=", "stomp://h/topic/a?other=1", "stomp://h/topic/a?subscription=s&x=1", "amqp://h/a?vhost=", "amqp://h/a?vhost=a&vhost=b",
        "amqp://h/stream/", "amqp://h/stream/a?selector=x", "amqp://h/stream/a?subscription=x", "amqp://h/a?start=latest", "stomp://h/stream/a",
        "amqp://u:secret/x@h/queue/x", "amqp://u:12345/secret@host/queue/x", "amqp:u:secret@h/queue/x", "ampq://u:secret@h/x",
        "amqp://h/\udcff", "amqp://h/a\nb", "\tamqp://h/a", "amqp://h/%ff", "amqp://u%ff:secret@h/a", "amqp://h/a?vhost=%ff",
        "amqp://u@h/a?password=secret", "amqp://h/a?vhost=x&SSL.Passphrase=secret", "kafka://h/t?sasl.password=secret&group=g",
        "stomp://u:secret@h", "ftp://u:secret@h/a", "stomp://u:secret@h:x/a", "stomp://u:secret@[h/a",
    ],
)  # fmt: skip
def test_what_is_no_address_is_refused_with_a_hint_and_without_a_password(text):
    with pytest.raises(SettingsError) as caught:
        BrokerAddress.parse(text)
    assert caught.value.hint
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("one", "other", "may_be"),
    [
        ("amqp://localhost/queue/q", "amqp://127.0.0.1/queue/q", True),
        ("amqp://localhost/queue/q", "stomp://[::1]/q", True),
        ("amqp://127.0.0.2/q", "amqps://localhost/q", True),
        ("amqp://no-such-host.invalid/q", "stomp://NO-such-host.invalid/q", True),
        ("amqp://localhost/q?vhost=a", "amqp://localhost/q?vhost=b", False),
        ("amqp://localhost/q?vhost=a", "stomp://localhost/q?vhost=b", False),
        ("amqp://localhost/q?vhost=a", "amqp://localhost/q?vhost=a", True),
        ("amqp://localhost/q", "amqp://localhost/q?vhost=a", True),
        ("amqp://localhost/q", "amqp://localhost/stream/q", True),
        ("amqp://localhost/queue/q", "amqp://localhost/topic/q", False),
        ("amqp://localhost/queue/q", "amqp://127.0.0.1/queue/r", False),
        ("amqp://localhost/queue/q", "amqp://127.0.0.1:5673/queue/q", False),
        ("amqp://localhost/queue/q", "amqp://192.0.2.1/queue/q", False),
        ("amqp://no-such-host.invalid/q", "amqp://nor-such-a-host.invalid/q", False),
        ("amqp://a.invalid,localhost/q", "stomp://b.invalid,127.0.0.1/q", True),
        ("amqp://a.invalid,b.invalid/q", "amqp://c.invalid,b.invalid/q", True),
        ("amqp://a.invalid,b.invalid/q", "amqp://c.invalid,b.invalid:1/q", False),
    ],
)
def test_one_place_may_have_several_addresses(one, other, may_be):
    assert BrokerAddress.parse(one).may_be(BrokerAddress.parse(other)) is may_be
    assert BrokerAddress.parse(other).may_be(BrokerAddress.parse(one)) is may_be


@pytest.mark.parametrize("scheme", PORTS)
def test_every_scheme_has_its_connectors_and_is_told_of(scheme):
    address = BrokerAddress.parse(f"{scheme}://h/q")
    assert len({*connectors_of(address)[:3]}) == 3
    form = f"{address.protocol}://"
    with pytest.raises(SettingsError) as caught:
        BrokerAddress.parse("orders")
    assert f"{form}USER@HOST:{PORTS[address.protocol]}/" in caught.value.hint
    source, target = (argument.__metadata__[0].help for argument in (_Source, _Target))
    assert f"{form}[USER@]HOST[:{PORTS[address.protocol]}]/" in source
    assert f"{scheme}://" in source
    assert form in target
    assert form in opening._TARGETS


def test_no_protocol_is_taken_for_another():
    address = BrokerAddress(protocol="mqtt", host="h", port=1883, name="q")
    with pytest.raises(SettingsError, match="unknown protocol") as caught:
        connectors_of(address)
    assert caught.value.hint == "one of stomp, amqp, kafka"


def test_virtual_hosts_and_subscriptions_are_domains_of_their_own():
    more = ["", "?vhost=a", "?vhost=b", "?subscription=a", "?subscription=s&vhost=a", "?subscription=s&vhost=a%2Fs"]
    named = [
        opening._origin(f"amqp://h/topic/t{options}", opening.BridgeOptions(mode=Mode.BEST_EFFORT)) for options in more
    ]
    assert len({origin.connection_id for origin in named}) == len(more)
    assert named[0].connection_id == "h:5672"


def test_several_hosts_are_one_connection_by_the_list_as_written():
    named = [opening._origin(f"amqp://{hosts}/q", opening.BridgeOptions()) for hosts in ("a,b", "a:5672,b", "b,a")]
    assert [each.connection_id for each in named] == ["a:5672,b:5672", "a:5672,b:5672", "b:5672,a:5672"]
