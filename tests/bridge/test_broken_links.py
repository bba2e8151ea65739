"""Whatever breaks, a connector reports it in bounded time, and leaves no thread or socket behind."""

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import proton
import pytest

from examples.demo.artemis import new_broker
from examples.demo.processes import HOST
from receiver.bridge.connectors import Message, sink_of, sockets, source_of, stomp, stomp_session
from receiver.bridge.connectors.address import BrokerAddress
from receiver.errors import BrokerError, BrokerRefusedError, SettingsError
from tests.bridge.broker_proxy import broker_proxy
from tests.bridge.conftest import CONNECTORS, address_of, answer_within
from tests.bridge.test_connectors import NEVER_SECS, SOON_SECS, bodies, take, texts

CONNECTED = b"CONNECTED\nversion:1.2\n\n\0"
SUBSCRIBED = b"RECEIPT\nreceipt-id:1\n\n\0"
BEAT_MS = 400
CONNECTED_BEATING = b"CONNECTED\nversion:1.2\nheart-beat:%d,%d\n\n\0" % (BEAT_MS, BEAT_MS)


@pytest.fixture(params=CONNECTORS)
def protocol(request):
    return request.param


@pytest.fixture(autouse=True)
def nothing_is_left():
    """No thread is left. Python warns of a socket that is left, and a warning is an error here."""
    before = set(threading.enumerate())
    yield
    until = time.monotonic() + SOON_SECS
    while (left := set(threading.enumerate()) - before) and time.monotonic() < until:
        time.sleep(0.01)
    assert not left


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


def test_a_broker_that_takes_nothing_is_not_waited_for_for_ever():
    with stranger(CONNECTED) as port:
        with CONNECTORS["stomp"][1](address("stomp", port)) as sink:
            sink._session._patience_secs = 0.5
            began = time.monotonic()
            with pytest.raises(BrokerError, match="accepted nothing"):
                sink.send([Message(body=bytes(50_000_000))])
        assert time.monotonic() - began < SOON_SECS


def test_an_interrupt_amid_a_frame_has_no_other_take_its_place():
    """Otherwise the broker would take its text and the next frame for one whole message, and drop the message when
    it is sent again."""
    heard, is_over = bytearray(), threading.Event()
    with socket.create_server((HOST, 0)) as listener:

        def serve():
            with listener.accept()[0] as link:
                link.recv(1 << 16)
                link.sendall(CONNECTED)
                heard.extend(link.recv(1 << 16))
                os.kill(os.getpid(), signal.SIGINT)
                assert is_over.wait(SOON_SECS)
                while data := link.recv(1 << 20):
                    heard.extend(data)

        thread = threading.Thread(target=serve)
        thread.start()
        with stomp.StompSink(address("stomp", listener.getsockname()[1])) as sink:
            with pytest.raises(KeyboardInterrupt):
                sink.send([Message(body=b"a" * 50_000_000, is_text=True)])
            is_over.set()
        thread.join()
    assert heard.startswith(b"SEND")
    assert not heard.count(0)


def in_time(do):
    """The error that `do` raises, which mustn't take long."""
    began = time.monotonic()
    with pytest.raises(BrokerError) as caught:
        do()
    assert time.monotonic() - began < SOON_SECS
    assert not isinstance(caught.value, BrokerRefusedError)


@contextmanager
def slow_talker(connected: bytes, said: bytes = b"", *, every_secs: float = 0.0) -> Iterator[tuple[int, bytearray]]:
    """A port whose server sends `connected` once and then `said` over and over; and the bytes that it has received."""
    heard = bytearray()
    with socket.create_server((HOST, 0)) as listener:

        def serve():
            with suppress(OSError), listener.accept()[0] as link:
                heard.extend(link.recv(1 << 16))
                link.sendall(connected)
                link.settimeout(every_secs or None)
                while True:
                    with suppress(TimeoutError):
                        if not (data := link.recv(1 << 16)):
                            return
                        heard.extend(data)
                    link.sendall(said)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listener.getsockname()[1], heard
        finally:
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            thread.join()


