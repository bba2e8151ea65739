"""Claims of `docs/embedding.md` that its snippets don't show."""

import multiprocessing
import re
import sqlite3
import subprocess
import sys
from contextlib import closing, suppress
from pathlib import Path

import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest
from sqlalchemy import NullPool, create_engine, text
from sqlalchemy.orm import Session

from receiver import Receiver
from receiver.bridge.metrics import export
from receiver.bridge.opening import open_bridge
from receiver.errors import ClosedError, SettingsError, StoreBusyError, StoreVersionError
from receiver.logs import ReadOptions, read_logs
from tests.docs.bridge import CHANNEL, CrashError, Message, orders_of, pay, verdicts

ALERTS = Path(__file__).resolve().parents[2] / "docs" / "headroom-alert.yaml"


def test_ids_and_rows_are_committed_together_or_not_at_all(store_url, payments):
    engine = create_engine(store_url, poolclass=NullPool)
    with orders_of(store_url) as orders:
        with suppress(CrashError), orders.batch() as batch:
            assert batch.receive("1").deliver
            pay(batch.connection, Message("1"))
            raise CrashError
        with suppress(CrashError), engine.begin() as connection:
            with orders.batch(connection=connection) as batch:
                assert batch.receive("1").deliver
            pay(connection, Message("1"))
            raise CrashError
        assert payments() == []
        # A batch that an exception leaves records nothing, even if the caller commits.
        with engine.begin() as connection:
            with suppress(CrashError), orders.batch(connection=connection) as batch:
                assert batch.receive("1").deliver
                raise CrashError
            pay(connection, Message("another"))
        assert payments() == ["another"]
        with engine.begin() as connection, orders.batch(connection=connection) as batch:
            assert batch.receive("1").deliver
        assert orders.status().rx == 1


def test_what_cant_be_joined(store_url, payments):
    engine = create_engine(store_url, poolclass=NullPool)
    with orders_of(store_url) as orders:
        autocommit = engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        with autocommit as connection, pytest.raises(SettingsError), orders.batch(connection=connection):
            pass
        is_sqlite = engine.dialect.name == "sqlite"
        repeatable = engine if is_sqlite else engine.execution_options(isolation_level="REPEATABLE READ")
        with repeatable.connect() as connection:
            if is_sqlite:
                connection.exec_driver_sql("BEGIN")
            connection.execute(text("SELECT count(*) FROM payment")).all()
            with orders.batch() as batch:
                batch.receive("1")
            with pytest.raises(StoreBusyError), orders.batch(connection=connection) as batch:
                batch.receive("2")
            connection.rollback()
            with orders.batch(connection=connection) as batch:
                assert not batch.receive("1").deliver
    assert payments() == []


def test_a_sessions_savepoint_begins_when_the_session_is_used(store_url):
    engine = create_engine(store_url, poolclass=NullPool)
    with orders_of(store_url) as orders:
        with Session(engine) as session, session.begin():
            earlier = session.connection()
            if engine.dialect.name == "sqlite":
                earlier.exec_driver_sql("BEGIN")
            for id_, connection_of in (("earlier", lambda: earlier), ("inside", session.connection)):
                with suppress(CrashError), session.begin_nested():
                    with orders.batch(connection=connection_of()) as batch:
                        assert batch.receive(id_).deliver
                    raise CrashError
        with orders.batch() as batch:
            assert not batch.receive("earlier").deliver
            assert batch.receive("inside").deliver


def test_sqlite_syncs_at_each_commit_of_the_caller_too(sqlite_url):
    with orders_of(sqlite_url), create_engine(sqlite_url, poolclass=NullPool).connect() as connection:
        full = 2
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == full
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"


def in_a_child(use) -> None:
    child = multiprocessing.get_context("fork").Process(target=use)
    child.start()
    child.join()
    assert child.exitcode == 0


def test_a_forked_process_needs_a_receiver_of_its_own(sqlite_url):
    def use():
        with pytest.raises(ClosedError), orders.batch():
            pass
        assert verdicts(sqlite_url, "1", "2") == ["duplicate", "new"]

    with orders_of(sqlite_url) as orders:
        with orders.batch() as batch:
            batch.receive("1")
        in_a_child(use)
        with orders.batch() as batch:
            assert not batch.receive("2").deliver


