"""The program `examples/bridge/sizing.sh` does what it says, from senders that send twice to windows sized for them."""

import os
import re
import subprocess
import sysconfig
import uuid
from pathlib import Path

import pytest

from examples.demo.processes import HOST
from tests.docs.markdown import ROOT

pytestmark = [pytest.mark.artemis, pytest.mark.slow]

STORY = ROOT / "examples" / "bridge" / "sizing.sh"


def test_windows_sized_from_what_came(running_artemis, tmp_path):
    address = f"amqp://{HOST}:{running_artemis.amqp_port}/queue/orders-{uuid.uuid4()}"
    ran = subprocess.run(
        ["sh", STORY, address],
        cwd=tmp_path,
        env=os.environ | {"COLUMNS": "80", "PATH": f"{sysconfig.get_path('scripts')}:{os.environ['PATH']}"},
        capture_output=True,
        check=True,
        encoding="utf-8",
        timeout=300,
    )
    lines = [line for line in ran.stderr.splitlines() if "JMS Status" in line and "rx=4,160 " in line]
    first, second = (dict(re.findall(r"(\w+)=([\d,]+)", line)) for line in (lines[0], lines[-1]))
    assert (first["tx"], first["rDupsDet"], first["rDupIds"]) == ("4,000", "160", "4,000")
    assert (second["tx"], second["rDupsDet"], second["rDupIds"]) == ("4,000", "160", "160")
    assert "batches have at most 80 messages, as many as the window has ids" in ran.stderr
    assert ran.stdout.startswith("Keep the defaults, W = 2,000 ids per source and E = 120 s.\n")
    assert "Evidence: weak." in " ".join(ran.stdout.split())
    assert re.search(r"^  lean +80 +0 s +0 ", ran.stdout, re.MULTILINE)
    assert ran.stdout.split()[-2:] == ["8000", "orders.jsonl"]
    assert len(set(ids_of := ids(tmp_path / "orders.jsonl"))) == len(ids_of) == 8_000


def ids(file: Path) -> list[str]:
    return re.findall(r'"unique_message_id":"(.*?)"', file.read_text(encoding="utf-8"))
