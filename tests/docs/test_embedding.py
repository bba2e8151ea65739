"""Every snippet of `docs/embedding.md` runs as it stands there, and what the page claims about it holds."""

import logging
import multiprocessing
import re
import shlex
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.request import urlopen

import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest
from sqlalchemy import NullPool, create_engine, make_url, text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from receiver import Receiver, StoreSettings
from receiver.durable.metrics import export
from receiver.errors import ClosedError, SettingsError, StoreBusyError, StoreVersionError
from tests.docs.broker import Broker, Message

PAGE = Path(__file__).resolve().parents[2] / "docs" / "embedding.md"
ITS_URL = '"sqlite:///receiver.db"'
CHANNEL = {"connection_id": "broker-a", "destination": "queue://orders"}


def blocks(language: str) -> dict[str, list[str]]:
    """The page's blocks of a language, by the heading above them."""
    found: dict[str, list[str]] = {}
    for section in re.split(r"^## ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        inside = re.findall(rf"^```{language}\n(.*?)^```", section, re.DOTALL | re.MULTILINE)
        if inside:
            found[section.partition("\n")[0]] = inside
    return found


PYTHON = blocks("python")


class Base(DeclarativeBase):
    pass


class Payment(Base):
    __tablename__ = "payment"
    number: Mapped[int] = mapped_column(primary_key=True)
    reference: Mapped[str]
    cents: Mapped[int]


class CrashError(Exception):
    """What ends a bridge in the middle of something."""


@contextmanager
def orders_of(url: str, **options: object) -> Iterator[Receiver]:
    with Receiver.open(url, **CHANNEL | options) as orders:
        yield orders


def run(block: str, url: str, names: dict) -> None:
    exec(compile(block.replace(ITS_URL, repr(url)), str(PAGE), "exec"), names)  # noqa: S102 - our own text


def verdicts(url: str, *ids: str, **options: object) -> list[str]:
    with orders_of(url, **options) as orders, orders.batch() as batch:
        return [batch.receive(id_, "gateway-1").verdict.value for id_ in ids]


@pytest.fixture
def payments(store_url):
    """A table of the application's own; what stands in it."""
    engine = create_engine(store_url, poolclass=NullPool)
    Base.metadata.create_all(engine)

    def read() -> list[str]:
        with engine.connect() as connection:
            return list(connection.scalars(text("SELECT reference FROM payment ORDER BY number")))

    return read


@pytest.fixture
def names(store_url):
    """What the page takes as given, and what its first snippet imports for the rest."""
    return {"Receiver": Receiver, "URL": store_url, "Payment": Payment, "broker": Broker(), "deliver": lambda _: None}


def test_every_snippet_is_run():
    tested = {heading for test in globals().values() for heading in getattr(test, "headings", ())}
    assert set(PYTHON) | set(blocks("sql")) | set(blocks("sh")) == tested


def shows(*headings: str):
    """Says which sections' snippets a test runs."""

    def mark(test):
        test.headings = headings
        return test

    return mark


@shows("Ten lines")
def test_ten_lines(store_url, names):
    ten_lines, _ = PYTHON["Ten lines"]
    delivered = []
    names |= {"broker": Broker("1", "2", "1"), "deliver": delivered.append}
    assert len([line for line in ten_lines.splitlines() if line and not line.startswith("URL")]) == 9
    run(ten_lines, store_url, names)
    assert [message.unique_message_id for message in delivered] == ["1", "2"]
    assert not names["broker"].sent
    names["broker"] = Broker("2", "3")
    run(ten_lines, store_url, names)
    assert [message.unique_message_id for message in delivered] == ["1", "2", "3"]


@pytest.mark.parametrize("dies", ["inside the block", "before the acknowledgement"])
def test_no_message_is_lost_or_delivered_again_after_a_commit(store_url, names, dies):
    delivered = []
    broker = names["broker"] = Broker("1", "2")

    def deliver(message):
        if dies == "inside the block" and message.unique_message_id == "2":
            raise CrashError
        delivered.append(message.unique_message_id)

    def acknowledge(_messages):
        raise CrashError

    names["deliver"] = deliver
    if dies == "before the acknowledgement":
        broker.acknowledge = acknowledge
    with pytest.raises(CrashError):
        run(PYTHON["Ten lines"][0], store_url, names)
    before = list(delivered)
    broker.recover()
    names["deliver"] = lambda message: delivered.append(message.unique_message_id)
    broker.__dict__.pop("acknowledge", None)
    run(PYTHON["Ten lines"][0], store_url, names)
    assert before == (["1"] if dies == "inside the block" else ["1", "2"])
    # Inside the block, the effect outside the database happens twice.
    assert delivered == (["1", "1", "2"] if dies == "inside the block" else ["1", "2"])


@shows("Ten lines")
def test_a_store_that_fails_is_asked_again(store_url, names, monkeypatch, caplog):
    _, loop = PYTHON["Ten lines"]
    monkeypatch.setattr("time.sleep", lambda _secs: blocker.close())
    engine = create_engine(store_url, poolclass=NullPool)
    delivered = []
    names |= {"broker": Broker("1", "2"), "deliver": delivered.append}
    with orders_of(store_url, store_settings=StoreSettings(lock_timeout_secs=0.05)) as orders:
        names["orders"] = orders
        blocker = engine.connect()
        blocker.execute(text("UPDATE receiver_domain SET last_seq = last_seq"))
        with caplog.at_level(logging.ERROR, "bridge"):
            run(loop, store_url, names)
        assert orders.status().rx == 2
    assert [message.unique_message_id for message in delivered] == ["1", "2"]
    (record,) = caplog.records
    assert "raise lock_timeout_secs" in record.getMessage()


@shows("Effects in the same database: once")
def test_effects_in_the_same_database(store_url, names, payments):
    own, callers, savepoints = PYTHON["Effects in the same database: once"]
    names["pay"] = pay

    def send(block, *ids):
        names["broker"] = Broker(*ids)
        names["messages"] = names["broker"].receive(100)
        run(block, store_url, names)
        assert not names["broker"].sent

    with orders_of(store_url) as names["orders"]:
        send(own, "1", "2")
        send(own, "2", "3")
        assert payments() == ["1", "2", "3"]
        send(callers, "3", "4")
        assert payments() == ["1", "2", "3", "4"]
        send(savepoints, "4", "5", "bad", "6")
        assert payments() == ["1", "2", "3", "4", "5", "6"]
        assert [message.unique_message_id for message in names["refused"]] == ["bad"]
        names["engine"].dispose()
    assert verdicts(store_url, "6", "bad") == ["duplicate", "new"]


def pay(connection, message):
    connection.execute(
        text("INSERT INTO payment (reference, cents) VALUES (:reference, :cents)"),
        {"reference": message.unique_message_id, "cents": message.cents},
    )
    if message.unique_message_id == "bad":
        raise ValueError


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
        # A batch left by an exception records nothing, even if the caller commits.
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


def test_sqlite_syncs_at_each_commit_of_the_caller_too(sqlite_url):
    with orders_of(sqlite_url), create_engine(sqlite_url, poolclass=NullPool).connect() as connection:
        full = 2
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == full
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"


@shows("Many processes, one domain")
def test_many_receivers_on_one_domain(store_url, names):
    (block,) = PYTHON["Many processes, one domain"]
    run(block, store_url, names)
    first, second = names["first"], names["second"]
    impatient = StoreSettings(lock_timeout_secs=0.05)
    with first.batch(), orders_of(store_url, domain="destination", store_settings=impatient) as standby:
        with pytest.raises(StoreBusyError):  # the same thread would wait for itself
            second.batch().__enter__()
        assert standby.status().rDupIds == 1
    first.close()
    second.close()


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


@shows("Windows and domains")
def test_resizing(store_url, names):
    (block,) = PYTHON["Windows and domains"]
    with orders_of(store_url) as already_open:
        assert already_open.status().window == 2000
        run(block, store_url, names)
        with already_open.batch() as batch:
            batch.receive("1")
        assert already_open.status().window == 5000
    with orders_of(store_url) as orders:
        assert orders.status().window == 5000


@shows("Trying it out, and ids used twice")
def test_observing_and_ids_used_twice(store_url, names, capsys):
    (reuse,) = PYTHON["Trying it out, and ids used twice"]
    for _ in range(2):
        with orders_of(store_url, observe_only=True) as orders, orders.batch() as batch:
            decision = batch.receive("payment 8")
        assert decision.deliver
    assert (decision.verdict, decision.delivered_anyway) == ("duplicate", True)
    run(reuse, store_url, names)
    assert [capsys.readouterr().out] == blocks("text")["Trying it out, and ids used twice"]
    assert verdicts(store_url, "payment 8") == ["duplicate"]


@shows("Watching")
def test_watching(store_url, names, capsys, caplog):
    watching, prometheus = PYTHON["Watching"]
    names["seen_again"] = []
    with caplog.at_level(logging.INFO, "receiver.duplicates"):
        run(watching, store_url, names)
    assert names["seen_again"] == [("payment 11", 1, "source")]
    assert [record.duplicate.redelivered for record in caplog.records] == [True]
    printed = capsys.readouterr().out
    assert printed.startswith("JMS Status: ")
    assert "rx=2 " in printed
    assert "rRedel=2 " in printed
    orders = names["orders"]
    assert {stage for stage, times in orders.status().stages.items() if times.count} == {
        "RECEIVING", "DB_WAIT", "APP_CONTROLLED_BLOCKING", "DB_COMMIT", "JMS_ACK", "TOTAL"
    }  # fmt: skip
    assert orders.status().recent_min_headroom == 1
    # Any free port.
    run(prometheus.replace("start_http_server(9000)", "server, thread = start_http_server(0)"), store_url, names)
    try:
        with urlopen(f"http://localhost:{names['server'].server_port}/metrics") as response:
            shown = response.read().decode()
    finally:
        names["server"].shutdown()
        names["server"].server_close()
        names["thread"].join()
        orders.close()
    duplicates = 'receiver_duplicates_total{domain="broker-a:queue://orders",tier="source"} '
    assert float(shown.partition(duplicates)[2].partition("\n")[0]) >= 1
    assert 'receiver_headroom_ratio_bucket{domain="broker-a:queue://orders",le="0.1"} 0.0' in shown


def test_the_alert_rules_speak_of_metrics_that_there_are(store_url):
    registry = CollectorRegistry()
    with orders_of(store_url) as orders:
        export(orders, registry)
        exported = generate_latest(registry).decode()
    (group,) = yaml.safe_load((PAGE.parent / "headroom-alert.yaml").read_text(encoding="utf-8"))["groups"]
    for rule in group["rules"]:
        ((name, bucket),) = re.findall(r'(receiver_\w+)\{(le="[^"]*")\}', rule["expr"])
        assert re.search(rf"^{name}\{{.*{re.escape(bucket)}\}} 0\.0$", exported, re.MULTILINE)


@shows("Sizing from what was received")
def test_sizing_from_what_was_received(store_url, names, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "receipts").mkdir()
    (recording,) = PYTHON["Sizing from what was received"]
    run(recording, store_url, names)
    assert (names["orders"].status().recorded, names["orders"].status().record_dropped) == (40, 0)
    (command,) = blocks("sh")["Sizing from what was received"]
    ran = subprocess.run(
        [sys.executable, "-m", *shlex.split(command)], check=True, capture_output=True, encoding="utf-8"
    )
    assert ran.stdout.startswith("40 receipts, 10 duplicates")


@shows("The database")
def test_a_user_with_few_rights(fresh_postgres_url):
    with orders_of(fresh_postgres_url):
        pass
    role = f"bridge_{uuid.uuid4().hex}"
    (grants,) = blocks("sql")["The database"]
    admin = create_engine(fresh_postgres_url, poolclass=NullPool, isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        connection.execute(text(f"CREATE ROLE {role} LOGIN PASSWORD 'few'"))
        try:
            for grant in grants.replace("bridge;", f"{role};").split(";\n"):
                if grant:
                    connection.execute(text(grant))
            theirs = make_url(fresh_postgres_url).set(username=role, password="few")  # noqa: S106 - a role of the test's
            url = theirs.render_as_string(hide_password=False)
            assert verdicts(url, "1", domain="name:made by them") == ["new"]
            assert verdicts(url, "1", domain="name:made by them") == ["duplicate"]
        finally:
            connection.execute(text(f"DROP OWNED BY {role}"))
            connection.execute(text(f"DROP ROLE {role}"))


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
