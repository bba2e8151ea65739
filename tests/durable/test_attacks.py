"""What nobody should do to a store under an open receiver, and what happens if somebody does."""

import sqlite3
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import NullPool, create_engine, event, make_url, text
from sqlalchemy.exc import OperationalError

from receiver.bridge.opening import Origin, open_bridge
from receiver.bridge.received import Received, Taken
from receiver.bridge.targets.python_target import PythonTarget
from receiver.durable.audit import look
from receiver.durable.batch import Batch
from receiver.durable.forgetting import retire_sources
from receiver.durable.session import Transaction
from receiver.errors import StoreBusyError, StoreCorruptError, StoreError
from receiver.settings import StoreSettings
from receiver.store.databases.postgres import TableVacuum
from receiver.store.databases.sqlite import FileVacuum, Sqlite
from tests.bridge.bridged import message
from tests.brokers.memory import MemoryBroker
from tests.durable.opened import DUPLICATE, NEW, opened, send, sizes, undone
from tests.senders.making import billing
from tests.stores import engine_of, execute, rows_of


def file_of(url: str) -> Path:
    return Path(make_url(url).database)


def copy(source: Path, target: Path) -> None:
    with closing(sqlite3.connect(source)) as old, closing(sqlite3.connect(target)) as new:
        old.backup(new)


def run(url: str, statement: str) -> None:
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text(statement))
    engine.dispose()


def test_an_older_copy_is_restored_into_the_file(sqlite_url, tmp_path):
    """Receipts since the copy are new, even for the receiver that had known them. Its next batch doesn't fail."""
    with opened(sqlite_url) as receiver:
        send(receiver, "a")
        copy(file_of(sqlite_url), tmp_path / "backup.db")
        send(receiver, "b", "c")
        copy(tmp_path / "backup.db", file_of(sqlite_url))
        assert send(receiver, "b", "a") == [NEW, DUPLICATE]


def test_an_older_copy_replaces_the_file(sqlite_url, tmp_path):
    with opened(sqlite_url) as receiver:
        send(receiver, "a")
        copy(file_of(sqlite_url), tmp_path / "backup.db")
        send(receiver, "b", "c")
        for file in (file_of(sqlite_url), *tmp_path.glob("receiver.db-*")):
            file.unlink()
        (tmp_path / "backup.db").rename(file_of(sqlite_url))
        assert send(receiver, "b", "a") == [NEW, DUPLICATE]
        with opened(sqlite_url) as other:
            assert send(other, "b", "a") == [DUPLICATE, DUPLICATE]


def replaced_by_a_copy(file, change):
    """Let a copy from before the change replace the file."""
    copied = file.with_name("copy.db")
    copy(file, copied)
    change()
    for each in file.parent.glob(f"{file.name}*"):
        each.unlink()
    copied.rename(file)


def test_an_idle_receiver_keeps_no_other_from_a_file_that_replaces_its_own(sqlite_url):
    with opened(sqlite_url) as receiver, opened(sqlite_url, destination="queue://idle") as idle:
        send(idle, "a")
        replaced_by_a_copy(file_of(sqlite_url), lambda: send(receiver, "b"))
        assert send(receiver, "b") == [NEW]
        with opened(sqlite_url) as other:
            assert send(other, "b") == [DUPLICATE]
        assert send(idle, "a") == [DUPLICATE]


def test_a_key_stays_the_same_though_an_older_copy_replaces_the_file(sqlite_url):
    with billing(sqlite_url) as keys:
        given = []
        replaced_by_a_copy(file_of(sqlite_url), lambda: given.append(keys.key_for("invoice 1")))
        assert keys.key_for("invoice 1") == given[0]


def test_messages_that_wait_under_numbers_that_a_copy_gives_again(sqlite_url):
    """A bridge holds messages until it hands them on. By then, another bridge's messages may have their numbers."""
    seen = []
    origin = Origin(MemoryBroker().source, "broker", "queue://orders")

    def bridge():
        return open_bridge(origin, PythonTarget("python:tests:see", lambda got: seen.append(got.text)), sqlite_url)

    def taken(id_):
        received = Received._make((None, 0, 0, id_, None, "queue://orders", message(id_)))
        return Taken([received], [received.receipt()])

    with closing(bridge()) as ours, closing(bridge()) as another:
        replaced_by_a_copy(file_of(sqlite_url), lambda: ours._flow.before_acknowledging(taken("lost")))
        another._flow.before_acknowledging(taken("other"))
        ours._flow.deliver_waiting()
        assert seen == ["other"]


