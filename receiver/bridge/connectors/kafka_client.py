"""Shared by consumers and producers of Kafka: the connection to the cluster, questions about a topic, meanings of errors."""

from __future__ import annotations

import logging
import time
from concurrent.futures import wait
from contextlib import suppress
from typing import Any, NamedTuple

from receiver.bridge.connectors import warn_once
from receiver.bridge.connectors.address import BrokerAddress
from receiver.bridge.connectors.nodes import first_of
from receiver.bridge.connectors.sockets import ALERT, ANSWER_SECS, CLOSE_SECS, alert_error, connected, port_hint
from receiver.errors import BrokerError, BrokerRefusedError, MissingExtraError, SettingsError
from receiver.retrying import Backoff, until_done

try:
    from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicCollection, TopicPartition
    from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType  # type: ignore[attr-defined]
except ImportError as error:
    raise MissingExtraError("kafka", "Kafka") from error

__all__ = ["Consumer", "KafkaError", "KafkaException", "Producer", "TopicPartition"]

_LOGGER = logging.getLogger("receiver.bridge.kafka")
_POLL_SECS = 0.02
_LEARNS_SECS = 2.0
"""So long a node may take to learn of a topic that has just been made."""
_NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"
"""The id of every topic on a broker that gives topics no ids."""
_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_MISSING = {KafkaError._UNKNOWN_TOPIC, KafkaError.UNKNOWN_TOPIC_OR_PART}
_REFUSALS = {
    *_MISSING,
    KafkaError._AUTHENTICATION,
    KafkaError._SSL,
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError.UNSUPPORTED_SASL_MECHANISM,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.TOPIC_EXCEPTION,
    KafkaError.INVALID_GROUP_ID,
    KafkaError.INVALID_SESSION_TIMEOUT,
    KafkaError.INCONSISTENT_GROUP_PROTOCOL,
    KafkaError.POLICY_VIOLATION,
}
_UNANSWERED = {KafkaError._TIMED_OUT, KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN}
ENDED = {*_REFUSALS, KafkaError._ALL_BROKERS_DOWN, KafkaError._FATAL, KafkaError._MAX_POLL_EXCEEDED}
"""Errors of a client as a whole after which it must be made anew. It recovers from other errors by itself."""


class Quiet:
    """Swallows librdkafka's lines for standard error; those that matter also come as errors."""

    @staticmethod
    def log(_level: int, text: str, *values: object) -> None:
        _LOGGER.debug(text, *values)


class Topic(NamedTuple):
    id: str
    """The topic's id, which changes if it is deleted and made again; empty if the broker doesn't say."""
    partitions: tuple[int, ...]
    allows_writing: bool
    """Whether this user may write; true if the broker doesn't say."""


def client_config(address: BrokerAddress) -> dict[str, Any]:
    """The settings by which any client reaches the cluster. `SettingsError` for an unknown mechanism, for a user without
    password or the reverse, and for a zero byte, at which librdkafka would end a name."""
    if any("\0" in (text or "") for text in (address.name, address.subscription, address.user, address.password)):
        raise SettingsError(f"{address} has a zero byte (%00)", hint="leave it out")
    login = address.user is not None
    if login and not (address.user and address.password):
        raise SettingsError(f"{address}: Kafka wants a user and a password", hint="give both, or neither")
    config: dict[str, Any] = {
        "bootstrap.servers": address.hosts,
        "client.id": "receiver",
        "security.protocol": f"{'sasl_' * login}{'ssl' if address.tls else 'plaintext'}",
        "allow.auto.create.topics": False,
    }
    if login:
        mechanism = address.options.get("mechanism", _MECHANISMS[0])
        if mechanism not in _MECHANISMS:
            raise SettingsError(f"{address}: there is no mechanism {mechanism!r:.80}", hint=", ".join(_MECHANISMS))
        config |= {"sasl.mechanism": mechanism, "sasl.username": address.user, "sasl.password": address.password}
    files = {"ca": address.files.ca_file, "certificate": address.files.cert_file}
    files["key"] = address.files.key_file or address.files.cert_file
    config |= {f"ssl.{name}.location": str(file) for name, file in files.items() if address.tls and file is not None}
    return config


class _NoTopicError(BrokerRefusedError):
    """A node knows no topic of that name."""


