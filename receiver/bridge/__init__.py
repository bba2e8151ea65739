"""Messages taken off a broker and handed on: the connectors to brokers, behind one small interface.

| file | what is in it |
|---|---|
| `connector.py` | `Message`, and what a `Source` and a `Sink` promise: the interface to implement for another client |
| `address.py` | addresses such as `stomp://HOST:61613/queue/NAME` |
| `memory.py` | a broker in memory, the reference for what connectors must do |
"""
