"""Batches in a transaction of the caller's. Batch and caller's rows stand or fall together, whatever becomes of it."""

from contextlib import suppress

import pytest
from sqlalchemy import Column, Integer, MetaData, NullPool, Table, Text, create_engine, event, insert, make_url, select
from sqlalchemy.orm import Session

from receiver.durable.cache import DomainCache
from receiver.store import log
from receiver.store.sql_rows import ROWS_AT_ONCE
from receiver.store.tables import batch_numbers
from tests.durable.opened import DUPLICATE, LONG_SECS, NEW, UndoError, opened, send, sizes, undone

pytestmark = pytest.mark.thinned(4)

METADATA = MetaData()
effects = Table("effects", METADATA, Column("number", Integer, primary_key=True), Column("message", Text))


def plain(url):
    return create_engine(url, poolclass=NullPool)


def beginning(url, statement):
    """An SQLite engine as SQLAlchemy's documentation advises: each transaction begins with a statement of its own."""
    engine = plain(url)

    @event.listens_for(engine, "connect")
    def leave_transactions_to_us(connection, _record):
        connection.isolation_level = None

    @event.listens_for(engine, "begin")
    def begin(connection):
        connection.exec_driver_sql(statement)

    return engine


def recommended(url):
    return beginning(url, "BEGIN")


def immediate(url):
    return beginning(url, "BEGIN IMMEDIATE")


@pytest.fixture(
    params=[("sqlite", plain), ("sqlite", recommended), ("sqlite", immediate), ("postgresql", plain)],
    ids=lambda pair: f"{pair[0]}-{pair[1].__name__}",
)
def application(request):
    """The address of a store, and the way in which the application makes an engine to it."""
    kind, make_engine = request.param
    return request.getfixturevalue("sqlite_url" if kind == "sqlite" else "fresh_postgres_url"), make_engine


@pytest.fixture
def store_url(application):
    return application[0]


@pytest.fixture
def engine(application):
    """The application's engine. Its table stands beside ours."""
    url, make_engine = application
    engine = make_engine(url)
    METADATA.create_all(engine)
    yield engine
    engine.dispose()


@pytest.fixture
def orders(store_url):
    with opened(store_url, patience_secs=60) as receiver:
        yield receiver


def take(receiver, connection, *ids):
    """Receive in a batch that joins, and act on the new ids."""
    with receiver.batch(connection=connection) as batch:
        verdicts = [batch.receive(id_, received_at_us=0).verdict for id_ in ids]
    act(connection, *(id_ for id_, verdict in zip(ids, verdicts, strict=True) if verdict is NEW))
    return verdicts


def act(connection, *ids):
    for id_ in ids:
        connection.execute(insert(effects).values(message=id_))


def done(engine):
    with engine.connect() as connection:
        return list(connection.execute(select(effects.c.message).order_by(effects.c.number)).scalars())


def assert_in_step(orders, store_url, engine, *ids):
    """Check that these ids are recorded, have their effects, and are remembered by this receiver and by a newly
    opened one."""
    assert done(engine) == list(ids)
    everything = ["a", "b", "c", "d", "e", "never"]
    expected = [DUPLICATE if id_ in ids else NEW for id_ in everything]
    assert undone(orders, *everything) == expected
    with opened(store_url) as another:
        assert undone(another, *everything) == expected


def test_committed(orders, store_url, engine):
    with engine.begin() as connection:
        assert take(orders, connection, "a", "b") == [NEW, NEW]
    assert_in_step(orders, store_url, engine, "a", "b")


def test_rolled_back(orders, store_url, engine):
    with engine.connect() as connection:
        take(orders, connection, "a")
        connection.commit()
        take(orders, connection, "a", "b")
        connection.rollback()
    assert_in_step(orders, store_url, engine, "a")


def test_rolled_back_by_closing(orders, store_url, engine):
    with engine.connect() as connection:
        take(orders, connection, "a")
    assert_in_step(orders, store_url, engine)


def test_begun_by_the_caller(orders, store_url, engine):
    with engine.connect() as connection:
        with connection.begin():
            act(connection, "a")
            with orders.batch(connection) as batch:
                batch.receive("a", received_at_us=0)
        with suppress(UndoError), connection.begin():
            take(orders, connection, "b")
            raise UndoError
    assert_in_step(orders, store_url, engine, "a")


