"""ActiveMQ Classic."""

from __future__ import annotations

from receiver.bridge.connectors.products.product import Product

__all__ = ["CLASSIC"]

CLASSIC = Product(name="ActiveMQ Classic")
