"""A STOMP broker that falls silent, sends heartbeats, takes nothing, or speaks another version."""

import os
import re
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from examples.demo.processes import HOST
from receiver.bridge.connectors import Message, stomp, stomp_session
from receiver.bridge.connectors.address import BrokerAddress
from receiver.errors import BrokerError, SettingsError
from tests.bridge.conftest import answer_within
from tests.bridge.test_broken_links import CONNECTED, address, in_time, stranger
from tests.bridge.test_connectors import SOON_SECS, texts
from tests.patience import until

pytestmark = pytest.mark.usefixtures("nothing_is_left")
SUBSCRIBED = b"RECEIPT\nreceipt-id:1\n\n\0"
BEAT_MS = 400
CONNECTED_BEATING = b"CONNECTED\nversion:1.2\nheart-beat:%d,%d\n\n\0" % (BEAT_MS, BEAT_MS)


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

    def test_one_whose_heartbeats_are_nearly_two_intervals_apart_is_not_lost(self):
        """As those of ActiveMQ Classic are after a frame that it sends early in an interval."""
        with socket.create_server((HOST, 0)) as listener:

            def serve():
                with suppress(OSError), listener.accept()[0] as link:
                    link.recv(1 << 16)
                    link.sendall(CONNECTED_BEATING)
                    for _ in range(3):
                        time.sleep(1.8 * BEAT_MS / 1_000)
                        link.sendall(b"\n")

            thread = threading.Thread(target=serve)
            thread.start()
            with stomp.StompSink(address("stomp", listener.getsockname()[1])) as sink:
                time.sleep(5 * BEAT_MS / 1_000)
                sink.check()
            thread.join()

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
        answer_within(monkeypatch, 5 * BEAT_MS / 1_000)
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


@pytest.mark.usefixtures("impatient")
def test_a_broker_that_takes_nothing_is_not_waited_for_for_ever():
    with stranger(CONNECTED) as port:
        with stomp.StompSink(address("stomp", port)) as sink:
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
