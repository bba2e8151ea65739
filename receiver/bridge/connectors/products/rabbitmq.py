"""RabbitMQ."""

from __future__ import annotations

from receiver.bridge.connectors.products.product import Product

__all__ = ["RABBITMQ"]

RABBITMQ = Product(name="RabbitMQ")
