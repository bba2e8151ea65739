"""ActiveMQ Classic."""

from __future__ import annotations

import re
from collections.abc import Mapping

from receiver.bridge.connectors.products.product import AmqpDialect, Product, StompDialect

_OWN_ID = re.compile(r".*(:-?[0-9]+){4}", re.DOTALL)


def _came_by_amqp(headers: Mapping[str, str]) -> bool:
    """Then its body is what AMQP had encoded, or its id is one that the broker can't read in an ACK: it ends the
    connection, and the message comes again for ever."""
    return headers.get("JMS_AMQP_NATIVE") == "true" or _OWN_ID.fullmatch(headers.get("message-id", "")) is None


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
