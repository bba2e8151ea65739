"""The broker products that are known, one small file each, and which of them a broker says that it is."""

from __future__ import annotations

import logging
from functools import cache

from receiver.bridge.connectors.products.artemis import ARTEMIS
from receiver.bridge.connectors.products.classic import CLASSIC
from receiver.bridge.connectors.products.product import Product
from receiver.bridge.connectors.products.qpid import QPID
from receiver.bridge.connectors.products.rabbitmq import RABBITMQ

__all__ = ["KNOWN", "Product", "product_by_stomp"]

KNOWN = (ARTEMIS, RABBITMQ, CLASSIC, QPID)
_LOGGER = logging.getLogger("receiver.bridge")


@cache
def product_by_stomp(server: str) -> Product:
    """The product by the header `server` of CONNECTED, empty where it says nothing; one that isn't known is warned of once."""
    for product in KNOWN:
        if product.stomp.calls_itself is not None and server.startswith(product.stomp.calls_itself):
            return product
    name = server or "a broker without a name"
    _LOGGER.warning("%.80s isn't known: it is spoken to as the text of STOMP 1.2 says", name)
    return Product(name=f"{name:.80}")
