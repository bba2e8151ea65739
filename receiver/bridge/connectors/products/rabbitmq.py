"""RabbitMQ."""

from __future__ import annotations

from receiver.bridge.connectors.products.product import AmqpDialect, Product, StompDialect

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
        has_streams=True,
        instead="bind a queue of its own to an exchange, such as amq.topic, by a routing key, and take that",
        make_queue="rabbitmqadmin declare queue name={name} queue_type=quorum",
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