def test_a_copy_put_back_beside_the_log_of_a_killed_process(sqlite_url, tmp_path):
    """SQLite would take the log for the copy's, and write it into that."""
    file, log = file_of(sqlite_url), tmp_path / "receiver.db-wal"
    with opened(sqlite_url) as receiver:
        send(receiver, "a")
        run(sqlite_url, f"VACUUM INTO '{tmp_path / 'copy.db'}'")
        send(receiver, "b")
        left = log.read_bytes()
    (tmp_path / "copy.db").rename(file)
    log.write_bytes(left)
    copied = file.read_bytes()
    with file.open("ab"):  # a descriptor that can't be read
        for use in (opened, look):
            with pytest.raises(StoreError, match=r"receiver\.db-wal, the log of the file before, would damage it"):
                use(sqlite_url)
    assert file.read_bytes() == copied
    log.unlink()
    with opened(sqlite_url) as receiver:
        assert send(receiver, "a", "b") == [DUPLICATE, NEW]


def test_a_file_that_is_gone_takes_no_receipts(sqlite_url, tmp_path):
    """The receiver could write on to the file, but nobody who opens the store next would see the receipts."""
    away = tmp_path / "away.db"
    with opened(sqlite_url) as receiver:
        send(receiver, "a")
        file_of(sqlite_url).rename(away)
        for _ in range(2):
            with pytest.raises(StoreError, match="is gone"):
                send(receiver, "b")
        assert not file_of(sqlite_url).exists()
        away.rename(file_of(sqlite_url))
        assert send(receiver, "a", "b") == [DUPLICATE, NEW]


def close_it_elsewhere(file: Path) -> None:
    """Open and close the file as another program does, such as `sqlite3` on the command line."""
    subprocess.run(
        [
            sys.executable,
            "-c",
            "import sqlite3, sys; sqlite3.connect(sys.argv[1]).execute('SELECT 1 FROM receiver_domain')",
            file,
        ],
        check=True,
    )


def lose_the_locks(file: Path) -> None:
    """POSIX drops a process's locks of a file as soon as the process closes the file, even if it has it open twice."""
    file.read_bytes()
    close_it_elsewhere(file)
    if file.with_name(f"{file.name}-wal").exists():
        pytest.skip("this SQLite keeps its locks though the process closes the file")


def remove_the_log(file: Path) -> None:
    """Remove the log, as one who has read that this helps when a database is locked."""
    for ending in ("-wal", "-shm"):
        file.with_name(file.name + ending).unlink()


@pytest.mark.parametrize("remove", [lose_the_locks, remove_the_log])
def test_a_log_that_is_removed_takes_no_receipts(sqlite_url, tmp_path, remove):
    """SQLite goes on to write to the log. But no other process would see it, nor this one after a kill."""
    (tmp_path / "link.db").symlink_to(file_of(sqlite_url))
    with opened(f"sqlite:///{tmp_path}/link.db") as receiver:
        send(receiver, "a")
        remove(file_of(sqlite_url))
        assert not list(tmp_path.glob("*-wal"))
        assert send(receiver, "b", "a") == [NEW, DUPLICATE]
        with opened(sqlite_url) as other:
            assert send(other, "b", "a", "c") == [DUPLICATE, DUPLICATE, NEW]
        assert send(receiver, "c") == [DUPLICATE]


def test_the_log_of_a_copy_that_replaces_the_file_is_removed(sqlite_url, tmp_path):
    """A copy by VACUUM has no log until a connection needs one."""
    file = file_of(sqlite_url)
    with opened(sqlite_url) as receiver:
        send(receiver, "a")
        run(sqlite_url, f"VACUUM INTO '{tmp_path / 'copy.db'}'")
        for each in tmp_path.glob("receiver.db*"):
            each.unlink()
        (tmp_path / "copy.db").rename(file)
        send(receiver, "b")
        remove_the_log(file)
        assert send(receiver, "c") == [NEW]
        assert list(tmp_path.glob("*-wal")), "otherwise other processes wouldn't see it"


