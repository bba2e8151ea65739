"""Connectors by address: an address that makes no sense is refused before anything is connected, and nothing is
printed."""

import re
import socket
import ssl
import subprocess
import sys
import threading
from contextlib import ExitStack, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trustme

from receiver.bridge import BridgeOptions, open_bridge
from receiver.bridge.connectors import kafka_client, sink_of, sockets, source_of
from receiver.bridge.connectors.address import BrokerAddress, Tls
from receiver.errors import BrokerError, BrokerRefusedError, SettingsError

NOWHERE = "127.0.0.1:1"


@pytest.mark.parametrize("protocol", ["stomp", "amqp"])
def test_a_topic_is_taken_by_a_subscription_alone(protocol):
    with pytest.raises(SettingsError, match="subscription") as caught:
        source_of(f"{protocol}://{NOWHERE}/topic/prices")
    assert f"{protocol}://{NOWHERE}/topic/prices?subscription=NAME" in caught.value.hint
    with pytest.raises(SettingsError, match="leave"):
        sink_of(f"{protocol}://{NOWHERE}/topic/prices?subscription=bridge")


def test_the_largest_body_is_no_negative_number():
    with pytest.raises(SettingsError, match="-1 bytes"):
        source_of(f"stomp://{NOWHERE}/orders", max_body_bytes=-1)


@pytest.mark.parametrize("address", [f"kafka://{NOWHERE}/orders?group=g", f"amqp://{NOWHERE}/stream/orders"])
def test_how_far_ahead_is_no_question_of_a_log(address):
    with pytest.raises(SettingsError, match="most_ahead is for a queue"):
        source_of(address, most_ahead=5)


@pytest.mark.parametrize("protocol", ["stomp", "amqp"])
def test_no_message_ahead_is_no_limit_by_mistake(protocol):
    with pytest.raises(SettingsError, match="most_ahead must be 1 or more, not 0"):
        source_of(f"{protocol}://{NOWHERE}/queue/orders", most_ahead=0)


def test_certificates_are_for_tls(tmp_path):
    files = Tls(ca_file=tmp_path / "ca.pem")
    with pytest.raises(SettingsError, match="uses no TLS") as caught:
        BrokerAddress.parse("stomp://h/orders").with_tls(files)
    assert "stomps://" in caught.value.hint
    assert BrokerAddress.parse("amqps://h/orders").with_tls(files).files == files
    assert BrokerAddress.parse("amqp://h/orders").with_tls(Tls()) == BrokerAddress.parse("amqp://h/orders")


def test_a_key_alone_proves_nothing(tmp_path):
    with pytest.raises(SettingsError, match="without its certificate"):
        Tls(key_file=tmp_path / "client.key")


HTTP = b"HTTP/1.1 400 Bad Request\r\n\r\n"
AMQP_0_9_1 = b"AMQP\0\0\x09\x01"
TLS_ALERT = b"\x15\3\3\0\2\2\x46"


@pytest.fixture
def port_saying():
    """Makes ports whose servers answer the first bytes with `said`, and end the connection. With None they answer
    nothing."""
    with ExitStack() as stack:

        def make(said: bytes | None) -> int:
            server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            stack.callback(server.shutdown, socket.SHUT_RDWR)
            threading.Thread(target=answer, args=(server, said), daemon=True).start()
            return server.getsockname()[1]

        yield make


@pytest.fixture
def tls_port(tmp_path):
    """Makes a port that takes a connection through TLS, with a certificate of `ca.pem`, and ends it."""
    with ExitStack() as stack:

        def make(*, wants_client: bool = False, **valid: datetime) -> int:
            authority, context = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            authority.cert_pem.write_to_path(tmp_path / "ca.pem")
            authority.issue_cert("localhost", **valid).configure_cert(context)
            if wants_client:
                authority.configure_trust(context)
                context.verify_mode = ssl.CERT_REQUIRED
            plain = socket.create_server(("127.0.0.1", 0))
            server = stack.enter_context(context.wrap_socket(plain, server_side=True))
            stack.callback(server.shutdown, socket.SHUT_RDWR)
            threading.Thread(target=answer, args=(server, b""), daemon=True).start()
            return server.getsockname()[1]

        yield make


