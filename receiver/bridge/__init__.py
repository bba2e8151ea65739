"""Messages taken off a broker, kept, acknowledged, and handed on; from brokers by connectors behind one small interface.

| file | what is in it |
|---|---|
| `opening.py` | `open_bridge`: a bridge made of two addresses, a store and options |
| `bridge.py` | `Bridge`: take a batch, keep it, acknowledge it, hand it on, and go on whatever breaks |
| `mode.py`, `flow.py` | the four modes, and what they differ in: `inbox_flow.py`, `controlled_flow.py`, `direct_flow.py` |
| `turns.py` | what waits in the inbox, delivered in turns; what fails is tried again, and parked |
| `ids.py`, `received.py` | which id a message has; a message as it is handed on |
| `passed.py` | the mark by which a ring of bridges is noticed |
| `targets/` | files, brokers, functions |
| `figures.py`, `metrics.py` | the status line; Prometheus |
| `connector.py` | `Message`, and what a `Source` and a `Sink` promise: the interface to implement for another client |
| `address.py`, `connecting.py` | addresses such as `stomp://HOST:61613/queue/NAME`, and the connectors for them |
| `stomp_*.py`, `amqp_*.py`, `network.py` | STOMP and AMQP 1.0 |
| `memory.py` | a broker in memory, the reference for what connectors must do |
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from receiver.bridge.address import BrokerAddress, Tls
    from receiver.bridge.bridge import Bridge
    from receiver.bridge.connecting import sink_of, source_of
    from receiver.bridge.connector import Delivery, Message, Sink, Source
    from receiver.bridge.ids import IdRule, MissingIds
    from receiver.bridge.mode import Mode
    from receiver.bridge.opening import BridgeOptions, Origin, open_bridge
    from receiver.bridge.received import Received
    from receiver.closing import Closing

_WHERE = {
    "Bridge": "bridge",
    "BridgeOptions": "opening",
    "BrokerAddress": "address",
    "Closing": ".closing",
    "Delivery": "connector",
    "IdRule": "ids",
    "Message": "connector",
    "MissingIds": "ids",
    "Mode": "mode",
    "Origin": "opening",
    "Received": "received",
    "Sink": "connector",
    "Source": "connector",
    "Tls": "address",
    "open_bridge": "opening",
    "sink_of": "connecting",
    "source_of": "connecting",
}
__all__ = [
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
    "Received",
    "Sink",
    "Source",
    "Tls",
    "open_bridge",
    "sink_of",
    "source_of",
]


def __getattr__(name: str) -> Any:
    # A name brings its module along only when it is used, so that no other command waits for SQLAlchemy.
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_WHERE[name]}", __name__), name)