def test_a_log_that_is_removed_under_a_pool(sqlite_url):
    """As long as one connection has the log open, SQLite uses its index for all others of the process."""
    engine = create_engine(sqlite_url)
    with opened(sqlite_url) as receiver:
        with engine.begin() as connection:
            send(receiver, "a", connection=connection)
        remove_the_log(file_of(sqlite_url))
        for _ in range(2):
            with pytest.raises(StoreError, match=r"was removed.*engine.dispose"), engine.begin() as connection:
                send(receiver, "b", connection=connection)
        with pytest.raises(StoreError, match="was removed"):
            send(receiver, "b")
        engine.dispose()
        with engine.begin() as connection:
            assert send(receiver, "b", "a", connection=connection) == [NEW, DUPLICATE]
        engine.dispose()
    with opened(sqlite_url) as other:
        assert send(other, "a", "b") == [DUPLICATE, DUPLICATE]


@pytest.mark.parametrize("how", ["moved", "copied"])
def test_a_joined_connection_that_keeps_nobody_out_of_the_file(sqlite_url, tmp_path, how):
    """Whoever opens the store next wouldn't see what this connection commits."""
    file, other = file_of(sqlite_url), tmp_path / "other.db"
    engine = create_engine(f"sqlite:///{other}" if how == "copied" else sqlite_url)
    with opened(sqlite_url) as receiver:
        send(receiver, "a")
        copy(file, other)
        if how == "moved":
            with engine.begin() as connection:
                send(receiver, "b", connection=connection)
            for ending in ("-wal", "-shm", ""):
                file.with_name(file.name + ending).rename(tmp_path / f"away.db{ending}")
            other.rename(file)
        for _ in range(2):
            with pytest.raises(StoreError, match=r"locks another file .*engine.dispose"), engine.begin() as connection:
                send(receiver, "c", connection=connection)
        engine.dispose()
        with create_engine(sqlite_url, poolclass=NullPool).begin() as connection:
            assert send(receiver, "a", "c", connection=connection) == [DUPLICATE, NEW]
    with opened(sqlite_url) as anew:
        assert send(anew, "a", "c") == [DUPLICATE, DUPLICATE]


def test_a_log_that_goes_with_its_last_connection_is_no_removed_one(sqlite_url):
    """SQLite removes the log's name a moment before it closes the log. Another thread may open the store just then."""
    store = Sqlite().writable(make_url(sqlite_url), StoreSettings())
    until = time.monotonic() + 2

    def open_and_close(_):
        while time.monotonic() < until:
            with store.connect() as connection:
                connection.execute(text("SELECT count(*) FROM sqlite_master"))

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(open_and_close, range(4)))


def test_a_file_of_several_names_is_refused(sqlite_url, tmp_path):
    """For each name, SQLite would keep a log that users of the other names don't see."""
    other = tmp_path / "name.db"
    with opened(sqlite_url) as receiver:
        send(receiver, "a")
        other.hardlink_to(file_of(sqlite_url))
        for url in (f"sqlite:///{other}", sqlite_url):
            with pytest.raises(StoreError, match=r"has 2 names.*delete all names but one"):
                opened(url)
        assert send(receiver, "a") == [DUPLICATE]
    assert look(f"sqlite:///{other}").domains, "who only reads may have a backup of many names"
    other.unlink()
    with opened(sqlite_url) as receiver:
        assert send(receiver, "a") == [DUPLICATE]


def test_a_file_that_is_mounted_alone_is_refused(sqlite_url, tmp_path):
    """Its log would stay in the container, and go with it."""
    with opened(sqlite_url) as receiver:
        send(receiver, "a")
    mounted = tmp_path / "a container" / "receiver.db"
    mounted.parent.mkdir()
    mounted.touch()
    if subprocess.run(["mount", "--bind", file_of(sqlite_url), mounted], check=False).returncode != 0:
        pytest.skip("only root on Linux may mount")
    try:
        with pytest.raises(StoreError, match="mount the folder"):
            opened(f"sqlite:///{mounted}")
    finally:
        subprocess.run(["umount", mounted], check=True)
    with opened(sqlite_url) as receiver:
        assert send(receiver, "a") == [DUPLICATE]


def test_receipts_that_are_gone(store_url):
    """A domain without its newest receipt isn't taken for a domain that remembers nothing."""
    with opened(store_url) as receiver:
        send(receiver, "a")
        run(store_url, "DELETE FROM receiver_receipt")
        with pytest.raises(StoreCorruptError, match="the newest"):
            opened(store_url)


