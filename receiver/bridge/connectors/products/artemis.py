"""ActiveMQ Artemis."""

from __future__ import annotations

from receiver.bridge.connectors.products.product import AmqpDialect, Product

__all__ = ["ARTEMIS"]

ARTEMIS = Product(
    name="ActiveMQ Artemis",
    drops_known_ids=True,
    amqp=AmqpDialect(calls_itself="apache-activemq-artemis", takes_prefixes=False, virtual_host=None),
)
