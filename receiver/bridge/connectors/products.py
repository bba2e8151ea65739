"""Differences of broker products that speak one protocol, and how to recognise a product.

A dialect's defaults follow the specification. Each of `KNOWN` states its differences. Connectors only use the dialect.
"""

from __future__ import annotations

import logging
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from urllib.parse import quote

_LOGGER = logging.getLogger("receiver.bridge")
_NAMELESS = "a broker without a name"


@dataclass(frozen=True, slots=True, kw_only=True)
class AmqpDialect:
    """How a product speaks AMQP 1.0. In texts with braces, `{name}` stands for the name."""

    calls_itself: str | None = None
    """The beginning of `product` in the properties of its `open`."""
    queue: str = "{name}"
    topic: str = "{name}"
    """The address of a queue, or of a topic. A link's capabilities also say which of them it is."""
    escapes_names: bool = False
    """Whether names in addresses have percent escapes."""
    virtual_host: str | None = "{name}"
    """The `hostname` of our `open` for a virtual host; None if the product has no virtual hosts."""
    prefetch: int = 1_000
    """How many messages it may send ahead."""
    session_bytes: int = 4 << 20
    """How many bytes of messages a session's window lets it send ahead."""
    is_given_back: bool = True
    """Whether to give back unacknowledged messages before the session ends, so that they are flagged as redelivered."""
    has_transactions: bool = True
    """Whether acknowledgements go in transactions; otherwise the broker doesn't answer them."""
    has_selectors: bool = True
    has_subscriptions: bool = True
    """Whether a topic can be a source."""
    has_streams: bool = False
    """Whether a queue may be a stream, which the broker's management shows."""
    unfit: str | None = None
    """The beginning of a rejection of a message that is too large for the broker, however often it is sent."""
    spends_ids: str | None = None
    """Matches a rejection after which the broker drops what comes with the message's `DUPLICATE_ID`, though it hasn't the message."""
    instead: str = ""
    """A workaround for what it lacks."""

    def address(self, name: str, *, is_topic: bool) -> str:
        written = quote(name, safe="") if self.escapes_names else name
        return (self.topic if is_topic else self.queue).format(name=written)

    def hostname(self, virtual_host: str) -> str | None:
        return None if self.virtual_host is None else self.virtual_host.format(name=virtual_host)


@dataclass(frozen=True, slots=True, kw_only=True)
class StompDialect:
    """How a product speaks STOMP 1.2. Patterns are regular expressions, matched at the beginning of an ERROR's text."""

    calls_itself: str | None = None
    """The beginning of the header `server` of its CONNECTED."""
    queue: str = "/queue/{}"
    topic: str = "/topic/{}"
    """The destination of a queue, or of a topic, of that name."""
    escapes_slashes: bool = False
    """Whether a slash in a name is written `%2F` in a destination."""
    names_kind: bool = False
    """Whether the headers `subscription-type` and `destination-type` distinguish queues (ANYCAST) from topics (MULTICAST)."""
    prefetch: Callable[[int | None], Mapping[str, str]] = lambda _most: {}
    """The headers of SUBSCRIBE that limit the messages that come ahead of acknowledgements; None: as many as is fast."""
    durable: Mapping[str, str] | None = None
    """The headers of SUBSCRIBE that make a topic's subscription durable, with its name; None: the product can't."""
    mixes_subscriptions: bool = False
    """Whether a subscription stays as it is if another topic is named with it."""
    not_in_subscriptions: str | None = None
    """A text that the name of a subscription may not contain."""
    has_selectors: bool = False
    has_vhosts: bool = True
    """Whether the header `host` of CONNECT chooses a virtual host; otherwise we refuse an address that names one."""
    probe: Mapping[str, str] | None = None
    """Headers of a SUBSCRIBE that never takes a message from a queue, and is refused even if the queue exists."""
    queue_is_there: str = ""
    """The text of the probe's refusal if the queue exists. If the probe isn't refused, it is a stream."""
    refusals: str | None = None
    """Matches an ERROR that would come again however often we try; None: not known, so any ERROR may."""
    not_found: str | None = None
    """Matches an ERROR for a missing queue."""
    faults: str | None = None
    """Matches an ERROR for which the sent message is to blame."""
    cuts_above_bytes: int | None = None
    """If the connection ends without an ERROR while a larger frame is sent, its message may be to blame."""
    own_headers: frozenset[str] = frozenset()
    """Further headers of SEND that change how the broker handles a message: properties with such names aren't sent."""
    highest_priority: int = 9
    """A message with a higher priority, as RabbitMQ and AMQP allow, is sent with this one: Artemis would confirm and lose it."""
    acknowledges_each: bool = False
    """Whether each message is acknowledged by itself. Else Artemis would drop messages that it can't send, such as JMS streams."""
    ends_lines: bool = False
    """Whether it ends a line behind each frame, and sends texts with zero bytes in them."""
    empties_bodies: bool = False
    """Whether it sends some messages of JMS without their bodies, and without a sign of that."""
    renews_after_secs: float | None = None
    """How long after the last message to subscribe anew: the broker may have ended the subscription without a word. None: it says so."""
    timestamp_unit_ms: int = 1
    length_means_bytes: bool = False
    """Whether `content-length` comes only with bytes, and never with text; otherwise it shows nothing."""
    reply_prefix: str = ""
    """A prefix that the broker adds to a `reply-to` that isn't a destination of its own."""
    is_foreign: Callable[[Mapping[str, str]], bool] | None = None
    """Whether a message with these headers came in by another protocol, so that it can't be taken by STOMP."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """One broker product, or an unknown one."""

    name: str
    """The product's name, as its makers write it."""
    drops_known_ids: bool = False
    """Whether it drops a message that is sent again with the same property `DUPLICATE_ID`."""
    make_queue: str | None = None
    """The command that makes a queue, if the broker doesn't, or may not, make one by itself."""
    amqp: AmqpDialect = field(default_factory=AmqpDialect)
    stomp: StompDialect = field(default_factory=StompDialect)

    @property
    def identity(self) -> str:
        """What all nodes of a cluster have in common, even while they are upgraded one by one."""
        return self.name if self in KNOWN else "unknown"

    def missing_hint(self, name: str) -> str | None:
        """The hint for a missing queue of that name; None if not known."""
        return self.make_queue and f"make the queue first: {self.make_queue.format(name=shlex.quote(name))}"


