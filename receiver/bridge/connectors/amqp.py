"""AMQP 1.0 by Qpid Proton, in the dialect of the broker's product.

AMQP brokers don't confirm an acceptance, in any settlement mode. So a batch is acknowledged in a transaction of its own: the
broker answers its discharge once the transaction is durable. A product without transactions gets acceptances, which it doesn't
answer: a message comes again if its acceptance doesn't reach the broker. A sent message is safe once the broker has accepted
it. A whole batch is sent at once, because one by one each message would wait for its answer.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Sequence
from copy import copy
from functools import partial
from typing import Any

from receiver.bridge.connectors import Delivery, too_large_error
from receiver.bridge.connectors.address import BrokerAddress
from receiver.bridge.connectors.amqp_link import AHEAD_BYTES, REFUSALS, AmqpLink, proton
from receiver.bridge.connectors.amqp_message import decoded, encoded
from receiver.bridge.connectors.sockets import named
from receiver.errors import BrokerError, MessageRefusedError, MessageUnfitError
from receiver.store.messages import Message

_PROPERTIES_BYTES = 1 << 20
"""The most bytes of a message besides its body. A larger message is refused before all of it has come."""
_IS_FULL = "amqp:resource-limit-exceeded"
"""The only condition of a rejection for which the message isn't to blame."""
_SELECTOR = proton.symbol("apache.org:selector-filter:string")
_DECLARED, _TRANSACTIONAL = 0x33, 0x34
"""States of deliveries for which Proton has no names: from AMQP's chapter on transactions."""


