"""Opening a store: it is made if it is missing and used if it exists, by one process or by many at once."""

import sqlite3
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing

import pytest
from sqlalchemy import Engine, event, inspect, make_url, text

from receiver.errors import StoreBusyError, StoreError
from receiver.settings import StoreSettings
from receiver.store.databases import read_only
from receiver.store.databases import store_url as url_of
from receiver.store.schema import examined, open_store_engine
from receiver.store.tables import METADATA, REVISION, VERSION_TABLE, domains
from tests.postgres import fresh_database
from tests.stores import engine_of, execute

ALL_TABLES = {*METADATA.tables, VERSION_TABLE}
PROCESSES, ROUNDS = 4, 5


def opened(address, **settings):
    return open_store_engine(url_of(address), StoreSettings(**settings))


def scalar(store, statement):
    with store.connect() as connection:
        return connection.scalar(text(statement))


def test_made_where_there_is_none(store_url):
    assert set(inspect(opened(store_url)).get_table_names()) == ALL_TABLES
    assert scalar(examined(url_of(store_url)), "SELECT version_num FROM receiver_alembic_version") == REVISION


def test_an_empty_file_is_an_empty_database(tmp_path):
    (tmp_path / "receiver.db").touch()
    assert set(inspect(opened(f"sqlite:///{tmp_path}/receiver.db")).get_table_names()) == ALL_TABLES


def test_what_is_there_stays(store_url):
    """Rows of ours stay, and so do the application's tables, older and newer ones."""
    with engine_of(store_url).begin() as connection:
        connection.execute(text("CREATE TABLE orders (id INTEGER)"))
    with opened(store_url).begin() as connection:
        connection.execute(text("INSERT INTO receiver_joined VALUES (1, 2, 3, 4)"))
        connection.execute(text("CREATE TABLE receiver_of_letters (id INTEGER)"))
    store = opened(store_url)
    assert scalar(store, "SELECT writer FROM receiver_joined") == 2
    assert set(inspect(store).get_table_names()) == {*ALL_TABLES, "orders", "receiver_of_letters"}


def test_a_second_opening_is_light(store_url):
    """It reads a few rows, and doesn't even load Alembic."""
    program = f"""if True:
        import sys
        from sqlalchemy import Engine, event
        from receiver.settings import StoreSettings
        from receiver.store.databases import store_url
        from receiver.store.schema import open_store_engine
        statements = []
        event.listen(Engine, "before_cursor_execute", lambda *details: statements.append(details[2]))
        open_store_engine(store_url({store_url!r}), StoreSettings())
        print("alembic" in sys.modules, len(statements))
    """
    opened(store_url)
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded, statements = ran.stdout.split()
    assert loaded == "False"
    assert int(statements) <= 20


def test_a_second_opening_waits_for_nobody(fresh_postgres_url):
    """It doesn't even wait for a table that somebody has locked, as VACUUM FULL does."""
    opened(fresh_postgres_url)
    with engine_of(fresh_postgres_url).begin() as connection:
        connection.execute(text("LOCK TABLE receiver_domain IN ACCESS EXCLUSIVE MODE"))
        opened(fresh_postgres_url)


@pytest.mark.costly
def test_many_at_once_on_new_databases(postgres_url, tmp_path):
    """One process migrates while the others wait, and all of them then use the same store."""
    program = """if True:
        import sys
        from receiver.settings import StoreSettings
        from receiver.store.databases import store_url
        from receiver.store.schema import open_store_engine
        for address in sys.stdin:
            with open_store_engine(store_url(address.strip()), StoreSettings()).begin() as connection:
                connection.exec_driver_sql("UPDATE receiver_domain SET receipts = 0")
            print("opened", flush=True)
    """
    with ExitStack() as stack:
        addresses = [f"sqlite:///{tmp_path}/{number}.db" for number in range(ROUNDS)]
        addresses += [stack.enter_context(fresh_database(postgres_url)) for _ in range(ROUNDS)]
        processes = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
                )
            )
            for _ in range(PROCESSES)
        ]
        for address in addresses:
            for process in processes:
                process.stdin.write(f"{address}\n")
                process.stdin.flush()
            assert [process.stdout.readline() for process in processes] == ["opened\n"] * PROCESSES, address
            assert scalar(examined(url_of(address)), "SELECT count(*) FROM receiver_alembic_version") == 1


