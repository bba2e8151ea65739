"""Takes messages off a broker, keeps, acknowledges and hands them on. Connectors for brokers implement one small interface.

| file | what is in it |
|---|---|
| `opening.py` | `open_bridge`: a bridge made of two addresses, a store and options |
| `options.py` | the four modes, and which id a message has |
| `bridge.py` | `Bridge`: take a batch, keep it, acknowledge it, hand it on, and go on whatever breaks |
| `consumers.py` | `Consumers`: several bridges as one, each in a thread of its own |
| `modes/` | a flow for each mode, and the figures of a bridge |
| `received.py` | a batch as it was taken, and its messages as they are handed on; the mark that shows a ring of bridges |
| `targets/` | files, brokers, functions |
| `metrics.py` | the figures for Prometheus |
| `probing.py` | `receiver probe`: how a broker redelivers |
| `connectors/` | `Source` and `Sink`, the interface for brokers' clients; addresses such as `stomp://HOST:61613/queue/NAME`; the connectors for STOMP, AMQP 1.0 and Kafka |
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from receiver.bridge.bridge import Bridge
    from receiver.bridge.connectors import Delivery, PositionedSource, Sink, Source, sink_of, source_of
    from receiver.bridge.connectors.address import BrokerAddress
    from receiver.bridge.opening import Origin, open_bridge
    from receiver.bridge.options import BridgeOptions, IdRule, MissingIds, Mode, Tls
    from receiver.bridge.received import Received
    from receiver.closing import Closing
    from receiver.store.messages import Message
    from receiver.store.positions import Advance

_NAMES = {
    "bridge": ("Bridge",),
    "opening": ("Origin", "open_bridge"),
    "options": ("BridgeOptions", "IdRule", "MissingIds", "Mode", "Tls"),
    "received": ("Received",),
    "connectors": ("Delivery", "PositionedSource", "Sink", "Source", "sink_of", "source_of"),
    "connectors.address": ("BrokerAddress",),
    ".closing": ("Closing",),
    ".store.messages": ("Message",),
    ".store.positions": ("Advance",),
}
"""The public names, by module."""
_WHERE = {name: module for module, names in _NAMES.items() for name in names}
__all__ = [
    "Advance",
    "Bridge",
    "BridgeOptions",
    "BrokerAddress",
    "Closing",
    "Delivery",
    "IdRule",
    "Message",
    "MissingIds",
    "Mode",
    "Origin",
    "PositionedSource",
    "Received",
    "Sink",
    "Source",
    "Tls",
    "open_bridge",
    "sink_of",
    "source_of",
]


def __getattr__(name: str) -> Any:
    # A module is imported when one of its names is first used, so that other commands needn't wait for SQLAlchemy.
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_WHERE[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
