"""What can't be joined, what is refused at once, and what ends halfway: an error, and nothing recorded wrongly."""

import re
import time
from contextlib import contextmanager, suppress

import pytest
from sqlalchemy import NullPool, create_engine, event, make_url, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from receiver.errors import SettingsError, StoreBusyError, StoreError
from receiver.senders import SequenceIdMaker
from receiver.store.sql_rows import driver_of
from tests.durable.opened import DUPLICATE, LONG_SECS, NEW, held_elsewhere, opened, send, undone
from tests.postgres import fresh_database

SHORT_SECS = 0.2


@pytest.fixture
def orders(store_url):
    with opened(store_url, patience_secs=LONG_SECS) as receiver:
        yield receiver


@pytest.fixture
def engine(store_url):
    engine = create_engine(store_url, poolclass=NullPool)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE effects (message TEXT)"))
    yield engine
    engine.dispose()


@pytest.fixture
def second_url(request, store_url, tmp_path):
    """Another database of the same kind."""
    if store_url.startswith("sqlite"):
        yield f"sqlite:///{tmp_path}/second.db"
        return
    with fresh_database(request.getfixturevalue("postgres_url")) as url:
        yield url


def act(connection):
    connection.execute(text("INSERT INTO effects VALUES ('done')"))


def effects(engine):
    with engine.connect() as connection:
        return connection.execute(text("SELECT count(*) FROM effects")).scalar()


@contextmanager
def refused(error, match=None):
    """Check for a refusal at once, not after the receiver's patience."""
    began = time.monotonic()
    with pytest.raises(error, match=match):
        yield
    assert time.monotonic() - began < LONG_SECS / 2


def test_autocommit(orders, engine):
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        with refused(SettingsError, "AUTOCOMMIT"):
            send(orders, "x", connection=connection)
        act(connection)
    assert send(orders, "x") == [NEW]


def test_a_connection_that_is_closed(orders, engine):
    connection = engine.connect()
    connection.close()
    with refused(SettingsError, r"closed \(give one that is open"):
        send(orders, "x", connection=connection)
    assert send(orders, "x") == [NEW]


def test_a_connection_whose_transaction_cant_begin(sqlite_url):
    """Its engine takes the lock as each transaction begins, as SQLAlchemy's documentation advises."""
    engine = create_engine(
        sqlite_url, poolclass=NullPool, connect_args={"timeout": SHORT_SECS, "isolation_level": None}
    )
    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN IMMEDIATE"))
    with opened(sqlite_url) as orders, engine.connect() as connection:
        with held_elsewhere(orders), refused(StoreBusyError, "others hold it"):
            send(orders, "x", connection=connection)
        assert send(orders, "x") == [NEW]


@pytest.mark.parametrize("wrong", [lambda engine: engine, Session, lambda engine: engine.raw_connection(), str])
def test_what_is_no_connection(orders, engine, wrong):
    with refused(SettingsError, r"of an Engine: engine.begin\(\); of a Session: session.connection\(\)"):
        send(orders, "x", connection=wrong(engine))


def test_a_connection_of_another_kind_of_database(sqlite_url, fresh_postgres_url):
    with opened(sqlite_url) as ours, opened(fresh_postgres_url) as theirs:
        for receiver, url, own in [
            (ours, fresh_postgres_url, "sqlite+pysqlite"),
            (theirs, sqlite_url, "postgresql+psycopg"),
        ]:
            engine = create_engine(url, poolclass=NullPool)
            with engine.connect() as connection, refused(SettingsError, re.escape(f"create_engine('{own}://...')")):
                send(receiver, "x", connection=connection)
            assert send(receiver, "x") == [NEW]


def test_a_connection_to_another_file(tmp_path):
    urls = [f"sqlite:///{tmp_path}/{name}.db" for name in ("ours", "theirs", "empty")]
    with opened(urls[0]) as ours, opened(urls[1]) as theirs:
        send(theirs, "theirs")
        for url in urls[1:]:
            with create_engine(url, poolclass=NullPool).connect() as connection, refused(StoreError):
                send(ours, "x", connection=connection)
        assert send(ours, "x", "theirs") == [NEW, NEW]
        assert send(theirs, "x", "theirs") == [NEW, DUPLICATE]


