"""What broker products do differently though they speak one protocol: a record for each protocol, filled in per product.

The defaults are what the protocol's text says. A product's own file beside this one says where it differs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import quote

__all__ = ["AmqpDialect", "Product", "StompDialect"]


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
    takes_prefixes: bool = True
    """Whether addresses begin with the `queue-prefix` and `topic-prefix` of its `open`, where it names any."""
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
    instead: str = ""
    """The way round what it hasn't."""
    make_queue: str | None = None
    """How to make a queue, where it makes none by itself."""

    def address(self, name: str, prefix: str | None, *, is_topic: bool) -> str:
        """Of a queue or topic; `prefix` is what the broker's `open` says of these."""
        written = quote(name, safe="") if self.escapes_names else name
        before = prefix if prefix and self.takes_prefixes else ""
        return before + (self.topic if is_topic else self.queue).format(name=written)

    def hostname(self, virtual_host: str) -> str | None:
        """The `hostname` for a virtual host; None where there is none."""
        return None if self.virtual_host is None else self.virtual_host.format(name=virtual_host)


@dataclass(frozen=True, slots=True, kw_only=True)
class StompDialect:
    """How a product speaks STOMP 1.2."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """One broker product, or an unknown one."""

    name: str
    """As its makers write it."""
    drops_known_ids: bool = False
    """Whether it drops what is sent again with the property `DUPLICATE_ID`."""
    amqp: AmqpDialect = field(default_factory=AmqpDialect)
    stomp: StompDialect = field(default_factory=StompDialect)
