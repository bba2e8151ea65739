"""Addresses without a usable store of ours: a clear error, and nothing is changed."""

import os
import sqlite3
import tempfile
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from sqlalchemy import inspect, make_url, text

from receiver.errors import SettingsError, StoreCorruptError, StoreError, StoreVersionError
from receiver.settings import StoreSettings
from receiver.store.databases import store_url as url_of
from receiver.store.databases import translated
from receiver.store.databases.database import OTHER_DATABASE
from receiver.store.schema import examined, migrate, open_store_engine
from receiver.store.tables import METADATA, REVISION, VERSION_TABLE
from tests.postgres import sqlalchemy_url, wheel_server
from tests.stores import contents, engine_of, execute

pytestmark = pytest.mark.thinned(4)

NOBODY = 65_534
WAYS = {
    "open": lambda url: open_store_engine(url, StoreSettings()),
    "migrate": migrate,
    "examine": examined,
    "remove": lambda url: migrate(url, "base"),
}


@pytest.fixture(params=WAYS)
def way(request):
    """Each way to a store."""
    return WAYS[request.param]


def make(address):
    return WAYS["open"](url_of(address))


def sqlite_file(address) -> Path:
    return Path(make_url(address).database)


def a_text(file):
    file.write_text("receiver.db is a fine name for a letter, too.\n" * 100)


def a_short_text(file):
    file.write_text("a")


def a_damaged_schema(file):
    content = bytearray(file.read_bytes())
    content[100:3000] = b"\xa5" * 2900
    file.write_bytes(content)


def a_truncated_store(file):
    file.write_bytes(file.read_bytes()[:8192])


def a_damaged_page_of_versions(file):
    with closing(sqlite3.connect(file)) as store:
        sql = "SELECT rootpage FROM sqlite_master WHERE name = 'receiver_alembic_version'"
        page = store.execute(sql).fetchone()[0]
    content = bytearray(file.read_bytes())
    content[(page - 1) * 4096 : page * 4096] = b"\xa5" * 4096
    file.write_bytes(content)


@pytest.mark.parametrize(
    "damage", [a_text, a_short_text, a_damaged_schema, a_truncated_store, a_damaged_page_of_versions]
)
def test_a_damaged_file(damage, way, sqlite_url, tmp_path):
    make(sqlite_url)
    damage(sqlite_file(sqlite_url))
    before = contents(tmp_path)
    with pytest.raises(StoreCorruptError) as caught:
        way(url_of(sqlite_url))
    assert caught.value.hint
    assert contents(tmp_path) == before


def test_a_folder_and_a_missing_folder(way, tmp_path):
    for path, problem in {
        tmp_path: "this isn't a file",
        tmp_path / "no" / "receiver.db": f"no folder {tmp_path / 'no'}",
    }.items():
        with pytest.raises(StoreError, match=problem):
            way(url_of(f"sqlite:///{path}"))
    assert contents(tmp_path) == {}


FOREIGN = {
    "a table of our name": (
        ["CREATE TABLE receiver_receipt (seq TEXT, letter TEXT)"],
        "receiver_receipt is another's: it lacks received_at_us.*; has letter; has seq of type TEXT, not BIGINT",
    ),
    "another type": (
        ["CREATE TABLE receiver_joined (domain_id INTEGER, writer BIGINT, batch BIGINT, last_seq TEXT)"],
        "receiver_joined is another's: it has last_seq of type TEXT, not BIGINT",
    ),
    "a view of our name": (
        ["CREATE VIEW receiver_domain AS SELECT 1 AS letter"],
        "receiver_domain is another's: it lacks",
    ),
    "one of our tables alone": (
        ["CREATE TABLE receiver_joined (domain_id INTEGER, writer BIGINT, batch BIGINT, last_seq BIGINT)"],
        "should hold one version beside receiver_joined, not 0",
    ),
    "a version without tables": (
        [
            "CREATE TABLE receiver_alembic_version (version_num VARCHAR(32))",
            f"INSERT INTO receiver_alembic_version VALUES ('{REVISION}')",  # noqa: S608
        ],
        "the table receiver_domain is gone",
    ),
    "another table of versions": (
        ["CREATE TABLE receiver_alembic_version (version INTEGER)"],
        "other columns than version_num",
    ),
}


