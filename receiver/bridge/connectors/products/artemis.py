"""ActiveMQ Artemis."""

from __future__ import annotations

from receiver.bridge.connectors.products.product import Product

__all__ = ["ARTEMIS"]

ARTEMIS = Product(name="ActiveMQ Artemis", drops_known_ids=True)
