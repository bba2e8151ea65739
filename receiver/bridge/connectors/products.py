"""What broker products do differently though they speak one protocol, and which product a broker says that it is.

The defaults of a dialect are what its protocol's text says. Each of `KNOWN` says where it differs. No connector asks which
product it has: it goes by the dialect.
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
    """How a product speaks AMQP 1.0. In what has braces, `{name}` stands for the name."""

    calls_itself: str | None = None
    """How `product` begins in the properties of its `open`."""
    queue: str = "{name}"
    topic: str = "{name}"
    """The address of a queue or topic. Which of them it is, a link's capabilities say as well."""
    escapes_names: bool = False
    """Whether names in addresses have percent escapes."""
    virtual_host: str | None = "{name}"
    """The `hostname` of our `open` for a virtual host; None where the product has none."""
    prefetch: int = 1_000
    """How many messages it may send ahead of what is taken."""
    session_bytes: int = 4 << 20
    """How many bytes of messages the window of a session lets come ahead."""
    is_given_back: bool = True
    """Whether what isn't acknowledged is given back by itself, so that it is flagged as redelivered, and not just left to
    the end of the session."""
    has_transactions: bool = True
    """Whether acknowledgements go in transactions; else nothing answers them."""
    has_selectors: bool = True
    has_subscriptions: bool = True
    """Whether topics can be taken from."""
    has_streams: bool = False
    """Whether a queue may be a stream, which its management knows."""
    instead: str = ""
    """The way round what it hasn't."""

    def address(self, name: str, *, is_topic: bool) -> str:
        written = quote(name, safe="") if self.escapes_names else name
        return (self.topic if is_topic else self.queue).format(name=written)

    def hostname(self, virtual_host: str) -> str | None:
        return None if self.virtual_host is None else self.virtual_host.format(name=virtual_host)


@dataclass(frozen=True, slots=True, kw_only=True)
class StompDialect:
    """How a product speaks STOMP 1.2. Patterns are regular expressions, matched at the beginning of what an ERROR says."""

    calls_itself: str | None = None
    """How the header `server` of its CONNECTED begins."""
    queue: str = "/queue/{}"
    topic: str = "/topic/{}"
    """The destination of a queue or topic of that name."""
    escapes_slashes: bool = False
    """Whether a slash in a name is written `%2F` there."""
    names_kind: bool = False
    """Whether the headers `subscription-type` and `destination-type` tell queues (ANYCAST) from topics (MULTICAST)."""
    prefetch: Callable[[int | None], Mapping[str, str]] = lambda _most: {}
    """The headers of SUBSCRIBE by which no more than so many messages come ahead of acknowledgements; None: as many as is
    fast."""
    durable: Mapping[str, str] | None = None
    """The headers of SUBSCRIBE that make a topic's subscription a durable one, by its name; None: there is no way."""
    mixes_subscriptions: bool = False
    """Whether a subscription goes on as it is if another topic is named with it."""
    not_in_subscriptions: str | None = None
    """What the name of a subscription may not have in it."""
    has_selectors: bool = False
    has_vhosts: bool = True
    """Whether the header `host` of CONNECT chooses among virtual hosts; else one that is named is refused."""
    probe: Mapping[str, str] | None = None
    """Headers of a SUBSCRIBE that never takes anything from a queue, and is refused even if there is one."""
    queue_is_there: str = ""
    """What the answer to the probe says then. No refusal at all: it is a stream."""
    refusals: str | None = None
    """What an ERROR says that comes again however often the same is asked for; None: that isn't known, so any may."""
    not_found: str | None = None
    """What an ERROR says where there is no such queue."""
    faults: str | None = None
    """What an ERROR says where the message that was sent is to blame."""
    cuts_above_bytes: int | None = None
    """A message with a larger body may have been the reason where the connection ends as it is sent, without an ERROR."""
    own_headers: frozenset[str] = frozenset()
    """Headers of SEND, beside the protocol's, by which it changes what becomes of a message: properties of such names
    aren't carried."""
    timestamp_unit_ms: int = 1
    length_means_bytes: bool = False
    """Whether `content-length` comes with bytes only, and never with text; else it says nothing."""
    reply_prefix: str = ""
    """What the broker sets before a `reply-to` that isn't a destination of its own."""
    is_foreign: Callable[[Mapping[str, str]], bool] | None = None
    """Whether a message with these headers came in by another protocol, so that by STOMP it can't be taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """One broker product, or an unknown one."""

    name: str
    """As its makers write it."""
    drops_known_ids: bool = False
    """Whether it drops what is sent again with the property `DUPLICATE_ID`."""
    make_queue: str | None = None
    """How to make a queue, where it makes none by itself, or needn't."""
    amqp: AmqpDialect = field(default_factory=AmqpDialect)
    stomp: StompDialect = field(default_factory=StompDialect)

    @property
    def identity(self) -> str:
        """What all nodes of a cluster have in common, also while they are upgraded one by one."""
        return self.name if self in KNOWN else "unknown"

    def missing_hint(self, name: str) -> str | None:
        """What to do where there is no queue of that name; None where that isn't known."""
        return self.make_queue and f"make the queue first: {self.make_queue.format(name=shlex.quote(name))}"


_ARTEMIS_AHEAD_BYTES = 4 << 20
"""A single larger message comes all the same."""
_LEAST_BYTES = 256
"""Hardly a message has fewer, with its headers."""

