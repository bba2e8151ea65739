"""What broker products do differently though they speak one protocol: a record for each protocol, filled in per product.

The defaults are what the protocol's text says. A product's own file beside this one says where it differs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from urllib.parse import quote


@dataclass(frozen=True, slots=True, kw_only=True)
class AmqpDialect:
    """How a product speaks AMQP 1.0. In what has braces, `{name}` stands for the name."""

    calls_itself: str | None = None
    """How `product` begins in the properties of its `open`."""
    queue: str = "{name}"
    """The address of a queue."""
    topic: str = "{name}"
    """The address of a topic."""
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
    make_queue: str | None = None
    """How to make a queue, where it makes none by itself."""

    def address(self, name: str, *, is_topic: bool) -> str:
        """Of a queue or topic. Which of them it is, a link's capabilities say as well."""
        written = quote(name, safe="") if self.escapes_names else name
        return (self.topic if is_topic else self.queue).format(name=written)

    def hostname(self, virtual_host: str) -> str | None:
        """The `hostname` for a virtual host; None where there is none."""
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
    amqp: AmqpDialect = field(default_factory=AmqpDialect)
    stomp: StompDialect = field(default_factory=StompDialect)
