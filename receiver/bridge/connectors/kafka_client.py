"""What a consumer and a producer of Kafka share: how they reach the cluster, what it says of a topic, what errors mean."""

from __future__ import annotations

import logging
from typing import Any, NamedTuple

from receiver.bridge.connectors.address import ANSWER_SECS, BrokerAddress, connected
from receiver.errors import BrokerError, BrokerRefusedError, MissingExtraError, SettingsError

try:
    from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicCollection, TopicPartition
    from confluent_kafka.admin import AdminClient
except ImportError as error:
    raise MissingExtraError("kafka", "Kafka") from error

__all__ = [
    "ENDED",
    "Consumer",
    "KafkaError",
    "KafkaException",
    "Producer",
    "Quiet",
    "Topic",
    "TopicPartition",
    "client_config",
    "described",
    "error_of",
    "failure_of",
]

_LOGGER = logging.getLogger("receiver.bridge.kafka")
_POLL_SECS = 0.02
_NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"
"""Of a broker that gives topics no ids."""
_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_REFUSALS = {
    KafkaError._AUTHENTICATION,  # noqa: SLF001 - the library's own errors begin so
    KafkaError._UNKNOWN_TOPIC,  # noqa: SLF001
    KafkaError._SSL,  # noqa: SLF001
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError.UNSUPPORTED_SASL_MECHANISM,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.TOPIC_EXCEPTION,
    KafkaError.INVALID_GROUP_ID,
    KafkaError.INVALID_SESSION_TIMEOUT,
    KafkaError.INCONSISTENT_GROUP_PROTOCOL,
    KafkaError.POLICY_VIOLATION,
}
ENDED = {
    *_REFUSALS,
    KafkaError._ALL_BROKERS_DOWN,  # noqa: SLF001
    KafkaError._FATAL,  # noqa: SLF001
    KafkaError._MAX_POLL_EXCEEDED,  # noqa: SLF001
}
"""Errors of a client as a whole after which it is to be made anew; what else it says it mends by itself."""


class Quiet:
    """Takes what librdkafka would write to standard error; what matters of it comes as an error too."""

    @staticmethod
    def log(_level: int, text: str, *values: object) -> None:
        _LOGGER.debug(text, *values)


class Topic(NamedTuple):
    id: str
    """Another where a topic was deleted and made again; empty where the broker doesn't say."""
    partitions: tuple[int, ...]


def client_config(address: BrokerAddress) -> dict[str, Any]:
    """How any client reaches the cluster; `SettingsError` for a mechanism that isn't known."""
    host = f"[{address.host}]" if ":" in address.host else address.host
    login = address.user is not None
    config: dict[str, Any] = {
        "bootstrap.servers": f"{host}:{address.port}",
        "client.id": "receiver",
        "security.protocol": f"{'sasl_' * login}{'ssl' if address.tls else 'plaintext'}",
        "allow.auto.create.topics": False,
    }
    if login:
        mechanism = address.options.get("mechanism", _MECHANISMS[0])
        if mechanism not in _MECHANISMS:
            raise SettingsError(f"{address}: there is no mechanism {mechanism!r:.80}", hint=", ".join(_MECHANISMS))
        config |= {
            "sasl.mechanism": mechanism,
            "sasl.username": address.user,
            "sasl.password": address.password or "",
        }
    files = {"ca": address.files.ca_file, "certificate": address.files.cert_file}
    files["key"] = address.files.key_file or address.files.cert_file
    config |= {f"ssl.{name}.location": str(file) for name, file in files.items() if address.tls and file is not None}
    return config


def described(address: BrokerAddress) -> Topic:
    """What the cluster says of the topic; `BrokerRefusedError` where there is none, or we may not know of it."""
    connected(address).close()  # says within a moment what librdkafka would try for long
    errors: list[BrokerError] = []

    def note(error: Any) -> None:
        if error.code() in _REFUSALS:
            errors.append(error_of(address, error))

    config: dict[str, Any] = {**client_config(address), "error_cb": note}
    config.pop("allow.auto.create.topics")
    admin = AdminClient(config, logger=Quiet)
    asked = admin.describe_topics(TopicCollection([address.name]), request_timeout=ANSWER_SECS)[address.name]
    waited_secs = 0.0
    while not asked.done() and not errors and waited_secs < ANSWER_SECS:
        admin.poll(_POLL_SECS)
        waited_secs += _POLL_SECS
    if errors:
        raise errors[0]
    try:
        topic = asked.result(timeout=_POLL_SECS)
    except (KafkaException, TimeoutError) as error:
        raise failure_of(address, error) from error
    id_ = str(topic.topic_id)
    return Topic("" if id_ == _NO_ID else id_, tuple(partition.id for partition in topic.partitions))


def failure_of(address: BrokerAddress, error: Exception) -> BrokerError:
    """The error for what a client raised."""
    if error.args and isinstance(error.args[0], KafkaError):
        return error_of(address, error.args[0])
    return BrokerError(f"{address}: {error or 'no answer'}", hint="connect again")


def error_of(address: BrokerAddress, error: Any) -> BrokerError:
    """The error for one of librdkafka's."""
    why = f"{address}: {error.str() or error.name()}"
    if error.code() in _REFUSALS or error.fatal():
        return BrokerRefusedError(
            f"{why} ({error.name()})",
            hint="check the names of topic and group, user, password, and what this user may do",
        )
    return BrokerError(why, hint="connect again")