@pytest.mark.parametrize("has_the_store", ["main", "attached"])
def test_a_connection_with_another_file_attached(tmp_path, has_the_store):
    """SQLite commits to one file after the other. A kill in between would leave ids without effects, or effects
    without ids."""
    store, other = f"{tmp_path}/store.db", f"{tmp_path}/other.db"
    main, attached = (store, other) if has_the_store == "main" else (other, store)
    with opened(f"sqlite:///{store}") as orders, SequenceIdMaker.open(orders.session.url, message_source_id="a") as ids:
        with create_engine(f"sqlite:///{main}", poolclass=NullPool).connect() as connection:
            connection.execute(text(f"ATTACH '{attached}' AS attached"))
            for join in (lambda: send(orders, "x", connection=connection), lambda: ids.next(connection=connection)):
                with refused(SettingsError, "another file attached"):
                    join()
            connection.rollback()
            connection.execute(text("DETACH attached"))
            connection.execute(text("ATTACH '' AS of_its_own"))  # nobody reads it after a kill
            if has_the_store == "main":
                assert send(orders, "x", connection=connection) == [NEW]
                assert ids.next(connection=connection) == "1:a"
        assert send(orders, "x") == [NEW]
        assert ids.next() == "1:a"


def test_another_file_that_is_attached_inside_the_batch(tmp_path):
    attach = text(f"ATTACH '{tmp_path}/other.db' AS other")
    with opened(f"sqlite:///{tmp_path}/store.db") as orders:
        engine, at_the_end = create_engine(orders.session.url, poolclass=NullPool), "another file attached"
        with engine.connect() as caller, refused(SettingsError, at_the_end), orders.batch(caller) as batch:
            batch.receive("x")
            batch.connection.execute(attach)
        with refused(OperationalError, "too many attached"), orders.batch() as batch:
            batch.receive("x")
            batch.connection.execute(attach)
        assert send(orders, "x") == [NEW]


def test_a_connection_to_another_database(fresh_postgres_url, postgres_url):
    with opened(fresh_postgres_url) as ours:
        with create_engine(postgres_url, poolclass=NullPool).connect() as connection, refused(StoreError):
            send(ours, "x", connection=connection)
        assert send(ours, "x") == [NEW]


def outrun(orders, other, connection, isolated):
    """Have others commit after the caller's transaction has begun to read."""
    connection.execute(text("SELECT count(*) FROM effects")).scalar()
    send(other, "theirs")
    with refused(StoreBusyError, "others committed"):
        send(orders, "ours", connection=connection)
    connection.rollback()
    assert isolated


def test_a_transaction_that_began_before_others_committed(orders, engine, store_url):
    """With repeatable reads, the batch would not see what others recorded."""
    if store_url.startswith("sqlite"):
        event.listen(engine, "connect", lambda driver, _: setattr(driver, "isolation_level", None))
        event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN"))
        isolated = engine
    else:
        isolated = engine.execution_options(isolation_level="REPEATABLE READ")
    with opened(store_url) as other, isolated.connect() as connection:
        send(orders, "before")
        outrun(orders, other, connection, isolated)
        # A new transaction sees all of it.
        assert send(orders, "ours", "theirs", "before", connection=connection) == [NEW, DUPLICATE, DUPLICATE]
        connection.commit()
    assert send(orders, "ours") == [DUPLICATE]


def test_reads_before_the_batch_do_no_harm(orders, engine, store_url):
    """With read committed, and with SQLite's default transactions, the batch sees the newest state."""
    with opened(store_url) as other, engine.connect() as connection:
        connection.execute(text("SELECT count(*) FROM effects")).scalar()
        send(other, "theirs")
        assert send(orders, "ours", "theirs", connection=connection) == [NEW, DUPLICATE]
        connection.commit()
    assert send(orders, "ours") == [DUPLICATE]