class TopicLookup:
    """Asks the cluster about one topic: when it is opened, and again whenever it is asked to."""

    topic: Topic
    """The topic as it was at the opening."""

    def __init__(self, address: BrokerAddress) -> None:
        # Fails within a moment, where librdkafka would try for long.
        first_of(address.nodes, lambda node: connected(address.at(node)).close())
        self._address = address
        self._errors: list[BrokerError] = []
        config: dict[str, Any] = {**client_config(address), "error_cb": self._note}
        config.pop("allow.auto.create.topics")
        self._admin = AdminClient(config, logger=Quiet)
        # Each node learns of a new topic by itself, and any node may be asked.
        self.topic = until_done(
            self.ask,
            is_passing=lambda error: isinstance(error, _NoTopicError),
            backoff=Backoff(0.1, 0.5),
            patience_secs=_LEARNS_SECS,
        )

    def ask(self) -> Topic:
        """The topic; `BrokerRefusedError` if there is no such topic, or this user may not know."""
        name = self._address.name
        (asked,) = self._admin.describe_topics(
            TopicCollection([name]), include_authorized_operations=True, request_timeout=ANSWER_SECS
        ).values()
        until = time.monotonic() + ANSWER_SECS
        while not asked.done() and not self._errors and time.monotonic() < until:
            wait([asked], _POLL_SECS)
            self._admin.poll(0)
        if self._errors:
            raise self._errors[0]
        try:
            topic = asked.result(timeout=_POLL_SECS)
        except (KafkaException, TimeoutError) as error:
            raise failure_of(self._address, error) from error
        id_ = str(topic.topic_id)
        allowed = {operation.name for operation in topic.authorized_operations or ()}
        return Topic(
            "" if id_ == _NO_ID else id_,
            tuple(partition.id for partition in topic.partitions),
            allows_writing=not allowed or "WRITE" in allowed,
        )

    def warn_if_compacted(self, what: str) -> None:
        """Warn of a compacted topic, which loses `what` without a sign. Silent if this user may not ask, or the broker doesn't say."""
        topic = ConfigResource(ResourceType.TOPIC, self._address.name)
        with suppress(KafkaException, TimeoutError, KeyError):
            (asked,) = self._admin.describe_configs([topic], request_timeout=CLOSE_SECS).values()
            if "compact" in str(asked.result(CLOSE_SECS)["cleanup.policy"].value):
                warn_once(f"{self._address} is compacted (cleanup.policy): Kafka deletes {what}")

    def _note(self, error: Any) -> None:
        if error.code() in _REFUSALS or ALERT in (error.str() or ""):
            self._errors.append(error_of(self._address, error))


def cluster_at(address: BrokerAddress) -> str:
    """The cluster's id, in words."""
    connected(address).close()
    admin = AdminClient(client_config(address), logger=Quiet)  # in a variable: without the client no answer comes
    asked = admin.describe_cluster(request_timeout=ANSWER_SECS)
    try:
        return f"Kafka's cluster {asked.result(ANSWER_SECS).cluster_id}"
    except (KafkaException, TimeoutError) as error:
        raise failure_of(address, error) from error


def failure_of(address: BrokerAddress, error: Exception) -> BrokerError:
    """The error for an exception of a client."""
    if error.args and isinstance(error.args[0], KafkaError):
        return error_of(address, error.args[0])
    return BrokerError(f"{address}: {str(error) or 'no answer'}", hint="connect again")


def error_of(address: BrokerAddress, error: Any) -> BrokerError:
    """The error for an error of librdkafka."""
    if ALERT in (error.str() or ""):
        return alert_error(address, error.str())
    why = f"{address}: {error.str() or error.name()}"
    if error.code() in _MISSING:
        topic = f"--bootstrap-server {address.hosts} --topic {address.name}"
        hint = f"make the topic first, kafka-topics.sh --create {topic}, or check its name and what this user may do"
        return _NoTopicError(f"{why} ({error.name()})", hint=hint)
    if error.code() in _REFUSALS or error.fatal():
        hint = "check the names of topic and group, user, password, and what this user may do"
        if error.code() == KafkaError._SSL:
            hint = "name its authority's certificate (--tls-ca), and let each node advertise a name that its certificate has"
        elif error.code() == KafkaError.INCONSISTENT_GROUP_PROTOCOL:
            hint = "other clients are in this group, and share its partitions in another way: name a group for bridges alone"
        return BrokerRefusedError(f"{why} ({error.name()})", hint=hint)
    unanswered = error.code() in _UNANSWERED
    return BrokerError(why, hint=port_hint("kafka", tls=address.tls) if unanswered else "connect again")
