"""ActiveMQ Classic."""

from __future__ import annotations

from receiver.bridge.connectors.products.product import AmqpDialect, Product

__all__ = ["CLASSIC"]

CLASSIC = Product(name="ActiveMQ Classic", amqp=AmqpDialect(calls_itself="ActiveMQ", virtual_host=None))