def test_a_batch_of_its_own_while_the_callers_transaction_holds_the_lock(orders, engine, store_url):
    with opened(store_url, patience_secs=LONG_SECS) as other:
        with engine.begin() as connection:
            send(orders, "x", connection=connection)
            for receiver in (orders, other):
                with refused(StoreBusyError, "this thread"):
                    send(receiver, "y")
            assert send(orders, "x", "y", connection=connection) == [DUPLICATE, NEW]
        assert send(orders, "x") == send(other, "y") == [DUPLICATE]
        with engine.begin() as connection:
            undone(orders, "z", connection=connection)
            with refused(StoreBusyError, "this thread"):
                send(orders, "z")
        assert send(orders, "z") == [NEW]


def test_a_connection_to_another_database_is_named_beside_the_receivers(orders, store_url, second_url):
    with opened(second_url):
        pass
    engine = create_engine(second_url, poolclass=NullPool)
    with engine.connect() as elsewhere, pytest.raises(StoreError) as caught:
        send(orders, "x", connection=elsewhere)
    for url in (store_url, second_url):
        assert make_url(url).database in caught.value.message
    assert send(orders, "x") == [NEW]


def test_two_transactions_of_the_caller(orders, engine):
    with engine.connect() as one, engine.connect() as other:
        send(orders, "x", connection=one)
        with refused(StoreBusyError, "this thread"):
            send(orders, "x", connection=other)
        one.rollback()
        assert send(orders, "x", connection=other) == [NEW]
        other.commit()
        assert send(orders, "x", connection=one) == [DUPLICATE]


@pytest.mark.parametrize("patience_secs", [0, SHORT_SECS])
def test_the_wait_in_a_callers_transaction_is_bounded(store_url, engine, patience_secs):
    """The caller's own patience stays as it was."""
    with opened(store_url, patience_secs=patience_secs) as orders, opened(store_url) as other:
        with (
            held_elsewhere(other),
            engine.connect() as connection,
            refused(StoreBusyError, "lock_timeout_secs"),
        ):
            send(orders, "x", connection=connection)
        with engine.connect() as connection:
            patience = "PRAGMA busy_timeout" if store_url.startswith("sqlite") else "SHOW lock_timeout"
            before = connection.execute(text(patience)).scalar()
            assert send(orders, "held", "x", connection=connection) == [DUPLICATE, NEW]
            assert connection.execute(text(patience)).scalar() == before
            connection.commit()


@pytest.mark.parametrize("ending", ["commit", "rollback"])
@pytest.mark.parametrize("joins", [True, False], ids=["joined", "own"])
def test_a_transaction_ended_inside_the_batch(orders, engine, joins, ending):
    """The lock went with the transaction, and perhaps the application's rows. So nothing is recorded, and another try
    is no remedy.

    The batch's own connection refuses to commit.
    """
    send(orders, "before")
    refuses = ending == "commit" and not joins
    with engine.connect() as connection:
        with (
            refused(SettingsError, "leave committing to the batch" if refuses else "ended inside"),
            orders.batch(connection if joins else None) as batch,
        ):
            batch.receive("x", received_at_us=0)
            act(batch.connection)
            getattr(batch.connection, ending)()
            act(batch.connection)  # begins another transaction
        connection.rollback()
    assert effects(engine) == (ending == "commit" and joins)
    assert send(orders, "x", "before") == [NEW, DUPLICATE]
    with opened(engine.url.render_as_string(hide_password=False)) as another:
        assert send(another, "x", "before") == [DUPLICATE, DUPLICATE]