def test_a_savepoint_rolled_back(orders, store_url, engine):
    with engine.begin() as connection:
        act(connection, "a")
        send(orders, "a", connection=connection)
        savepoint = connection.begin_nested()
        assert take(orders, connection, "a", "b") == [DUPLICATE, NEW]
        savepoint.rollback()
        assert take(orders, connection, "c", "b") == [NEW, NEW]
    assert_in_step(orders, store_url, engine, "a", "c", "b")


def test_only_the_savepoint_is_committed(orders, store_url, engine):
    with engine.begin() as connection:
        act(connection, "a")
        send(orders, "a", connection=connection)
        with suppress(UndoError), connection.begin_nested():
            take(orders, connection, "b")
            raise UndoError
    assert_in_step(orders, store_url, engine, "a")


@pytest.mark.parametrize("kept", [(0,), (1,), (2,), (0, 2), (1, 2), (0, 1), (0, 1, 2), ()])
def test_several_batches_of_which_some_are_rolled_back(orders, store_url, engine, kept):
    with engine.begin() as connection:
        undone(orders, "d", connection=connection)
        for number, id_ in enumerate("abc"):
            savepoint = connection.begin_nested()
            take(orders, connection, id_)
            (savepoint.commit if number in kept else savepoint.rollback)()
    assert_in_step(orders, store_url, engine, *("abc"[number] for number in kept))
    assert orders.status().rx == len(kept)


def test_nested_savepoints(orders, store_url, engine):
    with engine.begin() as connection:
        act(connection, "a")
        send(orders, "a", connection=connection)
        outer = connection.begin_nested()
        take(orders, connection, "b")
        with connection.begin_nested():
            take(orders, connection, "c")
        outer.rollback()
        take(orders, connection, "d")
    assert_in_step(orders, store_url, engine, "a", "d")


def test_an_outermost_savepoint_of_the_drivers(orders, store_url, engine):
    """Python's SQLite driver lets a savepoint begin the transaction, and its release commit it. Whatever is kept,
    ids and effects agree."""
    with engine.connect() as connection:
        with connection.begin_nested():
            take(orders, connection, "a")
        connection.rollback()
    assert_in_step(orders, store_url, engine, *done(engine))


def test_a_batch_left_by_an_exception_leaves_the_transaction_usable(orders, store_url, engine):
    with engine.begin() as connection:
        act(connection, "a")
        send(orders, "a", connection=connection)
        assert undone(orders, "a", "b", connection=connection) == [DUPLICATE, NEW]
        assert take(orders, connection, "c", "b") == [NEW, NEW]
        assert undone(orders, "d", connection=connection) == [NEW]
    assert_in_step(orders, store_url, engine, "a", "c", "b")


def test_a_first_batch_left_by_an_exception(orders, engine):
    with engine.begin() as connection:
        undone(orders, "a", connection=connection)
        act(connection, "b")
    assert done(engine) == ["b"]
    assert send(orders, "a", "b") == [NEW, NEW]


def test_through_a_session(orders, store_url, engine):
    with Session(engine) as session, session.begin():
        take(orders, session.connection(), "a")
    with Session(engine) as session:
        take(orders, session.connection(), "b")
        session.rollback()
        take(orders, session.connection(), "c")
        with session.begin_nested() as savepoint:
            take(orders, session.connection(), "d")
            savepoint.rollback()
        take(orders, session.connection(), "e")
        session.commit()
    assert_in_step(orders, store_url, engine, "a", "c", "e")


def test_status_and_events_wait_for_the_commit(store_url, engine):
    reported = []
    with opened(store_url, on_duplicate=reported.append) as orders:
        with engine.connect() as connection:
            take(orders, connection, "a", "a")
            assert (orders.status().rx, reported) == (0, [])
            send(orders, "a", connection=connection)  # looks while it isn't committed
            assert (orders.status().rx, reported) == (0, [])
            connection.commit()
            assert (orders.status().rx, orders.status().rDupsDet, len(reported)) == (3, 2, 2)
            take(orders, connection, "a", "b")
            connection.rollback()
            assert (orders.status().rx, orders.status().rDupsDet, len(reported)) == (3, 2, 2)
            take(orders, connection, "a")
            connection.commit()
            undone(orders, connection=connection)
            assert len(reported) == 3, "by the next batch, whatever becomes of it"
        send(orders, "a")
        assert (orders.status().rx, orders.status().rDupsDet, len(reported)) == (5, 4, 4)
        with engine.begin() as connection:
            take(orders, connection, "a")
    assert len(reported) == 5, "by close() at the latest"
    assert orders.status().rx == 6