class AmqpSource(AmqpLink):
    """Messages of a queue, or of a topic's durable subscription."""

    comes_again = True
    """Whether the broker sends unaccepted messages again."""

    def __init__(self, address: BrokerAddress, *, max_body_bytes: int, most_ahead: int | None = None) -> None:
        self._max_body_bytes = max_body_bytes
        self._most_ahead = most_ahead
        self._at_most = 1
        """How many messages were last asked for at once."""
        self._most_unsettled = 1
        """How many messages may be unsettled: those unacknowledged at the last `take`, and as many as it asked for."""
        self._incoming: deque[bytes] = deque()
        self._incoming_bytes = 0
        self._part = bytearray()
        self._unsettled: deque[Any] = deque()
        """Unacknowledged deliveries, in order; the first `_to_accept` of them are to be acknowledged."""
        self._to_accept = 0
        self._accepted: list[Any] = []
        self._answer: Any = None
        """The last request to the broker's transaction coordinator, until it has answered; else None."""
        self._taken = self._acknowledged = 0
        self._refused: MessageRefusedError | None = None
        """Why the next message can't be taken."""
        super().__init__(address, client_id=address.subscription)

    @property
    def answers_acknowledgements(self) -> bool:
        return self.dialect.has_transactions

    def take(self, at_most: int, *, wait_secs: float) -> list[Delivery]:
        with self._lock:
            self._check()
            self._at_most = at_most or self._at_most
            self._most_unsettled = self._at_most + self._taken - self._acknowledged
            self._changed.wait_for(lambda: self._incoming or self._refused or self._failure, wait_secs)
            self._check()
            came = [self._incoming.popleft() for _ in range(min(at_most, len(self._incoming)))]
            self._incoming_bytes -= sum(map(len, came))
            self._wake()
            taken = self._read_all(came)
            if self._refused is not None and not taken:
                raise copy(self._refused)
        return taken

    def _read_all(self, came: list[bytes]) -> list[Delivery]:
        """The deliveries before the first that is refused."""
        taken: list[Delivery] = []
        try:
            for data in came:
                message = decoded(data)
                if len(message.body) > self._max_body_bytes:
                    raise too_large_error(
                        f"message {message.message_id}", f"{len(message.body):,}", self._max_body_bytes
                    )
                self._taken += 1
                taken.append(Delivery(message, self._taken))
        except MessageRefusedError as error:
            self._incoming.clear()
            self._refuse(error)
        return taken

    def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        self.begin_acknowledging(deliveries)()

    def begin_acknowledging(self, deliveries: Sequence[Delivery]) -> Callable[[], None]:
        return self.begin_acknowledging_to(deliveries[-1].token) if deliveries else lambda: None

    def begin_acknowledging_to(self, token: int) -> Callable[[], None]:
        """Begin to acknowledge a delivery, and all before it."""
        with self._lock:
            count, self._acknowledged = token - self._acknowledged, token
            self._to_accept += count
            return partial(self._wait_for, self._ask(count))

    def _make_link(self) -> Any:
        address, dialect = self._address, self.dialect
        if address.selector is not None and not dialect.has_selectors:
            raise self._lacking_error("selectors by AMQP", dialect.instead)
        if address.is_topic and not dialect.has_subscriptions:
            raise self._lacking_error("topics to take from by AMQP", dialect.instead)
        link = self._session.receiver(address.subscription or "receiver")
        link.source.address = self._terminus_address
        link.source.capabilities.put_object(_capabilities(address))
        if address.selector is not None:
            link.source.filter.put_dict({_SELECTOR: proton.Described(_SELECTOR, address.selector)})
        if address.subscription is not None:
            link.source.durability = proton.Terminus.DELIVERIES
            link.source.expiry_policy = proton.Terminus.EXPIRE_NEVER
        link.snd_settle_mode = proton.Link.SND_UNSETTLED
        link.rcv_settle_mode = proton.Link.RCV_FIRST
        return link

    def _more_links(self) -> list[Any]:
        if not self.dialect.has_transactions:
            return []
        self._coordinator = self._session.sender("receiver-transactions")
        self._coordinator.target.type = proton.Terminus.COORDINATOR
        return [self._coordinator]

    def _is_attached(self) -> bool:
        if not super()._is_attached():
            return False
        if self.dialect.has_transactions and self._coordinator.remote_target.type != proton.Terminus.COORDINATOR:
            return False  # the broker says why when it ends the link
        address, source = self._address, self._link.remote_source
        if address.selector is not None and _SELECTOR not in (source.filter.get_dict() if source.filter.next() else {}):
            raise self._lacking_error("selectors by AMQP", "leave out ?selector=")
        if address.subscription is not None and source.durability == proton.Terminus.NONDURABLE:
            raise self._lacking_error(
                "durable subscriptions by AMQP", "take from a queue that gets what the topic gets"
            )
        return True

    def _serve(self) -> None:
        while self._has_room() and (delivery := self._link.current) is not None:
            if not self._receive(delivery):
                break
        if self.dialect.has_transactions:
            if self._answer is not None and self._answer.remote_state:
                self._hear_coordinator()
            if self._to_accept and self._answer is None:
                self._answer = self._ask_coordinator("amqp:declare:list", [None])
        self._ask_for_more()
        if not self.dialect.has_transactions:
            self._settle()

    def _ask_for_more(self) -> None:
        if not self._has_room():
            return
        credit, unsettled, most = self._link.credit, len(self._unsettled), self.dialect.prefetch
        if self._most_ahead is not None:
            # Other consumers can't get unacknowledged messages: so take no more than one batch while another is handled.
            wanted = min(most, self._most_ahead, 2 * self._at_most) - unsettled
        elif credit + len(self._incoming) <= most // 2:
            wanted = most - len(self._incoming)
        else:
            wanted = credit
        if self.comes_again and not self.dialect.has_transactions:
            # New messages are the only sign that the broker has got acceptances. Those that it may not have got must fit into
            # one batch.
            wanted = min(wanted, self._most_unsettled - unsettled)
        # RabbitMQ sends five messages more than Proton first asks for, so this may be negative.
        wanted = max(0, wanted)
        if credit < wanted:
            self._link.flow(wanted - credit)

    def _give_back(self) -> None:
        if not self.dialect.is_given_back:
            return
        # The broker only flags messages as redelivered that are given back so.
        for _ in range(self._to_accept + self._taken - self._acknowledged):
            delivery = self._unsettled.popleft()
            delivery.local.failed = True
            delivery.update(proton.Delivery.MODIFIED)
            delivery.settle()

    def _settle(self) -> None:
        for _ in range(self._to_accept):
            delivery = self._unsettled.popleft()
            delivery.update(proton.Delivery.ACCEPTED)
            delivery.settle()
            self._count_done()
        if self._to_accept:
            self._to_accept = 0
            self._wake()  # asks for more, but only after this is written

    def _hear_coordinator(self) -> None:
        answer, self._answer = self._answer, None
        if answer.remote_state == _DECLARED:
            (transaction,) = answer.remote.data
            accepted = [transaction, proton.Described(proton.ulong(proton.Delivery.ACCEPTED), [])]
            for _ in range(self._to_accept):
                delivery = self._unsettled.popleft()
                delivery.local.data = accepted
                delivery.update(_TRANSACTIONAL)
                self._accepted.append(delivery)
            self._to_accept = 0
            self._answer = self._ask_coordinator("amqp:discharge:list", [transaction, False])
        elif answer.remote_state == proton.Delivery.ACCEPTED:
            for delivery in self._accepted:
                delivery.settle()
                self._count_done()
            self._accepted.clear()
        else:
            self._fail(f"it doesn't acknowledge: {answer.remote.condition or answer.remote_state}")
        answer.settle()

    def _ask_coordinator(self, what: str, about: list[Any]) -> Any:
        return self._coordinator.send(proton.Message(body=proton.Described(proton.symbol(what), about)))

    def _receive(self, delivery: Any) -> bool:
        """Read the bytes of a delivery that have come. Returns whether it is complete, and the link is at the next one."""
        if delivery.aborted:
            self._part.clear()
            delivery.settle()  # moves the link on as well
            return True
        if delivery.pending:
            self._part += self._link.recv(delivery.pending)
        if len(self._part) > self._max_body_bytes + _PROPERTIES_BYTES:
            self._refuse(too_large_error("a message", "still more", self._max_body_bytes))
            return False
        if delivery.partial:
            return False
        self._incoming.append(bytes(self._part))
        self._incoming_bytes += len(self._part)
        self._part.clear()
        self._unsettled.append(delivery)
        self._link.advance()
        return True

    def _has_room(self) -> bool:
        return self._incoming_bytes < AHEAD_BYTES and self._refused is None

    def _refuse(self, error: MessageRefusedError) -> None:
        """Take no more messages. Those before the refused one can still be acknowledged."""
        self._refused = named(self._address, error)
        self._part.clear()
        self._changed.notify_all()