@pytest.mark.parametrize("case", FOREIGN)
def test_a_foreign_schema(case, way, store_url, tmp_path):
    statements, problem = FOREIGN[case]
    execute(store_url, *statements)
    before, tables = contents(tmp_path), inspect(engine_of(store_url)).get_table_names()
    with pytest.raises(StoreError, match=problem) as caught:
        way(url_of(store_url))
    assert "another database" in caught.value.hint or "restore" in caught.value.hint
    assert contents(tmp_path) == before
    assert inspect(engine_of(store_url)).get_table_names() == tables


def test_a_foreign_file_is_not_switched_to_a_write_ahead_log(way, tmp_path):
    with closing(sqlite3.connect(tmp_path / "app.db")) as own:
        own.execute("CREATE TABLE receiver_domain (letter TEXT)")
    before = contents(tmp_path)
    with pytest.raises(StoreError, match="is another's"):
        way(url_of(f"sqlite:///{tmp_path}/app.db"))
    assert contents(tmp_path) == before


@pytest.mark.thinned(8)
@pytest.mark.parametrize("table", METADATA.tables)
def test_a_table_that_is_gone(table, way, store_url):
    make(store_url)
    execute(store_url, f"DROP TABLE {table}")
    with pytest.raises(StoreError, match=f"the table {table} is gone"):
        way(url_of(store_url))


JOINED = (
    "DROP TABLE receiver_joined",
    "CREATE TABLE receiver_joined (domain_id INTEGER, writer BIGINT, batch BIGINT, {})",
)
CHANGED = {
    "a column more": ("last_seq BIGINT, letter TEXT", "has letter"),
    "a column less": ("letter BIGINT", "lacks last_seq; has letter"),
    "another type": ("last_seq TEXT", "has last_seq of type TEXT, not BIGINT"),
    "a column that is worked out": (
        "last_seq BIGINT, letter BIGINT GENERATED ALWAYS AS (batch) STORED",
        "has letter",
    ),
}


@pytest.mark.parametrize("case", CHANGED)
def test_a_table_that_was_changed(case, way, store_url):
    columns, problem = CHANGED[case]
    make(store_url)
    execute(store_url, *(statement.format(columns) for statement in JOINED))
    with pytest.raises(StoreError) as caught:
        way(url_of(store_url))
    assert caught.value.message.endswith(f": the table receiver_joined is another's: it {problem}")
    assert caught.value.hint == OTHER_DATABASE


@pytest.mark.parametrize("table", [*METADATA.tables, VERSION_TABLE])
def test_a_table_that_a_crash_of_the_server_empties(table, way, postgres_url):
    make(postgres_url)
    execute(postgres_url, f"ALTER TABLE {table} SET UNLOGGED")
    with pytest.raises(StoreError, match=f"the table {table} is UNLOGGED") as caught:
        way(url_of(postgres_url))
    execute(postgres_url, caught.value.hint)
    way(url_of(postgres_url))


def test_two_versions_at_once(way, store_url):
    make(store_url)
    execute(store_url, "INSERT INTO receiver_alembic_version VALUES ('9999')")
    with pytest.raises(StoreError, match="should hold one version"):
        way(url_of(store_url))


def test_a_newer_version(way, store_url, tmp_path):
    make(store_url)
    execute(
        store_url,
        "UPDATE receiver_alembic_version SET version_num = '0999'",
        "ALTER TABLE receiver_receipt ADD x INTEGER",
    )
    before = contents(tmp_path)
    with pytest.raises(
        StoreVersionError, match="version 0999, which this version of the package doesn't know"
    ) as caught:
        way(url_of(store_url))
    assert f"take the tables back: receiver migrate URL --revision {REVISION}" in caught.value.hint
    assert contents(tmp_path) == before


def test_a_version_that_there_is_not(store_url):
    with pytest.raises(SettingsError, match="there is no version '0999'"):
        migrate(url_of(store_url), "0999")


@contextmanager
def without_rights():
    """Run the block as another user if this one is root, for whom no file is read-only."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def shared_folder():
    """A folder that another user can enter too."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o777)
        yield Path(folder)
        Path(folder).chmod(0o777)


