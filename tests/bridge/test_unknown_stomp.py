"""An unknown product by STOMP: if it refuses, a bridge ends with the product's words, and never idles."""

import socket
import threading
import time
from contextlib import contextmanager

import pytest

from receiver import retrying
from receiver.bridge.connectors import Message, source_of
from receiver.bridge.opening import BridgeOptions, Origin, open_bridge
from receiver.bridge.options import Mode
from receiver.errors import BrokerRefusedError, MessageRefusedError
from tests.brokers.memory import MemoryBroker

pytestmark = pytest.mark.usefixtures("hasty")

ERROR = b"ERROR\nmessage:nothing here is for you\n\n\0"
CONNECTED = b"CONNECTED\nversion:1.2\nserver:Mule/1\n\n\0"
GIVES_UP_SECS = 60
MIB = 1 << 20


@contextmanager
def refusing(at, then_secs=None, *, ahead=b""):
    """The port of a broker that answers frames of the command `at` with ERROR. With `then_secs` it confirms them,
    and sends the ERROR later. It sends `ahead` before it confirms a subscription."""

    def serve():
        while True:
            try:
                link, _ = server.accept()
            except OSError:
                return
            with link:
                converse(link)

    def converse(link):
        came = b""
        while data := link.recv(65536):
            came += data
            *frames, came = came.split(b"\0")
            for frame in frames:
                command, *lines = frame.strip().decode().splitlines()
                receipt = next((line.partition(":")[2] for line in lines if line.startswith("receipt:")), None)
                if command == at and then_secs is None:
                    link.sendall(ERROR)
                    return
                if command == "SUBSCRIBE":
                    link.sendall(ahead)
                link.sendall(CONNECTED if command == "STOMP" else f"RECEIPT\nreceipt-id:{receipt}\n\n\0".encode())
                if command == at:
                    time.sleep(then_secs)
                    link.sendall(ERROR)
                    return

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
    thread.join()


def ends_refused(bridge):
    stopping = threading.Timer(GIVES_UP_SECS, bridge.stop)
    stopping.start()
    try:
        with pytest.raises(BrokerRefusedError, match="nothing here is for you"):
            bridge.run()
    finally:
        stopping.cancel()


@pytest.mark.parametrize("at", ["STOMP", "SUBSCRIBE"])
def test_what_is_refused_at_the_start_ends_the_bridge_at_once(at, tmp_path, sqlite_url):
    with refusing(at) as port:
        bridge = open_bridge(f"stomp://127.0.0.1:{port}/queue/orders", f"file:{tmp_path / 'out'}", sqlite_url)
        ends_refused(bridge)
    assert bridge.figures.connection_errors == 0


def test_a_subscription_that_is_refused_once_it_was_confirmed_ends_the_bridge(monkeypatch, tmp_path, sqlite_url):
    """It ends although each connection lasts for a moment, in which a take gets no message."""
    monkeypatch.setattr(retrying, "_REFUSED_SECS", 0.3)
    with refusing("SUBSCRIBE", then_secs=0.05) as port:
        bridge = open_bridge(f"stomp://127.0.0.1:{port}/queue/orders", f"file:{tmp_path / 'out'}", sqlite_url)
        ends_refused(bridge)
    assert bridge.figures.connection_errors > 1


def test_many_large_messages_that_came_ahead_are_not_taken_at_once():
    """Otherwise they would be one batch, however large."""
    frame = b"MESSAGE\nmessage-id:1\nack:1\ncontent-length:%d\n\n%b\0" % (MIB, bytes(MIB))
    with refusing("none", ahead=frame * 10) as port, source_of(f"stomp://127.0.0.1:{port}/queue/orders") as source:
        assert [len(source.take(1_000, wait_secs=1)) for _ in range(4)] == [4, 4, 2, 0]


@pytest.mark.parametrize("mode", [Mode.BEST_EFFORT, Mode.EXACTLY_ONCE])
def test_a_target_that_takes_nothing_ends_the_bridge(monkeypatch, sqlite_url, mode):
    monkeypatch.setattr(retrying, "_REFUSED_SECS", 0.1)
    memory = MemoryBroker()
    with memory.sink("in") as sink:
        sink.send([Message(body=b"an order", properties={"uniqueMessageId": "1"})])
    origin = Origin(lambda: memory.source("in"), "memory", "queue://in")
    with refusing("SEND") as port:
        to, options = f"stomp://127.0.0.1:{port}/queue/orders", BridgeOptions(mode=mode)
        ends_refused(open_bridge(origin, to, sqlite_url if mode.keeps else None, options))


def test_an_error_of_the_whole_connection_names_its_address_once(monkeypatch):
    """Though RabbitMQ's words blame a message, none of the source's is refused."""
    monkeypatch.setitem(globals(), "CONNECTED", CONNECTED.replace(b"Mule/1", b"RabbitMQ/4"))
    monkeypatch.setitem(globals(), "ERROR", ERROR.replace(b"nothing here is for you", b"Processing error"))
    with refusing("SUBSCRIBE", then_secs=0.2) as port:
        path = f"stomp://127.0.0.1:{port}/topic/orders?subscription=s"
        with source_of(path) as source, pytest.raises(MessageRefusedError) as caught:
            source.take(1, wait_secs=GIVES_UP_SECS)
    assert caught.value.message == f"{path} refuses: Processing error"