@pytest.mark.slow
def test_many_at_once_on_a_file_of_the_application(tmp_path):
    """While one process switches it to a write-ahead log, SQLite fails another one at once. That happens once in a
    thousand times, so there are many rounds."""
    ready = threading.Barrier(PROCESSES)

    def switch(file):
        store = engine_of(f"sqlite:///{file}")
        ready.wait()
        return scalar(store, "PRAGMA journal_mode")

    with ThreadPoolExecutor(PROCESSES) as pool:
        for number in range(200):
            with closing(sqlite3.connect(tmp_path / f"{number}.db")) as own:
                own.execute("CREATE TABLE orders (id INTEGER)")
            assert set(pool.map(switch, [tmp_path / f"{number}.db"] * PROCESSES)) == {"wal"}


@pytest.mark.parametrize("lock_timeout_secs", [0, 0.2])
def test_waiting_for_others_is_bounded(store_url, lock_timeout_secs):
    with engine_of(store_url).begin() as holder:
        if holder.dialect.name == "postgresql":
            holder.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": int.from_bytes(b"receiver", "big")})
        with pytest.raises(StoreBusyError) as caught:
            opened(store_url, lock_timeout_secs=lock_timeout_secs)
    assert "lock_timeout_secs" in caught.value.hint
    opened(store_url)


def test_a_file_gives_space_back_and_writes_ahead(sqlite_url):
    store = opened(sqlite_url, sqlite_synchronous="EXTRA", lock_timeout_secs=1.5)
    expected = {
        "auto_vacuum": 2,
        "journal_mode": "wal",
        "synchronous": 3,
        "secure_delete": 2,
        "busy_timeout": 1500,
    }
    assert {name: scalar(store, f"PRAGMA {name}") for name in expected} == expected


@pytest.fixture
def listening():
    """An application that sets up each connection, of whatever engine, for its own purposes."""

    def set_up(driver, _record):
        for pragma in ("journal_mode = DELETE", "synchronous = NORMAL", "busy_timeout = 30000"):
            driver.execute(f"PRAGMA {pragma}")

    event.listen(Engine, "connect", set_up)
    yield
    event.remove(Engine, "connect", set_up)


@pytest.mark.usefixtures("listening")
def test_a_file_is_opened_as_ever_though_the_application_sets_up_all_connections(sqlite_url):
    test_a_file_gives_space_back_and_writes_ahead(sqlite_url)


def test_an_sqlite_transaction_holds_the_lock_from_its_beginning(sqlite_url):
    store = opened(sqlite_url, lock_timeout_secs=0)
    with store.connect() as first, store.connect() as second:
        first.execute(domains.select())
        with pytest.raises(Exception, match="database is locked"):
            second.execute(domains.select())


def test_a_transaction_begun_on_the_drivers_connection_is_joined(sqlite_url):
    begun = []
    store = opened(sqlite_url)
    event.listen(store, "before_cursor_execute", lambda *details: begun.append(details[2]))
    with store.connect() as connection:
        connection.connection.dbapi_connection.execute("BEGIN IMMEDIATE")
        connection.execute(text("INSERT INTO receiver_joined VALUES (1, 2, 3, 4)"))
        connection.commit()
    assert begun == ["INSERT INTO receiver_joined VALUES (1, 2, 3, 4)"]
    assert scalar(store, "SELECT count(*) FROM receiver_joined") == 1


def test_a_session_on_a_server_is_ours_whatever_its_defaults(fresh_postgres_url):
    defaults = (
        "default_transaction_isolation = serializable",
        "lock_timeout = '7h'",
        "quote_all_identifiers = on",
        "client_min_messages = error",  # a COMMIT shows only by a warning that the standby lacks it
    )
    name = make_url(fresh_postgres_url).database
    execute(fresh_postgres_url, *(f"ALTER DATABASE {name} SET {default}" for default in defaults))
    for _ in range(2):  # the first makes the tables, the second uses them
        store = opened(fresh_postgres_url, lock_timeout_secs=2.5)
    names = ("transaction_isolation", "lock_timeout", "client_encoding", "client_min_messages", "application_name")
    assert [scalar(store, f"SHOW {name}") for name in names] == [
        "read committed",
        "2500ms",
        "UTF8",
        "warning",
        "receiver",
    ]
    named = opened(fresh_postgres_url + ("&" if "?" in fresh_postgres_url else "?") + "application_name=bridge")
    assert scalar(named, "SHOW application_name") == "bridge"


