"""`receiver bridge`, with a real broker where it needs one: what it writes, how it ends, what it refuses."""

import json
import os
import signal
import socket
import subprocess
import time
import uuid
from urllib.request import urlopen

import pytest
from running import RECEIVER, complaint

from examples.demo.artemis import PASSWORD, USER, new_broker
from examples.demo.processes import HOST, free_ports
from receiver.bridge.connectors import Message, sink_of, source_of
from receiver.bridge.connectors.address import BrokerAddress
from receiver.store.upkeep import parked_rows

SOON_SECS = 90
IDLE_SECS = "3"
"""How long a real broker may take to give a message that it has."""
IDS = ["1", "2", "2", "3"]


@pytest.fixture(scope="module")
def artemis(artemis_home):
    """An Artemis that asks for a password, and makes no queue below `closed`."""
    with new_broker(artemis_home, require_login=True) as broker:
        never = ("autoCreateQueues", "autoCreateAddresses")
        broker.start(properties={f'addressSettings."closed.#".{name}': "false" for name in never})
        yield broker


@pytest.fixture
def queue(artemis):
    """The address of a new queue, without user and password."""
    return f"amqp://{USER}@{HOST}:{artemis.amqp_port}/orders-{uuid.uuid4().hex}"


def with_password(address):
    return BrokerAddress.parse(address).with_password(PASSWORD)


def send(address, ids, **more):
    with sink_of(with_password(address)) as sink:
        sink.send(
            [
                Message(body=f"order {id_}".encode(), is_text=True, properties={"uniqueMessageId": id_} | more)
                for id_ in ids
            ]
        )


class Running:
    """`receiver bridge` as a process of its own. The environment gives it the password."""

    def __init__(self, folder, *arguments, **environment):
        self.log = folder / "said.log"
        self._out = (folder / "out").open("wb")
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*RECEIVER, "bridge", *arguments],
                stdout=self._out,
                stderr=log,
                cwd=folder,
                env={**os.environ, "RECEIVER_FROM_PASSWORD": PASSWORD, **environment},
            )

    def until(self, condition):
        give_up = time.monotonic() + SOON_SECS
        while not condition():
            assert time.monotonic() < give_up, self.said
            assert self.process.poll() is None, self.said
            time.sleep(0.02)

    @property
    def said(self):
        return self.log.read_text()

    def ends(self, how=None):
        if how is not None:
            self.process.send_signal(how)
        status = self.process.wait(SOON_SECS)
        self._out.close()
        return status


def bodies(path):
    return [json.loads(line)["body"] for line in path.read_text().splitlines()]


STORE = ("--store", "sqlite:///r.db")
ORDERS = ["order 1", "order 2", "order 3"]


# What it does


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.artemis
@pytest.mark.slow
def test_from_a_queue_to_a_file_until_a_signal(tmp_path, queue, how):
    send(queue, IDS)
    store, out = f"sqlite:///{tmp_path}/receiver.db", tmp_path / "orders.jsonl"
    running = Running(
        tmp_path, queue, f"file:{out}", "--store", store, "--status-secs", "0.1", "--record", "receipts.jsonl.zst"
    )
    running.until(lambda: out.exists() and len(out.read_bytes().splitlines()) == 3)
    running.until(lambda: "rx=4 " in running.said)
    assert running.ends(how) == {signal.SIGTERM: 0, signal.SIGINT: 130}[how]
    assert bodies(out) == ORDERS
    line = json.loads(out.read_text().splitlines()[0])
    assert set(line) == {
        "unique_message_id", "message_source_id", "received_at", "jms_redelivered", "destination", "properties", "body",
    }  # fmt: skip
    last = running.said.splitlines()[-1]
    assert " JMS Status: s=1 tx=3 " in last
    assert " rDupsDet=1 rDupIds=3 connErr=0 parked=0" in last
    simulated = subprocess.run(
        [*RECEIVER, "simulate", tmp_path / "receipts.jsonl.zst", "--json"], capture_output=True, check=True
    )
    assert json.loads(simulated.stdout)["log"]["duplicates"] == 1
    with source_of(with_password(queue)) as source:
        assert source.take(1, wait_secs=0.3) == []


@pytest.mark.artemis
@pytest.mark.slow
def test_lines_on_standard_output_until_nothing_comes(tmp_path, queue):
    send(queue, IDS)
    running = Running(tmp_path, queue, "-", "--mode", "BEST_EFFORT", "--stop-when-idle", IDLE_SECS)
    assert running.ends() == 0
    assert bodies(tmp_path / "out") == ["order 1", "order 2", "order 2", "order 3"]
    assert "JMS Status:" in running.said