def test_business_rows_in_a_batch_of_its_own(orders, store_url, engine):
    with orders.batch() as batch:
        batch.receive("a", received_at_us=0)
        act(batch.connection, "a")
    with suppress(UndoError), orders.batch() as batch:
        batch.receive("b", received_at_us=0)
        act(batch.connection, "b")
        raise UndoError
    with suppress(UndoError), orders.batch() as batch:
        act(batch.connection, "c")
        batch.receive("c", received_at_us=0)
        raise UndoError
    with orders.batch() as batch:
        with suppress(UndoError), batch.connection.begin_nested():
            act(batch.connection, "d")
            raise UndoError
        batch.receive("e", received_at_us=0)
        with batch.connection.begin_nested():
            act(batch.connection, "e")
    assert_in_step(orders, store_url, engine, "a", "e")


def test_business_rows_of_a_batch_without_receipts(orders, engine):
    """All messages may have been for another consumer. The application's rows are committed all the same."""
    with orders.batch() as batch:
        act(batch.connection, "never")
    assert done(engine) == ["never"]


def test_two_domains_in_one_transaction(orders, store_url, engine):
    with opened(store_url, domain="name:prices") as prices:
        with engine.begin() as connection:
            take(orders, connection, "a")
            assert send(prices, "a", connection=connection) == [NEW]
            assert send(prices, "a", connection=connection) == [DUPLICATE]
            with orders.batch(connection) as outer, prices.batch(connection) as inner:
                assert outer.receive("a", received_at_us=0).verdict is DUPLICATE
                assert inner.receive("b", received_at_us=0).verdict is NEW
        with engine.connect() as connection:
            take(orders, connection, "b")
            send(prices, "c", connection=connection)
            connection.rollback()
        assert send(prices, "a", "b", "c") == [DUPLICATE, DUPLICATE, NEW]
        assert (orders.status().rx, prices.status().rx) == (2, 6)
    assert_in_step(orders, store_url, engine, "a")


def test_two_receivers_of_a_domain_in_one_transaction(orders, store_url, engine):
    """If a receiver has read the other's receipts, they go with the transaction, whether or not it recorded any
    itself."""
    with opened(store_url) as other:
        with engine.connect() as connection:
            take(orders, connection, "a")
            assert take(other, connection, "a", "b") == [DUPLICATE, NEW]
            assert take(orders, connection, "b") == [DUPLICATE]
            connection.rollback()
        assert undone(orders, "a", "b") == undone(other, "a", "b") == [NEW, NEW]
        with engine.connect() as connection:
            take(orders, connection, "a")
            assert undone(other, "a", "c", connection=connection) == [DUPLICATE, NEW]
            with other.batch(connection):
                pass
            connection.rollback()
        assert undone(other, "a", "c") == [NEW, NEW]
        with engine.begin() as connection:
            take(orders, connection, "a")
            take(other, connection, "b")
        assert undone(other, "a", "b") == [DUPLICATE, DUPLICATE]
    assert_in_step(orders, store_url, engine, "a", "b")


def test_no_phantoms_of_what_was_rolled_back(orders, store_url, engine):
    """After a joined batch is rolled back, others append just as many receipts. So numbers alone prove nothing."""
    with opened(store_url) as other:
        for joins_next in (False, True):
            with engine.connect() as connection:
                send(orders, "lost", "lost, too", connection=connection)
                connection.rollback()
            assert send(other, f"kept {joins_next}", "kept, too") == [NEW, DUPLICATE if joins_next else NEW]
            with engine.connect() as connection:
                joined = connection if joins_next else None
                assert undone(orders, "lost", "lost, too", f"kept {joins_next}", connection=joined) == [
                    NEW, NEW, DUPLICATE
                ]  # fmt: skip
        assert orders.status().rx == 0