@pytest.mark.parametrize("create", [open_store_engine, read_only])
def test_a_session_on_a_server_is_opened_though_the_application_sets_up_all_connections(fresh_postgres_url, create):
    def set_up(driver, _record):
        driver.cursor().execute("SET TIME ZONE 'Asia/Tokyo'")  # begins a transaction, which the listener leaves open

    opened(fresh_postgres_url)
    event.listen(Engine, "connect", set_up)
    try:
        assert scalar(create(url_of(fresh_postgres_url), StoreSettings()), "SHOW TimeZone") == "Asia/Tokyo"
    finally:
        event.remove(Engine, "connect", set_up)


def test_reading_changes_nothing(store_url):
    opened(store_url)
    for store in (examined(url_of(store_url)), read_only(url_of(store_url))):
        with store.connect() as connection, pytest.raises(Exception, match=r"readonly|read-only"):
            connection.execute(text("DELETE FROM receiver_joined"))


def test_examining_makes_nothing(store_url, tmp_path):
    with pytest.raises(StoreError, match="there is no store"):
        examined(url_of(store_url))
    assert not any(tmp_path.iterdir())
    assert inspect(engine_of(store_url)).get_table_names() == []


def test_examining_leaves_no_file_behind(sqlite_url, tmp_path):
    opened(sqlite_url)
    before = (tmp_path / "receiver.db").read_bytes()
    assert scalar(examined(url_of(sqlite_url)), "SELECT count(*) FROM receiver_receipt") == 0
    assert list(tmp_path.iterdir()) == [tmp_path / "receiver.db"]
    assert (tmp_path / "receiver.db").read_bytes() == before


@pytest.mark.parametrize("name", ["receiver.db", "links/receiver.db"])
def test_what_a_killed_process_left_is_read_and_stays(name, tmp_path):
    """Its last commits are only in the write-ahead log. A command that only reads doesn't move them, also through a
    link."""
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "receiver.db").symlink_to(tmp_path / "receiver.db")
    sqlite_url = f"sqlite:///{tmp_path / name}"
    opened(sqlite_url)
    program = """if True:
        import os, signal, sqlite3, sys
        connection = sqlite3.connect(sys.argv[1], isolation_level=None)
        connection.execute("INSERT INTO receiver_joined VALUES (1, 2, 3, 4)")
        os.kill(os.getpid(), signal.SIGKILL)
    """
    subprocess.run([sys.executable, "-c", program, tmp_path / "receiver.db"], check=False)
    left = {file: (tmp_path / file).read_bytes() for file in ("receiver.db", "receiver.db-wal")}
    assert scalar(examined(url_of(sqlite_url)), "SELECT count(*) FROM receiver_joined") == 1
    assert {file: (tmp_path / file).read_bytes() for file in left} == left
    assert scalar(opened(sqlite_url), "SELECT count(*) FROM receiver_joined") == 1


def test_a_journal_that_a_power_cut_left_beside_the_log_is_rolled_back(tmp_path):
    """The power was cut when a new file began to write ahead. The log's name was kept, and the journal's removal
    wasn't."""
    with closing(sqlite3.connect(tmp_path / "before.db", isolation_level=None)) as connection:
        connection.execute("CREATE TABLE application (number INTEGER)")
        connection.execute("PRAGMA cache_size = 1")
        connection.execute("BEGIN")
        connection.execute("CREATE TABLE more AS SELECT zeroblob(100000) AS bytes")  # written before the commit
        for name in ("before.db", "before.db-journal"):
            copy = name.replace("before", "receiver")
            (tmp_path / copy).write_bytes((tmp_path / name).read_bytes())
    (tmp_path / "receiver.db-wal").write_bytes(bytes(32))
    assert inspect(opened(f"sqlite:///{tmp_path / 'receiver.db'}")).has_table("application")
    assert sorted(tmp_path.glob("receiver.db-*")) == []


def test_an_applications_file_keeps_its_rows(tmp_path):
    """A file that never wrote ahead, and whose pages can't be given back, takes our tables too."""
    with sqlite3.connect(tmp_path / "app.db") as own:
        own.execute("CREATE TABLE orders AS SELECT 7 AS id")
    own.close()
    store = opened(f"sqlite:///{tmp_path}/app.db")
    assert [scalar(store, "SELECT id FROM orders"), scalar(store, "PRAGMA auto_vacuum")] == [7, 0]
