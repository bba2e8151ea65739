"""Kafka: a topic, read by a consumer group, as a source, by librdkafka.

A rebalance assigns all partitions anew ("eager"), so that after any change in the group each bridge goes on from the store's
positions, whatever it knew before. The cost: messages that were fetched ahead are fetched again.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from typing import Any

from receiver.bridge.connectors import BATCH_BYTES, Delivery, check_durable, kafka_client, too_large_error
from receiver.bridge.connectors.address import BrokerAddress, offset_of
from receiver.bridge.connectors.kafka_client import Consumer, KafkaError, KafkaException, TopicPartition
from receiver.bridge.connectors.kafka_message import decoded
from receiver.bridge.connectors.sockets import ANSWER_SECS
from receiver.closing import Closing
from receiver.errors import BrokerError, BrokerRefusedError, MessagesLostError, ReceiverError, SettingsError
from receiver.store.positions import Advance, Positions

_LOGGER = logging.getLogger("receiver.bridge")
_SESSION_SECS = 10.0
"""After this long without a heartbeat a bridge counts as dead, and its partitions go to others."""
_TOPIC_ID = "topic"
"""The name of a position that isn't a partition's: its value is the topic's id, which tells topics of equal name apart."""
_PIECE_SECS = 0.1
"""The longest single wait: a failure within a callback doesn't end a wait."""
_TRUNCATED = KafkaError(KafkaError._LOG_TRUNCATION).str()
_LOST = re.compile(r"[0-9]{1,9}:[0-9]{1,18}(?:,[0-9]{1,9}:[0-9]{1,18})*")
_FETCHED_BYTES = 60 << 20
"""More bytes than one fetch brings, except for a single larger message."""
_MOST_BYTES = (1 << 31) - 1
_MOST_AT_ONCE = 1_000_000
"""librdkafka gives no more messages in one call."""


@dataclass(slots=True)
class _Share:
    """A partition that the group has assigned, until it assigns anew."""

    begun: int
    """The offset where it began."""
    epoch: str
    """The epoch of the message before that; empty if not known."""
    is_unproved: bool = False
    """Whether it may have lost its end: the message before the beginning should come first."""
    is_asked: bool = False
    """Whether its broker was asked how far the epoch reaches, and no message of it has come since."""
    is_at_end: bool = False


