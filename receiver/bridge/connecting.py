"""The connector for an address, by its protocol, whose library is loaded only now."""

from __future__ import annotations

from collections.abc import Callable

from receiver.bridge.address import BrokerAddress
from receiver.bridge.connector import Sink, Source
from receiver.errors import SettingsError

__all__ = ["check_carried", "check_durable", "connectors_of", "sink_of", "source_of"]


def source_of(address: BrokerAddress | str, *, max_body_bytes: int | None = None, durable: bool = True) -> Source:
    """Connected to where messages are taken from; a message with a larger body is a `MessageRefusedError`.

    None takes the size that the settings have. With `durable` a topic without a subscription is refused.

    An address may be text, as `BrokerAddress.parse` takes it. `MissingExtraError` where the protocol's library isn't
    installed, `BrokerError` where the broker can't be reached.
    """
    address = _parsed(address)
    if durable:
        check_durable(address)
    if max_body_bytes is not None and max_body_bytes < 0:
        raise SettingsError(f"the largest body can't have {max_body_bytes} bytes", hint="give 0 or more")
    make, _ = connectors_of(address)
    return make(address, max_body_bytes=max_body_bytes)


def check_durable(address: BrokerAddress) -> None:
    """`SettingsError` for a topic without a durable subscription."""
    if address.is_topic and address.subscription is None:
        raise SettingsError(
            f"{address} names no subscription, and what a topic gets while nobody listens is gone",
            hint=f"write {address}?subscription=NAME, or choose --mode BEST_EFFORT",
        )


def check_carried(address: BrokerAddress, *properties: str) -> None:
    """`SettingsError` for a property that the protocol takes for a header of its own."""
    if address.protocol != "stomp":
        return
    from receiver.bridge.stomp_connector import PROTOCOLS_OWN

    for name in properties:
        if name in PROTOCOLS_OWN:
            raise SettingsError(
                f"STOMP has a header {name} of its own, so no property of that name comes", hint="name another"
            )


def sink_of(address: BrokerAddress | str) -> Sink:
    """Connected to where messages are sent; errors as of `source_of`."""
    address = _parsed(address)
    if address.subscription is not None or address.selector is not None:
        raise SettingsError(f"{address}: what is sent is for all to take", hint="leave out what follows ?")
    _, make = connectors_of(address)
    return make(address)


def connectors_of(address: BrokerAddress) -> tuple[Callable[..., Source], Callable[..., Sink]]:
    """What makes a source and a sink; `MissingExtraError` where the protocol's library isn't installed."""
    if address.protocol == "amqp":
        from receiver.bridge.amqp_connector import AmqpSink, AmqpSource

        return AmqpSource, AmqpSink
    from receiver.bridge.stomp_connector import StompSink, StompSource

    return StompSource, StompSink


def _parsed(address: BrokerAddress | str) -> BrokerAddress:
    return BrokerAddress.parse(address) if isinstance(address, str) else address
