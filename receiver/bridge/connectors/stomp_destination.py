"""How a queue, a topic or a subscription is named to a product by STOMP; `SettingsError` for what it can't do there."""

from __future__ import annotations

from receiver.bridge.connectors.address import BrokerAddress
from receiver.bridge.connectors.products import Product
from receiver.errors import SettingsError

__all__ = ["sending", "subscribing"]

_SUBSCRIPTION = "receiver"


def subscribing(address: BrokerAddress, product: Product) -> dict[str, str]:
    """The headers of SUBSCRIBE. A subscription acknowledges cumulatively."""
    dialect = product.stomp
    headers = {"destination": _destination(address, product), "id": _SUBSCRIPTION, "ack": "client", **dialect.prefetch}
    if dialect.names_kind:
        headers["subscription-type"] = _kind(address)
    if address.subscription is not None:
        headers |= _durable(address, address.subscription, product)
    if address.selector is not None:
        if not dialect.has_selectors:
            raise SettingsError(
                f"{address}: {product.name} has no selectors by STOMP, and would deliver all messages",
                hint="leave the selector out, and let the broker route the wanted messages to a queue of their own",
            )
        headers["selector"] = address.selector
    return headers


def sending(address: BrokerAddress, product: Product) -> dict[str, str]:
    """The headers of SEND."""
    headers = {"destination": _destination(address, product)}
    return headers | ({"destination-type": _kind(address)} if product.stomp.names_kind else {})


def _destination(address: BrokerAddress, product: Product) -> str:
    dialect, name = product.stomp, address.name
    if address.vhost is not None and not dialect.has_vhosts:
        raise SettingsError(f"{address}: {product.name} has no virtual hosts by STOMP", hint="leave out vhost=")
    if dialect.escapes_slashes:
        if "%2F" in name:
            raise SettingsError(f"{address}: {product.name} would read %2F as / by STOMP", hint="reach it by AMQP")
        name = name.replace("/", "%2F")
    return (dialect.topic if address.is_topic else dialect.queue).format(name)


def _durable(address: BrokerAddress, subscription: str, product: Product) -> dict[str, str]:
    dialect = product.stomp
    if dialect.durable is None:
        raise SettingsError(
            f"{address}: how {product.name} keeps a subscription by STOMP isn't known",
            hint="take a queue that the broker copies the topic to, or AMQP",
        )
    if dialect.not_in_subscriptions is not None and dialect.not_in_subscriptions in subscription:
        raise SettingsError(
            f"{address}: {product.name} allows no {dialect.not_in_subscriptions} in the name of a subscription by STOMP",
            hint="choose another name",
        )
    return {name: value.format(subscription) for name, value in dialect.durable.items()}


def _kind(address: BrokerAddress) -> str:
    return "MULTICAST" if address.is_topic else "ANYCAST"
