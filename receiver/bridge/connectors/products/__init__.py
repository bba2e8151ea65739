"""The broker products that are known, one small file each, and which of them a broker says that it is."""

from __future__ import annotations

from receiver.bridge.connectors.products.artemis import ARTEMIS
from receiver.bridge.connectors.products.classic import CLASSIC
from receiver.bridge.connectors.products.product import Product
from receiver.bridge.connectors.products.qpid import QPID
from receiver.bridge.connectors.products.rabbitmq import RABBITMQ

__all__ = ["KNOWN", "Product"]

KNOWN = (ARTEMIS, RABBITMQ, CLASSIC, QPID)
