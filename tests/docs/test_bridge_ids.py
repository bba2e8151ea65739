"""The functions for ids in `docs/bridge.md`, exactly as printed."""

import importlib
import sys

import pytest

from receiver.bridge import BridgeOptions, IdRule, Message, Origin, open_bridge
from tests.brokers.memory import MemoryBroker
from tests.docs.markdown import blocks, commands

PAGE, HEADING = "docs/bridge.md", "Ids"
RMID = "rmid1:0d77c-b0b2e66aece-00000000-0000000"
SENT = {
    "from_json": [Message(body=b'{"number": %d, "shop": "web"}' % n) for n in (1, 2, 1)],
    "from_header": [
        Message(body=b"", headers={"JMSCorrelationID": f"{n}"}, properties={"shop": "web"}) for n in (1, 2, 1)
    ],
    "from_solace": [Message(body=b"", message_id=f"{RMID}{n}") for n in (1, 2, 1)],
}


@pytest.fixture
def order_ids(tmp_path, monkeypatch):
    (source,) = blocks(PAGE, "python", HEADING)
    (tmp_path / "order_ids.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "order_ids", raising=False)
    importlib.invalidate_caches()


@pytest.mark.parametrize("function", SENT)
@pytest.mark.usefixtures("order_ids")
def test_a_function_of_the_page_catches_what_is_sent_again(tmp_path, sqlite_url, function):
    broker = MemoryBroker()
    with broker.sink("orders") as sink:
        sink.send(SENT[function])
    origin = Origin(lambda: broker.source("orders"), "broker", "queue://orders")
    options = BridgeOptions(ids=IdRule(function=f"order_ids:{function}"))
    bridge = open_bridge(origin, f"file:{tmp_path / 'orders.jsonl'}", sqlite_url, options)
    bridge.run(stop_when_idle_secs=0)
    assert len((tmp_path / "orders.jsonl").read_text().splitlines()) == 2
    assert (bridge.receiver.status().rDupsDet, bridge.figures.parked) == (1, 0)


def test_the_command_names_a_function_of_the_page():
    (block,) = blocks(PAGE, "sh", HEADING)
    (command,) = commands(block)
    assert command[command.index("--ids") + 1].removeprefix("order_ids:") in SENT
