"""A dropped domain leaves nothing. A receiver that still has it open gets an error, even if another domain got its
number."""

import threading
import time

import pytest
from sqlalchemy import text

from receiver.durable import concurrent
from receiver.durable.audit import look
from receiver.errors import SettingsError, StoreError
from receiver.senders import SequenceIdMaker
from receiver.store import upkeep
from receiver.store.log import OwnLog
from receiver.store.tables import METADATA
from receiver.store.upkeep import Dropped, drop_domain, retry_parked
from tests.durable.checks import assert_sound
from tests.durable.opened import DUPLICATE, LONG_SECS, NEW, opened, send, sizes
from tests.store.waiting import inbox_of, opened_inbox, receive, waiting_in
from tests.stores import engine_of

OTHER = {"destination": "queue://other"}
TABLES = [name for name in METADATA.tables if name not in {"receiver_sequence", "receiver_dedup_key"}]


def state(url, number):
    (state_of_it,) = [domain.state for domain in look(url, with_ids=False).domains if domain.state.domain_id == number]
    return state_of_it


def contents_of(url):
    """The rows of all tables that belong to domains."""
    with engine_of(url).connect() as connection:
        return {name: sorted(map(repr, connection.execute(text(f"SELECT * FROM {name}")))) for name in TABLES}  # noqa: S608


def fill(url, **options):
    """Make a domain with ids, the mark of a caller's transaction, a waiting and a parked message. Returns its
    number."""
    with opened(url, **options) as receiver, inbox_of(receiver, url) as inbox:
        rows = receive(receiver, inbox, b"0", b"1")
        with inbox.lease() as lease:
            lease.park(rows[0], "refused")
        with engine_of(url).begin() as connection:
            send(receiver, "joined", connection=connection)
            mark = text("INSERT INTO receiver_joined VALUES (:number, 1, 1, 1)")
            connection.execute(mark, {"number": receiver.domain_id})
        return receiver.domain_id


def test_all_of_a_domain_goes_and_nothing_else(store_url):
    """Numbers that were given to messages stay too: they must not be given again."""
    fill(store_url, **OTHER)
    before = contents_of(store_url)
    number = fill(store_url)
    with SequenceIdMaker.open(store_url, message_source_id="broker:queue://orders") as numbers:
        numbers.next()
    assert drop_domain(store_url, state(store_url, number)) == Dropped(receipts=3, waiting=1, parked=1, targets=1)
    assert contents_of(store_url) == before
    assert_sound(store_url)
    with SequenceIdMaker.open(store_url, message_source_id="broker:queue://orders") as numbers:
        assert numbers.next().startswith("2:")
    with opened(store_url) as receiver:
        assert send(receiver, "joined") == [NEW]


def test_claims_of_a_concurrent_domain_go_with_it_and_receipts_to_be_folded_in(fresh_postgres_url, monkeypatch):
    monkeypatch.setattr(concurrent.FoldingThread, "_run", lambda _: None)
    url = fresh_postgres_url
    with opened(url, concurrent=True) as receiver:
        send(receiver, "a", "b", "a")
    drop_domain(url, state(url, receiver.domain_id))
    assert not any(contents_of(url).values())
    assert_sound(url)
    with opened(url, concurrent=True) as receiver:
        assert send(receiver, "a") == [NEW]


def test_a_receiver_that_is_open_is_told(store_url, caplog):
    with opened_inbox(store_url) as (receiver, inbox):
        receive(receiver, inbox, b"0")
        drop_domain(store_url, state(store_url, receiver.domain_id))
        for _ in range(2):
            with pytest.raises(StoreError, match="the domain is gone") as caught, receiver.batch():
                pass
            assert "it was dropped" in caught.value.hint
        with pytest.raises(StoreError, match="target is gone") as caught, inbox.lease():
            pass
        assert "dropped" in caught.value.hint
        assert not inbox.has_waiting()
    assert look(store_url).domains == ()
    assert "Traceback" not in caplog.text