class KafkaSource(Closing):
    """Messages of the partitions that the group assigns, from the store's positions; in BEST_EFFORT from the group's own."""

    def __init__(self, address: BrokerAddress, *, max_body_bytes: int) -> None:
        check_durable(address)
        self.positions_of = address.positions_of
        self._address = address
        self._max_body_bytes = max_body_bytes
        self._begins_late = address.begins_late
        self._given_up = _given_up(address)
        self._positions: Positions | None = None
        self._kept: dict[int, str] = {}
        """By partition, the position in the store."""
        self._next: dict[int, str] = {}
        """By partition, the position behind messages that were taken and not acknowledged."""
        self._shares: dict[int, _Share] = {}
        """By number, the partitions that the group assigned last."""
        self._is_assigned = False
        """Whether the group has assigned partitions, be it none."""
        self._failure: ReceiverError | None = None
        config = self._config()
        self._lookup = kafka_client.TopicLookup(address)
        self._lookup.warn_if_compacted("messages with the key of a later one, even before they are taken")
        self._consumer = Consumer(config, logger=kafka_client.Quiet)
        self._consumer.subscribe([address.name], on_assign=self._on_assign, on_revoke=self._on_revoke)

    @property
    def is_settling(self) -> bool:
        """Whether a partition that is or may be ours hasn't been read to its end."""
        return not (self._is_assigned and all(share.is_at_end for share in self._shares.values()))

    def start(self, positions: Positions) -> None:
        self._check_alone(positions)
        known = positions.read()
        topic_id = self._lookup.topic.id
        if topic_id and known.get(_TOPIC_ID, topic_id) != topic_id:
            raise self._made_anew_error()
        begin = {_TOPIC_ID: topic_id} if topic_id else {}
        if self._begins_late and not known:  # partitions that are added later are read from their beginning
            begin |= {str(number): str(self._bounds(number)[1]) for number in self._lookup.topic.partitions}
        if not begin.keys() <= known.keys():
            positions.begin(begin)
        self._positions = positions

    def _check_alone(self, positions: Positions) -> None:
        """Raise `SettingsError` if another group of the topic has the domain: each would drop the other's messages."""
        others = [other for other in positions.others() if other.startswith(f"{self._address.name}?group=")]
        if others:
            raise SettingsError(
                f"{self._address}: its domain is one of {others[0]}, and drops what that has taken",
                hint="give each group a domain of its own: another --connection-id, or none",
            )

    def take(self, at_most: int, *, wait_secs: float) -> list[Delivery]:
        self._check()
        taken: list[Delivery] = []
        try:
            taken = self._accepted(self._polled(at_most, wait_secs))
        except KafkaException as error:
            self._failure = kafka_client.failure_of(self._address, error)
        if taken and not self._is_of_the_topic():
            taken = []
        if not taken:
            self._check()
        self._next |= _last(taken)
        return taken

    def advances(self, deliveries: Sequence[Delivery]) -> list[Advance]:
        behind = _last(deliveries)
        return [Advance(str(number), self._kept.get(number), behind[number]) for number in sorted(behind)]

    def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        behind = _last(deliveries)
        if not behind:
            return
        at = [TopicPartition(self._address.name, number, offset_of(behind[number])[0]) for number in behind]
        try:
            # With a store, its positions count, and the group's own are only for figures of its lag. Without a store, the
            # group's own positions count.
            # The library's types only know literals.
            self._consumer.commit(offsets=at, asynchronous=self._positions is not None)  # type: ignore[call-overload]
        except (KafkaException, RuntimeError) as error:
            if self._positions is None:
                raise kafka_client.failure_of(self._address, error) from error
        self._kept |= behind
        for number in behind:
            self._next.pop(number, None)

    def close(self) -> None:
        with suppress(KafkaException, RuntimeError):
            self._consumer.close()

    def _config(self) -> dict[str, Any]:
        session_ms = _session_ms(self._address)
        return {
            **kafka_client.client_config(self._address),
            "group.id": self._address.subscription,
            "partition.assignment.strategy": "roundrobin",
            "session.timeout.ms": session_ms,
            "heartbeat.interval.ms": max(1, min(3_000, session_ms // 3)),
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            "queued.max.messages.kbytes": BATCH_BYTES >> 10,  # about; a take may have all that was fetched ahead
            "fetch.queue.backoff.ms": 50,  # once so much waits; by default it fetches no more for a second
            "receive.message.max.bytes": min(_MOST_BYTES, self._max_body_bytes + _FETCHED_BYTES),
            "error_cb": self._on_error,
        }

    def _check(self) -> None:
        if self._failure is not None:
            raise copy(self._failure)

    def _is_of_the_topic(self) -> bool:
        """Whether the records that have just come are of the positions' topic. They are if this topic still exists now."""
        if self._positions is None or not self._lookup.topic.id:
            return True
        try:
            if self._lookup.ask().id != self._lookup.topic.id:
                self._failure = self._made_anew_error()
        except BrokerRefusedError:  # the topic is gone, and these are its last records
            return True
        except BrokerError as error:
            self._failure = error
        return self._failure is None

    def _made_anew_error(self) -> MessagesLostError:
        return MessagesLostError(
            f"{self._address}: the topic was deleted and created again after the store kept its positions",
            hint="the old messages are gone; to take the new ones, use a new domain (--connection-id)",
        )

    def _polled(self, at_most: int, wait_secs: float) -> list[Any]:
        """Wait for a record or an error, and return all that are there; without the ends of partitions."""
        until = time.monotonic() + wait_secs
        while self._failure is None:
            left_secs = until - time.monotonic()
            first = self._consumer.poll(min(max(0.0, left_secs), _PIECE_SECS))
            if first is None:
                if left_secs <= 0:
                    break
            elif not self._noted_end(first):
                more = self._consumer.consume(min(at_most - 1, _MOST_AT_ONCE), timeout=0) if at_most > 1 else []
                return [first, *(each for each in more if not self._noted_end(each))]
        return []

    def _share_of(self, record: Any) -> _Share:
        """The share that the record is of; a new one if the group has taken its partition away meanwhile."""
        return self._shares.get(record.partition()) or _Share(0, "")

    def _noted_end(self, record: Any) -> bool:
        """Note whether the partition is at its end. Returns whether that is all that the record says."""
        error = record.error()
        is_end: bool = error is not None and error.code() == KafkaError._PARTITION_EOF
        if error is None or is_end:
            self._share_of(record).is_at_end = is_end
        return is_end

    def _accepted(self, records: Sequence[Any]) -> list[Delivery]:
        """The deliveries of these records, up to the first that ends this source."""
        taken: list[Delivery] = []
        rewound: set[int] = set()
        for record in records:
            if self._failure is not None:
                break
            error, number, share = record.error(), record.partition(), self._share_of(record)
            if error is not None:
                # If an offset is gone, the next connection reports the lost offsets.
                self._failure = self._lost_end_error(record) or kafka_client.error_of(self._address, error)
            elif share.is_unproved:
                if self._prove(record, share):
                    rewound.add(number)
            elif number in rewound or record.offset() < share.begun:
                pass  # it comes again, or is from before the beginning: asked for as a check, or fetched before a rebalance
            elif (size := len(record.value() or b"")) > self._max_body_bytes:
                name = f"{self._address}: offset {record.offset()} of partition {number}"
                self._failure = too_large_error(name, f"{size:,}", self._max_body_bytes)
            else:
                share.is_asked = False
                taken.append(Delivery(decoded(record), _behind(record)))
        return taken

    def _prove(self, record: Any, share: _Share) -> bool:
        """Check that the message before the beginning is the one that was taken: a partition that loses its end, such as by a
        power cut, reuses the offsets for other messages, in another epoch.

        The message may not come: a compacted topic has dropped it, or the end of a transaction has its offset. Then the library
        asks the broker how far the epoch reaches, and the partition is wound back. Returns whether it is.
        """
        number, offset = record.partition(), share.begun
        if record.offset() < offset - 1:
            return False
        share.is_unproved = False
        if record.offset() < offset:
            if str(record.leader_epoch()) != share.epoch:
                self._failure = self._other_message_error(number, offset)
            return False
        share.is_asked, share.is_at_end = True, False
        try:
            self._consumer.seek(TopicPartition(self._address.name, number, offset, leader_epoch=int(share.epoch)))
        except KafkaException as error:
            self._failure = kafka_client.failure_of(self._address, error)
        return True

    def _lost_end_error(self, record: Any) -> MessagesLostError | None:
        """The error for an epoch that doesn't reach to where this source began; None for other errors."""
        share = self._share_of(record)
        if not share.is_asked or _TRUNCATED not in record.error().str():
            return None
        return self._other_message_error(record.partition(), share.begun)

    def _other_message_error(self, number: int, offset: int) -> MessagesLostError:
        return MessagesLostError(
            f"{self._address}: offset {offset - 1:,} of partition {number} now has another message: the partition has "
            "lost its end, or the topic was deleted and created again",
            hint="to take all that is there, use a new domain (--connection-id); "
            f"&lost={number}:{offset} behind the group goes on behind that offset",
        )

    def _on_error(self, error: Any) -> None:
        if error.code() in kafka_client.ENDED:
            self._failure = self._failure or kafka_client.error_of(self._address, error)

    def _on_revoke(self, consumer: Consumer, _partitions: Sequence[TopicPartition]) -> None:
        self._is_assigned = False
        consumer.unassign()

    def _on_assign(self, consumer: Consumer, partitions: Sequence[TopicPartition]) -> None:
        """Go on from the store's positions. Notes errors, because an exception would be lost in the library's callbacks."""
        try:
            bounds = {each.partition: self._bounds(each.partition) for each in partitions}
            begun = self._beginnings(consumer, bounds)
            self._shares = {number: _Share(*offset_of(position)) for number, position in begun.items()}
        except ReceiverError as error:
            self._failure = self._failure or error
        except KafkaException as error:
            self._failure = self._failure or kafka_client.failure_of(self._address, error)
        else:
            self._is_assigned = True
            at = []
            for number, share in self._shares.items():
                # Begin one message earlier, if its epoch is known and it may be there.
                share.is_unproved = bool(share.epoch) and bounds[number][0] < share.begun
                at.append(TopicPartition(self._address.name, number, share.begun - share.is_unproved))
            consumer.assign(at)
            return
        consumer.unassign()

    def _beginnings(self, consumer: Consumer, bounds: Mapping[int, tuple[int, int]]) -> dict[int, str]:
        """By partition, the position to go on from; `MessagesLostError` if the next message is gone."""
        stored = self._stored(consumer, bounds)
        known = {number: stored[str(number)] for number in bounds}
        self._check_unmoved(known)
        wanted = {number: self._past_given_up(number, known[number], low) for number, (low, _) in bounds.items()}
        self._check_there(wanted, bounds)
        self._kept |= known
        return wanted | {number: position for number, position in self._next.items() if number in wanted}

    def _check_unmoved(self, known: Mapping[int, str]) -> None:
        """Raise `BrokerError` if another bridge has moved the position of a partition from which this one was taking."""
        for number, position in known.items():
            if number in self._next and self._kept.get(number) != position:
                raise BrokerError(
                    f"{self._address}: another bridge has gone on in partition {number}", hint="go on there"
                )

    def _past_given_up(self, number: int, position: str, low: int) -> str:
        """The position to go on from in a partition: its lowest offset, if a person has given up all messages before that."""
        wanted, given_up = offset_of(position)[0], self._given_up.get(number, -1)
        if not wanted < low <= given_up:
            return position if wanted > given_up else str(wanted)  # without checking the message before it
        _LOGGER.warning(
            "%s: partition %d goes on at offset %d because of lost=; %d to %d are lost",
            *(self._address, number, low, wanted, low - 1),
        )
        return str(low)

    def _check_there(self, wanted: Mapping[int, str], bounds: Mapping[int, tuple[int, int]]) -> None:
        """Raise `MessagesLostError` if partitions no longer have the wanted offsets."""
        problems, ways_on = [], []
        for number, (low, high) in bounds.items():
            offset, _ = offset_of(wanted[number])
            if offset < low:
                problems.append(
                    f"offsets {offset:,} to {low - 1:,} of partition {number} are gone before they were taken"
                )
                ways_on.append(f"{number}:{low}")
            elif offset > high:
                problems.append(
                    f"partition {number} ends at offset {high:,}, but was taken up to {offset:,}: it has lost messages"
                )
        if problems:
            way_on = f"&lost={','.join(ways_on)} behind the group skips them"
            other = "name another group" if self._positions is None else "use a new domain (--connection-id)"
            raise MessagesLostError(f"{self._address}: {'; '.join(problems)}", hint=way_on if ways_on else other)

    def _stored(self, consumer: Consumer, bounds: Mapping[int, tuple[int, int]]) -> Mapping[str, str]:
        """By partition, the position to go on from. A new one is stored at once, so that later losses are noticed."""
        if self._positions is None:
            return self._stored_by_group(consumer, bounds)
        stored = self._positions.read()
        new = {str(number): str(low) for number, (low, _) in bounds.items() if str(number) not in stored}
        if not new:
            return stored
        self._positions.begin(new)
        return self._positions.read()

    def _stored_by_group(self, consumer: Consumer, bounds: Mapping[int, tuple[int, int]]) -> dict[str, str]:
        numbers = {*bounds, *self._lookup.topic.partitions} if bounds and self._begins_late else bounds
        wanted = [TopicPartition(self._address.name, number) for number in numbers]
        there = consumer.committed(wanted, timeout=ANSWER_SECS) if wanted else []
        for each in there:
            if each.error is not None:  # its offset says nothing
                raise kafka_client.error_of(self._address, each.error)
        begin = [each for each in there if each.offset < 0]
        # Partitions that are added later are read from their beginning. So at the first start all others begin, too.
        late = self._begins_late and len(begin) == len(there)
        for each in begin:
            each.offset = (bounds.get(each.partition) or self._bounds(each.partition))[late]
        if begin:
            consumer.commit(offsets=begin, asynchronous=False)
        return {str(each.partition): str(each.offset) for each in there}

    def _bounds(self, number: int) -> tuple[int, int]:
        """The first offset of a partition, and the one behind the last."""
        partition = TopicPartition(self._address.name, number)
        try:
            bounds = self._consumer.get_watermark_offsets(partition, timeout=ANSWER_SECS)
        except KafkaException as error:
            raise kafka_client.failure_of(self._address, error) from error
        if bounds is None:
            raise BrokerError(f"{self._address}: no answer in {ANSWER_SECS:g} s", hint="check that it runs")
        return bounds


def _last(deliveries: Sequence[Delivery]) -> dict[int, str]:
    """By partition, the position behind the last of these deliveries."""
    return dict(delivery.token for delivery in deliveries)


def _behind(record: Any) -> tuple[int, str]:
    """A record's partition, and the position behind it: an offset, and the record's epoch if it has one."""
    epoch = record.leader_epoch()
    return record.partition(), f"{record.offset() + 1}" + ("" if epoch is None or epoch < 0 else f" {epoch}")


def _session_ms(address: BrokerAddress) -> int:
    try:
        secs = float(address.options.get("session", _SESSION_SECS))
    except ValueError:
        secs = 0
    if not 1 <= secs <= 300:  # noqa: PLR2004 - beyond it librdkafka's own limit of a poll
        raise SettingsError(f"{address}: session is a number of seconds from 1 to 300")
    return round(1_000 * secs)


def _given_up(address: BrokerAddress) -> dict[int, int]:
    """By partition, the offset before which a person has given up messages (`lost=`)."""
    text = address.options.get("lost")
    if text is None:
        return {}
    if not _LOST.fullmatch(text):
        raise SettingsError(f"{address}: lost is PARTITION:OFFSET, or several with commas between them")
    return {int(number): int(offset) for number, offset in (each.split(":") for each in text.split(","))}
