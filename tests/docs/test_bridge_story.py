"""The story of `docs/bridge.md`, from senders that send twice to windows sized for them: its commands, and what they say."""

import os
import re
import uuid
from pathlib import Path

import pytest

from examples.demo.processes import HOST
from tests.docs.markdown import blocks, commands, run

pytestmark = [pytest.mark.artemis, pytest.mark.slow]

PAGE, STORY = "docs/bridge.md", "From start to end: windows sized from what came"
VARIES = re.compile(r"(?<=Rate=)[\d,]+")


def said(line: str) -> str:
    """A line of the log without what differs from run to run."""
    return VARIES.sub("…", line.partition(" - ")[2])


def test_from_start_to_end(running_artemis, tmp_path):
    (send,) = blocks(PAGE, "python", STORY)
    queue, port = f"orders-{uuid.uuid4()}", running_artemis.amqp_port
    own = f"{HOST}:{port}/queue/{queue}"
    (tmp_path / "send.py").write_text(send.replace("localhost/queue/orders", own), encoding="utf-8")
    outputs = blocks(PAGE, "text", STORY)
    given = {"env": os.environ | {"COLUMNS": "80"}}
    for block, shown in zip(blocks(PAGE, "sh", STORY), outputs, strict=True):
        ran = [run(line, tmp_path, **given) for line in commands(block.replace("localhost/queue/orders", own))]
        if "JMS Status" in shown:
            logged = ran[-1].stderr.replace(f"{tmp_path}{os.sep}", "…/")
            logged = logged.replace(rf"{HOST}\:{port}:queue://{queue}", r"localhost\:5672:queue://orders")
            *meanwhile, last = logged.splitlines()  # a slow machine has more than one line of figures
            reported = [said(line) for line in [*(line for line in meanwhile if "JMS Status" not in line), last]]
            assert [said(line) for line in shown.splitlines()] == reported[-shown.count("\n") :]
        else:
            printed = words(ran[-1].stdout)  # where lines are broken depends on the figures that vary
            assert [part for part in map(words, shown.split("…")) if part not in printed] == []
    assert len(set(lines := ids(tmp_path / "orders.jsonl"))) == len(lines) == 8_000


def words(text: str) -> str:
    return " ".join(text.split())


def ids(file: Path) -> list[str]:
    return re.findall(r'"unique_message_id":"(.*?)"', file.read_text(encoding="utf-8"))