def test_a_domain_made_after_it_under_its_number_is_another(sqlite_url):
    """SQLite reuses the numbers of deleted rows. An open receiver must neither read nor delete by them."""
    with opened_inbox(sqlite_url) as (receiver, inbox):
        send(receiver, "a", "b")
        receive(receiver, inbox, b"0")
        drop_domain(sqlite_url, state(sqlite_url, receiver.domain_id))
        with opened_inbox(sqlite_url, "file:another") as (another, its_inbox):
            assert (another.domain_id, its_inbox.target_id) == (receiver.domain_id, inbox.target_id)
            receive(another, its_inbox, b"its")
            before = contents_of(sqlite_url)
            with pytest.raises(StoreError, match="its domain was dropped"), receiver.batch():
                pass
            with pytest.raises(StoreError, match="target is gone"), inbox.lease():
                pass
            receiver.close()
            assert contents_of(sqlite_url) == before
            assert len(waiting_in(its_inbox)) == 1


def test_closing_deletes_nothing_of_another(sqlite_url):
    """Rows that were forgotten and not deleted yet have the numbers of another domain's rows by now."""
    receiver = opened(sqlite_url, settings=sizes(1_000, 0))
    for number in range(1_100):  # the oldest are forgotten, and too few to be deleted at once
        send(receiver, str(number))
    drop_domain(sqlite_url, state(sqlite_url, receiver.domain_id))
    with opened(sqlite_url, **OTHER) as another:
        assert another.domain_id == receiver.domain_id
        send(another, *map(str, range(1_100)))
        receiver.close()
        assert send(another, *map(str, range(1_100))) == [DUPLICATE] * 1_100
    assert_sound(sqlite_url)


@pytest.mark.parametrize("step", ["begin_reading", "begin"])
def test_a_domain_dropped_while_it_is_opened(sqlite_url, monkeypatch, step):
    """Its number leads to another domain's ids, by which messages would be lost."""
    number = fill(sqlite_url)
    begin = getattr(OwnLog, step)

    def outrun(log):
        monkeypatch.undo()
        drop_domain(sqlite_url, state(sqlite_url, number))
        opened(sqlite_url, **OTHER).close()
        return begin(log)

    monkeypatch.setattr(OwnLog, step, outrun)
    with pytest.raises(StoreError, match="dropped while it was opened"):
        opened(sqlite_url, settings=sizes(3, 0))
    assert look(sqlite_url).domains[0].state.window_size == 2_000


def test_a_batch_under_way_is_waited_for(store_url):
    dropped = []
    with opened(store_url) as receiver:
        send(receiver, "before")
        of = state(store_url, receiver.domain_id)
        dropper = threading.Thread(target=lambda: dropped.append(drop_domain(store_url, of)))
        with receiver.batch() as batch:
            batch.receive("under way", received_at_us=0)
            dropper.start()
            time.sleep(0.5)  # so that a dropper that didn't wait would be done
        dropper.join(LONG_SECS)
    assert [each.receipts for each in dropped] == [2]
    assert look(store_url).domains == ()


def test_messages_that_are_sent_back_are_waited_for(fresh_postgres_url, monkeypatch):
    """Otherwise they would wait for a target that is gone."""
    url = fresh_postgres_url
    dropper = threading.Thread(target=drop_domain, args=[url, state(url, fill(url))])
    add_waiting = upkeep.add_waiting

    def adding(*arguments):
        dropper.start()
        time.sleep(0.5)  # so that a dropper that didn't wait would have deleted the messages that wait
        add_waiting(*arguments)

    monkeypatch.setattr(upkeep, "add_waiting", adding)
    assert retry_parked(url, None) == 1
    dropper.join(LONG_SECS)
    assert not any(contents_of(url).values())


def test_a_domain_that_was_made_anew_meanwhile_stays(store_url):
    of = state(store_url, fill(store_url))
    drop_domain(store_url, of)
    fill(store_url)
    with pytest.raises(SettingsError, match="dropped meanwhile"):
        drop_domain(store_url, of)
    assert [domain.rows for domain in look(store_url).domains] == [3]


def test_domains_of_one_name_by_different_keys_are_two(store_url):
    first = fill(store_url, domain="destination", connection_id="")
    second = fill(store_url, domain="name:queue://orders")
    assert {state(store_url, number).domain_name for number in (first, second)} == {"queue://orders"}
    drop_domain(store_url, state(store_url, first))
    assert [domain.state.domain_key for domain in look(store_url).domains] == ["name"]
