"""Every snippet of `docs/embedding.md` and `docs/senders.md` runs exactly as printed, and does what the page says."""

import asyncio
import logging
import shlex
import subprocess
import sys
import threading
import time
import uuid
from urllib.request import urlopen

import pytest
from sqlalchemy import NullPool, create_engine, make_url, text
from sqlalchemy.ext.asyncio import create_async_engine

from receiver import Receiver, StoreSettings
from receiver.bridge import Message, Origin, open_bridge
from receiver.errors import StoreBusyError, StoreError
from receiver.senders import DedupKeyMaker
from receiver.store.inbox import Inbox
from tests.brokers.memory import MemoryBroker
from tests.docs.bridge import CHANNEL, Aside, Broker, CrashError, Payment, orders_of, pay, verdicts
from tests.docs.markdown import ROOT, blocks, commands, sections
from tests.docs.markdown import run as run_command

PAGE = "docs/embedding.md"
SENDERS = "docs/senders.md"
OPERATIONS = "docs/operations.md"
ITS_URL = '"sqlite:///receiver.db"'


def by_heading(language: str) -> dict[str, list[str]]:
    """The page's blocks of a language, by the heading above them."""
    return {heading: there for heading in sections(PAGE) if (there := blocks(PAGE, language, heading))}


PYTHON = by_heading("python")


def run(block: str, url: str, names: dict) -> None:
    exec(compile(block.replace(ITS_URL, repr(url)), PAGE, "exec"), names)  # noqa: S102 - our own text


@pytest.fixture
def names(store_url):
    """The names that the page takes as given, and those that its first snippet imports for the others."""
    names = {"Receiver": Receiver, "URL": store_url, "Payment": Payment, "broker": Broker(), "deliver": lambda _: None}
    yield names
    if "engine" in names:  # made by a snippet
        names["engine"].dispose()


def test_every_snippet_is_run():
    tested = {heading for test in globals().values() for heading in getattr(test, "headings", ())}
    assert set(PYTHON) | set(by_heading("sql")) | set(by_heading("sh")) == tested


def shows(*headings: str):
    """Mark a test with the sections whose snippets it runs."""

    def mark(test):
        test.headings = headings
        return test

    return mark


@shows("In an event loop")
@pytest.mark.parametrize("driver", ["aiosqlite", "asyncpg", "psycopg"])
def test_in_an_event_loop(request, driver):
    url = request.getfixturevalue("sqlite_url" if driver == "aiosqlite" else "fresh_postgres_url")
    names = {
        "URL": url,
        "Payment": Payment,
        "PAY": text("INSERT INTO payment (reference, cents) VALUES (:reference, :cents)"),
    }
    run(PYTHON["In an event loop"][0], url, names)
    Payment.metadata.create_all(create_engine(url, poolclass=NullPool))

    async def pay_twice():
        engine = create_async_engine(make_url(url).set(drivername=f"{make_url(url).get_backend_name()}+{driver}"))
        for _ in range(2):
            await names["pay_each"](Broker("1", "2").receive(9), engine)
        await engine.dispose()

    asyncio.run(pay_twice())
    with create_engine(url, poolclass=NullPool).connect() as connection:
        assert sorted(connection.scalars(text("SELECT reference FROM payment"))) == ["1", "2", "payment 30"]


@shows("The loop")
def test_the_loop(store_url, names):
    (loop,) = PYTHON["The loop"]
    delivered = []
    names |= {"broker": Broker("1", "2", "1"), "deliver": delivered.append}
    run(loop, store_url, names)
    assert [message.unique_message_id for message in delivered] == ["1", "2"]
    assert not names["broker"].sent
    names["broker"] = Broker("2", "3")
    run(loop, store_url, names)
    assert [message.unique_message_id for message in delivered] == ["1", "2", "3"]


def test_the_first_consumer(tmp_path):
    program = ROOT / "examples" / "consumers" / "first.py"
    assert subprocess.check_output([sys.executable, program], cwd=tmp_path, text=True) == "seen before: 18\n"
    with create_engine(f"sqlite:///{tmp_path}/pay.db", poolclass=NullPool).connect() as connection:
        assert connection.scalars(text("SELECT reference FROM payment ORDER BY 1")).all() == ["17", "18", "19"]


