"""Makers in a transaction of the caller's. Keys, numbers and the caller's rows stand or fall together."""

import threading
from contextlib import suppress
from functools import partial

import pytest
from sqlalchemy import event, text
from sqlalchemy.orm import Session

from receiver.errors import SettingsError, StoreBusyError, StoreError
from tests.durable.opened import UndoError, opened
from tests.senders.making import application, billing, gateway, numbers, pending_keys
from tests.stores import execute

KINDS = ["sqlite+pysqlite", "postgresql+psycopg"]


@pytest.fixture
def engine(store_url):
    """The application's engine. Its table stands beside ours."""
    engine = application(store_url)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE outbox (message TEXT)"))
    return engine


def write(connection, message):
    connection.execute(text("INSERT INTO outbox VALUES (:message)"), {"message": message})


def written(engine):
    with engine.connect() as connection:
        return sorted(connection.scalars(text("SELECT message FROM outbox")))


def test_committed(keys, ids, engine, store_url):
    with engine.begin() as connection:
        key, id_ = keys.key_for("a", connection=connection), ids.next(connection=connection)
        assert keys.key_for("a", connection=connection) == key
        write(connection, key)
    assert written(engine) == [key]
    assert pending_keys(store_url) == {"a": key}
    assert numbers([id_, ids.next()]) == [1, 2]


def test_rolled_back(keys, ids, engine, store_url):
    """It leaves no row, no key and no gap."""
    kept = keys.key_for("kept")
    with suppress(UndoError), engine.begin() as connection:
        lost = keys.key_for("a", connection=connection)
        keys.confirm("kept", connection=connection)
        assert numbers(ids.next_many(3, connection=connection)) == [1, 2, 3]
        write(connection, lost)
        raise UndoError
    assert written(engine) == []
    assert pending_keys(store_url) == {"kept": kept}
    assert keys.key_for("a") != lost
    assert numbers([ids.next()]) == [1]


def test_confirmed_with_the_callers_rows(keys, engine):
    keys.key_for("a")
    with engine.begin() as connection:
        keys.confirm("a", connection=connection)
        write(connection, "a is sent")
    assert written(engine) == ["a is sent"]
    assert keys.pending() == []