def test_a_link_that_dies_while_a_joined_batch_is_recorded(fresh_postgres_url):
    """SQLAlchemy complains that the savepoint can't be rolled back. That doesn't hide what happened."""
    engine = create_engine(fresh_postgres_url)
    admin = create_engine(fresh_postgres_url, isolation_level="AUTOCOMMIT")

    @event.listens_for(engine, "after_cursor_execute")
    def cut(connection, _cursor, statement, *_):
        if statement.startswith("SAVEPOINT"):
            pid = connection.connection.dbapi_connection.info.backend_pid
            with admin.connect() as other:
                other.execute(text("SELECT pg_terminate_backend(:pid, 5000)"), {"pid": pid})

    with opened(fresh_postgres_url) as receiver:
        with pytest.raises(StoreError, match="administrator command"), engine.begin() as connection:
            send(receiver, "a", connection=connection)
        assert send(receiver, "a") == [NEW]
    admin.dispose()
    engine.dispose()


@pytest.mark.parametrize("concurrent", [False, True])
def test_a_pooled_connection_that_the_server_has_ended(fresh_postgres_url, concurrent):
    """SQLAlchemy, which rolls back on it, doesn't hide what happened."""
    engine = create_engine(fresh_postgres_url)
    with opened(fresh_postgres_url, concurrent=concurrent) as receiver:
        with engine.connect() as connection:
            pid = connection.connection.dbapi_connection.info.backend_pid
        execute(fresh_postgres_url, "SELECT pg_terminate_backend(:pid, 5000)", pid=pid)
        with pytest.raises(StoreError, match="administrator command"), engine.begin() as connection:
            send(receiver, "a", connection=connection)
        with engine.begin() as connection:
            assert send(receiver, "a", connection=connection) == [NEW]
    engine.dispose()


def test_a_connection_invalidated_inside_the_batch(store_url):
    engine = create_engine(store_url)
    with opened(store_url) as receiver:
        with engine.connect() as connection:
            batch = receiver.batch(connection)
            batch.__enter__()
            batch.receive("a", received_at_us=0)
            connection.invalidate()
            with pytest.raises(StoreBusyError, match="lost inside"):
                batch.__exit__(None, None, None)
            connection.rollback()
        assert send(receiver, "a") == [NEW]
    engine.dispose()


@pytest.mark.parametrize("concurrent", [False, True])
def test_a_caller_whose_connection_was_lost_begins_anew_inside_the_batch(fresh_postgres_url, concurrent):
    """The batch fails, but its end leaves alone the transaction that the caller has by then."""
    engine = create_engine(fresh_postgres_url)
    with opened(fresh_postgres_url, concurrent=concurrent) as receiver, engine.connect() as connection:
        batch = receiver.batch(connection)
        batch.__enter__()
        batch.receive("a")
        with pytest.raises(OperationalError):
            connection.execute(text("SELECT pg_terminate_backend(pg_backend_pid())"))
        connection.rollback()
        connection.execute(text("CREATE TABLE effects (id text)"))
        with pytest.raises(StoreBusyError, match="lost inside"):
            batch.__exit__(None, None, None)
        connection.commit()
    assert rows_of(fresh_postgres_url, "effects") == 0
    engine.dispose()


@pytest.mark.parametrize("concurrent", [False, True])
def test_a_server_that_becomes_read_only(fresh_postgres_url, concurrent):
    """In a switchover the old primary becomes read-only and goes on. The address leads to the new primary by then."""
    with opened(fresh_postgres_url, concurrent=concurrent) as receiver:
        with receiver.batch() as batch:
            batch.receive("a")
            batch.connection.execute(text("SET default_transaction_read_only = on"))
        if concurrent:
            with pytest.raises(StoreError, match="it is read-only"):
                send(receiver, "b")
        assert send(receiver, "b", "a") == [NEW, DUPLICATE]


@pytest.mark.parametrize("count", [1, 10])  # on PostgreSQL, one receipt is recorded by the message that commits
def test_a_domain_changed_though_it_was_locked(store_url, count):
    ids = [f"id {number}" for number in range(count)]
    refused = pytest.raises(StoreBusyError, match="though it was locked")
    with opened(store_url) as receiver:
        with refused, receiver.batch() as batch:
            batch.receive_many([(id_, None, 0) for id_ in ids])
            receiver.session.log.rows.driver.execute("UPDATE receiver_domain SET last_seq = last_seq + 1")
        with engine_of(store_url).begin() as connection:  # the failed batch doesn't hinder others
            assert send(receiver, *ids, connection=connection) == [NEW] * count
        assert send(receiver, *ids) == [DUPLICATE] * count


