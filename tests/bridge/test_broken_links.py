"""Whatever breaks, a connector reports it in bounded time, and leaves no thread or socket behind."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from examples.demo.artemis import new_broker
from examples.demo.processes import HOST
from receiver.bridge.connectors import sockets
from receiver.bridge.connectors.address import BrokerAddress
from receiver.errors import BrokerError, BrokerRefusedError
from tests.bridge.broker_proxy import broker_proxy
from tests.bridge.conftest import CONNECTORS, address_of, answer_within
from tests.bridge.test_connectors import NEVER_SECS, SOON_SECS, bodies, take, texts

CONNECTED = b"CONNECTED\nversion:1.2\n\n\0"
pytestmark = pytest.mark.usefixtures("nothing_is_left")


@contextmanager
def stranger(first: bytes, *, ends: bool = False) -> Iterator[int]:
    """A port whose server sends `first` to each client, reads once, and then ends the connection or keeps it."""
    with socket.create_server((HOST, 0)) as listener, ExitStack() as kept:

        def serve():
            with suppress(OSError):
                while True:
                    link = kept.enter_context(listener.accept()[0])
                    with suppress(ConnectionError):
                        link.sendall(first)
                        link.recv(1 << 16)
                    if ends:
                        link.close()

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


STRANGERS = {
    "ends": (b"", True),
    "is mute": (b"", False),
    "speaks FTP": (b"220 welcome\r\n", False),
    "speaks AMQP": (b"AMQP\0\1\0\0", False),
    "speaks STOMP, and no more": (CONNECTED, False),
}


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("kind", STRANGERS)
@pytest.mark.parametrize("role", [0, 1], ids=["source", "sink"])
def test_a_stranger_at_the_port(protocol, role, kind):
    first, ends = STRANGERS[kind]
    began = time.monotonic()
    with stranger(first, ends=ends) as port, pytest.raises(BrokerError) as caught:  # noqa: SIM117 - in what is raised
        with CONNECTORS[protocol][role](address(protocol, port)) as sink:
            sink.send(texts("a"))  # STOMP's sink alone has asked nothing until now
    assert caught.value.hint
    assert time.monotonic() - began < SOON_SECS


FEW_FILES = """
import os, resource, sys
from contextlib import suppress
from receiver.bridge.connectors import sockets, source_factory
from receiver.bridge.connectors.address import BrokerAddress
from receiver.errors import BrokerError
connect = source_factory(BrokerAddress.parse(sys.argv[1]))  # which loads the protocol's library
sockets.ANSWER_SECS = 0.5
resource.setrlimit(resource.RLIMIT_NOFILE, (50, 50))
for count in range(4):
    filling = []
    with suppress(OSError):
        while True:
            filling.append(open(os.devnull))
    for each in filling[:count]:
        each.close()
    try:
        connect()
    except BrokerError as error:
        print(error)
    for each in filling:
        each.close()
"""


def test_where_the_process_may_open_no_more_files(protocol):
    """For a moment, a connection by AMQP needs four files, and one by STOMP two."""
    with stranger(b"") as port:
        command = [sys.executable, "-c", FEW_FILES, str(address(protocol, port))]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert not ran.stderr
    why = "Too many open files (raise the limit"
    assert [why in line for line in ran.stdout.splitlines()] == [
        at < {"amqp": 4, "stomp": 2}[protocol] for at in range(4)
    ]


@contextmanager
def interrupted_soon(secs: float) -> Iterator[None]:
    """End the block by Ctrl-C."""
    timer = threading.Timer(secs, os.kill, [os.getpid(), signal.SIGINT])
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        yield
    timer.join()


@pytest.mark.parametrize("role", [0, 1], ids=["source", "sink"])
def test_an_interrupt_while_connecting_leaves_nothing(protocol, role, monkeypatch):
    """A consumer that nobody knows of would keep messages from the others."""
    monkeypatch.setattr(sockets, "CLOSE_SECS", 0.2)
    first = CONNECTED if role == 0 and protocol == "stomp" else b""
    with stranger(first) as port:
        with interrupted_soon(0.3):
            CONNECTORS[protocol][role](address(protocol, port))
        assert not [thread for thread in threading.enumerate() if thread.name.startswith("receiver")]


def address(protocol, port):
    return BrokerAddress.parse(f"{protocol}://{HOST}:{port}/queue/orders-{uuid.uuid4().hex}")


@pytest.mark.usefixtures("impatient")
def test_a_web_server_at_the_port(protocol):
    class Quiet(BaseHTTPRequestHandler):
        def log_message(self, *_): ...

    class Patient(ThreadingHTTPServer):
        daemon_threads = False  # so that it waits for them as it is closed

    with Patient((HOST, 0), Quiet) as web:
        thread = threading.Thread(target=web.serve_forever)
        thread.start()
        with pytest.raises(BrokerError, match=r"STOMP|no answer|lost|ended|AMQP"):
            CONNECTORS[protocol][0](address(protocol, web.server_port))
        web.shutdown()
        thread.join()


def in_time(do):
    """The error that `do` raises, which mustn't take long."""
    began = time.monotonic()
    with pytest.raises(BrokerError) as caught:
        do()
    assert time.monotonic() - began < SOON_SECS
    assert not isinstance(caught.value, BrokerRefusedError)


