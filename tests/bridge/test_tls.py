"""Through TLS, against a real broker: each side proves who it is, and sends nothing before it has the other's proof."""

import threading
import time
import uuid
from dataclasses import replace

import pytest
import trustme
from cryptography.hazmat.primitives import serialization

from examples.demo.artemis import new_broker
from examples.demo.processes import HOST, free_ports
from receiver.bridge.connectors import Message, sink_of, source_of
from receiver.bridge.connectors.address import BrokerAddress, Tls
from receiver.errors import BrokerError, BrokerRefusedError, SettingsError
from tests.bridge.conftest import CONNECTORS, address_of
from tests.bridge.test_connectors import SOON_SECS, bodies, take, texts

pytestmark = [pytest.mark.artemis, pytest.mark.slow]
ACCEPTOR = "org.apache.activemq.artemis.core.remoting.impl.netty.NettyAcceptorFactory"


class Certified:
    """The files of an authority, of a broker on `localhost` and of a client; and a way to start such a broker."""

    def __init__(self, folder):
        authority = trustme.CA()
        server, client = authority.issue_cert("localhost"), authority.issue_cert("bridge@example.org")
        self.ca_file, self.other_ca_file = folder / "ca.pem", folder / "other.pem"
        self.cert_file, self.key_file, self.both_file = folder / "cert.pem", folder / "key.pem", folder / "both.pem"
        self.server_file = folder / "server.pem"
        authority.cert_pem.write_to_path(self.ca_file)
        trustme.CA().cert_pem.write_to_path(self.other_ca_file)
        client.cert_chain_pems[0].write_to_path(self.cert_file)
        client.private_key_pem.write_to_path(self.key_file)
        client.private_key_and_cert_chain_pem.write_to_path(self.both_file)
        server.private_key_and_cert_chain_pem.write_to_path(self.server_file)
        self.port, self.strict_port = free_ports(5671, 5670)

    def acceptors(self):
        strict = {"needClientAuth": "true", "trustStorePath": self.ca_file, "trustStoreType": "PEM"}
        return self._acceptor("tls", port=self.port) | self._acceptor("strict", port=self.strict_port, **strict)

    def _acceptor(self, name, **params):
        params |= {"host": HOST, "protocols": "AMQP,STOMP", "sslEnabled": "true"}
        params |= {"keyStorePath": self.server_file, "keyStoreType": "PEM"}
        prefix = f"acceptorConfigurations.{name}"
        return {f"{prefix}.factoryClassName": ACCEPTOR} | {f"{prefix}.params.{key}": params[key] for key in params}

    def address(self, protocol, *, host="localhost", port=None, **files):
        text = f"{protocol}s://{host}:{port or self.port}/queue/orders-{uuid.uuid4().hex}"
        return BrokerAddress.parse(text).with_tls(Tls(**files))


@pytest.fixture(scope="module")
def certified(artemis_home, tmp_path_factory):
    files = Certified(tmp_path_factory.mktemp("tls"))
    with new_broker(artemis_home) as broker:
        broker.start(properties=files.acceptors())
        yield files


def exchange(address):
    """Send messages through the broker and take them. One of them has many pieces."""
    large = bytes(range(256)) * 8_000
    with sink_of(address) as sink, source_of(address) as source:
        sink.send([*texts("a", "b"), Message(body=large)])
        taken = take(source, 3)
        source.acknowledge(taken)
    assert bodies(taken[:2]) == ["a", "b"]
    assert taken[2].message.body == large


@pytest.mark.thinned(2)
def test_the_authority_vouches_for_the_broker(certified, protocol):
    exchange(certified.address(protocol, ca_file=certified.ca_file))


def test_the_client_has_a_certificate_too(certified, protocol):
    trusted = {"port": certified.strict_port, "ca_file": certified.ca_file}
    exchange(certified.address(protocol, **trusted, cert_file=certified.cert_file, key_file=certified.key_file))
    exchange(certified.address(protocol, **trusted, cert_file=certified.both_file))


@pytest.mark.parametrize("make", [source_of, sink_of])
def test_a_broker_that_wants_a_certificate_says_so(certified, protocol, make):
    with pytest.raises(BrokerError) as caught:
        make(certified.address(protocol, port=certified.strict_port, ca_file=certified.ca_file))
    if isinstance(caught.value, BrokerRefusedError):  # unless the connection ends before the refusal arrives
        assert "--tls-cert" in caught.value.hint


@pytest.mark.quick
def test_a_broker_that_nobody_vouches_for_is_refused(certified, protocol):
    for files in ({}, {"ca_file": certified.other_ca_file}):
        with pytest.raises(BrokerRefusedError, match="can't be trusted") as caught:
            source_of(certified.address(protocol, **files))
        assert "--tls-ca" in caught.value.hint


@pytest.mark.quick
def test_a_broker_under_another_name_is_refused(certified, protocol):
    with pytest.raises(BrokerRefusedError, match="IP address mismatch"):
        source_of(certified.address(protocol, host=HOST, ca_file=certified.ca_file))


@pytest.mark.parametrize(
    "files",
    [{"ca_file": "none.pem"}, {"ca_file": "key.pem"}, {"cert_file": "cert.pem"}, {"cert_file": "none.pem"}, {"cert_file": "cert.pem", "key_file": "server.pem"}],
)  # fmt: skip
def test_files_that_cannot_be_used_are_named(certified, protocol, files):
    paths = {name: certified.ca_file.with_name(file) for name, file in files.items()}
    with pytest.raises(SettingsError) as caught:
        sink_of(certified.address(protocol, **paths))
    assert all(str(path) in caught.value.message for path in paths.values())


def test_a_locked_key_asks_nobody(certified, protocol, tmp_path):
    key = serialization.load_pem_private_key(certified.key_file.read_bytes(), None)
    locked = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"x")
    )
    (tmp_path / "locked.pem").write_bytes(locked)
    with pytest.raises(SettingsError, match="locked"):
        sink_of(certified.address(protocol, cert_file=certified.cert_file, key_file=tmp_path / "locked.pem"))


@pytest.mark.usefixtures("impatient")
def test_without_tls_nothing_is_said_where_it_is_spoken(certified, protocol):
    source, _ = CONNECTORS[protocol]
    with pytest.raises(BrokerError, match=r"without a word|no answer|protocol"):
        source(BrokerAddress.parse(f"{protocol}://localhost:{certified.port}/orders"))


@pytest.mark.usefixtures("impatient")
def test_with_tls_nobody_is_waited_for_who_does_not_speak_it(running_artemis, protocol):
    source, _ = CONNECTORS[protocol]
    plain = address_of(running_artemis, protocol, "queue/orders")
    with pytest.raises(BrokerError, match="TLS"):
        source(replace(plain, tls=True))


def test_a_killed_broker_is_noticed_through_tls(artemis_home, tmp_path):
    files = Certified(tmp_path)
    with new_broker(artemis_home) as broker:
        broker.start(properties=files.acceptors())
        addresses = [files.address(protocol, ca_file=files.ca_file) for protocol in CONNECTORS]
        sources, sinks = [source_of(address) for address in addresses], [sink_of(address) for address in addresses]
        threading.Timer(0.5, broker.kill).start()
        began = time.monotonic()
        for source, sink in zip(sources, sinks, strict=True):
            with source, sink:
                with pytest.raises(BrokerError):
                    source.take(1, wait_secs=SOON_SECS * 2)
                with pytest.raises(BrokerError):
                    sink.send(texts("never"))
        assert time.monotonic() - began < SOON_SECS