@pytest.mark.parametrize("isolation_level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_confirmed_in_a_transaction_that_doesnt_see_the_key(fresh_postgres_url, isolation_level):
    """Otherwise the key would stay, without an error, and the message be sent again after a crash."""
    isolated = application(fresh_postgres_url).execution_options(isolation_level=isolation_level)
    with billing(fresh_postgres_url) as keys:
        with isolated.connect() as connection:
            assert connection.scalar(text("SELECT count(*) FROM receiver_dedup_key")) == 0
            keys.key_for("a")
            with pytest.raises(StoreBusyError, match="committed since this transaction began"):
                keys.confirm("a", connection=connection)
        assert list(pending_keys(fresh_postgres_url)) == ["a"]
        with isolated.begin() as connection:
            keys.confirm("a", connection=connection)
            keys.confirm("unknown", connection=connection)
        assert keys.pending() == []


def test_what_isnt_pending_is_confirmed_without_waiting_for_others(keys, engine, store_url):
    if store_url.startswith("sqlite"):
        pytest.skip("the other transaction has the file")
    with engine.begin() as others, engine.begin() as connection:
        key = keys.key_for("a", connection=others)
        connection.execute(text("SET LOCAL lock_timeout = 100"))
        keys.confirm("a", connection=connection)
    assert pending_keys(store_url) == {"a": key}


def test_what_isnt_pending_is_confirmed_without_a_write(sqlite_url):
    """A transaction that has the file sees all of it."""
    with billing(sqlite_url) as keys, application(sqlite_url).connect() as connection:
        keys.confirm("unknown", connection=connection)
        assert connection.connection.driver_connection.total_changes == 0


def test_committed_in_two_phases(fresh_postgres_url):
    """As by a Session with `twophase`: what the maker remembers changes as with any commit."""
    engine, url = application(fresh_postgres_url), fresh_postgres_url
    with gateway(url) as ids, billing(url) as keys:
        confirmed, kept = keys.key_for("confirmed"), keys.key_for("kept")
        with engine.connect() as connection:
            for end, reference in (("rollback", "kept"), ("commit", "confirmed")):
                transaction = connection.begin_twophase()
                given = ids.next_many(2, connection=connection)
                keys.confirm(reference, connection=connection)
                getattr(transaction, end)()
        # A store that has lost its last commits, on another run of the server.
        execute(
            url,
            "DELETE FROM receiver_sequence",
            "DELETE FROM receiver_dedup_key",
            "SELECT pg_stat_reset_shared('bgwriter')",
        )
        keys._kept._discard()
        assert numbers([*given, ids.next()]) == [1, 2, 3]
        assert keys.key_for("kept") == kept
        assert keys.key_for("confirmed") != confirmed


def test_a_savepoint_rolled_back(keys, ids, engine, store_url):
    with engine.begin() as connection:
        write(connection, "begun")
        key = keys.key_for("a", connection=connection)
        savepoint = connection.begin_nested()
        keys.key_for("b", connection=connection)
        ids.next_many(5, connection=connection)
        savepoint.rollback()
        assert numbers([ids.next(connection=connection)]) == [1]
    assert pending_keys(store_url) == {"a": key}


def test_a_session(keys, ids, engine, store_url):
    with Session(engine) as session, session.begin():
        key = keys.key_for("a", connection=session.connection())
        ids.next(connection=session.connection())
    assert pending_keys(store_url) == {"a": key}
    assert numbers([ids.next()]) == [2]


def test_with_what_was_received(keys, ids, store_url):
    """In a batch, a message is recorded and its answer gets a key and a number, or nothing is kept."""
    answered = {}
    with opened(store_url) as orders:
        for outcome in (UndoError, None):
            with suppress(UndoError), orders.batch() as batch:
                assert batch.receive("question", received_at_us=0).deliver
                answered[ids.next(connection=batch.connection)] = keys.key_for("answer", connection=batch.connection)
                if outcome:
                    raise outcome
        assert answered == {"1:gateway:1": pending_keys(store_url)["answer"]}


@pytest.mark.parametrize("commits", [True, False])
def test_another_transaction_asks_for_the_same(keys, engine, store_url, commits):
    """It waits. Then it gets the same key, or its own if the other was rolled back. It goes on either way."""
    got = []

    def ask():
        with engine.begin() as connection:
            got.append(keys.key_for("a", connection=connection))
            write(connection, "the other's")

    other = threading.Thread(target=ask)
    with engine.connect() as connection:
        first = keys.key_for("a", connection=connection)
        other.start()
        other.join(0.3)
        assert got == []
        (connection.commit if commits else connection.rollback)()
        other.join()
    assert (got == [first]) is commits
    assert pending_keys(store_url) == {"a": got[0]}
    assert written(engine) == ["the other's"]


def test_no_number_is_given_twice_while_others_wait(ids, engine):
    """The next maker waits until the transaction is over, and takes the numbers that were rolled back."""
    got = []

    def take_one():
        got.append(ids.next())

    for commits in (True, False):
        with engine.connect() as connection:
            taken = ids.next_many(2, connection=connection)
            other = threading.Thread(target=take_one)
            other.start()
            other.join(0.2)
            (connection.commit if commits else connection.rollback)()
            other.join()
        got += taken if commits else []
    assert numbers(got) == [3, 1, 2, 4]


def test_others_committed_since_the_transaction_began_to_read(ids, keys, engine, store_url):
    """An older snapshot shows neither the number nor the key, so none is given."""
    if store_url.startswith("sqlite"):
        event.listen(engine, "connect", lambda driver, _: setattr(driver, "isolation_level", None))
        event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN"))
    else:
        engine = engine.execution_options(isolation_level="REPEATABLE READ")
    for name, use in (("number", ids.next), ("key", partial(keys.key_for, "a"))):
        with engine.connect() as connection:
            connection.execute(text("SELECT count(*) FROM outbox"))
            first = use()
            with pytest.raises(StoreBusyError, match="others committed"):
                use(connection=connection)
            connection.rollback()
            again = use(connection=connection)
            assert (again == first) is (name == "key")


@pytest.fixture
def ways(keys, ids):
    """Each way to join."""
    return [
        lambda connection: keys.key_for("a", connection=connection),
        lambda connection: keys.confirm("a", connection=connection),
        lambda connection: ids.next(connection=connection),
    ]


def test_autocommit(ways, keys, ids, engine):
    """It is refused before anything is done."""
    key = keys.key_for("a")
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        for way in ways:
            with pytest.raises(SettingsError, match="AUTOCOMMIT") as caught:
                way(connection)
            assert "give a connection with a transaction" in caught.value.hint
    assert [pending.key for pending in keys.pending()] == [key]
    assert numbers([ids.next()]) == [1]


def test_what_is_no_connection(ways, engine):
    closed = engine.connect()
    closed.close()
    raw = engine.raw_connection()
    for way in ways:
        for wrong in (engine, Session(engine), raw, "connection"):
            with pytest.raises(SettingsError, match="Maker takes a Connection of SQLAlchemy"):
                way(wrong)
        with pytest.raises(SettingsError, match="closed"):
            way(closed)
    raw.close()


def test_a_connection_of_another_kind_of_database(sqlite_url, fresh_postgres_url):
    for ours, theirs, kind in [(sqlite_url, fresh_postgres_url, 1), (fresh_postgres_url, sqlite_url, 0)]:
        with gateway(ours) as ids, application(theirs).connect() as connection:
            with pytest.raises(SettingsError, match=f"is for {KINDS[kind]}".replace("+", r"\+")):
                ids.next(connection=connection)
            assert numbers([ids.next()]) == [1]


def test_a_connection_to_a_database_without_a_store(sqlite_url, tmp_path):
    with gateway(sqlite_url) as ids, application(f"sqlite:///{tmp_path}/other.db").connect() as connection:
        with pytest.raises(StoreError, match=r"other\.db: a table .* isn't there: no such table") as caught:
            ids.next(connection=connection)
        assert "connect to that one" in caught.value.hint
        assert numbers([ids.next()]) == [1]
