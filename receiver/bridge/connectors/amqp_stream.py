"""Streams of RabbitMQ by AMQP 1.0: the stream keeps its messages, and the store keeps how far they were taken.

RabbitMQ never says that a wanted offset is gone: it goes on at the next offset that is there. And not every offset has a
message. So the bridge asks again for the last message that it took, to prove that none behind it is missing, and does the same
wherever an offset is left out. The position has a digest of that message, which shows whether the stream was made anew.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import Any
from urllib.parse import quote

from receiver.bridge.connectors import Delivery, warn_once
from receiver.bridge.connectors.address import STREAM_POSITION, BrokerAddress, offset_of
from receiver.bridge.connectors.amqp import AmqpSource
from receiver.bridge.connectors.amqp_link import AmqpLink, proton
from receiver.bridge.connectors.amqp_sections import (
    ANNOTATIONS,
    PROPERTIES,
    VALUE,
    WRONG,
    section,
    section_of,
    sections_of,
    value_of,
)
from receiver.bridge.connectors.sockets import ANSWER_SECS
from receiver.closing import Closing
from receiver.errors import BrokerError, BrokerRefusedError, MessageRefusedError, MessagesLostError, SettingsError
from receiver.store.positions import Advance, Positions

_LOGGER = logging.getLogger("receiver.bridge")
_SPEC = proton.symbol("rabbitmq:stream-offset-spec")
_OFFSET = "x-stream-offset"
_FIRST, _LAST = "first", "last"
"""Offsets by name: the beginning of the stream, and the beginning of the chunk that was written last."""
_DIGEST_BYTES = 16
_OFFSETS = re.compile("[0-9]{1,20}")
_MANAGEMENT, _PAIR, _PAIRED = "/management", "receiver-management", {proton.symbol("paired"): True}
_FOUND = "200"
_NULL = b"\x40"
_ANY_BYTES = 1 << 40
_DELIVERY_LIMIT = 20
"""That of a quorum queue which is declared without one."""


def amqp_source(
    address: BrokerAddress, *, max_body_bytes: int, most_ahead: int | None = None
) -> AmqpSource | AmqpStreamSource:
    """A source for a stream or for anything else; `BrokerRefusedError` for a stream that the address doesn't call a stream."""
    if address.is_stream:
        return AmqpStreamSource(address, max_body_bytes=max_body_bytes)
    source = AmqpSource(address, max_body_bytes=max_body_bytes, most_ahead=most_ahead)
    if source.dialect.has_streams and not address.is_topic:
        try:
            _check_queue(address)
        except BaseException:
            source.close()
            raise
    return source


