"""Messages taken off a broker and handed on: the connectors to brokers, behind one small interface.

| file | what is in it |
|---|---|
| `connector.py` | `Message`, and what a `Source` and a `Sink` promise: the interface to implement for another client |
| `address.py` | addresses such as `stomp://HOST:61613/queue/NAME` |
| `connecting.py` | the connector for an address |
| `stomp_connector.py` | STOMP |
| `amqp_connector.py` | AMQP 1.0, over `amqp_link.py`: one connection and the thread that serves it |
| `memory.py` | a broker in memory, the reference for what connectors must do |
"""
