"""The program `examples/sources/jms_artemis.py`, on a real broker, by Java's own JMS client."""

import json
import re
import shutil
import subprocess
import sys
import uuid

import pytest

from examples.demo.processes import HOST
from receiver.bridge import Message, sink_of
from tests.docs.markdown import ROOT, replaced, run

pytestmark = [pytest.mark.artemis, pytest.mark.slow]

PROGRAMS = ROOT / "examples" / "sources"
INDIVIDUAL_ACKNOWLEDGE, CLIENT_ACKNOWLEDGE = 101, 2
BRIDGES = "bridge = open_bridge("
"""The page's script works from this line on. The lines before it make sources."""
ENDS = """
import threading, time

def stop_after(receipts):
    while bridge.receiver.status().rx < receipts:
        time.sleep(0.1)
    bridge.stop()

threading.Thread(target=stop_after, args=(int(sys.argv[1]),), daemon=True).start()
bridge.run()
print(bridge.status_line())
"""
TAKES_APART = """
import json, time

def taken(source, count):
    deliveries, quiet = [], 0
    while len(deliveries) < count and quiet < 20:
        more = source.take(count - len(deliveries), wait_secs=0.25)
        deliveries, quiet = deliveries + more, 0 if more else quiet + 1
    time.sleep(3)  # what is behind has arrived in the source by now, and no store has heard of it
    return deliveries

def left(mode):
    global INDIVIDUAL_ACKNOWLEDGE
    individual, INDIVIDUAL_ACKNOWLEDGE = INDIVIDUAL_ACKNOWLEDGE, mode
    with connect() as source:
        source.acknowledge(taken(source, 1))
    INDIVIDUAL_ACKNOWLEDGE = individual
    with connect() as source:
        deliveries = taken(source, 3)
        source.acknowledge(deliveries)
    return [delivery.message.properties["uniqueMessageId"] for delivery in deliveries]

print(json.dumps(left(int(sys.argv[1]))))
"""


@pytest.fixture
def queue():
    return f"orders-{uuid.uuid4()}"


@pytest.fixture
def script(running_artemis, artemis_home, queue, tmp_path):
    real = {
        "apache-artemis-2.44.0": str(artemis_home),
        "bridge.run()\n": ENDS,
        "localhost:61616": f"{HOST}:{running_artemis.core_port}",
        'createQueue("orders")': f'createQueue("{queue}")',
    }
    shutil.copy(PROGRAMS / "callbacks.py", tmp_path)
    return replaced("import sys\n" + (PROGRAMS / "jms_artemis.py").read_text(encoding="utf-8"), real)


@pytest.fixture
def send(running_artemis, queue):
    def send(*ids, **more):
        with sink_of(f"amqp://{HOST}:{running_artemis.amqp_port}/queue/{queue}") as sink:
            sink.send([Message(**({"body": b"", "properties": {"uniqueMessageId": id_}} | more)) for id_ in ids])

    return send


def test_a_jms_client_bridges(script, send, tmp_path):
    properties = {"uniqueMessageId": "1", "n": 7, "f": 0.5, "b": True, "t": "é\0😀", "none": None}
    send("1", body="10 €".encode(), is_text=True, properties=properties)
    send("2", "2", body=b"\0\xff")
    (tmp_path / "client.py").write_text(script, encoding="utf-8")
    run([sys.executable, "client.py", "3"], tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "orders.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [line["unique_message_id"] for line in lines] == ["1", "2"]
    assert [lines[0]["body"], lines[1]["body_base64"]] == ["10 €", "AP8="]
    assert {name: lines[0]["properties"][name] for name in properties} == properties
    assert not lines[0]["jms_redelivered"]


@pytest.mark.parametrize(("mode", "left"), [(INDIVIDUAL_ACKNOWLEDGE, ["2", "3"]), (CLIENT_ACKNOWLEDGE, [])])
def test_what_one_acknowledgement_takes_along(script, send, tmp_path, mode, left):
    """In JMS' own mode it takes all that has arrived: the trap that `docs/clients.md` describes."""
    send("1", "2", "3")
    (tmp_path / "client.py").write_text(script.partition(BRIDGES)[0] + TAKES_APART, encoding="utf-8")
    assert json.loads(run([sys.executable, "client.py", str(mode)], tmp_path).stdout) == left


def test_sigterm_stops_it_cleanly(script, tmp_path):
    """The script's handler ends it, and not Java's."""
    (tmp_path / "client.py").write_text(script.replace(ENDS, "bridge.run()\nprint('stopped')\n"), encoding="utf-8")
    command = [sys.executable, "client.py"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as client:
        try:
            assert any("taking messages" in line for line in client.stderr)
            client.terminate()
            said, complaints = client.communicate(timeout=120)
        finally:
            client.kill()
    assert (client.returncode, said) == (0, "stopped\n"), complaints


def test_a_redelivered_duplicate_is_caught(script, send, tmp_path):
    """The first bridge dies as it acknowledges a message that it has kept. So the broker sends the message again."""
    send("1", "2")
    mortal = script.replace("lambda message: message.acknowledge()", "lambda message: __import__('os')._exit(9)")
    assert mortal != script
    (tmp_path / "mortal.py").write_text(mortal, encoding="utf-8")
    assert subprocess.run([sys.executable, "mortal.py", "2"], cwd=tmp_path, check=False).returncode == 9
    (tmp_path / "client.py").write_text(script, encoding="utf-8")
    line = run([sys.executable, "client.py", "2"], tmp_path).stdout
    reported = dict(re.findall("([a-zA-Z]+)=([0-9]+)", line))
    assert (reported["tx"], reported["rx"], reported["rRedel"]) == ("2", "2", "2")
    assert int(reported["rDupsDet"]) in {1, 2}  # as many as had come when it died
    assert len((tmp_path / "orders.jsonl").read_text(encoding="utf-8").splitlines()) == 2