def test_the_alert_rules_speak_of_metrics_that_there_are(store_url, tmp_path):
    registry = CollectorRegistry()
    with closing(open_bridge("amqp://localhost/orders", f"file:{tmp_path / 'orders.jsonl'}", store_url)) as bridge:
        export(bridge, registry)
        with bridge.receiver.batch() as batch:
            for _ in range(2):  # there are no needs before there is a duplicate
                batch.receive("1")
        exported = generate_latest(registry).decode()
    (group,) = yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"]
    named = [metric for rule in group["rules"] for metric in re.findall(r"(receiver_\w+)(?:\{(.*?)\})?", rule["expr"])]
    assert len(named) >= len(group["rules"])
    for name, label in named:
        assert re.search(rf"^{name}\{{.*{re.escape(label)}\}} [0-9.e-]+$", exported, re.MULTILINE)


def test_a_newer_store_is_refused(store_url):
    with orders_of(store_url):
        pass
    with create_engine(store_url, poolclass=NullPool).begin() as connection:
        connection.execute(text("UPDATE receiver_alembic_version SET version_num = '9999'"))
    with pytest.raises(StoreVersionError):
        Receiver.open(store_url, **CHANNEL)


def test_files_of_sqlite(tmp_path):
    theirs = f"sqlite:///{tmp_path / 'theirs.db'}"
    with create_engine(theirs, poolclass=NullPool).begin() as connection:
        connection.execute(text("CREATE TABLE payment (reference TEXT)"))
    ours = f"sqlite:///{tmp_path / 'ours.db'}"
    incremental, none = 2, 0
    for url, auto_vacuum in ((ours, incremental), (theirs, none)):
        with orders_of(url), create_engine(url, poolclass=NullPool).connect() as connection:
            assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
            assert connection.exec_driver_sql("PRAGMA auto_vacuum").scalar() == auto_vacuum


def test_an_outage_forgets_nothing(store_url):
    weekend_us = 60 * 3_600_000_000
    for received_at_us, verdict in ((0, "new"), (weekend_us, "duplicate")):
        with orders_of(store_url) as orders, orders.batch() as batch:
            decision = batch.receive("1", "gateway-1", received_at_us=received_at_us)
        assert decision.verdict == verdict
    assert decision.age_us == weekend_us


def test_a_clock_that_is_ahead_sets_the_time_for_all(store_url):
    with orders_of(store_url) as ahead, orders_of(store_url) as orders:
        with ahead.batch() as batch:
            batch.receive("1", received_at_us=10)
        with orders.batch() as batch:
            batch.receive_many([("2", None, 7), ("1", None, 8)])
        assert orders.status().clock_clamped == 2


def test_a_copy_of_sqlite_that_is_made_meanwhile(tmp_path, sqlite_url):
    with orders_of(sqlite_url) as orders:
        for id_ in "1", "2":
            with orders.batch() as batch:
                batch.receive(id_, "gateway-1")
            copy = tmp_path / f"copy-{id_}.db"
            with closing(sqlite3.connect(tmp_path / "receiver.db")) as connection:
                connection.execute(f"VACUUM INTO '{copy}'")
    assert verdicts(f"sqlite:///{tmp_path}/copy-1.db", "1", "2") == ["duplicate", "new"]
    assert verdicts(f"sqlite:///{tmp_path}/copy-2.db", "1", "2") == ["duplicate", "duplicate"]


ENDED_IN_A_BATCH = """
import signal, sys, time
from receiver import Receiver

signal.signal(signal.SIGTERM, lambda *_: sys.exit())
with Receiver.open(sys.argv[1], connection_id="broker-a", destination="queue://orders", record=".") as orders:
    with orders.batch() as batch:
        batch.receive("1", "gateway-1")
    with orders.batch() as batch:
        batch.receive("2", "gateway-1")
        print("inside", flush=True)
        time.sleep(60)
"""


@pytest.mark.slow
def test_a_signal_that_leaves_the_blocks(tmp_path, sqlite_url):
    command = [sys.executable, "-c", ENDED_IN_A_BATCH, sqlite_url]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as bridge:
        assert bridge.stdout.readline() == b"inside\n"
        bridge.terminate()
        assert bridge.stderr.read() == b""
    assert bridge.returncode == 0
    (recorded,) = tmp_path.glob("receipts-*.jsonl.zst")
    assert sum(map(len, read_logs([str(recorded)], ReadOptions()))) == 1
    assert verdicts(sqlite_url, "1", "2") == ["duplicate", "new"]
