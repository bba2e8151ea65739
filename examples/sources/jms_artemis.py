"""A bridge from Artemis by its own JMS client, a Java library: `pip install jpype1`, and Java 17.

`apache-artemis-2.44.0` is the broker's folder: that of your own installation, or the one that `sh bin/demo` fetches to
`~/.cache/reliable-receiver`.

Each message is acknowledged by itself, by a mode of Artemis' own. In JMS' CLIENT_ACKNOWLEDGE one acknowledgement takes along all that
the session has delivered, also what lies in `CallbackSource` and is in no store yet: after a kill that would be lost.
"""

import logging
import signal

import jpype
from callbacks import CallbackSource

from receiver.bridge import Message, Origin, open_bridge
from receiver.errors import BrokerError, MessageRefusedError

logging.basicConfig(level="INFO")
jpype.startJVM("-Xrs", classpath=["apache-artemis-2.44.0/lib/*"])  # -Xrs leaves signals to Python
jms = jpype.JPackage("javax.jms")
Factory = jpype.JClass("org.apache.activemq.artemis.jms.client.ActiveMQConnectionFactory")
INDIVIDUAL_ACKNOWLEDGE = 101  # Artemis' own, beside those of JMS
PLAIN = {"String": str, "Boolean": bool, "Float": float, "Double": float}  # and whole numbers


def plain(value):
    return None if value is None else PLAIN.get(type(value).__name__.removeprefix("java.lang."), int)(value)


def read(message) -> Message:
    if isinstance(message, jms.TextMessage):
        body = str(message.getText() or "").encode()
    elif isinstance(message, jms.BytesMessage):
        buffer = jpype.JByte[message.getBodyLength()]
        message.readBytes(buffer)
        body = bytes(buffer)
    else:
        raise TypeError(f"neither text nor bytes: {message}")
    names = [str(name) for name in message.getPropertyNames()]
    return Message(
        body=body,
        is_text=isinstance(message, jms.TextMessage),
        properties={name: plain(message.getObjectProperty(name)) for name in names if not name.startswith("JMS")},
        message_id=str(message.getJMSMessageID()),
        redelivered=bool(message.getJMSRedelivered()),
        jms_timestamp_ms=int(message.getJMSTimestamp()) or None,
    )


@jpype.JImplements(["javax.jms.MessageListener", "javax.jms.ExceptionListener"])
class Listener:
    def __init__(self, source):
        self.source = source

    @jpype.JOverride
    def onMessage(self, message):
        try:
            self.source.arrived(read(message), message)
        except Exception as error:
            self.source.failed(MessageRefusedError(f"it can't be read: {error}"))

    @jpype.JOverride
    def onException(self, error):
        self.source.failed(BrokerError(str(error)))


def connect() -> CallbackSource:
    try:
        connection = Factory("tcp://localhost:61616?blockOnAcknowledge=true").createConnection()
        session = connection.createSession(False, INDIVIDUAL_ACKNOWLEDGE)
        source = CallbackSource(lambda message: message.acknowledge(), connection.close)
        listener = Listener(source)
        connection.setExceptionListener(listener)
        session.createConsumer(session.createQueue("orders")).setMessageListener(listener)
        connection.start()
    except jpype.JException as error:
        raise BrokerError(str(error)) from error
    return source


bridge = open_bridge(Origin(connect, "localhost", "queue://orders"), "file:orders.jsonl", "sqlite:///receiver.db")
signal.signal(signal.SIGTERM, lambda *_: bridge.stop())
bridge.run()