@shows("Messages without an id")
@pytest.mark.parametrize("missing", [None, ""])
def test_without_an_id(store_url, names, missing):
    Aside.metadata.create_all(engine := create_engine(store_url, poolclass=NullPool))
    broker, delivered = Broker("1", missing, "2"), []
    (block,) = PYTHON["Messages without an id"]
    with Receiver.open(store_url, **CHANNEL) as orders:
        names |= {"orders": orders, "broker": broker, "deliver": delivered.append, "text": text}
        for _ in range(2):
            names["messages"] = broker.receive(9)
            run(block, store_url, names)
            broker.waiting = names["messages"]  # as after a crash
        status = orders.status()
        assert (status.rx, status.unchecked) == (4, 0)
        with orders.batch() as batch:  # and this is why
            assert [batch.receive(missing).verdict.value for _ in range(2)] == ["unchecked", "unchecked"]
    assert [message.unique_message_id for message in delivered] == ["1", "2"]
    with engine.connect() as connection:
        assert connection.scalars(text("SELECT body FROM aside")).all() == [b"", b""]  # nothing is lost


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
        run(PYTHON["The loop"][0], store_url, names)
    before = list(delivered)
    broker.recover()
    names["deliver"] = lambda message: delivered.append(message.unique_message_id)
    broker.__dict__.pop("acknowledge", None)
    run(PYTHON["The loop"][0], store_url, names)
    assert before == (["1"] if dies == "inside the block" else ["1", "2"])
    # Inside the block, the effect outside the database happens twice.
    assert delivered == (["1", "1", "2"] if dies == "inside the block" else ["1", "2"])


@shows("The loop")
def test_a_store_that_fails_is_asked_again(store_url, names, monkeypatch, caplog):
    loop = PYTHON["The loop"][0].replace('"queue://orders")', '"queue://orders", store_settings=impatient)')
    here, sleep = threading.get_ident(), time.sleep

    def instead(secs):
        is_the_loops = secs == 1 and threading.get_ident() == here  # threads of others sleep too, and so does a batch
        blocker.close() if is_the_loops else sleep(secs)

    monkeypatch.setattr("time.sleep", instead)
    engine = create_engine(store_url, poolclass=NullPool)
    delivered = []
    names |= {"broker": Broker("1", "2"), "deliver": delivered.append}
    names["impatient"] = StoreSettings(lock_timeout_secs=0.05)
    with orders_of(store_url):  # makes the domain
        pass
    blocker = engine.connect()
    blocker.execute(text("UPDATE receiver_domain SET last_seq = last_seq"))
    caplog.clear()
    with caplog.at_level(logging.ERROR, "consumer"):
        run(loop, store_url, names)
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
        with pytest.raises(LookupError):  # leaves the whole transaction
            send(savepoints, "7", "worst")
        assert "7" not in payments()
        names["engine"].dispose()
    assert verdicts(store_url, "6", "bad", "7") == ["duplicate", "new", "new"]


@shows("Many processes, one domain")
def test_many_receivers_on_one_domain(store_url, names):
    (block,) = PYTHON["Many processes, one domain"]
    run(block, store_url, names)
    first, second = names["first"], names["second"]
    impatient = StoreSettings(lock_timeout_secs=0.05)
    with first.batch(), orders_of(store_url, domain="destination", store_settings=impatient) as standby:
        with pytest.raises(StoreBusyError):  # the same thread would deadlock
            second.batch().__enter__()
        assert standby.status().rDupIds == 1
    first.close()
    second.close()


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


@pytest.mark.slow
def test_retiring(store_url):
    with orders_of(store_url) as orders, orders.batch() as batch:
        batch.receive("1", "gateway-1:4711")
    for command in blocks(OPERATIONS, "sh", "Cleaning up")[0].splitlines():
        arguments = shlex.split(command.replace(ITS_URL.strip('"'), store_url))
        ran = subprocess.run([sys.executable, "-m", *arguments], check=True, capture_output=True, text=True)
    assert "1 source retired, 0 ids forgotten, 0 sources left" in ran.stdout


@shows("Trying it out, and ids used twice")
def test_observing_and_ids_used_twice(store_url, names, capsys):
    (reuse,) = PYTHON["Trying it out, and ids used twice"]
    for _ in range(2):
        with orders_of(store_url, observe_only=True) as orders, orders.batch() as batch:
            decision = batch.receive("payment 8")
        assert decision.deliver
    assert (decision.verdict, decision.delivered_anyway) == ("duplicate", True)
    run(reuse, store_url, names)
    assert [capsys.readouterr().out] == by_heading("text")["Trying it out, and ids used twice"]
    assert verdicts(store_url, "payment 8") == ["duplicate"]