def test_no_phantoms_of_what_was_recorded_or_read_before_it_was_rolled_back(orders, store_url, engine):
    """Even if the newest receipt comes again with its number and its time."""
    with opened(store_url) as other:
        with engine.connect() as connection:
            send(orders, "lost", "tail", connection=connection)
            with other.batch(connection):
                pass
            connection.rollback()
        with opened(store_url) as another:
            send(another, "kept", "tail")
        for receiver in (orders, other):
            assert undone(receiver, "lost", "kept", "tail") == [NEW, DUPLICATE, DUPLICATE]


def test_no_phantoms_of_what_was_being_read(orders, engine, store_url, monkeypatch):
    """When the interrupt comes, memory has the rows already. Then the log goes back to where memory was."""

    def interrupted(*_):
        raise KeyboardInterrupt

    with opened(store_url) as other:
        send(other, "kept")
        with engine.connect() as connection:
            send(orders, "lost", connection=connection)
            with monkeypatch.context() as patched:
                patched.setattr(DomainCache, "advance", interrupted)
                with pytest.raises(KeyboardInterrupt):
                    other.batch(connection).__enter__()
            connection.rollback()
        assert undone(other, "lost", "kept") == [NEW, DUPLICATE]


def test_a_transaction_may_be_the_first_thing_ever(store_url, engine):
    with opened(store_url, settings=sizes(3, 0)) as orders, engine.begin() as connection:
        assert send(orders, "a", connection=connection) == [NEW]
        assert send(orders, "a", connection=connection) == [DUPLICATE]
    with opened(store_url) as orders:
        assert send(orders, "a") == [DUPLICATE]


def test_batch_numbers_go_with_their_receivers(store_url, engine, monkeypatch):
    """A receiver's own number goes when it closes, and so do old numbers of receivers that died long ago."""
    monkeypatch.setattr(log, "_KEPT_SEQS", 3)
    long_ago = {"domain_id": 1, "writer": 2, "batch": 1, "last_seq": 1}
    lately = long_ago | {"writer": 3, "last_seq": 2}
    with opened(store_url) as orders:
        send(orders, *"abcd")
        with engine.begin() as connection:
            connection.execute(insert(batch_numbers), [long_ago, lately])
        with engine.begin() as connection:
            send(orders, "e", connection=connection)
            assert len(connection.execute(select(batch_numbers)).all()) == 3
    with engine.connect() as connection:
        assert connection.execute(select(batch_numbers)).mappings().all() == [lately]


def test_closing_waits_for_no_transaction_of_the_callers(application, caplog):
    url, make_engine = application
    receiver = opened(url, patience_secs=LONG_SECS)
    with make_engine(url).connect() as connection:
        send(receiver, "a", connection=connection)
        receiver.close()
        connection.commit()
    (warning,) = caplog.messages
    assert "closed before" in warning, "and not that waiting for it was in vain"
    with opened(url) as another:
        assert send(another, "a") == [DUPLICATE]


def test_a_password_among_the_parameters_of_an_address_is_not_logged(fresh_postgres_url, caplog):
    url = make_url(fresh_postgres_url).update_query_dict({"password": "secret"})
    receiver = opened(url.render_as_string(hide_password=False))
    with plain(url).connect() as connection:
        send(receiver, "a", connection=connection)
        receiver.close()
    assert "closed before" in caplog.text
    assert "secret" not in caplog.text


def test_a_connection_that_binds_parameters_itself(fresh_postgres_url):
    """As SQLAlchemy's documentation shows. Such cursors can't read binary rows, and the second batch reads many."""
    import psycopg

    ids = [f"id {number}" for number in range(ROWS_AT_ONCE + 1)]
    engine = create_engine(
        fresh_postgres_url, poolclass=NullPool, connect_args={"cursor_factory": psycopg.ClientCursor}
    )
    with opened(fresh_postgres_url) as orders, engine.connect() as connection:
        assert {*send(orders, *ids, connection=connection)} == {NEW}
        connection.commit()
        send(orders, "lost", connection=connection)
        connection.rollback()
        assert {*send(orders, *ids, connection=connection)} == {DUPLICATE}