def test_a_refused_commit_that_is_passed_over(orders, engine):
    """SQLAlchemy's transaction is over then, although the driver's isn't. So it can't be committed when the block
    ends."""
    with refused(SettingsError, "ended inside"), orders.batch() as batch:
        batch.receive("x", received_at_us=0)
        act(batch.connection)
        with suppress(SettingsError):
            batch.connection.commit()
    assert effects(engine) == 0
    with orders.batch() as batch:  # the connection works as before
        batch.receive("x", received_at_us=0)
        act(batch.connection)
    assert effects(engine) == 1
    assert send(orders, "x") == [DUPLICATE]


@pytest.mark.parametrize("joins", [True, False], ids=["joined", "own"])
def test_a_link_lost_inside_the_batch(orders, engine, joins):
    """The caller didn't end the transaction. So another try is the remedy, even if the connection was made anew."""
    for goes_on in (False, True):
        with engine.connect() as connection:
            with refused(StoreError, "lost"), orders.batch(connection if joins else None) as batch:
                batch.receive("x", received_at_us=0)
                batch.connection.invalidate()
                if goes_on:
                    batch.connection.rollback()
                    act(batch.connection)
            connection.rollback()
    assert send(orders, "x") == [NEW]


def test_a_transaction_that_was_lost_with_its_connection_is_over(orders, engine):
    """SQLAlchemy takes it for active until the caller rolls it back."""
    with engine.connect() as connection:
        send(orders, "x", connection=connection)
        connection.invalidate()
        assert not orders.session.callers_go_on()
        assert send(orders, "x") == [NEW]


@pytest.mark.parametrize("ending", ["commit", "rollback"])
def test_a_savepoint_ended_inside_the_batch(orders, engine, ending):
    with engine.begin() as connection:
        savepoint = connection.begin_nested()
        with refused(SettingsError, "ended inside"), orders.batch(connection) as batch:
            batch.receive("x", received_at_us=0)
            getattr(savepoint, ending)()
        assert send(orders, "y", connection=connection) == [NEW]
    assert send(orders, "x", "y") == [NEW, DUPLICATE]


def test_a_connection_closed_inside_the_batch(orders, engine):
    for joins in (True, False):
        with refused(SettingsError, "ended inside"), orders.batch(engine.connect() if joins else None) as batch:
            batch.receive("x", received_at_us=0)
            batch.connection.close()
    assert send(orders, "x") == [NEW]


@pytest.mark.parametrize("ending", ["commit", "rollback", "close"])
def test_a_session_that_is_ended_inside_the_batch(orders, engine, ending):
    """It closes its connection. Another try is no remedy: a session that commits would keep its rows again."""
    with (
        Session(engine) as session,
        refused(SettingsError, "ended inside"),
        orders.batch(session.connection()) as batch,
    ):
        batch.receive("x", received_at_us=0)
        act(session.connection())
        getattr(session, ending)()
    assert effects(engine) == (ending == "commit")
    assert send(orders, "x") == [NEW]


def test_a_statement_of_the_application_that_fails_inside_the_batch(orders, engine, store_url):
    """Then PostgreSQL refuses every other statement of the transaction. Whether the error is caught or not, nothing
    is recorded without a commit."""
    for joins in (False, True):
        connection = engine.connect() if joins else None
        recorded = store_url.startswith("sqlite")
        try:
            with orders.batch(connection) as batch:
                batch.receive(f"caught {joins}", received_at_us=0)
                with suppress(Exception):
                    batch.connection.execute(text("SELECT nonsense"))
            if connection:
                connection.commit()
        except StoreError:
            assert not recorded
        if connection:
            connection.close()
        assert send(orders, f"caught {joins}") == [DUPLICATE if recorded else NEW]


def interrupted(connection):
    """Interrupt a statement, as a full disk may. SQLite then rolls back the whole transaction by itself."""
    driver = driver_of(connection)
    driver.set_progress_handler(lambda: 1, 1)
    try:
        connection.execute(text("INSERT INTO effects SELECT message FROM effects"))
    finally:
        driver.set_progress_handler(None, 0)


