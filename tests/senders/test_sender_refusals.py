"""What makers refuse: bad arguments, other addresses, other stores, and use after they are closed."""

import subprocess
import sys

import pytest

from receiver import Receiver
from receiver.errors import ClosedError, SettingsError, StoreBusyError, StoreError, StoreVersionError
from receiver.senders import DedupKeyMaker, SequenceIdMaker
from receiver.store.databases import store_url as url_of
from receiver.store.schema import migrate
from tests.senders.making import application, billing, gateway, numbers, pending_keys
from tests.stores import execute

BAD_NAMES = ["", None, 17, b"bytes", ["list"], "x" * 1_001, "ß" * 501, "\ud800" * 334]
OPENINGS = [
    lambda url, **options: DedupKeyMaker.open(url, sender="billing", **options),
    lambda url, **options: SequenceIdMaker.open(url, message_source_id="gateway", **options),
]


def test_names(missing_sqlite_url, tmp_path):
    for name in BAD_NAMES:
        with pytest.raises(SettingsError, match="sender"):
            DedupKeyMaker.open(missing_sqlite_url, sender=name)
        with pytest.raises(SettingsError, match="message_source_id"):
            SequenceIdMaker.open(missing_sqlite_url, message_source_id=name)
    assert list(tmp_path.iterdir()) == []
    with billing(missing_sqlite_url) as keys:
        for name in BAD_NAMES:
            for use in (keys.key_for, keys.confirm):
                with pytest.raises(SettingsError, match="reference"):
                    use(name)
        assert keys.pending() == []


@pytest.mark.parametrize("kind", [DedupKeyMaker, SequenceIdMaker])
@pytest.mark.parametrize("arguments", [(), ("sqlite:///receiver.db",), ("sqlite:///receiver.db", "shop", None)])
def test_the_class_opens_nothing(kind, arguments):
    with pytest.raises(SettingsError, match=rf"call {kind.__name__}\.open\(URL, \w+=\.\.\.\)"):
        kind(*arguments)


def test_the_longest_names(store_url):
    """They fit the index of either database, whatever characters they have."""
    hard_to_compress = "".join(chr(0x21 + (number * 7919) % 94) for number in range(1_000))
    with billing(store_url, sender=hard_to_compress) as keys, gateway(store_url, source=hard_to_compress) as ids:
        assert keys.key_for(hard_to_compress[::-1]) == keys.key_for(hard_to_compress[::-1])
        assert ids.next() == f"1:{hard_to_compress}"


def test_counts(sqlite_url):
    with gateway(sqlite_url) as ids:
        for count in (-1, 1.0, True, None, "3", 1_000_001, float("nan")):
            with pytest.raises(SettingsError, match="count must be a whole number"):
                ids.next_many(count)
        assert numbers([ids.next()]) == [1]


@pytest.mark.parametrize("opening", OPENINGS)
@pytest.mark.parametrize("address", ["memory://", "sqlite://", "mysql://host/db", "receiver.db", None])
def test_addresses(opening, address):
    """One of them is for a store that keeps nothing, and a maker's job is to keep."""
    with pytest.raises(SettingsError) as caught:
        opening(address)
    assert "sqlite:///" in caught.value.hint


def test_settings_of_another_kind(missing_sqlite_url, tmp_path):
    for opening in OPENINGS:
        with pytest.raises(SettingsError, match="store_settings must be StoreSettings"):
            opening(missing_sqlite_url, store_settings=10)
    assert list(tmp_path.iterdir()) == []


def test_closed(store_url):
    with billing(store_url) as keys, gateway(store_url) as ids:
        keys.key_for("a")
    with application(store_url).connect() as connection:
        for use in (
            lambda: keys.key_for("a"),
            lambda: keys.key_for("a", connection=connection),
            lambda: keys.confirm("a"),
            keys.pending,
            ids.next,
        ):
            with pytest.raises(ClosedError, match="Maker is closed"):
                use()
    keys.close()
    assert list(pending_keys(store_url)) == ["a"]


