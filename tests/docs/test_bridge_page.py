"""The tests, options, fields, metrics and modes that the bridge's and brokers' pages name exist."""

import importlib
import re
import sqlite3
import sys
from contextlib import closing

import pytest
from prometheus_client import CollectorRegistry

from receiver.bridge import Message, Mode, Origin, open_bridge
from receiver.bridge.connectors.address import Node
from receiver.bridge.metrics import export
from tests.brokers.memory import MemoryBroker
from tests.docs.markdown import ROOT, blocks, commands, sections

PAGE = "docs/bridge.md"
PAGES = (PAGE, "docs/bridge-failures.md", "docs/brokers.md")
TEXT = "\n".join((ROOT / page).read_text(encoding="utf-8") for page in PAGES)
PROMISES = sections("tests/README.md")["What a bridge promises"]


def functions_of_tests() -> set[str]:
    programs = [file.read_text(encoding="utf-8") for file in (ROOT / "tests").rglob("test_*.py")]
    return {name for program in programs for name in re.findall(r"^ *def (test_\w+)", program, re.MULTILINE)}


def test_every_test_named_is_there():
    named = set(re.findall(r"`(test_\w+)`", TEXT + PROMISES))
    assert len(named) > 20
    assert named - functions_of_tests() == set()
    assert [path for path in re.findall(r"`(tests/[^`]*)`", TEXT) if not (ROOT / path).exists()] == []


def test_every_promise_has_its_test():
    table = PROMISES.partition("| mode | promise | test |")[2].partition("\n\n")[0].splitlines()[2:]
    assert len(table) > 12
    assert [row for row in table if "`test_" not in row] == []


def test_every_mode_is_explained():
    header = re.search(r"^\| \| (BEST_EFFORT .*) \|$", TEXT, re.MULTILINE)
    assert header is not None
    assert header[1].split(" | ") == [str(mode) for mode in Mode]


def test_every_option_named_is_there():
    from receiver.cli.bridge import bridge

    there = {f"--{name.replace('_', '-')}" for name in bridge.__annotations__} | {
        "--mode",
        "--policy",
        "--all",
        "--json",
        "--yes",
        "--help",
    }
    assert set(re.findall(r"(?<![\w-])--[a-z-]+\w", TEXT)) - there == set()


@pytest.fixture
def bridge(sqlite_url, tmp_path):
    return open_bridge("amqp://localhost/queue/orders", f"file:{tmp_path / 'orders.jsonl'}", sqlite_url)


def test_every_field_of_the_status_line_is_explained(bridge):
    fields = re.findall(r"(\w+)=", bridge.status_line())
    (table,) = re.findall(r"^\| field \| \|\n\|---\|---\|\n((?:\|.*\n)*)", TEXT, re.MULTILINE)
    explained = re.findall(r"`(\w+)`", "".join(row.split("|")[1] for row in table.splitlines()))
    assert explained == fields
    (shown,) = blocks(PAGE, "text", "Figures")
    assert re.findall(r"(\w+)=", shown) == fields


def test_every_metric_is_named(bridge):
    registry = CollectorRegistry()
    export(bridge, registry)
    bridge.figures.nodes["source"].note(Node("localhost", 5672))
    there = {sample.name for metric in registry.collect() for sample in metric.samples if "_bridge_" in sample.name}
    assert "operations.md#metrics" in TEXT
    assert set(re.findall(r"`(receiver_bridge_\w+)`", (ROOT / "docs/operations.md").read_text(encoding="utf-8"))) == {
        name for name in there if not name.endswith("_created")
    }


@pytest.mark.parametrize("nth", [0, 1])
def test_rows_of_your_own_are_written_once(tmp_path, monkeypatch, nth):
    (source,) = blocks(PAGE, "python", "Rows of your own")
    command = commands(blocks(PAGE, "sh", "Rows of your own")[0])[nth]
    target, url = command[5], command[7]
    _, module, _ = target.split(":")
    (tmp_path / f"{module}.py").write_text(source, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, module, raising=False)
    importlib.invalidate_caches()
    with closing(sqlite3.connect("orders.db")) as database:
        database.execute("CREATE TABLE orders (id TEXT, body TEXT)")
    broker = MemoryBroker()
    with broker.sink("orders") as sink:
        sink.send([Message(body=b"10 EUR", properties={"uniqueMessageId": id_}) for id_ in ("1", "2", "1")])
    origin = Origin(lambda: broker.source("orders"), "broker", "queue://orders")
    open_bridge(origin, target, url).run(stop_when_idle_secs=0)
    with closing(sqlite3.connect("orders.db")) as database:
        assert database.execute("SELECT * FROM orders").fetchall() == [("1", "10 EUR"), ("2", "10 EUR")]
