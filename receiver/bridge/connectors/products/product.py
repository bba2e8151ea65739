"""What broker products do differently though they speak one protocol: a record for each protocol, filled in per product.

The defaults are what the protocol's text says. A product's own file beside this one says where it differs.
"""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["AmqpDialect", "Product", "StompDialect"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AmqpDialect:
    """How a product speaks AMQP 1.0."""


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
