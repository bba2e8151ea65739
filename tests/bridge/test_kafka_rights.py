"""Kafka through TLS, with users, passwords and rights: what is allowed works, and what isn't is refused in plain
words."""

import tempfile
import time
from contextlib import closing
from pathlib import Path

import pytest
import trustme
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key

from examples.demo.processes import HOST, free_ports
from receiver.bridge import Message, Tls, sink_of, source_of
from receiver.bridge.connectors import turn_sink_factory
from receiver.bridge.connectors.address import BrokerAddress
from receiver.errors import BrokerRefusedError, SettingsError
from tests.brokers.cached import fetched
from tests.brokers.kafka import Broker, fetch

pytestmark = [pytest.mark.broker, pytest.mark.slow]

SOON_SECS = 20
LOGIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
USERS = {"me": "right", "half": "right", "nobody": "right", "sender": "right"}
"""All users with their password. `me` may do everything. `half` may do everything with the topic, but has no group.
`sender` gets its rights one by one."""


class SecureKafka(Broker):
    """A Kafka with a second port, through TLS, which asks clients who they are."""

    def __init__(self, jars, folder, certificate):
        super().__init__(jars, folder)
        (self.secure_port,) = free_ports(9094)
        for listens in ("listeners", "advertised.listeners"):
            self.settings[listens] += f",SASL_SSL://{HOST}:{self.secure_port}"
        users = " ".join(f'user_{user}="{password}"' for user, password in USERS.items())
        self.settings |= {
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL_SSL:SASL_SSL",
            "listener.name.sasl_ssl.plain.sasl.jaas.config": f"{LOGIN} required {users};",
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS;User:me",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": certificate,
        }


@pytest.fixture(scope="module")
def authority():
    return trustme.CA()


@pytest.fixture(scope="module")
def kafka(authority):
    with tempfile.TemporaryDirectory(prefix="receiver-kafka-") as text:
        folder = Path(text)
        certificate = authority.issue_cert(HOST, "localhost", key_type=trustme.KeyType.RSA)
        write_for_kafka(certificate, folder / "broker.pem")
        authority.cert_pem.write_to_path(folder / "ca.pem")
        trustme.CA().cert_pem.write_to_path(folder / "other.pem")
        broker = SecureKafka(fetched(fetch), folder, folder / "broker.pem")
        broker.folder = folder
        try:
            broker.start()
            broker.topic = broker.new_topic()
            allow(broker, "half", AclOperation.ALL)
            yield broker
        finally:
            broker.close()


def write_for_kafka(certificate, path):
    """Write key and certificates to a file. Kafka reads keys only in PKCS 8."""
    key = load_pem_private_key(certificate.private_key_pem.bytes(), None)
    text = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    path.write_bytes(text + b"".join(each.bytes() for each in certificate.cert_chain_pems))


def allow(broker, user, operation, kind=ResourceType.TOPIC, name=None):
    """Allow a user an operation, by default on the topic."""
    admin = broker.admin()
    of = AclPermissionType.ALLOW
    pattern = ResourcePatternType.PREFIXED if name else ResourcePatternType.LITERAL
    binding = AclBinding(kind, name or broker.topic, pattern, f"User:{user}", "*", operation, of)
    for done in admin.create_acls([binding]).values():
        done.result(SOON_SECS)


def address(kafka, login, *, group=None, ca="ca.pem", host=HOST):
    more = f"?group={group}" if group else ""
    parsed = BrokerAddress.parse(f"kafkas://{login}@{host}:{kafka.secure_port}/{kafka.topic}{more}")
    return parsed.with_tls(Tls(ca_file=kafka.folder / ca))


def test_whoever_is_let_in_sends_and_takes(kafka):
    with sink_of(address(kafka, "me:right")) as sink:
        sink.send([Message(body=b"a")])
    with source_of(address(kafka, "me:right", group="g")) as source:
        (taken,) = source.take(1, wait_secs=SOON_SECS)
    assert taken.message.body == b"a"