SLOW = """
import pathlib, time
def book(message):
    pathlib.Path("called").touch()
    time.sleep(600)
"""


@pytest.mark.artemis
@pytest.mark.slow
def test_a_second_signal_ends_it_at_once(tmp_path, queue):
    (tmp_path / "desk.py").write_text(SLOW)
    send(queue, IDS)
    running = Running(tmp_path, queue, "python:desk:book", "--store", f"sqlite:///{tmp_path}/receiver.db")
    running.until((tmp_path / "called").exists)
    running.process.send_signal(signal.SIGTERM)
    running.until(lambda: "a second signal ends it at once" in running.said)
    assert running.ends(signal.SIGTERM) == 128 + signal.SIGTERM


@pytest.mark.artemis
@pytest.mark.slow
def test_from_broker_to_broker_by_passwords_of_files(tmp_path, queue, bridge):
    send(queue, IDS)
    (tmp_path / "secret").write_text(f"{PASSWORD}\nmore\n")
    ran = bridge(
        queue, queue.replace("orders", "out"), "--store", "sqlite:///r.db", "--from-password-file", "secret",
        "--to-password-file", "secret", "--stop-when-idle", IDLE_SECS,
    )  # fmt: skip
    assert ran.status == 0, ran
    with source_of(with_password(queue.replace("orders", "out"))) as source:
        bodies = [source.take(1, wait_secs=SOON_SECS)[0].message.body.decode() for _ in ORDERS]
        assert (bodies, source.take(1, wait_secs=0.3)) == (ORDERS, [])


@pytest.mark.artemis
@pytest.mark.slow
def test_a_message_without_id_where_ids_are_required_is_parked(tmp_path, queue, bridge, monkeypatch):
    monkeypatch.setenv("RECEIVER_FROM_PASSWORD", PASSWORD)
    send(queue, ["1", None, "2"])
    store = f"sqlite:///{tmp_path}/r.db"
    ran = bridge(queue, "file:x", "--store", store, "--missing-ids", "refuse", "--stop-when-idle", IDLE_SECS)
    assert ran.status == 0
    assert bodies(tmp_path / "x") == ["order 1", "order 2"]
    (row,) = parked_rows(store)
    assert "ids are required" in row.error


def run_unread(folder, *arguments):
    """Run `receiver bridge` with a standard output that nobody reads."""
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as closed:
        return subprocess.run(
            [*RECEIVER, "bridge", *arguments, *STORE],
            stdout=closed,
            stderr=subprocess.PIPE,
            text=True,
            cwd=folder,
            env={**os.environ, "RECEIVER_FROM_PASSWORD": PASSWORD},
            timeout=SOON_SECS,
            check=False,
        )


@pytest.mark.artemis
@pytest.mark.slow
@pytest.mark.parametrize("mode", ["BEST_EFFORT", "EXACTLY_ONCE"])
def test_standard_output_that_nobody_reads_ends_it(tmp_path, queue, mode):
    send(queue, IDS)
    ran = run_unread(tmp_path, queue, "-", "--mode", mode)
    assert ran.returncode == 2
    assert "error: nobody reads standard output any more" in ran.stderr
    assert "Traceback" not in ran.stderr
    assert "Exception ignored" not in ran.stderr


@pytest.mark.artemis
@pytest.mark.slow
def test_a_function_that_prints_where_nobody_reads_has_failed(tmp_path, queue):
    """No message counts as delivered. They are parked, like all that their function refuses."""
    send(queue, IDS)
    (tmp_path / "printing.py").write_text("def show(message):\n    print(message.body.decode(), flush=True)\n")
    ran = run_unread(tmp_path, queue, "python:printing:show", "--max-tries", "1", "--stop-when-idle", IDLE_SECS)
    assert " tx=0 " in ran.stderr.splitlines()[-1]
    assert "Exception ignored" not in ran.stderr
    parked = parked_rows(f"sqlite:///{tmp_path}/r.db")
    assert [row.unique_message_id for row in parked] == ["1", "2", "3"]
    assert all("BrokenPipeError" in row.error for row in parked)


@pytest.fixture
def mute_broker():
    """The address of a broker that takes connections and never answers."""
    with socket.create_server((HOST, 0)) as listening:
        yield f"amqp://{HOST}:{listening.getsockname()[1]}/orders", listening


def test_a_signal_is_answered_at_once_and_figures_wait_for_the_first_connection(tmp_path, mute_broker):
    """The signal is answered although a connection attempt still goes on."""
    address, listening = mute_broker
    running = Running(tmp_path, address, "file:x", *STORE, "--status-secs", "0.01")
    with listening.accept()[0] as connected:
        assert connected.recv(1)
        time.sleep(0.2)
        assert "JMS Status" not in running.said
        running.process.send_signal(signal.SIGTERM)
        running.until(lambda: "stopping after what is under way; a second signal ends it at once" in running.said)
        assert running.ends(signal.SIGTERM) == 128 + signal.SIGTERM
    assert "JMS Status" not in running.said