class TestHeartbeats:
    """Each side says how often it sends at least, and how often it wants to hear from the other."""

    @pytest.fixture(autouse=True)
    def hurried(self, monkeypatch):
        monkeypatch.setattr(stomp_session, "_HEARTBEAT_MS", BEAT_MS)
        monkeypatch.setattr(stomp_session.sockets, "CLOSE_SECS", 0.2)

    def test_both_sides_are_heard_while_nothing_is_said(self):
        with (
            slow_talker(CONNECTED_BEATING, b"\n", every_secs=0.05) as (port, heard),
            stomp.StompSink(address("stomp", port)) as sink,
        ):
            until(lambda: re.search(rb"\0\n{3,}\Z", heard))
            sink._session.check()
            assert b"\nheart-beat:%d,%d\n" % (BEAT_MS, BEAT_MS) in heard

    def test_ours_are_never_late(self):
        """A broker may end a connection after an interval without one."""
        with (
            slow_talker(CONNECTED_BEATING, b"\n", every_secs=0.05) as (port, heard),
            stomp.StompSink(address("stomp", port)),
        ):
            time.sleep(4.5 * BEAT_MS / 1_000)
            assert re.search(rb"\0\n{5,}\Z", heard)

    @pytest.mark.parametrize("interval_ms", [2**31 - 1, 10**18])
    def test_an_interval_that_no_timer_takes(self, interval_ms, monkeypatch):
        broken = []
        monkeypatch.setattr(threading, "excepthook", broken.append)
        connected = b"CONNECTED\nversion:1.2\nheart-beat:%d,%d\n\n\0" % (interval_ms, interval_ms)
        with (
            slow_talker(connected + SUBSCRIBED) as (port, _),
            stomp.StompSource(address("stomp", port), max_body_bytes=1_000) as source,
        ):
            assert source.take(1, wait_secs=0.1) == []
        assert not broken

    def test_a_broker_that_falls_silent_is_lost(self):
        with (
            slow_talker(CONNECTED_BEATING + SUBSCRIBED) as (port, _),
            stomp.StompSource(address("stomp", port), max_body_bytes=1_000) as source,
            pytest.raises(BrokerError, match="not even a heartbeat"),
        ):
            source.take(1, wait_secs=SOON_SECS)

    def test_one_that_promises_no_heartbeats_may_be_silent(self):
        for said in (b"", b"heart-beat:0,0\n"):
            with (
                slow_talker(b"CONNECTED\nversion:1.2\n" + said + b"\n\0") as (port, heard),
                stomp.StompSink(address("stomp", port)) as sink,
            ):
                time.sleep(3 * BEAT_MS / 1_000)
                sink._session.check()
                assert heard.endswith(b"\0")

    def test_one_that_takes_long_to_take_a_message_is_not_lost(self, monkeypatch):
        """A server's own heartbeats are late while a large message goes through a slow connection."""
        answer_within(monkeypatch, 3 * BEAT_MS / 1_000)
        with socket.create_server((HOST, 0)) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)

            def serve():
                with suppress(OSError), listener.accept()[0] as link:
                    link.recv(1 << 16)
                    link.sendall(CONNECTED_BEATING)
                    while data := link.recv(1 << 16):
                        time.sleep(0.01)
                        link.sendall(b"RECEIPT\nreceipt-id:1\n\n\0" if b"\0" in data else b"\n")

            thread = threading.Thread(target=serve)
            thread.start()
            with stomp.StompSink(address("stomp", listener.getsockname()[1])) as sink:
                sink.send([Message(body=b"a" * 20_000_000, is_text=True)])
            thread.join()

    def test_heartbeats_are_no_answer(self, monkeypatch):
        answer_within(monkeypatch, 3 * BEAT_MS / 1_000)
        with (
            slow_talker(CONNECTED_BEATING, b"\n", every_secs=0.05) as (port, _),
            stomp.StompSink(address("stomp", port)) as sink,
        ):
            in_time(lambda: sink.send(texts("a")))


def until(is_so):
    give_up_at = time.monotonic() + SOON_SECS
    while not is_so() and time.monotonic() < give_up_at:
        time.sleep(0.01)
    assert is_so()


@pytest.mark.parametrize("said", [b"", b"version:1.1\n", b"version:1.2\nheart-beat:often\n"])
def test_a_broker_of_another_version_is_refused(said):
    with (
        stranger(b"CONNECTED\n" + said + b"\n\0") as port,
        pytest.raises(BrokerError, match=r"1\.[01]|heart-beat") as caught,
    ):
        stomp.StompSink(address("stomp", port))
    assert "AMQP" in caught.value.hint


def test_a_password_that_stomp_cannot_express_is_refused():
    """The password's second line would become a header."""
    awkward = BrokerAddress.parse("stomp://bridge:a%0Aclient-id:b@127.0.0.1:1/orders")
    with pytest.raises(SettingsError, match="end of a line") as caught:
        stomp.StompSink(awkward)
    assert "client-id" not in str(caught.value)


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
        for each in (source, sink) if protocol == "stomp" else ():
            each._session._patience_secs = 1
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