REFUSING_IN_A_FILE = [
    "CREATE TRIGGER refusing BEFORE INSERT ON receiver_receipt BEGIN SELECT RAISE(ABORT, 'refused'); END",
]
REFUSING = [
    "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'refused'; END $$",
    "CREATE TRIGGER refusing BEFORE INSERT ON receiver_receipt EXECUTE FUNCTION refuse()",
]


def test_what_the_server_refuses_is_not_committed_for_certain(store_url, monkeypatch):
    with opened(store_url) as receiver:
        monkeypatch.setattr(Transaction, "_was_committed", lambda *_: pytest.fail("nobody has to ask"))
        is_file = store_url.startswith("sqlite")
        execute(store_url, *(REFUSING_IN_A_FILE if is_file else REFUSING))
        with pytest.raises(StoreError, match="refused"):
            send(receiver, "a")
        execute(store_url, "DROP TRIGGER refusing" if is_file else "DROP TRIGGER refusing ON receiver_receipt")
        assert send(receiver, "a") == [NEW]


def test_another_name_of_the_same_file_is_the_same_lock(sqlite_url, tmp_path):
    (tmp_path / "link.db").symlink_to(file_of(sqlite_url))
    refused = pytest.raises(StoreBusyError, match="this thread")
    with opened(sqlite_url) as receiver, opened(f"sqlite:///{tmp_path}/link.db") as other, receiver.batch(), refused:
        send(other, "a")


def test_another_address_of_the_same_server_is_the_same_lock(fresh_postgres_url):
    named = make_url(fresh_postgres_url).update_query_dict({"application_name": "bridge"})
    other_url = named.render_as_string(hide_password=False)
    refused = pytest.raises(StoreBusyError, match="this thread")
    with opened(fresh_postgres_url) as receiver, opened(other_url) as other, receiver.batch(), refused:
        send(other, "a")


def test_space_that_cannot_be_given_back_takes_nothing_back(store_url, monkeypatch, caplog):
    """Receipts that were committed before stay committed."""

    def fails(*_):
        raise OSError("no space to be had")

    with opened(store_url, settings=sizes(1, 0)) as receiver:
        send(receiver, "a")
        for vacuum in (FileVacuum, TableVacuum):
            monkeypatch.setattr(vacuum, "run_if_due", fails)
        assert send(receiver, "b", "b") == [NEW, DUPLICATE]
        assert send(receiver, "b") == [DUPLICATE]
        assert receiver.status().batches_failed == 0
    with opened(store_url, settings=sizes(2, 0)) as receiver:
        assert receiver.window == 2
    (done,) = retire_sources(store_url, sources=[""])
    assert done.sources == 1
    assert "can't give back the space" in caplog.text
    assert not any(record.exc_info for record in caplog.records)


def test_a_domain_that_is_busy_is_closed_all_the_same(store_url, caplog):
    """The next receiver deletes what is left to delete. A bridge shows the warning, so it has no traceback."""
    impatient = StoreSettings(lock_timeout_secs=0.05)
    with opened(store_url, settings=sizes(8, 0)) as other:
        receiver = opened(store_url, settings=sizes(8, 0), store_settings=impatient)
        send(receiver, *"abcdefghi")
        assert receiver.session.cache.has_deletable
        with other.batch():
            receiver.close()
    (record,) = [record for record in caplog.records if "can't tidy up" in record.getMessage()]
    assert "others hold it" in record.getMessage()
    assert not record.exc_info


class InterruptError(BaseException):
    """An interrupt like KeyboardInterrupt, but only the test's."""


@pytest.mark.parametrize("method", [(Batch, "_start"), (Transaction, "_changes")], ids=lambda method: method[1])
def test_an_interrupt_lets_go_of_the_domain(store_url, monkeypatch, method):
    def interrupted(*_):
        raise InterruptError

    with opened(store_url) as receiver, opened(store_url, patience_secs=1) as other:
        with monkeypatch.context() as patched:
            patched.setattr(*method, interrupted)
            with pytest.raises(InterruptError):
                send(receiver, "a")
        assert undone(other, "a") == undone(receiver, "a") == [NEW]
