"""The source in `examples/sources/positions.py`: nothing comes twice, although the program is killed between
bridges."""

import json
import sys

import pytest

from tests.docs.markdown import ROOT, run

BRIDGE = """
import sys
from receiver.bridge import BridgeOptions, Mode, Origin, open_bridge

count, mode = int(sys.argv[1]), Mode(sys.argv[2])
del EVENTS[count:]
origin = Origin(EventSource, "here", "queue://events")
bridge = open_bridge(origin, "file:out.jsonl", "sqlite:///receiver.db", BridgeOptions(mode=mode))
bridge.run(stop_when_idle_secs=0)
"""


@pytest.mark.costly
@pytest.mark.thinned(3)
@pytest.mark.parametrize("mode", ["EXACTLY_ONCE", "AT_LEAST_ONCE", "APP_CONTROLLED"])
def test_a_source_with_positions_goes_on_where_it_was(tmp_path, mode):
    source = (ROOT / "examples" / "sources" / "positions.py").read_text(encoding="utf-8")
    (tmp_path / "client.py").write_text(source + BRIDGE, encoding="utf-8")
    for count in (4, 4, 10):
        run([sys.executable, "client.py", str(count), mode], tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [line["body_base64"] for line in lines] == [
        "MA==",
        "MQ==",
        "Mg==",
        "Mw==",
        "NA==",
        "NQ==",
        "Ng==",
        "Nw==",
        "OA==",
        "OQ==",
    ]