def test_a_transaction_of_our_own_that_sqlite_has_rolled_back(sqlite_url):
    """Later effects would be committed one by one without their ids, and come again with their messages."""
    engine = create_engine(sqlite_url, poolclass=NullPool)
    with opened(sqlite_url) as orders:
        with engine.begin() as connection:
            connection.execute(text("CREATE TABLE effects (message TEXT)"))
        for catches in (False, True):
            with refused(SettingsError, "ended inside"), orders.batch() as batch:
                batch.receive("x", received_at_us=0)
                act(batch.connection)
                with pytest.raises(OperationalError, match="interrupted"):
                    interrupted(batch.connection)
                with suppress(SettingsError if catches else ZeroDivisionError):
                    act(batch.connection)
            assert effects(engine) == 0
        assert send(orders, "x") == [NEW]


@pytest.mark.parametrize("goes_on", [False, True])
def test_a_transaction_that_sqlite_has_rolled_back(sqlite_url, goes_on):
    """Its ids would be committed without the effects: by themselves, or in the transaction that the driver begins
    next."""
    engine = create_engine(sqlite_url, poolclass=NullPool)
    with opened(sqlite_url) as orders:
        with engine.begin() as connection:
            connection.execute(text("CREATE TABLE effects (message TEXT)"))
        with refused(SettingsError, "ended inside"), engine.begin() as connection, orders.batch(connection) as batch:
            batch.receive("x", received_at_us=0)
            act(connection)
            with pytest.raises(OperationalError, match="interrupted"):
                interrupted(connection)
            if goes_on:
                connection.execute(text("INSERT INTO effects SELECT 'more' WHERE false"))
        assert effects(engine) == 0
        with engine.begin() as connection:
            assert send(orders, "x", connection=connection) == [NEW]
            act(connection)
        assert send(orders, "x") == [DUPLICATE]


def test_closing_while_the_callers_transaction_is_under_way(store_url, engine):
    """Closing doesn't wait, and logs that. The transaction's receipts are up to the caller."""
    with engine.begin() as connection:
        orders = opened(store_url, patience_secs=SHORT_SECS)
        send(orders, "x", connection=connection)
        orders.close()
    with opened(store_url) as another:
        assert send(another, "x") == [DUPLICATE]


def test_a_batch_that_cannot_be_recorded_leaves_the_transaction_as_it_was(orders, engine, store_url):
    """None of the batch stays, although the caller goes on and commits."""
    if store_url.startswith("sqlite"):
        refusing = "CREATE TRIGGER refuse BEFORE INSERT ON receiver_joined BEGIN SELECT RAISE(ABORT, 'refused'); END"
    else:
        refusing = "ALTER TABLE receiver_joined ADD CHECK (batch < 0) NOT VALID"
    with engine.begin() as connection:
        connection.execute(text(refusing))
    with engine.begin() as connection:
        act(connection)
        with refused(StoreError):
            send(orders, "x", connection=connection)
        act(connection)
    assert effects(engine) == 2
    assert send(orders, "x") == [NEW]


@pytest.mark.parametrize("by_hand", ["COMMIT", "ROLLBACK"])
def test_a_transaction_of_our_own_ended_by_hand(orders, by_hand):
    """SQLAlchemy doesn't notice. Further statements aren't sent, since each would be committed by itself."""
    with refused(SettingsError, "ended inside"), orders.batch() as batch:
        batch.receive("x", received_at_us=0)
        driver_of(batch.connection).execute(by_hand)
    assert send(orders, "x") == [NEW]


def test_what_an_application_does_to_a_connection_that_it_was_lent(orders, store_url):
    """Another domain's batch may join it. A prepared statement on it may be dropped."""
    with opened(store_url, domain="name:other") as other:
        with orders.batch() as batch:
            assert send(other, "x", connection=batch.connection) == [NEW]
            if not store_url.startswith("sqlite"):
                batch.connection.execute(text("DEALLOCATE ALL"))
        assert send(orders, "y") == [NEW]
        assert send(other, "x") == [DUPLICATE]
