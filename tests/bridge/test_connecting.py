"""Connectors by address: what can't be meant is refused before anything is connected, and nothing is printed."""

import subprocess
import sys

import pytest

from receiver.bridge.connectors import sink_of, source_of
from receiver.bridge.connectors.address import BrokerAddress, Tls
from receiver.errors import SettingsError

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
    """Proton, for STOMP needs none."""
    without = "import sys; sys.modules['proton'] = sys.modules['stomp'] = None"
    ran = run(without + SCRIPT, f"stomp://{NOWHERE}/a", f"amqp://{NOWHERE}/a")
    reached, missing = ran.stdout.split("\n", 1)
    assert reached.startswith("BrokerError")
    assert missing.startswith("MissingExtraError")
    assert "-m pip install 'python-qpid-proton>=" in ran.stdout
