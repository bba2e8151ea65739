"""The commands in `docs/operations.md` run, and what it names exists."""

import re
import sqlite3
from contextlib import closing
from pathlib import PurePosixPath

import pytest
import typer
import yaml
from prometheus_client import CollectorRegistry

from receiver import Receiver
from receiver.bridge.metrics import export
from receiver.bridge.opening import open_bridge
from receiver.cli import app
from tests.docs.markdown import ROOT, blocks, commands, run, sections

PAGE = "docs/operations.md"
SECTIONS = sections(PAGE)
SETTINGS = yaml.safe_load((ROOT / "settings.yaml").read_text(encoding="utf-8"))
STORE = "sqlite:///receiver.db"
RUN = ("Upgrading", "Backup", "One message", "Cleaning up")
"""Sections whose shell blocks are run here. `tests/deploy/` builds the image."""


def named(heading):
    """The names before the colon in the items of a section's list."""
    firsts = re.findall(r"^- ((?:`\w+`(?:,\s+)?)+):", SECTIONS[heading], re.MULTILINE)
    return sorted(name for first in firsts for name in re.findall(r"`(\w+)`", first))


def test_every_block_is_tried():
    with_shell = {heading for heading in SECTIONS if blocks(PAGE, "sh", heading)}
    assert with_shell == {*RUN, "A container", "Health"}
    assert {heading for heading in SECTIONS if blocks(PAGE, "python", heading)} == {"Backup"}
    # Run in `test_embedding.py`, on PostgreSQL.
    assert {heading for heading in SECTIONS if blocks(PAGE, "sql", heading)} == {"The database"}


@pytest.mark.slow
def test_upgrading_backup_and_cleaning_up(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("old", "new"):
        with (
            Receiver.open(STORE, connection_id="c", destination="d", domain=f"name:{name}") as receiver,
            receiver.batch() as batch,
        ):
            batch.receive_many([("1", "gateway-1:4711", None), ("order-4711", None, None)])
    exec(compile(blocks(PAGE, "python", "Backup")[0], PAGE, "exec"), {})  # noqa: S102 - our own text
    for heading in RUN:
        for block in blocks(PAGE, "sh", heading):
            for command in commands(block):
                run(command, tmp_path)
    domains = "SELECT count(*) FROM receiver_domain"
    with closing(sqlite3.connect("copy.db")) as copy, closing(sqlite3.connect("receiver.db")) as store:
        assert (copy.execute(domains).fetchone(), store.execute(domains).fetchone()) == ((2,), (1,))


def test_the_bridge_shown_is_one_that_can_be_asked_for():
    (block,) = blocks(PAGE, "sh", "Health")
    (command,) = commands(block)
    bridge = typer.main.get_command(app).commands["bridge"]
    given = bridge.make_context("bridge", command[command.index("bridge") + 1 :]).params
    assert given["health_port"] == "127.0.0.1:8080"


def test_every_metric_is_explained(sqlite_url, tmp_path):
    registry = CollectorRegistry()
    bridge = open_bridge("amqp://localhost/orders", f"file:{tmp_path / 'orders.jsonl'}", sqlite_url)
    export(bridge, registry)
    bridge.close()
    there = {metric.name + ("_total" if metric.type == "counter" else "") for metric in registry.collect()}
    assert named("Metrics") == sorted(there)


def test_every_alert_is_explained():
    (group,) = yaml.safe_load((ROOT / "docs/headroom-alert.yaml").read_text(encoding="utf-8"))["groups"]
    assert named("Alerts") == sorted(rule["alert"] for rule in group["rules"])


def test_the_alert_of_memory_goes_by_the_settings():
    (group,) = yaml.safe_load((ROOT / "docs/headroom-alert.yaml").read_text(encoding="utf-8"))["groups"]
    (rule,) = [rule for rule in group["rules"] if rule["alert"] == "RememberedIdsFillTheirMemory"]
    size = SETTINGS["simulate"]
    assert rule["expr"] == f"receiver_remembered_ids * {size['memory_bytes_per_id']} > 0.8 * {size['budget_bytes']}"


def test_the_alert_of_sources_goes_by_the_settings():
    (group,) = yaml.safe_load((ROOT / "docs/headroom-alert.yaml").read_text(encoding="utf-8"))["groups"]
    (rule,) = [rule for rule in group["rules"] if rule["alert"] == "SourcesNearTheirMost"]
    assert rule["expr"] == f"receiver_sources > 0.8 * {SETTINGS['receiver']['max_sources']}"


def test_the_python_of_the_image_is_stated():
    (image,) = re.findall(r"^ARG PYTHON=(\S+)$", (ROOT / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE)
    assert f"The image has Python {image}." in SECTIONS["A container"]


def test_figures_are_those_of_the_settings():
    capacity, size = SECTIONS["Capacity"], SETTINGS["simulate"]
    assert f"{size['memory_bytes_per_id']} bytes per remembered id" in capacity
    assert f"{size['database_bytes_per_id']} bytes per id in PostgreSQL" in capacity
    recording = SETTINGS["recording"]
    assert f"{recording['keep_files']} files of {recording['rotate_bytes'] >> 20} MiB" in capacity
    assert f"stuck for {SETTINGS['bridge']['stuck_after_secs']} s" in SECTIONS["Health"]


def test_files_linked_are_there():
    links = re.findall(r"\]\(([^)#\s]+)", (ROOT / PAGE).read_text(encoding="utf-8"))
    assert len(links) > 10
    assert [link for link in links if not (ROOT / "docs" / link).exists()] == []
    assert (ROOT / "tests/bridge/test_rolling_upgrade.py").exists()


def test_the_unit_takes_the_password_where_the_page_puts_it():
    unit = (ROOT / "deploy/receiver-bridge.service").read_text(encoding="utf-8")
    program = re.search(r"^ExecStart=(\S+)", unit, re.MULTILINE)[1]
    steps = SECTIONS["systemd"]
    assert f"`{unit.partition('LoadCredential=from-password:')[2].split()[0]}`" in steps
    assert f"-p StateDirectory={unit.partition('StateDirectory=')[2].split()[0]} " in steps
    assert f"-p WorkingDirectory=/var/lib/{unit.partition('WorkingDirectory=%S/')[2].split()[0]} " in steps
    assert f"python3 -m venv {PurePosixPath(program).parents[1]}" in steps


def test_the_commands_named_are_there():
    names = {name.split()[1] for name in re.findall(r"`(receiver [a-z]+)", (ROOT / PAGE).read_text(encoding="utf-8"))}
    known = typer.main.get_command(app).commands
    assert names - set(known) == set()
