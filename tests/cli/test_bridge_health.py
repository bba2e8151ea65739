"""`receiver bridge --health-port`: what a supervisor reads of a bridge process, while brokers die and come back."""

import signal
import socket
import subprocess
from contextlib import contextmanager
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from running import RECEIVER, complaint

from examples.demo.artemis import new_broker
from examples.demo.processes import HOST, free_ports
from receiver.bridge.connectors import Message, sink_of
from tests.patience import PATIENCE_SECS, until

STORE = ("--store", "sqlite:///r.db")
NOWHERE = f"amqp://{HOST}:1/orders"
FROZEN = """
import pathlib, time
def book(message):
    pathlib.Path("called").touch()
    time.sleep(600)
"""


def free_port():
    """A port that nobody takes before the bridge listens."""
    (port,) = free_ports(8080)
    return port


class Supervised:
    """A bridge that is asked in the way that Kubernetes asks."""

    def __init__(self, folder, port, *arguments):
        self._port = port
        self._said = folder / "said.log"
        with self._said.open("wb") as log:
            self.process = subprocess.Popen(
                [*RECEIVER, "bridge", *arguments, *STORE, "--health-port", str(port)], cwd=folder, stderr=log
            )

    def asked(self, page):
        """The page's status and text; None while nobody listens."""
        try:
            with urlopen(f"http://{HOST}:{self._port}{page}") as answer:
                return answer.status, answer.read().decode()
        except HTTPError as error:
            with error:
                return error.code, error.read().decode()
        except OSError:
            assert self.process.poll() is None, self._said.read_text()
            return None

    def until(self, page, status, words):
        """Wait until the page has this status and these words. While the test waits for readiness, the bridge must
        be live."""

        def is_there():
            if page == "/readyz" and self.asked(page) is not None:
                assert self.asked("/livez") == (200, "ok\n")
            said = self.asked(page)
            return said is not None and said[0] == status and words in said[1]

        until(is_there, self._said.read_text)


@contextmanager
def supervised(folder, *arguments, port=None):
    bridge = Supervised(folder, port or free_port(), *arguments)
    try:
        yield bridge
    finally:
        bridge.process.kill()
        bridge.process.wait()


@pytest.fixture
def mortal(artemis_home):
    """A broker that doesn't run yet."""
    with new_broker(artemis_home) as broker:
        yield broker


@pytest.mark.artemis
@pytest.mark.slow
@pytest.mark.parametrize(("dies", "protocol"), [("source", "amqp"), ("target", "stomp")])
def test_ready_as_long_as_the_broker_is_there_and_live_all_along(tmp_path, mortal, running_artemis, dies, protocol):
    """It is asked before the broker runs, while it runs, after kill -9, and when it is back. Nothing is sent
    meanwhile."""
    mortal_address = f"{protocol}://{HOST}:{getattr(mortal, f'{protocol}_port')}/queue/health"
    source = mortal_address if dies == "source" else f"amqp://{HOST}:{running_artemis.amqp_port}/queue/health"
    target = f"{mortal_address}-out" if dies == "target" else "file:orders.jsonl"
    with supervised(tmp_path, source, target) as bridge:
        bridge.until("/readyz", 503, "can't be reached")
        for _ in range(2):
            mortal.start()
            bridge.until("/readyz", 200, "ok\n")
            mortal.kill()
            bridge.until("/readyz", 503, f":{getattr(mortal, f'{protocol}_port')}")
        bridge.process.send_signal(signal.SIGTERM)
        assert bridge.process.wait(PATIENCE_SECS) == 0


@pytest.mark.artemis
@pytest.mark.slow
def test_a_function_that_never_ends_makes_it_dead(tmp_path, running_artemis):
    (tmp_path / "desk.py").write_text(FROZEN)
    address = f"amqp://{HOST}:{running_artemis.amqp_port}/queue/frozen"
    with sink_of(address) as sink:
        sink.send([Message(body=b"1", properties={"uniqueMessageId": "1"})])
    with supervised(tmp_path, address, "python:desk:book", "--stuck-after-secs", "1") as bridge:
        until((tmp_path / "called").exists)
        bridge.until("/livez", 503, "stuck")


def test_unready_and_live_while_there_is_no_broker_until_a_signal(tmp_path):
    """The same port also serves metrics."""
    port = free_port()
    with supervised(tmp_path, NOWHERE, "file:x", "--metrics-port", f"0.0.0.0:{port}", port=port) as bridge:
        bridge.until("/readyz", 503, "can't be reached")
        bridge.until("/metrics", 200, "receiver_bridge_delivered_total")
        bridge.process.send_signal(signal.SIGTERM)
        assert bridge.process.wait(PATIENCE_SECS) == 0


REFUSALS = {
    "70000": "must be [ADDRESS:]PORT with a port up to 65535",
    "http": "must be",
    ":8080": "must be",
    "::1:8080": "must be",
    "127.0.0.1:": "must be",
    "192.0.2.1:8080": "can't be served on port 8080 of 192.0.2.1",
    "a..b:8080": "can't be served on port 8080 of a..b",
}


@pytest.mark.parametrize("what", ["health", "metrics"])
@pytest.mark.parametrize("given", REFUSALS)
def test_ports_that_are_refused(bridge, what, given):
    said = complaint(bridge(NOWHERE, "file:x", *STORE, f"--{what}-port", given))
    assert REFUSALS[given] in said
    assert f"--{what}-port" in said


@pytest.mark.parametrize("what", ["health", "metrics"])
def test_a_port_that_is_taken(bridge, what):
    recording = "--record", "receipts.jsonl.zst"
    with socket.create_server(("", 0)) as taken:
        said = complaint(bridge(NOWHERE, "file:x", *STORE, f"--{what}-port", taken.getsockname()[1], *recording))
    assert f"{what} can't be served on port" in said
    assert f"choose another --{what}-port" in said