ARTEMIS = Product(
    name="ActiveMQ Artemis",
    drops_known_ids=True,
    make_queue="artemis queue create --name {name} --anycast --durable --preserve-on-no-consumers --auto-create-address --silent",
    amqp=AmqpDialect(calls_itself="apache-activemq-artemis", virtual_host=None),
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
        has_selectors=True,
        has_vhosts=False,
        refusals="AMQ339001",
        not_found="AMQ339001",
        faults="AMQ339031",  # no message can be made of it; none of the other errors says whose fault it is
    ),
)

_CLASSICS_OWN_ID = re.compile(r".*(:-?[0-9]+){4}", re.DOTALL)


def _came_by_amqp(headers: Mapping[str, str]) -> bool:
    """Then its body is what AMQP had encoded, or its id is one that the broker can't read in an ACK: it ends the
    connection, and the message comes again for ever."""
    return headers.get("JMS_AMQP_NATIVE") == "true" or not _CLASSICS_OWN_ID.fullmatch(headers.get("message-id", ""))


CLASSIC = Product(
    name="ActiveMQ Classic",
    amqp=AmqpDialect(calls_itself="ActiveMQ", topic="topic://{name}", virtual_host=None),
    stomp=StompDialect(
        calls_itself="ActiveMQ/",
        prefetch=lambda most: {"activemq.prefetchSize": str(most or 1_000)},
        durable={"activemq.subscriptionName": "{}"},  # beside the client id
        has_selectors=True,
        has_vhosts=False,
        refusals="User ",  # who is not authorized, or whose password is invalid
        faults="The maximum data length was exceeded",
        cuts_above_bytes=0,  # a property that it can't read, such as AMQ_SCHEDULED_DELAY, ends the connection
        own_headers=frozenset({"JMSExpiration"}),
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
        # It sends a message to its end, whatever the session's window is, and Proton takes that for an offence.
        session_bytes=(1 << 31) - 1,
        prefetch=50,
    ),
)

RABBITMQ = Product(
    name="RabbitMQ",
    make_queue="rabbitmqadmin declare queue name={name} queue_type=quorum",
    amqp=AmqpDialect(
        calls_itself="RabbitMQ",
        queue="/queues/{name}",
        topic="/exchanges/amq.topic/{name}",
        escapes_names=True,
        virtual_host="vhost:{name}",
        is_given_back=False,  # what is goes behind all else in a quorum queue, and isn't flagged by a classic one
        has_transactions=False,
        has_selectors=False,
        has_subscriptions=False,
        has_streams=True,
        instead="bind a queue of its own to an exchange, such as amq.topic, by a routing key, and take that",
    ),
    stomp=StompDialect(
        calls_itself="RabbitMQ/",
        # Unlike /queue/NAME it declares nothing, so it suits queues of all kinds and makes none. But what is sent to one
        # that isn't there is dropped, and a stream would be read from its end: hence the probe, which needs no right but
        # to read.
        queue="/amq/queue/{}",
        escapes_slashes=True,
        probe={"x-stream-offset": "next", "prefetch-count": "1"},
        queue_is_there="invalid arg 'x-stream-offset'",
        prefetch=lambda most: {"prefetch-count": str(most or 1_000)},
        # The name is the subscription's id, without which it would be another queue at each connection.
        durable={"durable": "true", "auto-delete": "false", "id": "{}"},
        not_in_subscriptions="@@",  # by which the broker parts what names a message in ACK
        refusals="Bad CONNECT|access_refused|not_found|not_allowed|resource_locked|Unknown destination|Invalid destination",
        not_found="not_found",
        faults=(
            "Processing error|Invalid header|AMQP channel died: .*content_properties"
            "|precondition_failed: PRECONDITION_FAILED - (user_id|message size)"
        ),
        cuts_above_bytes=4 << 20,  # `stomp.max_frame_size`, unless an operator has set another
        own_headers=frozenset({"expiration"}),  # after so many milliseconds it drops the message
        timestamp_unit_ms=1_000,
        reply_prefix="/reply-queue/",
    ),
)

KNOWN = (ARTEMIS, RABBITMQ, CLASSIC, QPID)


def product_by_amqp(properties: Mapping[str, object]) -> Product:
    """Which product a broker is by the properties of its `open`; one of the protocol's defaults if it is none of `KNOWN`."""
    name, version = (str(properties.get(key) or "") for key in ("product", "version"))
    known = (each for each in KNOWN if each.amqp.calls_itself and name.startswith(each.amqp.calls_itself))
    return next(known, None) or _unknown(f"{name} {version}".strip() or _NAMELESS, "AMQP 1.0")


def product_by_stomp(server: str) -> Product:
    """Which product a broker is by the header `server` of CONNECTED, which is empty where there is none."""
    known = (each for each in KNOWN if each.stomp.calls_itself and server.startswith(each.stomp.calls_itself))
    return next(known, None) or _unknown(server or _NAMELESS, "STOMP 1.2")


@cache  # so that each is warned of once
def _unknown(name: str, protocol: str) -> Product:
    _LOGGER.warning("unknown product %.80s: it is spoken to as the specification of %s says", name, protocol)
    return Product(name=f"{name:.80}")


def amqp_hostnames(virtual_host: str) -> list[str]:
    """What a virtual host may be called in our `open`, which a broker wants to hear before it says which product it is:
    products' own ways first, for a broker that knows none of them takes the protocol's."""
    names = dict.fromkeys(product.amqp.hostname(virtual_host) for product in KNOWN)
    return [name for name in names if name not in {None, virtual_host}] + [virtual_host]