_ARTEMIS_AHEAD_BYTES = 4 << 20
"""The most bytes that Artemis sends ahead, except for a single larger message."""
_LEAST_BYTES = 256
"""Hardly any message is smaller, with its headers."""

ARTEMIS = Product(
    name="ActiveMQ Artemis",
    drops_known_ids=True,
    make_queue="artemis queue create --name {name} --anycast --durable --preserve-on-no-consumers --auto-create-address --silent",
    amqp=AmqpDialect(
        calls_itself="apache-activemq-artemis",
        virtual_host=None,
        unfit="AMQ149005",
        # It is unfit, or another address, to which a divert leads, is full.
        spends_ids='AMQ149005|AMQ229102: Address "(?!{name}")',
    ),
    stomp=StompDialect(
        calls_itself="ActiveMQ-Artemis",
        queue="{}",
        topic="{}",
        names_kind=True,
        prefetch=lambda most: {
            "consumer-window-size": str(_ARTEMIS_AHEAD_BYTES if most is None else (most - 1) * _LEAST_BYTES + 1)
        },
        durable={"durable-subscription-name": "{}"},
        mixes_subscriptions=True,
        acknowledges_each=True,
        empties_bodies=True,
        has_selectors=True,
        has_vhosts=False,
        refusals="AMQ339001",
        not_found="AMQ339001",
        faults="AMQ339031",  # it can't make a message of the frame; no other error shows whose fault it is
    ),
)

_CLASSICS_OWN_ID = re.compile(r".*(:-?[0-9]+){4}", re.DOTALL)


def _came_by_amqp(headers: Mapping[str, str]) -> bool:
    """Whether the message came in by AMQP. Then its body is AMQP's encoding, or the broker can't read its id in an ACK: it ends
    the connection, and the message comes again for ever."""
    return headers.get("JMS_AMQP_NATIVE") == "true" or not _CLASSICS_OWN_ID.fullmatch(headers.get("message-id", ""))


CLASSIC = Product(
    name="ActiveMQ Classic",
    amqp=AmqpDialect(calls_itself="ActiveMQ", topic="topic://{name}", virtual_host=None),
    stomp=StompDialect(
        calls_itself="ActiveMQ/",
        prefetch=lambda most: {"activemq.prefetchSize": str(most or 1_000)},
        durable={"activemq.subscriptionName": "{}"},  # besides the client id
        has_selectors=True,
        has_vhosts=False,
        refusals="User ",  # the user is not authorized, or the password is invalid
        faults="The maximum data length was exceeded",
        cuts_above_bytes=0,  # a property that it can't read, such as AMQ_SCHEDULED_DELAY, ends the connection
        own_headers=frozenset({"JMSExpiration"}),
        ends_lines=True,
        empties_bodies=True,
        renews_after_secs=60,  # a slow consumer is ended so, by an `abortSlowConsumerStrategy` that leaves the connection
        length_means_bytes=True,
        is_foreign=_came_by_amqp,
    ),
)

