"""Topics of Kafka as a target, by librdkafka: message by message, or in turns, of which each is a transaction."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import Future, wait
from contextlib import suppress
from functools import partial
from typing import Any

from receiver.bridge.connectors import TurnForgottenError, kafka_client
from receiver.bridge.connectors.address import BrokerAddress
from receiver.bridge.connectors.kafka_client import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from receiver.bridge.connectors.kafka_message import encoded
from receiver.bridge.connectors.sockets import ANSWER_SECS, CLOSE_SECS, no_answer_error
from receiver.closing import Closing
from receiver.errors import BrokerError, BrokerRefusedError, MessageRefusedError, MessageUnfitError
from receiver.store.messages import Message

_POLL_SECS = 0.1
_ASK_AGAIN_MILLIS = 2
"""How soon to ask a broker again whether it has marked the end of a transaction. librdkafka would wait for 100."""
_UNWANTED = {KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_RECORD, KafkaError.INVALID_MSG}
"""Errors for which a message is to blame, perhaps another message that was sent with it."""
_SOON = {
    KafkaError._TIMED_OUT,
    KafkaError.UNSTABLE_OFFSET_COMMIT,
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
}
"""Errors of a cluster while a transaction ends, or while it looks for the coordinator of a group, as before the first turn."""
_RIGHTS = {
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "Describe and Write on the transactional id {name}",
    KafkaError.GROUP_AUTHORIZATION_FAILED: "Read on the group {name}",
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "Read and Write on the topic {topic}",
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: "IdempotentWrite on the cluster",
}
"""The privileges that a user needs for transactions, by the error for a missing one."""


class _Producing(Closing):
    """Base class of both sinks: a producer, and its errors."""

    ends_by: AbstractSet[int]
    """Errors of a client as a whole, after which it must be made anew."""

    def __init__(self, address: BrokerAddress) -> None:
        self._address = address
        self._failure: BrokerError | None = None
        """The error that has ended the client as a whole."""
        self._config: dict[str, Any] = {
            **kafka_client.client_config(address),
            "enable.idempotence": True,
            "acks": "all",
            "message.max.bytes": 1_000_000_000,  # so that the broker's own limit counts
            "partitioner": "murmur2_random",  # as Java's: a key gets the same partition as from other producers
            "error_cb": self._on_error,
        }
        lookup = kafka_client.TopicLookup(address)
        if not lookup.topic.allows_writing:
            raise BrokerRefusedError(f"{address}: this user may not send there", hint=f"allow Write on {address.name}")
        lookup.warn_if_compacted("all but the last message of each messageSourceId, and refuses those without one")

    def _produce(self, producer: Producer, **arguments: Any) -> None:
        until = time.monotonic() + ANSWER_SECS
        while True:
            try:
                producer.produce(self._address.name, **arguments)
            except BufferError:  # its queue is full
                if time.monotonic() > until:
                    raise BrokerError(f"{self._address}: it accepted nothing for {ANSWER_SECS:g} s") from None
                producer.poll(0.1)
            else:
                return

    def _failure_of(self, error: Any) -> BrokerError:
        if error.code() in _UNWANTED:
            return MessageRefusedError(
                f"{self._address} refuses a message: {error.str()}", hint="don't send this message"
            )
        return kafka_client.error_of(self._address, error)

    def _on_error(self, error: Any) -> None:
        if error.code() in self.ends_by:
            self._failure = self._failure or kafka_client.error_of(self._address, error)


class KafkaSink(_Producing):
    """Messages to a topic, by an idempotent producer: each is confirmed once all in-sync replicas have it."""

    drops_known_ids = False
    ends_by = kafka_client.ENDED - {KafkaError._ALL_BROKERS_DOWN}  # then messages wait for a while

    def __init__(self, address: BrokerAddress) -> None:
        super().__init__(address)
        # No time-out for each message: its time depends on the network, and on how many messages are before it.
        self._producer = Producer({**self._config, "message.timeout.ms": 0}, logger=kafka_client.Quiet)

    def send(self, messages: Sequence[Message]) -> None:
        arguments = [encoded(message) for message in messages]  # encode all before sending the first
        failures: list[BrokerError] = []
        noted = partial(self._note, failures)
        try:
            for each in arguments:
                self._produce(self._producer, on_delivery=noted, **each)
            left = self._left_unanswered()
        except KafkaException as error:
            raise self._failure_of(error.args[0]) from error
        if left or self._failure is not None:
            failures.append(self._failure or no_answer_error(self._address, ANSWER_SECS))
        if failures:  # a broker that is away counts before a message that is to blame
            raise min(failures, key=lambda each: isinstance(each, MessageRefusedError))

    def _left_unanswered(self) -> int:
        """Wait as long as answers come. Returns how many messages have none."""
        left, until = len(self._producer), time.monotonic() + ANSWER_SECS
        while left and self._failure is None and time.monotonic() < until:
            before, left = left, self._producer.flush(_POLL_SECS)
            if left < before:
                until = time.monotonic() + ANSWER_SECS
        return left

    def close(self) -> None:
        with suppress(KafkaException):
            self._producer.purge()
            self._producer.flush(CLOSE_SECS)

    def _note(self, failures: list[BrokerError], error: Any, _record: Any) -> None:
        if error is not None:
            failures.append(self._failure_of(error))


class KafkaTurns(_Producing):
    """Turns of messages to a topic, each a transaction. A turn's note is the metadata of an offset that the transaction commits
    for a consumer group without members. Group and transactions share a name, by which the broker fences earlier producers."""

    ends_by = kafka_client.ENDED - {KafkaError._FATAL}  # each call raises by itself if it is fenced

    def __init__(self, address: BrokerAddress) -> None:
        super().__init__(address)
        self._producer: Producer | None = None
        self._notes: Consumer | None = None
        """Reads the note, once no open transaction can change it any more."""
        self._name = ""

    def begin(self, name: str) -> str | None:
        self.close()
        self._failure = None
        self._name = f"receiver-{self._address.name}-{name}"
        within = {"transactional.id": self._name, "message.timeout.ms": round(ANSWER_SECS * 1_000)}
        self._producer = Producer({**self._config, **within}, logger=kafka_client.Quiet)
        try:
            self._producer.init_transactions(ANSWER_SECS)
            self._notes = self._reader("read_committed")
            return self._settled_note()
        except KafkaException as error:
            raise self._turn_failure_of(error.args[0]) from error

    def send_turn(self, messages: Sequence[Message], *, note: str, number: int) -> bool:
        arguments = [encoded(message) for message in messages]
        try:
            self._transact(arguments, note=note, number=number)
            # The transaction is decided, but the broker has yet to mark its messages and its note. If the broker is killed
            # before that, it may forget to. The next transaction would wait for the marks too, but ask for them more slowly.
            return self._settled_note() == note
        except KafkaException as error:
            why = self._why_ended(error.args[0])
            if why.code() == KafkaError._FENCED:
                return False
            raise self._turn_failure_of(why, is_alone=len(messages) == 1) from error

    def abandon_turn(self) -> None:
        producer = self._producer
        assert producer is not None  # noqa: S101 - `begin` comes first
        try:
            producer.begin_transaction()
            self._send_note(producer, "", 0)
            # The turn's partitions aren't known, so all get a record. Only readers at `read_uncommitted` see these records. A
            # compacted topic refuses them, which ends its part of the turn too.
            for partition in kafka_client.TopicLookup(self._address).topic.partitions:
                self._produce(producer, partition=partition)
            if producer.flush(ANSWER_SECS):
                raise no_answer_error(self._address, ANSWER_SECS)
            producer.abort_transaction(ANSWER_SECS)
        except KafkaException as error:
            raise self._turn_failure_of(error.args[0]) from error

    def check(self) -> None:
        if self._producer is not None:
            self._producer.poll(0)
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        producer, self._producer = self._producer, None
        notes, self._notes = self._notes, None
        if producer is not None:
            with suppress(KafkaException):  # otherwise readers wait until the broker itself ends the transaction
                producer.abort_transaction(CLOSE_SECS)
        if notes is not None:
            notes.close()

    def _reader(self, isolation: str) -> Consumer:
        """A consumer that reads the group's notes, without joining the group."""
        config = {
            **kafka_client.client_config(self._address),
            "group.id": self._name,
            "isolation.level": isolation,
            "retry.backoff.ms": _ASK_AGAIN_MILLIS,
            "retry.backoff.max.ms": 20 * _ASK_AGAIN_MILLIS,
        }
        return Consumer(config, logger=kafka_client.Quiet)

    def _settled_note(self) -> str | None:
        """The note once no transaction is under way; `TurnForgottenError` if one never ends."""
        assert self._notes is not None  # noqa: S101 - `begin` comes first
        try:
            return self._note(self._notes, ANSWER_SECS)
        except KafkaException as error:
            if error.args[0].code() not in _SOON:
                raise
            other = self._reader("read_uncommitted")
            try:
                note = self._note(other, CLOSE_SECS)
            finally:
                other.close()
            raise TurnForgottenError(self._address, note) from error

    def _note(self, notes: Consumer, within_secs: float) -> str | None:
        until = time.monotonic() + within_secs
        while True:
            try:
                (at,) = notes.committed([TopicPartition(self._address.name, 0)], timeout=CLOSE_SECS)
                error = at.error
            except KafkaException as failure:
                error = failure.args[0]
            if error is None:
                return at.metadata or None
            said = notes.poll(0)  # shows a missing privilege, for which `committed` only times out
            error = error if said is None else said.error() or error
            if error.code() not in _SOON or time.monotonic() > until:
                raise KafkaException(error)
            self.check()
            time.sleep(_POLL_SECS)

    def _transact(self, arguments: Sequence[Mapping[str, Any]], *, note: str, number: int) -> None:
        self.check()
        producer = self._producer
        assert producer is not None  # noqa: S101 - `begin` comes first
        producer.begin_transaction()
        for each in arguments:
            self._produce(producer, **each)
        self._send_note(producer, note, number)
        producer.commit_transaction(ANSWER_SECS)

    def _send_note(self, producer: Producer, note: str, number: int) -> None:
        assert self._notes is not None  # noqa: S101 - `begin` comes first
        # An offset below 0 would be silently left out.
        at = TopicPartition(self._address.name, 0, max(0, number), metadata=note)
        group = self._notes.consumer_group_metadata()
        # The call may never return: https://github.com/confluentinc/librdkafka/issues/5511
        self._ask(partial(producer.send_offsets_to_transaction, [at], group, ANSWER_SECS))

    def _ask(self, call: Callable[[], object]) -> None:
        """Make a call in a thread. If no node can be reached, or no answer comes, give up, and leave the thread alone."""
        ended: Future[object] = Future()

        def make() -> None:
            try:
                ended.set_result(call())
            except KafkaException as error:
                ended.set_exception(error)

        threading.Thread(target=make, daemon=True).start()
        until = time.monotonic() + ANSWER_SECS + CLOSE_SECS
        while not wait([ended], _POLL_SECS).done:
            self.check()
            if time.monotonic() > until:
                raise no_answer_error(self._address, ANSWER_SECS)
        ended.result()

    def _why_ended(self, error: Any) -> Any:
        """The error that made the transaction fail: after a refused message, later calls may only say that it has failed."""
        if self._producer is not None and error.code() == KafkaError._STATE:
            try:
                self._producer.begin_transaction()
            except KafkaException as first:
                return first.args[0]
        return error

    def _turn_failure_of(self, error: Any, *, is_alone: bool = False) -> BrokerError:
        needed = _RIGHTS.get(error.code())
        if needed is not None:
            right = needed.format(name=self._name, topic=self._address.name)
            return BrokerRefusedError(
                f"{self._address}: this user may not send in transactions: {error.str()}",
                hint=f"allow {right}; or write ?transactions=no behind the topic, for at least once",
            )
        failure = self._failure or self._failure_of(error)
        if is_alone and error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
            return MessageUnfitError(failure.message, hint=failure.hint)
        return failure