class AmqpSink(AmqpLink):
    """Sends messages to a queue or a topic."""

    def __init__(self, address: BrokerAddress) -> None:
        self.accepted = 0
        self.spent_ids: list[int] = []
        self._outgoing: deque[bytes] = deque()
        self._sent: deque[Any] = deque()
        self._answers = 0
        """How many of the messages sent last have an outcome."""
        self._blamed: BrokerError | None = None
        """Why the first message that wasn't accepted wasn't. The outcomes of those behind it are still waited for."""
        super().__init__(address)

    def send(self, messages: Sequence[Message]) -> None:
        self.accepted, self.spent_ids = 0, []
        # Encode all before sending the first: then none is sent if one can't be.
        outgoing = [encoded(message) for message in messages]
        with self._lock:
            self._check()
            self._check_sizes(outgoing)
            self._outgoing.extend(outgoing)
            before, self._answers = self._done, 0
            try:
                self._wait_for(self._ask(len(outgoing)))
            finally:
                self.accepted = self._done - before

    def check(self) -> None:
        with self._lock:
            self._check()

    def _check_sizes(self, outgoing: list[bytes]) -> None:
        """Raise `MessageUnfitError` for a message larger than the broker's stated limit: it may end the whole connection."""
        most = self._link.remote_max_message_size
        largest = max(map(len, outgoing), default=0)
        if 0 < most < largest:
            raise MessageUnfitError(
                f"{self._address}: a message has {largest:,} bytes, and the broker takes no more than {most:,}",
                hint="raise its limit, or don't send this message",
            )

    def _make_link(self) -> Any:
        link = self._session.sender("receiver")
        link.target.address = self._terminus_address
        link.target.capabilities.put_object(_capabilities(self._address))
        link.snd_settle_mode = proton.Link.SND_UNSETTLED
        return link

    def _serve(self) -> None:
        while self._outgoing and self._link.credit > 0 and self._session.outgoing_bytes < AHEAD_BYTES:
            self._sent.append(self._link.delivery(self._link.delivery_tag()))
            self._link.stream(self._outgoing.popleft())
            self._link.advance()
        while self._sent and self._sent[0].settled:
            delivery = self._sent.popleft()
            if delivery.remote_state == proton.Delivery.REJECTED and self._spends_id(delivery.remote.condition):
                self.spent_ids.append(self._answers)
            self._answers += 1
            if self._blamed is None and delivery.remote_state == proton.Delivery.ACCEPTED:
                delivery.settle()
                self._count_done()
            else:
                self._blamed = self._blamed or self._outcome_error(delivery)
                self._outgoing.clear()
        if self._blamed is not None and not self._sent:
            self._fail_with(self._blamed)

    def _fail_with(self, error: BrokerError) -> None:
        super()._fail_with(self._blamed or error)  # the outcomes behind the blamed one won't come any more

    def _spends_id(self, condition: Any) -> bool:
        address = re.escape(self._address.name.partition("::")[0])
        pattern = self.dialect.spends_ids
        said = "" if condition is None else condition.description or ""
        return pattern is not None and re.match(pattern.format(name=address), said) is not None

    def _outcome_error(self, delivery: Any) -> BrokerError:
        """The error for a message that wasn't accepted."""
        condition = delivery.remote.condition
        isnt_accepted = f"{self._address}: a message isn't accepted"
        if delivery.remote_state == proton.Delivery.RELEASED and not self.dialect.has_subscriptions:
            return BrokerError(
                f"{isnt_accepted}: no queue gets it", hint="bind a queue to it, or create the missing one"
            )
        if delivery.remote_state != proton.Delivery.REJECTED or condition is None:
            return BrokerError(
                f"{isnt_accepted}: {condition or 'the broker says no more'}",
                hint="see whether the queue is full, and the broker's log",
            )
        said = condition.description or condition.name
        if condition.name == _IS_FULL:
            return BrokerError(f"{isnt_accepted}: {said}", hint="connect again")
        if condition.name in REFUSALS:
            return self._error_of(condition)
        why = f"{self._address}: it refuses a message: {said}"
        if self.dialect.unfit is not None and said.startswith(self.dialect.unfit):
            return MessageUnfitError(why, hint="raise its limit, or don't send this message")
        return MessageRefusedError(why, hint="don't send this message")


def _capabilities(address: BrokerAddress) -> Any:
    # Without it Artemis would take a new address for a topic, and drop messages while nobody listens.
    return proton.symbol("topic" if address.is_topic else "queue")