QPID = Product(
    name="Qpid Broker-J",
    make_queue="curl -u USER -X PUT -d '{{\"durable\": true}}' http://HOST:8080/api/latest/queue/default/default/{name}",
    amqp=AmqpDialect(
        calls_itself="Apache Qpid Broker-J",
        topic="amq.topic/{name}",
        # It sends a whole message whatever the session's window is, which Proton takes for a protocol error.
        session_bytes=(1 << 31) - 1,
        prefetch=50,
    ),
)

RABBITMQ = Product(
    name="RabbitMQ",
    # Without the argument the broker drops a message once twenty connections have ended while holding it.
    make_queue="rabbitmqadmin declare queue name={name} queue_type=quorum arguments='{{\"x-delivery-limit\": -1}}'",
    amqp=AmqpDialect(
        calls_itself="RabbitMQ",
        queue="/queues/{name}",
        topic="/exchanges/amq.topic/{name}",
        escapes_names=True,
        virtual_host="vhost:{name}",
        is_given_back=False,  # else a message goes to the end of a quorum queue, and a classic one doesn't flag it
        has_transactions=False,
        has_selectors=False,
        has_subscriptions=False,
        has_streams=True,
        instead="bind a queue of its own to an exchange, such as amq.topic, by a routing key, and take that",
    ),
    stomp=StompDialect(
        calls_itself="RabbitMQ/",
        # Unlike /queue/NAME this declares nothing, so it suits queues of all kinds and makes none. But messages to a missing
        # queue are dropped, and a stream would be read from its end: hence the probe, which only needs the right to read.
        queue="/amq/queue/{}",
        escapes_slashes=True,
        probe={"x-stream-offset": "next", "prefetch-count": "1"},
        queue_is_there="invalid arg 'x-stream-offset'",
        prefetch=lambda most: {"prefetch-count": str(most or 1_000)},
        # The name is the subscription's id: otherwise each connection would get another queue.
        durable={"durable": "true", "auto-delete": "false", "id": "{}"},
        not_in_subscriptions="@@",  # separates the parts of a message's name in ACK
        refusals="Bad CONNECT|access_refused|not_found|not_allowed|resource_locked|Unknown destination|Invalid destination",
        not_found="not_found",
        faults=(
            "Processing error|Invalid header|AMQP channel died: .*content_properties"
            "|precondition_failed: PRECONDITION_FAILED - (user_id|message size|invalid message)"
        ),
        cuts_above_bytes=4 << 20,  # `stomp.max_frame_size`, unless an operator has set another
        own_headers=frozenset({"expiration"}),  # the broker drops the message after so many milliseconds
        highest_priority=255,
        timestamp_unit_ms=1_000,
        reply_prefix="/reply-queue/",
    ),
)

KNOWN = (ARTEMIS, RABBITMQ, CLASSIC, QPID)


def product_by_amqp(properties: Mapping[str, object]) -> Product:
    """The product by the properties of its `open`; one with the protocol's defaults if it is none of `KNOWN`."""
    name, version = (str(properties.get(key) or "") for key in ("product", "version"))
    known = (each for each in KNOWN if each.amqp.calls_itself and name.startswith(each.amqp.calls_itself))
    return next(known, None) or _unknown(f"{name} {version}".strip() or _NAMELESS, "AMQP 1.0")


def product_by_stomp(server: str) -> Product:
    """The product by the header `server` of CONNECTED, which is empty if missing."""
    known = (each for each in KNOWN if each.stomp.calls_itself and server.startswith(each.stomp.calls_itself))
    return next(known, None) or _unknown(server or _NAMELESS, "STOMP 1.2")


@cache  # so that it warns of each product once
def _unknown(name: str, protocol: str) -> Product:
    _LOGGER.warning("unknown product %.80s: it is spoken to as the specification of %s says", name, protocol)
    return Product(name=f"{name:.80}")


def amqp_hostnames(virtual_host: str) -> list[str]:
    """The forms that a virtual host's name may have in our `open`, which we must send before we know the product. Products' own
    forms come first: a broker that knows none of these takes the protocol's."""
    names = dict.fromkeys(product.amqp.hostname(virtual_host) for product in KNOWN)
    return [name for name in names if name not in {None, virtual_host}] + [virtual_host]