@pytest.mark.parametrize(("how", "status"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_signal_ends_it_as_ever_if_the_broker_is_lost_before_it_answers(tmp_path, mute_broker, how, status):
    address, listening = mute_broker
    running = Running(tmp_path, address, "file:x", *STORE)
    with listening.accept()[0]:
        running.process.send_signal(how)
        running.until(lambda: "stopping after what is under way" in running.said)
    assert running.ends() == status
    assert "error:" not in running.said


# What it refuses

NOWHERE = f"amqp://{HOST}:1/orders"
SECRET = "s3cret"  # noqa: S105 - of nobody


@pytest.mark.artemis
@pytest.mark.slow
@pytest.mark.parametrize(
    ("protocol", "where"), [("stomp", "environment"), ("amqp", "file"), ("stomp", "address"), ("amqp", "address")]
)
def test_a_wrong_password_is_never_shown(tmp_path, artemis, protocol, where):
    """It isn't shown for the source, nor for the target."""
    port = {"stomp": artemis.stomp_port, "amqp": artemis.amqp_port}[protocol]
    (tmp_path / "secret").write_text(SECRET)
    user = f"{USER}:{SECRET}" if where == "address" else USER
    address = f"{protocol}://{user}@{HOST}:{port}/orders"
    files = ["--from-password-file", "secret", "--to-password-file", "secret"] if where == "file" else []
    given = {f"RECEIVER_{side}_PASSWORD": SECRET for side in ("FROM", "TO")} if where == "environment" else {}
    for addresses in ([address, "file:x"], ["amqp://h/q", address]):
        ran = subprocess.run(
            [*RECEIVER, "bridge", *addresses, *STORE, "--verbose", *files],
            capture_output=True,
            cwd=tmp_path,
            text=True,
            env={**os.environ, **given},
            check=False,
        )
        assert ran.returncode == 2
        assert "password" in ran.stderr
        assert SECRET not in ran.stdout + ran.stderr
        assert "Traceback" not in ran.stderr


@pytest.mark.artemis
@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["stomp", "amqp"])
def test_a_queue_that_is_not_there(bridge, artemis, protocol, monkeypatch):
    monkeypatch.setenv("RECEIVER_FROM_PASSWORD", PASSWORD)
    port = {"stomp": artemis.stomp_port, "amqp": artemis.amqp_port}[protocol]
    said = complaint(bridge(f"{protocol}://{USER}@{HOST}:{port}/closed.orders", "file:x", "--store", "sqlite:///r.db"))
    assert "closed.orders" in said


def test_nothing_is_left_running(tmp_path):
    """The threads that record and that serve figures don't keep the process alive."""
    ran = subprocess.run(
        [*RECEIVER, "bridge", NOWHERE, "file:x", *STORE, "--record", "r.parquet", "--metrics-port", "0"],
        capture_output=True,
        cwd=tmp_path,
        timeout=SOON_SECS,
        check=False,
    )
    assert ran.returncode == 2
    assert b"Traceback" not in ran.stderr


def is_listening(host, port):
    try:
        with socket.create_connection((host, port), timeout=5):
            return True
    except OSError:
        return False


@pytest.mark.thinned(4)
@pytest.mark.parametrize(
    ("given", "where", "elsewhere"),
    [
        ("{}", HOST, "127.0.0.2"),
        ("127.0.0.2:{}", "127.0.0.2", HOST),
        ("0.0.0.0:{}", "127.0.0.2", None),
        ("[::1]:{}", "::1", HOST),
    ],
)
def test_metrics_are_for_this_machine_unless_an_address_is_given(tmp_path, mute_broker, given, where, elsewhere):
    family = socket.AF_INET6 if ":" in where else socket.AF_INET
    try:
        socket.create_server((where, 0), family=family).close()
    except OSError:
        pytest.skip(f"this machine has no {where}")
    (port,) = free_ports(8080)
    running = Running(tmp_path, mute_broker[0], "file:x", *STORE, "--metrics-port", given.format(port))
    running.until(lambda: is_listening(where, port))
    assert elsewhere is None or not is_listening(elsewhere, port)
    with urlopen(f"http://{f'[{where}]' if ':' in where else where}:{port}/metrics") as page:
        assert b"receiver_bridge_delivered_total" in page.read()
    running.ends(signal.SIGKILL)
