"""An AMQP connection that its broker treats unusually: a broker made of Proton, which does as a test says."""

import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import proton
import pytest

from examples.demo.processes import HOST
from receiver.bridge.connectors import sink_of, source_of
from receiver.bridge.connectors.address import BrokerAddress
from receiver.errors import BrokerError, MessageRefusedError
from receiver.store.messages import Message
from tests.bridge.test_connectors import SOON_SECS, bodies, take

pytestmark = pytest.mark.usefixtures("nothing_is_left")


@contextmanager
def broker_by_proton(
    serve: Callable[[proton.Link, Callable[..., None]], None], *, silence_secs: float | None = None
) -> Iterator[BrokerAddress]:
    """A broker that opens whatever a client opens. It calls `serve` once, with the first link that asks for messages or
    brings one, and with a function that sends what is due and any further bytes. It ends the connection if no byte comes for
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
                for link in opened_links(connection):
                    if (link.credit if link.is_sender else link.current) and not has_served:
                        has_served = True
                        serve(link, write)
                if connection.state & proton.Endpoint.REMOTE_CLOSED:
                    connection.close()
                write()

    with socket.create_server((HOST, 0)) as listener:
        thread = threading.Thread(target=run)
        thread.start()
        yield BrokerAddress.parse(f"amqp://{HOST}:{listener.getsockname()[1]}/queue/orders")
        thread.join()


def opened_links(connection: proton.Connection) -> Iterator[proton.Link]:
    link = connection.link_head(proton.Endpoint.REMOTE_ACTIVE)
    while link is not None:
        if link.state & proton.Endpoint.LOCAL_UNINIT:
            link.source.copy(link.remote_source)
            link.target.copy(link.remote_target)
            link.open()
            if link.is_receiver:
                link.flow(2)
        yield link
        link = link.next(proton.Endpoint.REMOTE_ACTIVE)


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


def test_a_refusal_counts_though_the_link_ends_before_the_broker_has_answered_the_rest():
    """Otherwise the message would be tried for ever, and never be parked."""

    def serve(link, _write):
        link.current.local.condition = proton.Condition("amqp:internal-error", "it is nonsense")
        link.current.update(proton.Delivery.REJECTED)
        link.current.settle()
        link.close()

    with (
        broker_by_proton(serve) as address,
        sink_of(address) as sink,
        pytest.raises(MessageRefusedError, match="it is nonsense"),
    ):
        sink.send([Message(body=b"a"), Message(body=b"b")])


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
