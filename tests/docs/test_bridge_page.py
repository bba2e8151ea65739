"""What `docs/bridge.md` names is there: tests, options, fields, metrics, modes."""

import ast
import re

import pytest
from prometheus_client import CollectorRegistry

from receiver.bridge import Mode, open_bridge
from receiver.bridge.metrics import export
from tests.docs.markdown import ROOT, blocks

PAGE = "docs/bridge.md"
TEXT = (ROOT / PAGE).read_text(encoding="utf-8")


def functions_of_tests() -> set[str]:
    trees = [ast.parse(file.read_text(encoding="utf-8")) for file in (ROOT / "tests").rglob("test_*.py")]
    return {node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_every_test_named_is_there():
    named = set(re.findall(r"`(test_\w+)`", TEXT))
    assert len(named) > 20
    assert named - functions_of_tests() == set()
    assert [path for path in re.findall(r"`(tests/[^`]*)`", TEXT) if not (ROOT / path).exists()] == []


def test_every_promise_has_its_test():
    table = TEXT.partition("| mode | promise | test |")[2].partition("\n\n")[0].splitlines()[2:]
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
    there = {sample.name for metric in registry.collect() for sample in metric.samples if "_bridge_" in sample.name}
    assert set(re.findall(r"`(receiver_bridge_\w+)`", TEXT)) == {
        name for name in there if not name.endswith("_created")
    }
