"""Qpid Broker-J."""

from __future__ import annotations

from receiver.bridge.connectors.products.product import Product

__all__ = ["QPID"]

QPID = Product(name="Qpid Broker-J")
