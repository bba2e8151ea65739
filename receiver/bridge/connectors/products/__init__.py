"""The broker products that are known, one small file each, and which of them a broker says that it is.

| file | what is in it |
|---|---|
| `product.py` | `Product`: what products may do differently, a record for each protocol |
| `artemis.py`, `classic.py` | ActiveMQ Artemis, and ActiveMQ Classic |
| `qpid.py`, `rabbitmq.py` | Qpid Broker-J, and RabbitMQ |
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import cache

from receiver.bridge.connectors.products.artemis import ARTEMIS
from receiver.bridge.connectors.products.classic import CLASSIC
from receiver.bridge.connectors.products.product import Product
from receiver.bridge.connectors.products.qpid import QPID
from receiver.bridge.connectors.products.rabbitmq import RABBITMQ

__all__ = ["KNOWN", "RABBITMQ", "Product", "amqp_hostnames", "product_by_amqp", "product_by_stomp"]

_LOGGER = logging.getLogger("receiver.bridge")
_NAMELESS = "a broker without a name"
KNOWN = (ARTEMIS, RABBITMQ, CLASSIC, QPID)


def product_by_amqp(properties: Mapping[str, object]) -> Product:
    """Which product a broker is by the properties of its `open`; one of the protocol's defaults if it is none of `KNOWN`."""
    name = str(properties.get("product") or "")
    for product in KNOWN:
        if product.amqp.calls_itself is not None and name.startswith(product.amqp.calls_itself):
            return product
    return _unknown(" ".join(filter(None, (name, str(properties.get("version") or "")))) or _NAMELESS, "AMQP 1.0")


def product_by_stomp(server: str) -> Product:
    """Which product a broker is by the header `server` of CONNECTED, which is empty where there is none."""
    for product in KNOWN:
        if product.stomp.calls_itself is not None and server.startswith(product.stomp.calls_itself):
            return product
    return _unknown(server or _NAMELESS, "STOMP 1.2")


@cache
def _unknown(name: str, protocol: str) -> Product:
    """Warned of once."""
    _LOGGER.warning("unknown product %.80s: it is spoken to as the specification of %s says", name, protocol)
    return Product(name=f"{name:.80}")


def amqp_hostnames(virtual_host: str) -> list[str]:
    """What a virtual host may be called in our `open`, which a broker wants to hear before it says which product it is:
    products' own ways first, for a broker that knows none of them takes the protocol's."""
    names = dict.fromkeys(product.amqp.hostname(virtual_host) for product in KNOWN)
    return [name for name in names if name not in {None, virtual_host}] + [virtual_host]