def answer(server: socket.socket, said: bytes | None) -> None:
    with suppress(OSError):
        while True:
            with suppress(ssl.SSLError), server.accept()[0] as link:
                link.recv(10_000)
                while said is None and link.recv(10_000):
                    pass
                link.sendall(said or b"")


@pytest.mark.parametrize(
    ("scheme", "said", "problem", "remedy"),
    [
        ("amqp", AMQP_0_9_1, "speaks AMQP 0-9-1, not AMQP 1.0", "rabbitmq-plugins enable rabbitmq_amqp1_0"),
        ("amqp", HTTP, "speaks HTTP, not AMQP 1.0", "name its port for AMQP 1.0, by default 5672"),
        ("amqp", TLS_ALERT, "speaks TLS", "write amqps://"),
        ("amqp", b"SSH-2.0", "says b'SSH-2.0'", "name its port for AMQP 1.0"),
        ("amqp", b"", "ends the connection without a word", "else write amqps://"),
        ("stomp", AMQP_0_9_1, "speaks AMQP 0-9-1, not STOMP 1.2", "name its port for STOMP 1.2, by default 61613"),
        ("stomp", HTTP, "speaks HTTP, not STOMP", "name its port for STOMP 1.2"),
        ("stomp", TLS_ALERT, "speaks TLS", "write stomps://"),
        ("stomp", b"", "ends the connection without a word", "else write stomps://"),
        ("amqps", AMQP_0_9_1, "can't be reached", "without it, write amqp://"),
        ("stomps", None, "no answer in 0.3 s", "else write stomp://"),
        ("amqps", None, "no answer in 0.3 s", "else write amqp://"),
        ("kafkas", None, "no answer in 0.3 s", "else write kafka://"),
    ],
)
def test_a_port_that_speaks_otherwise(  # noqa: PLR0917 - a table of cases
    monkeypatch, port_saying, scheme, said, problem, remedy
):
    monkeypatch.setattr(sockets, "_HANDSHAKE_SECS", 0.3)
    with pytest.raises(BrokerError, match=re.escape(problem)) as caught:
        sink_of(f"{scheme}://127.0.0.1:{port_saying(said)}/orders")
    assert remedy in caught.value.hint


@pytest.mark.parametrize("scheme", ["amqps", "stomps"])
def test_a_port_that_ends_the_connection_through_tls_has_no_need_of_another_address(tls_port, tmp_path, scheme):
    with pytest.raises(BrokerError, match="without a word") as caught:
        sink_of(tls_address(scheme, tls_port(), tmp_path))
    assert "write" not in caught.value.hint


@pytest.mark.parametrize("scheme", ["amqps", "stomps", "kafkas"])
@pytest.mark.parametrize(
    ("days", "problem"), [((-9, -2), "certificate has expired"), ((2, 9), "certificate is not yet valid")]
)
def test_a_certificate_out_of_date_is_to_be_made_anew(tls_port, tmp_path, scheme, days, problem):
    since, until = (datetime.now(UTC) + timedelta(days=day) for day in days)
    with pytest.raises(BrokerRefusedError, match=problem) as caught:
        sink_of(tls_address(scheme, tls_port(not_before=since, not_after=until), tmp_path))
    assert "clock" in caught.value.hint
    assert "--tls-ca" not in caught.value.hint


def tls_address(scheme: str, port: int, folder: Path) -> BrokerAddress:
    return BrokerAddress.parse(f"{scheme}://localhost:{port}/orders").with_tls(Tls(ca_file=folder / "ca.pem"))


def test_a_port_that_kafka_gets_no_answer_from(monkeypatch, port_saying):
    for module in (kafka_client, sockets):
        monkeypatch.setattr(module, "ANSWER_SECS", 0.5)
    with pytest.raises(BrokerError, match="127") as caught:
        sink_of(f"kafka://127.0.0.1:{port_saying(HTTP)}/orders")
    assert "that this port speaks Kafka without TLS; else write kafkas://" in caught.value.hint