class AmqpStreamSource(Closing):
    """Messages of a stream, from the position of the store."""

    def __init__(self, address: BrokerAddress, *, max_body_bytes: int) -> None:
        self.positions_of = address.positions_of
        self._address = address
        self._max_body_bytes = max_body_bytes
        self._begins_late = address.begins_late
        self._given_up = _given_up(address)
        self._kept: str | None = None
        """The position in the store."""
        self._next: int | None = None
        """The offset behind the last message taken; None while it isn't known where to begin."""
        self._digest = ""
        """The digest of the last message taken; empty if not known, as in a position of an older version."""
        self._reader: _Reader | None = None
        with _Question(address) as question:
            kind = question.queue()["type"]
        if kind != "stream":
            written = replace(address, is_stream=False, options={})
            raise BrokerRefusedError(f"{address} is a {kind} queue and no stream", hint=f"write {written}")

    @property
    def is_settling(self) -> bool:
        """Whether the last message taken is still to come again."""
        is_proved = self._reader is not None and self._reader.is_proved
        return self._next is None or (self._next > 0 and not is_proved)

    def start(self, positions: Positions) -> None:
        if STREAM_POSITION not in positions.read():
            positions.begin({STREAM_POSITION: str(self._beginning())})
        self._kept = positions.read()[STREAM_POSITION]
        self._next, self._digest = offset_of(self._kept)

    def take(self, at_most: int, *, wait_secs: float) -> list[Delivery]:
        until = time.monotonic() + wait_secs
        while True:
            reader = self._reader or self._attach()
            taken = self._accepted(reader, reader.take(at_most, wait_secs=max(0.0, until - time.monotonic())))
            if taken or (self._reader is not None and time.monotonic() >= until):
                break
        if self._reader is not None and self.is_settling and time.monotonic() - reader.began_secs > ANSWER_SECS:
            self._look_for_the_end()
        return taken

    def advances(self, deliveries: Sequence[Delivery]) -> list[Advance]:
        return [Advance(STREAM_POSITION, self._kept, _behind(deliveries))] if deliveries else []

    def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        """Let the broker send more. The position itself is in the store."""
        if not deliveries:
            return
        self._kept = _behind(deliveries)
        reader, number, _ = deliveries[-1].token
        if self._reader is not None and self._reader is reader:
            self._reader.begin_acknowledging_to(number)()

    def close(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()

    def _beginning(self) -> int:
        """The offset to begin at if no message was taken yet: of the first message that is there, or behind the last."""
        with _Edge(self._address, _LAST if self._begins_late else _FIRST) as edge:
            offset = edge.offset()
        return 0 if offset is None else offset + self._begins_late

    def _attach(self) -> _Reader:
        if self._next is None:
            self._next = self._beginning()
        spec = proton.ulong(max(0, self._next - 1))
        self._reader = _Reader(self._address, spec, max_body_bytes=self._max_body_bytes)
        return self._reader

    def _look_for_the_end(self) -> None:
        """Begin again, because the broker was slow; `MessagesLostError` if the last message taken isn't there."""
        assert self._next is not None  # noqa: S101 - the reader began there
        with _Edge(self._address, _LAST) as edge:
            last = edge.offset()
        if last is None or last + 1 < self._next:
            raise MessagesLostError(
                f"{self._address} ends before offset {self._next:,}, where the bridge had come to: the stream has lost "
                "messages, or was deleted and created again",
                hint="the old messages are gone; to take the new ones, use a new domain (--connection-id)",
            )
        self.close()  # the next `take` begins by another reader

    def _accepted(self, reader: _Reader, came: Sequence[Delivery]) -> list[Delivery]:
        """The deliveries that continue the stream, up to the first gap that isn't proven to be empty."""
        assert self._next is not None  # noqa: S101 - the reader began there
        taken: list[Delivery] = []
        for delivery in came:
            number, offset, digest = delivery.token
            if not reader.is_proved:
                self._check_lost(self._next, offset)
                if offset == self._next - 1:
                    self._check_same(self._next, digest)
                reader.is_proved = True
                if offset < self._next:
                    reader.may_leave_out = True
                    continue
            elif offset > self._next:
                if not reader.may_leave_out:
                    self.close()
                    break
                if offset > self._next + 1:  # a single missing offset is RabbitMQ's own, at the head of a segment
                    _LOGGER.warning(
                        "%s: AMQP gets no messages for offsets %d to %d: notes of stream clients, or compressed batches",
                        *(self._address, self._next, offset - 1),
                    )
            reader.may_leave_out = False
            self._next, self._digest = offset + 1, digest
            taken.append(Delivery(delivery.message, (reader, number, f"{offset + 1} {digest}")))
        return taken

    def _check_lost(self, wanted: int, offset: int) -> None:
        """Raise `MessagesLostError` if the first message is behind the wanted one."""
        if offset <= wanted:
            return
        if offset > self._given_up:
            raise MessagesLostError(
                f"{self._address}: offsets {wanted:,} to {offset - 1:,} are gone before they were taken",
                hint=f"lost={offset} behind ? skips them",
            )
        _LOGGER.warning(
            "%s: going on at offset %d because of lost=; %d to %d are lost", self._address, offset, wanted, offset - 1
        )

    def _check_same(self, wanted: int, digest: str) -> None:
        """Raise `MessagesLostError` if the offset of the last message taken now has another message."""
        if self._digest in {"", digest} or wanted <= self._given_up:
            return
        raise MessagesLostError(
            f"{self._address}: offset {wanted - 1:,} now has another message: the stream was deleted and created again",
            hint="to take all of the new one, use a new domain (--connection-id); "
            f"lost={wanted} behind ? goes on in it behind that offset",
        )


class _Reader(AmqpSource):
    """Messages of a stream from an offset on, each with its offset in the token."""

    comes_again = False

    def __init__(self, address: BrokerAddress, spec: Any, *, max_body_bytes: int) -> None:
        self._spec = spec
        self.began_secs = time.monotonic()
        self.is_proved = False
        """Whether its first message has come, which shows whether those taken before are the stream's."""
        self.may_leave_out = False
        """Whether the message that came last was the last one taken, so that offsets behind it may have no message."""
        super().__init__(address, max_body_bytes=max_body_bytes)

    def _make_link(self) -> Any:
        link = super()._make_link()
        link.source.filter.put_dict({_SPEC: proton.Described(_SPEC, self._spec)})
        return link

    def _read_all(self, came: list[bytes]) -> list[Delivery]:
        with_offsets = []
        for delivery, data in zip(super()._read_all(came), came, strict=False):
            offset = self._offset_of(data)
            message = replace(delivery.message, default_id=f"{self._address.name}-{offset}")
            with_offsets.append(Delivery(message, (delivery.token, offset, _digest_of(data))))
        return with_offsets

    def _offset_of(self, data: bytes) -> int:
        try:
            (annotations,) = (value for code, value in sections_of(data) if code == ANNOTATIONS)
            return int(value_of(annotations)[_OFFSET])
        except WRONG as error:
            raise MessageRefusedError(
                f"{self._address}: a message says no offset: {error}", hint="take it by a client of streams"
            ) from error


class _Edge(_Reader):
    """The first or the last message of a stream."""

    def __init__(self, address: BrokerAddress, spec: str) -> None:
        self._offset: int | None = None
        self._granted = self._arrived = 0
        super().__init__(address, spec, max_body_bytes=_ANY_BYTES)

    def offset(self) -> int | None:
        """The message's offset; None if the stream is empty."""
        self._wait_for(self._ask(1))
        return self._offset

    def _serve(self) -> None:
        while (delivery := self._link.current) is not None:
            if not self._receive(delivery):
                return
            self._arrived += 1
        if self._incoming:
            if self._offset is None or self._spec == _LAST:
                self._offset = self._offset_of(self._incoming[0 if self._spec == _FIRST else -1])
            self._incoming.clear()
        if self._asked == self._done or self._link.credit > 0:  # below 0 if a whole chunk came at once
            return
        if self._granted and (self._spec == _FIRST or self._arrived < self._granted):
            self._count_done()
            return
        self._granted, self._arrived = 1 if self._spec == _FIRST else self.dialect.prefetch, 0
        self._link.drain(self._granted)  # the broker returns unused credit


class _Question(AmqpLink):
    """Asks RabbitMQ's management about a queue, by a pair of links."""

    def __init__(self, address: BrokerAddress) -> None:
        self._has_asked = False
        self._answer = proton.Message()
        super().__init__(address)

    def queue(self) -> Any:
        """What RabbitMQ says about the queue, by name."""
        self._wait_for(self._ask(1))
        said: Any = self._answer.body
        if self._answer.subject != _FOUND:
            raise BrokerRefusedError(
                f"{self._address}: {said}",
                hint=f"make the stream first: rabbitmqadmin declare queue name={self._address.name} queue_type=stream",
            )
        return said

    def _make_link(self) -> Any:
        if not self.dialect.has_streams:
            raise self._lacking_error("streams", "write /queue/NAME")
        link = self._session.receiver(_PAIR)
        link.source.address, link.target.address = _MANAGEMENT, _PAIR
        return self._settled(link)

    def _more_links(self) -> list[Any]:
        self._asking = self._session.sender(_PAIR)
        self._asking.source.address, self._asking.target.address = _PAIR, _MANAGEMENT
        return [self._settled(self._asking)]

    def _settled(self, link: Any) -> Any:
        link.snd_settle_mode = proton.Link.SND_SETTLED
        link.properties = _PAIRED
        return link

    def _serve(self) -> None:
        if self._asked == self._done:
            return
        if not self._has_asked and self._asking.credit > 0:
            self._has_asked = True
            self._link.flow(1)
            path = f"/queues/{quote(self._address.name, safe='')}"
            asked = self._asking.delivery(self._asking.delivery_tag())
            # With a null body, which Proton's own messages can't have.
            self._asking.stream(section_of(PROPERTIES, ["type", None, path, "GET", "$me"]) + section(VALUE, _NULL))
            self._asking.advance()
            asked.settle()
        delivery = self._link.current
        if delivery is not None and not delivery.partial:
            self._answer.decode(self._link.recv(delivery.pending))
            self._link.advance()
            self._count_done()


def _check_queue(address: BrokerAddress) -> None:
    """Raise `BrokerRefusedError` for a stream. Warns of a queue that drops what bridges have held too often."""
    try:
        with _Question(address) as question:
            queue = question.queue()
    except BrokerError:  # the queue was attached to, so it exists: an operator may have closed the management to us
        return
    if queue["type"] == "quorum":
        arguments = queue.get("arguments") or {}
        limit = int(arguments.get("x-delivery-limit", _DELIVERY_LIMIT))
        if limit >= 0 and "x-dead-letter-exchange" not in arguments:
            warn_once(
                f"{address} drops a message once more than {limit} connections have ended while holding it, unless a policy says "
                "otherwise: declare the queue with x-delivery-limit -1, or give it a dead-letter exchange"
            )
    if queue["type"] == "stream":
        raise BrokerRefusedError(
            f"{address} is a stream, of which only what is sent from now on would come",
            hint=f"write {replace(address, is_stream=True)}",
        )


def _digest_of(data: bytes) -> str:
    """A digest of the parts that the sender has set, without those set by brokers."""
    digest = blake2b(digest_size=_DIGEST_BYTES)
    for code, value in sections_of(data):
        if code >= PROPERTIES:
            digest.update(section(code, value))
    return digest.hexdigest()


def _behind(deliveries: Sequence[Delivery]) -> str:
    """The position behind these deliveries."""
    return str(deliveries[-1].token[-1])


def _given_up(address: BrokerAddress) -> int:
    """The offset before which a person has given up messages (`lost=`)."""
    text = address.options.get("lost")
    if text is None:
        return -1
    if not _OFFSETS.fullmatch(text):
        raise SettingsError(f"{address}: lost is an OFFSET")
    return int(text)
