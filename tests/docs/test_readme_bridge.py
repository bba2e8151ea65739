"""The README's bridge, as it is written there, against a real broker."""

import re
import sys
import uuid

import pytest

from receiver.bridge import Mode
from receiver.demo.artemis import HOST
from tests.docs.markdown import blocks, commands, run, sections

README, HEADING = "README.md", "A bridge, ready made"


@pytest.mark.artemis
@pytest.mark.slow
def test_the_bridge(running_artemis, tmp_path):
    queue = f"{HOST}:{running_artemis.amqp_port}/queue/orders-{uuid.uuid4()}"
    (send,) = blocks(README, "python", HEADING)
    _, bridge = blocks(README, "sh", HEADING)
    (tmp_path / "send.py").write_text(send.replace("localhost/queue/orders", queue), encoding="utf-8")
    run([sys.executable, "send.py"], tmp_path)
    bridged, parked = [run(line, tmp_path) for line in commands(bridge.replace("localhost/queue/orders", queue))]
    assert len((tmp_path / "orders.jsonl").read_text(encoding="utf-8").splitlines()) == 1_000
    (shown,) = re.findall(r"ends with `(.*?)`", sections(README)[HEADING], re.DOTALL)
    first, last = " ".join(shown.split()).split(" … ")
    line = bridged.stderr.rstrip().splitlines()[-1]
    assert first in line
    assert line.endswith(last)
    assert parked.stdout.endswith(": 0 messages parked\n")


def test_every_mode_is_named():
    named = re.findall(r"^\| `([A-Z_]+)` \|", sections(README)[HEADING], re.MULTILINE)
    assert sorted(named) == sorted(Mode)