@pytest.mark.parametrize("scheme", ["amqps", "kafkas"])
def test_a_broker_that_wants_a_certificate_is_known_by_its_alert(tls_port, tmp_path, scheme):
    """By TLS 1.3 the alert comes when the client takes the handshake for done."""
    port = tls_port(wants_client=True)
    address = BrokerAddress.parse(f"{scheme}://localhost:{port}/orders").with_tls(Tls(ca_file=tmp_path / "ca.pem"))
    with pytest.raises(BrokerRefusedError, match="alert certificate required") as caught:
        sink_of(address)
    assert "--tls-cert and --tls-key" in caught.value.hint


@pytest.mark.parametrize("scheme", ["amqps", "kafkas"])
def test_a_certificate_of_our_own_that_a_broker_refuses_is_named(tls_port, tmp_path, scheme):
    port, own = tls_port(wants_client=True), tmp_path / "own.pem"
    trustme.CA().issue_cert("bridge@example.org").private_key_and_cert_chain_pem.write_to_path(own)
    files = Tls(ca_file=tmp_path / "ca.pem", cert_file=own)
    with pytest.raises(BrokerRefusedError, match=r"alert (unknown ca|decrypt error)") as caught:
        sink_of(BrokerAddress.parse(f"{scheme}://localhost:{port}/orders").with_tls(files))
    assert f"see that {own} isn't out of date" in caught.value.hint


def test_a_broker_that_speaks_only_old_tls_is_to_speak_newer(port_saying):
    port = port_saying(bytes.fromhex("15030100020246"))  # the alert of a version
    with pytest.raises(BrokerRefusedError, match="alert protocol version") as caught:
        sink_of(f"amqps://127.0.0.1:{port}/orders")
    assert caught.value.hint == "let it speak TLS 1.2 or newer"


def test_a_certificate_without_its_key_is_explained(tmp_path):
    trustme.CA().cert_pem.write_to_path(tmp_path / "cert.pem")
    address = BrokerAddress.parse(f"amqps://{NOWHERE}/orders").with_tls(Tls(cert_file=tmp_path / "cert.pem"))
    with pytest.raises(SettingsError, match="aren't both there, in PEM") as caught:
        sink_of(address)
    assert "--tls-key" in caught.value.hint


SCRIPT = """
import sys
from receiver.bridge.connectors import sink_of
from receiver.errors import ReceiverError

for address in sys.argv[1:]:
    try:
        sink_of(address)
    except ReceiverError as error:
        print(type(error).__name__, error)
"""


def run(script, *arguments):
    return subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=True)


def test_the_libraries_print_nothing():
    ran = run(SCRIPT, f"stomp://{NOWHERE}/a", f"amqp://{NOWHERE}/a", "stomp://nowhere.invalid/a")
    assert ran.stdout.count("BrokerError") == 3
    assert not ran.stderr


def test_a_library_that_is_missing_is_named():
    """AMQP needs the library Proton; STOMP needs none."""
    without = "import sys; sys.modules['proton'] = sys.modules['stomp'] = None"
    ran = run(without + SCRIPT, f"stomp://{NOWHERE}/a", f"amqp://{NOWHERE}/a")
    reached, missing = ran.stdout.split("\n", 1)
    assert reached.startswith("BrokerError")
    assert missing.startswith("MissingExtraError")
    assert "-m pip install 'python-qpid-proton>=" in ran.stdout


@pytest.mark.parametrize(
    ("make", "remedy"),
    [
        (lambda: BridgeOptions(mode="EXACTLY_ONCE"), "write Mode.EXACTLY_ONCE"),
        (lambda: BridgeOptions(ids="id"), "write IdRule(...)"),
        (lambda: open_bridge(f"stomp://{NOWHERE}/a", "file:x", None, {"mode": 1}), "give BridgeOptions(...)"),
        (lambda: open_bridge(5, "file:x", None), "write amqp://HOST/queue/NAME"),
    ],
    ids=["mode", "ids", "options", "source"],
)
def test_what_a_program_can_not_mean(make, remedy):
    with pytest.raises(SettingsError) as caught:
        make()
    assert caught.value.hint == remedy