@shows("Watching")
def test_watching(store_url, names, capsys, caplog):
    watching, prometheus = PYTHON["Watching"]
    names["seen_again"] = []
    with caplog.at_level(logging.INFO, "receiver.duplicates"):
        run(watching, store_url, names)
    assert names["seen_again"] == [("payment 11", 1, "source")]
    duplicates = [record.duplicate for record in caplog.records if record.name == "receiver.duplicates"]
    assert [duplicate.redelivered for duplicate in duplicates] == [True]
    printed = capsys.readouterr().out
    assert printed.startswith("JMS Status: ")
    assert "rx=2 " in printed
    assert "rRedel=2 " in printed
    orders = names["orders"]
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
    # Other tests' receivers of this domain count too.
    for sample, least in (
        ('receiver_duplicates_total{domain="broker-a:queue://orders",tier="source"} ', 1),
        ('receiver_commit_seconds_count{domain="broker-a:queue://orders"} ', 2),
    ):
        assert float(shown.partition(sample)[2].partition("\n")[0]) >= least
    assert 'receiver_headroom_ratio_bucket{domain="broker-a:queue://orders",le="0.1"} 0.0' in shown


@pytest.mark.slow
@shows("Sizing from what was received")
def test_sizing_from_what_was_received(store_url, names, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "receipts").mkdir()
    (recording,) = PYTHON["Sizing from what was received"]
    run(recording, store_url, names)
    assert (names["orders"].status().recorded, names["orders"].status().record_dropped) == (40, 0)
    (command,) = by_heading("sh")["Sizing from what was received"]
    ran = subprocess.run(
        [sys.executable, "-m", *shlex.split(command)], check=True, capture_output=True, encoding="utf-8"
    )
    assert "\n40 receipts, 10 duplicates" in ran.stdout


def bridged(url: str, *ids: str) -> list[str | None]:
    broker, effects = MemoryBroker(), []

    def note(message, _connection):
        effects.append(message.unique_message_id)

    with broker.sink("in") as sink:
        sink.send([Message(body=b"", properties={"uniqueMessageId": id_}) for id_ in ids])
    origin = Origin(lambda: broker.source("in"), **CHANNEL)
    open_bridge(origin, note, url).run(stop_when_idle_secs=0)
    return effects


def test_a_user_with_few_rights(fresh_postgres_url):
    with orders_of(fresh_postgres_url):
        pass
    role = f"bridge_{uuid.uuid4().hex}"
    (grants,) = blocks(OPERATIONS, "sql", "The database")
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
            assert bridged(url, "1", "1") == ["1"]
        finally:
            connection.execute(text(f"DROP OWNED BY {role}"))
            connection.execute(text(f"DROP ROLE {role}"))


@pytest.mark.costly
def test_a_domain_is_dropped(store_url, tmp_path):
    _, block = blocks(OPERATIONS, "sh", "Cleaning up")
    verdicts(store_url, "1", domain="name:kept")
    with orders_of(store_url, domain="name:old") as still_open:
        Inbox(store_url, domain_id=still_open.domain_id, target="file:orders.jsonl").close()
        with still_open.batch() as batch:
            batch.receive("1")
        listed, dropped = [
            run_command(line, tmp_path).stdout for line in commands(block.replace("sqlite:///receiver.db", store_url))
        ]
        assert ": old (key name)" in listed
        assert "1 stored receipt" in dropped
        with pytest.raises(StoreError, match="the domain is gone"), still_open.batch() as batch:
            batch.receive("1")
    subprocess.run([sys.executable, "-m", "receiver", "check", store_url], check=True, capture_output=True)
    assert verdicts(store_url, "1", domain="name:old") == ["new"]
    assert verdicts(store_url, "1", domain="name:kept") == ["duplicate"]


def test_the_senders_side(store_url, names):
    keyed, numbered = blocks(SENDERS, "python")
    sent = []
    with DedupKeyMaker.open(store_url, sender="billing") as keys:
        left = keys.key_for("invoice-16")  # by a process that died before it was confirmed
    names["send"] = lambda reference, key: sent.append((reference, key))
    run(keyed, store_url, names)
    assert sent == [("invoice-16", left), ("invoice-17", names["key"])]
    with DedupKeyMaker.open(store_url, sender="billing") as keys:
        assert keys.pending() == []
    engine = create_engine(store_url, poolclass=NullPool)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE outbox (id TEXT, body TEXT)"))
    run(numbered, store_url, names)
    names["engine"].dispose()
    with engine.connect() as connection:
        assert connection.execute(text("SELECT id, body FROM outbox ORDER BY id")).all() == [
            ("1:gateway-1", "10 EUR"),
            ("2:gateway-1", "10 EUR"),
        ]
