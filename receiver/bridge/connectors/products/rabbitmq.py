"""RabbitMQ, from 4.0 on."""

from __future__ import annotations

from receiver.bridge.connectors.products.product import AmqpDialect, Product

__all__ = ["RABBITMQ"]

RABBITMQ = Product(
    name="RabbitMQ",
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
        instead="bind a queue of its own to an exchange, such as amq.topic, by a routing key, and take that",
        make_queue="rabbitmqadmin declare queue name={name} queue_type=quorum",
    ),
)