def test_stores_of_other_versions(store_url):
    """An older store is upgraded, a newer one refused."""
    for opening in OPENINGS:
        migrate(url_of(store_url), "0001")
        opening(store_url).close()
    with gateway(store_url) as ids:
        assert numbers([ids.next()]) == [1]
    execute(store_url, "UPDATE receiver_alembic_version SET version_num = '9999'")
    for opening in OPENINGS:
        with pytest.raises(StoreVersionError, match="9999"):
            opening(store_url)


def test_a_store_that_is_busy(store_url):
    """Makers wait for it, and use it as soon as it is free."""
    with billing(store_url, patience_secs=0.2) as keys, gateway(store_url, patience_secs=0.2) as ids:
        with application(store_url).connect() as connection:
            key = keys.key_for("a", connection=connection)
            ids.next(connection=connection)
            for use in (lambda: keys.key_for("a"), ids.next):
                with pytest.raises(StoreBusyError, match="others hold it"):
                    use()
            connection.commit()
        assert keys.key_for("a") == key
        assert numbers([ids.next()]) == [2]


def test_a_file_that_is_moved_away(sqlite_url, tmp_path):
    """A key that is persisted where nobody looks isn't persisted."""
    file = tmp_path / "receiver.db"
    with billing(sqlite_url) as keys:
        key = keys.key_for("a")
        moved = file.rename(tmp_path / "moved.db")
        with pytest.raises(StoreError, match="is gone"):
            keys.key_for("b")
        moved.rename(file)
        assert keys.key_for("a") == key
        file.rename(moved)
        with billing(sqlite_url) as others:
            theirs = others.key_for("a")
        assert keys.key_for("a") == theirs != key


def test_status_of_a_store_of_senders_alone(sqlite_url):
    with billing(sqlite_url) as keys, gateway(sqlite_url) as ids:
        keys.key_for("a")
        ids.next()
        for command in ("status", "check"):
            ran = subprocess.run(
                [sys.executable, "-m", "receiver", command, sqlite_url], capture_output=True, text=True, check=False
            )
            assert ran.returncode == 0, ran.stdout + ran.stderr


def leave_rows_out(url, change, *tables):
    """Leave rows out by triggers, without an error."""
    work = "BEGIN SELECT RAISE(IGNORE); END"
    if not url.startswith("sqlite"):
        execute(url, "CREATE FUNCTION leave_out() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$")
        work = "FOR EACH ROW EXECUTE FUNCTION leave_out()"
    execute(url, *(f"CREATE TRIGGER leave_out_{table} BEFORE {change} ON {table} {work}" for table in tables))


@pytest.mark.parametrize("change", ["INSERT", "UPDATE"])
def test_rows_that_a_trigger_leaves_out(store_url, change):
    with billing(store_url) as keys, gateway(store_url) as ids:
        keys.key_for("invoice")
        ids.next()
        leave_rows_out(store_url, change, "receiver_sequence", "receiver_dedup_key")
        with pytest.raises(StoreError, match=r"didn't keep a row of receiver_sequence \(drop the trigger"):
            ids.next()
        with pytest.raises(StoreError, match="didn't keep a row of receiver_dedup_key"):
            keys.key_for("invoice")


def test_a_domain_that_a_trigger_leaves_out(store_url):
    migrate(url_of(store_url))
    leave_rows_out(store_url, "INSERT", "receiver_domain")
    with pytest.raises(StoreError, match="didn't keep a row of receiver_domain"):
        Receiver.open(store_url, connection_id="broker", destination="orders")


def test_a_domain_for_which_a_copy_has_no_number(fresh_postgres_url):
    """Logical replication copies rows without their sequences."""
    with Receiver.open(fresh_postgres_url, connection_id="broker", destination="orders"):
        execute(fresh_postgres_url, "ALTER SEQUENCE receiver_domain_domain_id_seq RESTART")
        with pytest.raises(StoreError, match="set its sequence behind its last number"):
            Receiver.open(fresh_postgres_url, connection_id="broker", destination="other")
