"""A batch's own connection, lent to the application: only the batch ends the transaction."""

from contextlib import suppress

import pytest
from sqlalchemy import Engine, event, text

from receiver import Receiver
from receiver.durable.audit import audit
from receiver.errors import SettingsError
from tests.stores import execute, rows_of

ENDINGS = ["COMMIT", " commit;", "END", "ROLLBACK", "rollback work", "COMMIT; BEGIN", "ABORT"]
INSERT = text("INSERT INTO payment VALUES (:id)")


@pytest.fixture(params=["sqlite", "postgresql", "postgresql, concurrent"])
def opened(request):
    url = request.getfixturevalue("sqlite_url" if request.param == "sqlite" else "fresh_postgres_url")
    execute(url, "CREATE TABLE payment (id text)")
    how = {"connection_id": "broker", "destination": "orders", "concurrent": "concurrent" in request.param}
    with Receiver.open(url, **how) as receiver:
        yield url, receiver


@pytest.mark.parametrize("goes_on", [True, False])
def test_no_statement_ends_its_transaction(opened, goes_on):
    url, receiver = opened
    for id_, ending in enumerate(ENDINGS):
        with suppress(SettingsError), receiver.batch() as batch:
            assert batch.receive(str(id_)).deliver
            with pytest.raises(SettingsError, match="told to commit") as refused:
                batch.connection.execute(text(ending))
            if not goes_on:
                raise refused.value
            batch.connection.execute(INSERT, {"id": str(id_)})
        with receiver.batch() as batch:
            assert batch.receive(str(id_)).deliver != goes_on
    assert rows_of(url, "payment") == (len(ENDINGS) if goes_on else 0)
    assert audit(url).findings == ()


@pytest.mark.parametrize("is_caught", [True, False])
def test_a_commit_that_was_refused_fails_the_batch(opened, is_caught):
    url, receiver = opened

    def commit_inside():
        with receiver.batch() as batch:
            batch.receive("1")
            batch.connection.execute(INSERT, {"id": "1"})
            with pytest.raises(SettingsError, match="nothing is committed") as refused:
                batch.connection.commit()
            if not is_caught:
                raise refused.value

    with pytest.raises(SettingsError):
        commit_inside()
    with receiver.batch() as batch:
        assert batch.receive("1").deliver
    assert rows_of(url, "payment") == 0
    assert audit(url).findings == ()


def test_savepoints_of_its_are_its_own(opened):
    url, receiver = opened
    with receiver.batch() as batch:
        batch.receive("1")
        batch.connection.execute(INSERT, {"id": "1"})
        with batch.connection.begin_nested() as savepoint:
            batch.connection.execute(INSERT, {"id": "2"})
            savepoint.rollback()
        batch.connection.execute(text("SAVEPOINT mine"))
        batch.connection.execute(INSERT, {"id": "3"})
        batch.connection.execute(text("ROLLBACK TRANSACTION TO mine"))
    assert rows_of(url, "payment") == 1


@pytest.mark.parametrize("beginning", ["BEGIN", "begin exclusive transaction;"])
def test_an_application_that_begins_all_transactions_begins_none_of_ours(sqlite_url, beginning):
    def begin(connection):
        connection.exec_driver_sql(beginning)

    execute(sqlite_url, "CREATE TABLE payment (id text)")
    event.listen(Engine, "begin", begin)
    try:
        with Receiver.open(sqlite_url, connection_id="broker", destination="orders") as receiver:
            for rows in (1, 2):
                with receiver.batch() as batch:
                    batch.receive("1")
                    batch.connection.execute(INSERT, {"id": "1"})
                assert rows_of(sqlite_url, "payment") == rows
            with suppress(ValueError), receiver.batch() as batch:
                batch.connection.execute(INSERT, {"id": "1"})
                raise ValueError
        assert rows_of(sqlite_url, "payment") == rows
    finally:
        event.remove(Engine, "begin", begin)


def test_an_interrupt_while_it_is_rolled_back(opened):
    """Afterwards neither this thread nor the database keeps others from the domain."""
    url, receiver = opened

    def interrupt(_):
        raise KeyboardInterrupt

    def failing():
        with receiver.batch() as batch:
            batch.receive("1")
            batch.connection.execute(INSERT, {"id": "1"})
            event.listen(batch.connection, "rollback", interrupt)
            raise ValueError

    with pytest.raises(KeyboardInterrupt):
        failing()
    with receiver.batch() as batch:
        assert batch.receive("1").deliver
    with receiver.batch() as batch:
        assert not batch.receive("1").deliver
    assert rows_of(url, "payment") == 0