@contextmanager
def broker_by_proton(
    serve: Callable[[proton.Link, Callable[..., None]], None], *, silence_secs: float | None = None
) -> Iterator[BrokerAddress]:
    """A broker that opens whatever a client opens. It calls `serve` once, with the first link that asks for messages
    and with a function that sends what is due and any further bytes. It ends the connection if no byte comes for
    `silence_secs`, and says a quarter more when it opens: a client sends a heartbeat each half of what it is said."""
    transport, connection = proton.Transport(mode=proton.Transport.SERVER), proton.Connection()
    transport.idle_timeout = 2.5 * (silence_secs or 0)  # Proton says half of it
    transport.bind(connection)

    def run() -> None:
        wire, _ = listener.accept()

        def write(more: bytes = b"") -> None:
            while (waiting := transport.pending()) > 0:
                wire.sendall(transport.peek(waiting))
                transport.pop(waiting)
            wire.sendall(more)

        has_served = False
        wire.settimeout(silence_secs)
        with wire, suppress(TimeoutError):
            while data := wire.recv(1 << 16):
                transport.push(data)
                connection.open()
                if (session := connection.session_head(proton.Endpoint.REMOTE_ACTIVE)) is not None:
                    session.open()
                link = connection.link_head(proton.Endpoint.REMOTE_ACTIVE)
                while link is not None:
                    if link.state & proton.Endpoint.LOCAL_UNINIT:
                        link.source.copy(link.remote_source)
                        link.target.copy(link.remote_target)
                        link.open()
                    if link.is_sender and link.credit and not has_served:
                        has_served = True
                        serve(link, write)
                    link = link.next(proton.Endpoint.REMOTE_ACTIVE)
                if connection.state & proton.Endpoint.REMOTE_CLOSED:
                    connection.close()
                write()

    with socket.create_server((HOST, 0)) as listener:
        thread = threading.Thread(target=run)
        thread.start()
        yield BrokerAddress.parse(f"amqp://{HOST}:{listener.getsockname()[1]}/queue/orders")
        thread.join()


def test_a_broker_that_wants_heartbeats_several_times_a_second_gets_them():
    def is_kept() -> bool:
        with broker_by_proton(lambda *_: None, silence_secs=0.8) as address, source_of(address) as source:
            try:
                return source.take(1, wait_secs=2.5) == []
            except BrokerError:
                return False

    assert any(is_kept() for _ in range(3)), "a busy machine may be late once, but not each time"


def test_a_delivery_that_its_sender_takes_back_takes_no_other_with_it():
    """A router takes a delivery back when it has lost its own source."""

    def serve(link, write):
        aborted = link.delivery("1")
        link.stream(b"some of it")
        write()
        aborted.abort()
        for tag in "23":
            link.delivery(tag)
            link.stream(proton.Message(body=tag).encode())
            link.advance()

    with broker_by_proton(serve) as address, source_of(address) as source:
        assert bodies(take(source, 2)) == ["2", "3"]


def test_a_link_that_is_detached_for_a_reason_is_lost_though_it_is_not_closed():
    why = proton.Described(proton.ulong(0x1D), [proton.symbol("qd:routed-link-lost"), "the queue's broker is gone"])
    detach = proton.Data()
    detach.put_object(proton.Described(proton.ulong(0x16), [proton.uint(0), False, why]))

    def serve(_link, write):  # Proton detaches without a reason
        frame = b"\2\0\0\0" + detach.encode()
        write((len(frame) + 4).to_bytes(4, "big") + frame)

    with (
        broker_by_proton(serve) as address,
        source_of(address) as source,
        pytest.raises(BrokerError, match="the queue's broker is gone"),
    ):
        source.take(1, wait_secs=SOON_SECS)


def test_a_signal_that_raises_leaves_no_link_locked():
    """Otherwise its thread would wait for the lock for ever, and whoever closes the link would wait for that thread."""

    def interrupt(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with broker_by_proton(lambda *_: None) as address, sink_of(address) as sink:
            for _ in range(100):
                with suppress(KeyboardInterrupt):
                    signal.setitimer(signal.ITIMER_REAL, 0.001)
                    while True:
                        sink.check()
                if is_kept := sink._changed._is_owned():
                    sink._changed.release()  # otherwise nothing would end
                assert not is_kept
    finally:
        signal.signal(signal.SIGALRM, before)