@pytest.mark.artemis
@pytest.mark.slow
class TestRealBroker:
    @pytest.mark.parametrize("cut", ["cut", "cut_muted"])
    def test_links_that_are_cut(self, running_artemis, protocol, cut):
        make_source, make_sink = CONNECTORS[protocol]
        there = address_of(running_artemis, protocol, f"queue/orders-{uuid.uuid4().hex}")
        with broker_proxy(there.port) as proxy:
            here = BrokerAddress.parse(str(there).replace(str(there.port), str(proxy.port)))
            with make_sink(there) as sink:
                sink.send(texts(*"abcdef"))

            def cut_soon():
                arguments = () if cut == "cut" else (0.3,)
                threading.Timer(0.3, getattr(proxy, cut), arguments).start()

            with make_source(here) as source:
                source.acknowledge(take(source, 2))
                taken = take(source, 4)
                cut_soon()
                in_time(lambda: source.take(1, wait_secs=2 * SOON_SECS))
                in_time(lambda: source.acknowledge(taken))
            with make_sink(here) as sink:
                cut_soon()
                in_time(lambda: [sink.send(texts("again")) for _ in range(1_000_000)])
            assert self._unacknowledged(make_source, there) == ["c", "d", "e", "f"]

    def _unacknowledged(self, make_source, there):
        """The bodies that come again, without those that the sink managed to send. A broker that hasn't noticed the
        cut yet gives the sink's first."""
        again, until = [], time.monotonic() + 60
        with make_source(there) as source:
            while len(again) < 4 and time.monotonic() < until:
                came = source.take(100, wait_secs=1)
                again += [body for body in bodies(came) if body != "again"]
                source.acknowledge(came)
        return again

    def test_a_broker_that_stands_still(self, artemis_home, monkeypatch):
        with new_broker(artemis_home) as broker:
            broker.start()
            for protocol in CONNECTORS:
                self._stop_and_go(broker, protocol, monkeypatch)

    def _stop_and_go(self, broker, protocol, monkeypatch):
        make_source, make_sink = CONNECTORS[protocol]
        there = address_of(broker, protocol, f"queue/orders-{uuid.uuid4().hex}")
        with make_sink(there) as sink:
            sink.send(texts(*"abc"))
        source, sink = make_source(there), make_sink(there)
        taken = take(source, 3)
        answer_within(monkeypatch, 1)
        os.kill(broker._process.pid, signal.SIGSTOP)
        time.sleep(NEVER_SECS)  # until each of its threads has stopped
        try:
            in_time(lambda: source.acknowledge(taken))
            in_time(lambda: sink.send(texts("d")))
            in_time(lambda: make_source(there))
            began = time.monotonic()
            source.close()
            sink.close()
            assert time.monotonic() - began < SOON_SECS
        finally:
            os.kill(broker._process.pid, signal.SIGCONT)
            monkeypatch.undo()
        with make_source(there) as source:
            came = []
            while more := source.take(4, wait_secs=2):  # the broker may give them one by one, the newest first
                came += bodies(more)
        assert "".join(sorted(came)) in {"abc", "abcd", "", "d"}  # the request may have been carried out by now, or not
