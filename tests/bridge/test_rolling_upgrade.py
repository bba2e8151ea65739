"""Bridges of the version before are replaced one by one under load. The first new bridge upgrades the tables that
they share."""

import subprocess
from functools import partial

import pytest

from receiver.store.databases import store_url as url_of
from receiver.store.schema import migrate
from tests.before import package_of
from tests.bridge import effects
from tests.bridge.campaign import Campaign, Event, Plan, perform
from tests.bridge.mortal_bridge import MortalBridge, command_of
from tests.postgres import fresh_database

BEFORE = "e09966d7833eaea6437ae3e5f475c592b0abdb62"
STATUS_SECS = "0.2"

MEANWHILE = {
    "quick": {Event.KILL: 1},
    "small": {Event.KILL: 1, Event.CUT: 1},
    "long": {Event.KILL: 10, Event.STOP: 3, Event.KILL_BROKER: 2, Event.CUT: 5},
}
"""The events after each replacement."""
STORE_CUTS = {"quick": 1, "small": 3, "long": 20}


@pytest.fixture
def sqlite_url(tmp_path):
    """An SQLite file without tables, unlike elsewhere in this folder: the version before makes them."""
    return f"sqlite:///{tmp_path / 'receiver.db'}"


@pytest.fixture
def fresh_postgres_url(postgres_url):
    """A PostgreSQL database without tables, for the same reason."""
    with fresh_database(postgres_url) as url:
        yield url


@pytest.fixture(scope="session")
def package_before(tmp_path_factory):
    return package_of(BEFORE, tmp_path_factory.mktemp("before"))


def run_before(package, *arguments):
    return subprocess.run([*command_of(package), *arguments], capture_output=True, text=True, timeout=60, check=False)


class RollingUpgrade(Campaign):
    """Each bridge of the version before is killed at work, and comes back as this version. Bridges that aren't
    replaced yet work on, whatever happens. They aren't killed before their turn, because they could not begin again."""

    def _play(self) -> None:
        self._kill()
        for bridge in self._draw.sample(self.bridges, len(self.bridges)):
            bridge.package = None
            self._kill_one(bridge)
            self._until(lambda bridge=bridge: bridge.is_taking, f"{bridge.name} takes nothing")
            super()._play()
            for other in self.bridges:
                if other not in self._mortals():
                    self._works(other)

    def _start(self, bridge: MortalBridge) -> None:
        bridge.start("--max-batch-size", str(self._draw.choice([1, 10, 100])), "--status-secs", STATUS_SECS)

    def _mortals(self) -> list[MortalBridge]:
        return [bridge for bridge in self.bridges if bridge.package is None] or self.bridges

    def _works(self, bridge: MortalBridge) -> None:
        before = bridge.receipts_told
        self._until(lambda: bridge.receipts_told > before, f"{bridge.name} receives nothing any more")
        self._say(f"{bridge.name}, of the version before, has received {bridge.receipts_told:,} in all")


@pytest.mark.artemis
@pytest.mark.slow
@pytest.mark.parametrize(
    ("protocol", "database", "kind"),
    [
        ("amqp", "sqlite", "file"),
        ("stomp", "postgresql", "file"),
        ("stomp", "sqlite", "queue"),
        ("amqp", "postgresql", "queue"),
    ],
)
def test_bridges_are_replaced_one_by_one(queue, mortal_store, kind, package_before, *, size, seed, tmp_path):
    """The queue's address has a user, which the version before made part of the target's name."""
    if size != "long":
        pytest.skip("on SQLite, whose lock isn't fair, a busy machine starves a bridge for minutes: --campaign=long")
    lines, out = tmp_path / "orders.jsonl", f"{queue.name}-out"
    target = f"file:{lines}" if kind == "file" else queue.address(out, login="clerk@")
    read = partial(effects.in_file, lines) if kind == "file" else partial(effects.in_queue, queue.straight(out))
    events = MEANWHILE[size] | {Event.CUT_STORE: STORE_CUTS[size] if mortal_store.proxy else 0}
    plan = Plan(target=target, events=events, bridges=3, package=package_before)
    perform(plan, queue, mortal_store, seed, read, kind=RollingUpgrade)


@pytest.mark.costly
def test_the_version_before_does_not_begin_on_newer_tables(store_url, package_before, tmp_path):
    """It says why and ends. It hasn't connected to its broker, nor changed anything."""
    made = run_before(package_before, "migrate", store_url)
    assert made.returncode == 0, made.stderr
    migrated = migrate(url_of(store_url))
    if migrated.before == migrated.after:
        pytest.skip(f"the tables haven't changed since version {migrated.before}")
    target = tmp_path / "orders.jsonl"
    ended = run_before(
        package_before, "bridge", "stomp://127.0.0.1:1/queue/orders", f"file:{target}", "--store", store_url
    )
    assert ended.returncode == 2
    assert f"of version {migrated.after}, which this version of the package doesn't know" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert not target.exists()
    assert migrate(url_of(store_url)).before == migrated.after