@pytest.mark.parametrize(
    ("login", "problem"), [("me:wrong", "Authentication failed"), ("nobody:right", "TOPIC_AUTHORIZATION_FAILED")]
)
def test_whoever_is_not_let_in_is_told_so_at_the_start(kafka, login, problem):
    began = time.monotonic()
    with pytest.raises(BrokerRefusedError, match=problem):
        source_of(address(kafka, login, group="g"))
    with pytest.raises(BrokerRefusedError, match=problem):
        sink_of(address(kafka, login))
    assert time.monotonic() - began < SOON_SECS


def until_allowed(connect):
    """Connect once the broker applies its new rules, which takes a moment."""
    until = time.monotonic() + SOON_SECS
    while True:
        try:
            return connect()
        except BrokerRefusedError:
            assert time.monotonic() < until
            time.sleep(0.1)


def test_a_group_that_is_not_allowed_is_refused(kafka):
    until_allowed(lambda: source_of(address(kafka, "half:right", group="g"))).close()
    with source_of(address(kafka, "half:right", group="g")) as source:
        with pytest.raises(BrokerRefusedError, match="GROUP_AUTHORIZATION_FAILED"):
            source.take(1, wait_secs=SOON_SECS)
        assert source.is_settling


def test_which_right_is_missing_for_transactions_is_said_at_the_start(kafka):
    """The rights are given one after the other, until none is missing."""
    make = turn_sink_factory(address(kafka, "sender:right"))
    said = []

    def begin():
        with make() as turns:
            turns.begin("a")
            turns.send_turn([], note="a", number=0)
            turns.send_turn([Message(body=b"a")], note="b", number=1)

    group = f"receiver-{kafka.topic}-"
    for operation, *of in (
        (AclOperation.DESCRIBE,),
        (AclOperation.WRITE,),
        (AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID, group),
        (AclOperation.READ, ResourceType.GROUP, group),
        (AclOperation.READ,),
    ):
        with pytest.raises(BrokerRefusedError) as caught:
            begin()
        said.append(str(caught.value))
        allow(kafka, "sender", operation, *of)
        time.sleep(1)
    until_allowed(begin)
    for error, right in zip(
        said,
        [
            "check the names of topic and group",
            f"allow Write on {kafka.topic}",
            f"allow Describe and Write on the transactional id {group}a",
            f"allow Read on the group {group}a",
            f"allow Read and Write on the topic {kafka.topic}",
        ],
        strict=True,
    ):
        assert right in error
    assert all("?transactions=no" in error for error in said[2:])


def test_a_broker_of_another_authority_is_not_trusted(kafka):
    with pytest.raises(BrokerRefusedError, match="can't be trusted"):
        source_of(address(kafka, "me:right", group="g", ca="other.pem"))


def test_a_node_that_is_trusted_only_by_another_name_is_said_to_be_one(tmp_path):
    """Python trusts the host of the address. librdkafka then goes to the address that the node advertises."""
    authority = trustme.CA()
    write_for_kafka(authority.issue_cert("localhost", key_type=trustme.KeyType.RSA), tmp_path / "broker.pem")
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    with closing(SecureKafka(fetched(fetch), tmp_path, tmp_path / "broker.pem")) as broker:
        broker.start()
        broker.topic, broker.folder = broker.new_topic(), tmp_path
        with pytest.raises(BrokerRefusedError, match=f"{HOST}.*certificate verify failed") as caught:
            source_of(address(broker, "me:right", group="g", host="localhost"))
    assert "--tls-ca" in caught.value.hint
    assert "advertise" in caught.value.hint


def test_certificates_prove_nothing_without_tls(kafka):
    with pytest.raises(SettingsError, match="write kafkas://"):
        BrokerAddress.parse(kafka.address(kafka.topic, "g")).with_tls(Tls(ca_file=kafka.folder / "ca.pem"))


def test_a_mechanism_that_is_not_known_is_refused(kafka):
    with pytest.raises(SettingsError, match="no mechanism 'GUESS'"):
        source_of(f"kafka://me:x@{HOST}:{kafka.port}/{kafka.topic}?group=g&mechanism=GUESS")
