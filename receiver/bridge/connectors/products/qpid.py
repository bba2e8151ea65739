"""Qpid Broker-J."""

from __future__ import annotations

from receiver.bridge.connectors.products.product import AmqpDialect, Product

QPID = Product(
    name="Qpid Broker-J",
    amqp=AmqpDialect(
        calls_itself="Apache Qpid Broker-J",
        topic="amq.topic/{name}",
        # It sends a message to its end, whatever the session's window is, and Proton takes that for an offence.
        session_bytes=(1 << 31) - 1,
        prefetch=50,
        make_queue="curl -u USER -X PUT -d '{{\"durable\": true}}' http://HOST:8080/api/latest/queue/default/default/{name}",
    ),
)
