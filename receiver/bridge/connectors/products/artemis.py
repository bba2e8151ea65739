"""ActiveMQ Artemis."""

from __future__ import annotations

from receiver.bridge.connectors.products.product import AmqpDialect, Product, StompDialect

_PREFETCH_BYTES = 4 << 20
"""A single larger message comes all the same."""
_LEAST_BYTES = 256
"""Hardly a message has fewer, with its headers."""

ARTEMIS = Product(
    name="ActiveMQ Artemis",
    drops_known_ids=True,
    amqp=AmqpDialect(calls_itself="apache-activemq-artemis", virtual_host=None),
    stomp=StompDialect(
        calls_itself="ActiveMQ-Artemis",
        queue="{}",
        topic="{}",
        names_kind=True,
        prefetch=lambda most: {
            "consumer-window-size": str(_PREFETCH_BYTES if most is None else (most - 1) * _LEAST_BYTES + 1)
        },
        durable={"durable-subscription-name": "{}"},
        has_selectors=True,
        has_vhosts=False,
        refusals="AMQ339001",  # no such destination
        faults="AMQ339031",  # no message can be made of it; none of the other errors says whose fault it is
    ),
)