def test_a_read_only_file_without_a_store(shared_folder):
    file = shared_folder / "app.db"
    with closing(sqlite3.connect(file)) as own:
        own.execute("CREATE TABLE orders (id INTEGER)")
    file.chmod(0o444)
    before = contents(shared_folder)
    with without_rights(), pytest.raises(StoreError, match="read-only") as caught:
        make(f"sqlite:///{file}")
    assert "writable" in caught.value.hint
    assert contents(shared_folder) == before


def test_a_read_only_store(shared_folder):
    """It is read, and never written."""
    address = f"sqlite:///{shared_folder}/receiver.db"
    make(address)
    sqlite_file(address).chmod(0o444)
    before = contents(shared_folder)
    with without_rights():
        with pytest.raises(StoreError, match="read-only"), translated(address), make(address).begin() as connection:
            connection.execute(text("INSERT INTO receiver_joined VALUES (1, 2, 3, 4)"))
        with examined(url_of(address)).connect() as connection:
            assert connection.scalar(text("SELECT count(*) FROM receiver_joined")) == 0
    assert contents(shared_folder)["receiver.db"] == before["receiver.db"]


def test_a_read_only_folder(shared_folder):
    """Its store can be examined, although SQLite can't put its own files beside it."""
    address = f"sqlite:///{shared_folder}/receiver.db"
    make(address)
    before = contents(shared_folder)
    shared_folder.chmod(0o555)
    sqlite_file(address).chmod(0o444)
    with without_rights():
        with pytest.raises(StoreError, match=r"can't be opened|read-only") as caught:
            make(f"sqlite:///{shared_folder}/other.db")
        assert "writable" in caught.value.hint
        with pytest.raises(StoreError, match=r"can't be opened|read-only"), translated(address):
            make(address).connect()
        with examined(url_of(address)).connect() as connection:
            assert connection.scalar(text("SELECT count(*) FROM receiver_joined")) == 0
    assert contents(shared_folder) == before


def test_a_folder_that_may_not_be_entered(shared_folder):
    address = f"sqlite:///{shared_folder}/receiver.db"
    make(address)
    shared_folder.chmod(0o000)
    with without_rights(), pytest.raises(StoreError, match="Permission denied"):
        make(address)


def test_what_a_server_refuses(way):
    """A wrong password, a missing database, no connection left, no right to make tables, no server."""
    with wheel_server() as server:
        url = make_url(sqlalchemy_url(server))
        execute(
            url,
            "CREATE ROLE bridge LOGIN PASSWORD 'right'",
            "CREATE ROLE busy LOGIN CONNECTION LIMIT 0",
            "REVOKE CREATE ON SCHEMA public FROM PUBLIC",
        )
        (server.pgdata / "pg_hba.conf").write_text("local all bridge scram-sha-256\nlocal all all trust\n")
        execute(url, "SELECT pg_reload_conf()")
        bridge = url.set(username="bridge", password="right")  # noqa: S106
        refused = {
            bridge.set(password="wrong"): "the server refuses the user",  # noqa: S106
            bridge.set(username="stranger"): "the server refuses the user",
            bridge.set(username="busy"): "the server has no connection left",
            url.set(database="letters"): "there is no such database",
        }
        if way in {WAYS["open"], WAYS["migrate"]}:
            refused[bridge] = "the user may not do this"
        for address, problem in refused.items():
            with pytest.raises(StoreError, match=problem) as caught:
                way(url_of(address))
            assert caught.value.hint
            if address == bridge:
                assert "GRANT USAGE, CREATE ON SCHEMA public TO" in caught.value.hint
            for word in ("right", "wrong"):
                assert word not in caught.value.message
        assert inspect(engine_of(url)).get_table_names() == []
    with pytest.raises(StoreError, match="the server can't be reached"):
        way(url_of(url))


def test_a_server_that_is_read_only(fresh_postgres_url):
    url = url_of(fresh_postgres_url)
    execute(url, f"ALTER DATABASE {url.database} SET default_transaction_read_only = on")
    with pytest.raises(StoreError, match="it is read-only"):
        make(fresh_postgres_url)
