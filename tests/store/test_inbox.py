"""Messages wait in the store, exactly and in order, until their target has them. Then they leave nothing behind."""

import os
import random
import shutil
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from receiver.errors import ClosedError, SettingsError, StoreBusyError, StoreError
from receiver.store.inbox import Inbox
from receiver.store.upkeep import drop_parked, parked_rows, retry_parked
from tests.durable.checks import assert_sound
from tests.durable.forked import forked
from tests.durable.opened import LONG_SECS, UndoError, opened
from tests.durable.proxy import Cut, proxied
from tests.postgres import fresh_database
from tests.store.waiting import TARGET, add, all_of, as_retried, inbox_of, message, opened_inbox, receive, waiting_in

pytestmark = pytest.mark.thinned(3)

HOSTILE = "queue://\x1b[31m\r\n\u202e\0\ud800é😀"


def test_messages_are_kept_exactly(store_url, seed):
    """Any bytes and any text are kept, and nothing is taken for something else."""
    odd = {"unique_message_id": HOSTILE, "message_source_id": HOSTILE, "destination": HOSTILE, "message_id": HOSTILE}
    random_ = random.Random(seed)  # noqa: S311 - draws by seed
    rows = [
        message(0),
        message(1, body=b""),
        message(2, body=b"\0" * 10),
        message(3, body=bytes(range(256)) * 40),
        message(4, body=random_.randbytes(300_000)),
        message(5, body="é😀".encode(), is_text=True),
        message(6, **odd),
        message(7, unique_message_id=None, message_source_id=None, message_id=None),
        message(8, unique_message_id="", message_source_id="", destination="", message_id=""),
        message(9, redelivered=True, jms_timestamp_ms=0),
        message(10, received_at_us=0, jms_timestamp_ms=253_402_300_799_999),
        message(11, headers={"JMSCorrelationID": HOSTILE, "JMSReplyTo": "", "JMSType": "\0"}),
        message(2**62, tries=2**31 - 1, properties={"\0": "\ud800", "": b"\xff", "none": None, "n": -1.5}),
    ]
    with opened_inbox(store_url) as (_, inbox):
        with inbox.lease() as lease:
            add(inbox, lease.connection, rows)
        assert waiting_in(inbox) == rows
    with opened_inbox(store_url) as (_, inbox), inbox.lease() as lease:
        assert [[type(value) for value in row] for row in all_of(lease)] == [
            [type(value) for value in row] for row in rows
        ]


@pytest.mark.parametrize(
    ("but_of", "numbers"),
    [
        ([], [0, 1, 2, 3, 4]),
        (["a"], [0, 1, 3]),
        ([None], [2, 3, 4]),
        ([""], [2, 3, 4]),
        ([None, "a"], [3]),
        (["a", "b", ""], []),
        (["A", "a ", "other"], [0, 1, 2, 3, 4]),
    ],
)
def test_sources_that_wait_are_left_out(store_url, but_of, numbers):
    """No source and an empty source are the same."""
    rows = [message(number, source) for number, source in enumerate([None, "", "a", "b", "a"])]
    with opened_inbox(store_url) as (_, inbox), inbox.lease() as lease:
        add(inbox, lease.connection, rows)
        assert lease.sequence_numbers(9, but_of=but_of) == numbers
        assert lease.sequence_numbers(1, but_of=dict.fromkeys(but_of)) == numbers[:1]


def test_a_batch_undone_leaves_nothing(store_url):
    """The next batch gets its sequence numbers."""
    with opened_inbox(store_url) as (receiver, inbox):
        receive(receiver, inbox, b"1", b"2")
        with suppress(UndoError), receiver.batch() as batch:
            assert batch.transaction.first_sequence == 2
            batch.receive("x", received_at_us=0)
            add(inbox, batch.connection, [message(2)])
            inbox.park(batch.connection, message(3), "refused")
            raise UndoError
        assert inbox.waiting() == 2
        assert parked_rows(store_url) == []
        assert [row.sequence for row in receive(receiver, inbox, b"3")] == [2]


def test_a_message_that_is_there_already_is_refused(store_url):
    with opened_inbox(store_url) as (receiver, inbox):
        receive(receiver, inbox, b"1")
        with pytest.raises(StoreError), inbox.lease() as lease:
            add(inbox, lease.connection, [message(0), message(1)])
        assert inbox.waiting() == 1


def test_what_another_left_is_delivered(store_url):
    """Whichever inbox has the lease delivers them, in order."""
    with opened_inbox(store_url) as (receiver, inbox), opened_inbox(store_url) as (other_receiver, other):
        rows = []
        for number in range(6):
            rows += receive(*[(receiver, inbox), (other_receiver, other)][number % 2], b"a", b"b")
        assert waiting_in(inbox) == waiting_in(other) == rows
        assert [row.sequence for row in rows] == list(range(12))


def test_one_turn_at_a_time(store_url):
    """A target has one turn at a time. In PostgreSQL, another target's turn and batches go on meanwhile."""
    with (
        opened_inbox(store_url, patience_secs=0.2) as (receiver, inbox),
        inbox_of(receiver, store_url, patience_secs=0.2) as other,
        inbox_of(receiver, store_url, "file:b", patience_secs=0.2) as elsewhere,
        inbox.lease(),
    ):
        with pytest.raises(StoreBusyError), other.lease():
            pass
        with pytest.raises(StoreBusyError, match="other threads kept the inbox busy"), inbox.lease():
            pass
        assert inbox.waiting() == other.waiting() == 0
        if store_url.startswith("postgresql"):
            receive(receiver, elsewhere, b"body")
            assert inbox.elsewhere() == {"file:b": 1}
            with elsewhere.lease() as lease:
                assert lease.sequence_numbers(9) == [0]


def test_turns_of_many_lose_nothing_and_repeat_nothing(store_url):
    """Threads with inboxes of their own receive and deliver at the same time. Each message comes once, in the order
    of sequence numbers."""
    delivered = []

    def bridge(number):
        with (
            opened(store_url, patience_secs=LONG_SECS) as receiver,
            inbox_of(receiver, store_url, patience_secs=LONG_SECS) as inbox,
        ):
            for batch in range(15):
                receive(receiver, inbox, *[f"{number} {batch}".encode()] * 7)
                with inbox.lease() as lease:
                    rows = lease.messages(lease.sequence_numbers(10))
                    delivered.extend(rows)
                    lease.confirm([row.sequence for row in rows])

    threads = [threading.Thread(target=bridge, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with opened_inbox(store_url) as (_, inbox):
        delivered += waiting_in(inbox)
    assert [row.sequence for row in delivered] == list(range(3 * 15 * 7))


def test_a_turn_in_a_transaction_of_a_batch(store_url):
    """The turn is committed with the batch, or not at all."""
    with opened_inbox(store_url) as (receiver, inbox):
        receive(receiver, inbox, b"1")
        with suppress(UndoError), receiver.batch() as batch, inbox.lease(batch.connection) as lease:
            lease.save_file(17, b"digest")
            lease.confirm([0])
            raise UndoError
        with receiver.batch() as batch, inbox.lease(batch.connection) as lease:
            assert (lease.target.confirmed_bytes, lease.sequence_numbers(9)) == (None, [0])
            lease.save_file(17, b"digest")
            assert (lease.target.confirmed_bytes, lease.target.tail_digest) == (17, b"digest")
        with inbox.lease() as lease:
            assert (lease.target.confirmed_bytes, lease.target.tail_digest) == (17, b"digest")


@pytest.mark.parametrize(
    ("encoding", "error"),
    [("LATIN1", "ValueError: \\u20ac \\xe9 \\x00 \\ud800"), ("SQL_ASCII", "ValueError: € é \\x00 \\ud800")],
)
def test_an_error_that_the_database_cant_spell(postgres_url, encoding, error):
    template = f"template0 ENCODING '{encoding}' LC_COLLATE 'C' LC_CTYPE 'C'"
    with fresh_database(postgres_url, template) as url, opened_inbox(url) as (_, inbox):
        with inbox.lease() as lease:
            lease.park(message(0), "ValueError: € é \0 \ud800")
        assert [parked.error for parked in parked_rows(url)] == [error]


def test_parked_messages_come_back_under_their_numbers(store_url):
    with opened_inbox(store_url) as (receiver, inbox):
        rows = receive(receiver, inbox, b"1", b"2", b"3")
        with inbox.lease() as lease:
            assert [lease.tries_failed([1]) for _ in range(3)] == [{1: 1}, {1: 2}, {1: 3}]
            lease.park(rows[1]._replace(tries=3), "ValueError: no \0 \ud800")
        assert waiting_in(inbox) == [rows[0], rows[2]]
        (parked,) = parked_rows(store_url)
        assert (parked.target, parked.domain, parked.tries) == (TARGET, "broker:queue://orders", 3)
        assert parked.error == "ValueError: no \\x00 \\ud800"
        assert retry_parked(store_url, [parked.parked_id]) == 1
        assert waiting_in(inbox) == [rows[0], as_retried(rows[1]), rows[2]]
        assert parked_rows(store_url) == []
    assert_sound(store_url)


def test_all_the_numbers_or_none(store_url):
    """A number never comes again."""
    with opened_inbox(store_url) as (receiver, inbox):
        rows = receive(receiver, inbox, b"1", b"2", b"3")
        with inbox.lease() as lease:
            for row in rows:
                lease.park(row, "refused")
        before = parked_rows(store_url)
        numbers = [row.parked_id for row in before]
        for take_out in (retry_parked, drop_parked):
            with pytest.raises(SettingsError, match=r"parked under 99, 9{30} ") as caught:
                take_out(store_url, [numbers[0], 99, int("9" * 30)])
            assert "receiver parked list" in caught.value.hint
            assert parked_rows(store_url) == before
        assert drop_parked(store_url, numbers[1:] * 2) == 2
        assert retry_parked(store_url, []) == 0
        with inbox.lease() as lease:
            lease.park(rows[1], "refused")
        assert parked_rows(store_url)[1].parked_id > numbers[-1]
        assert drop_parked(store_url, None) == 2
        assert drop_parked(store_url, None) == 0


def test_a_store_is_not_made_by_looking_for_what_is_parked(store_url, tmp_path):
    for use in (parked_rows, lambda url: retry_parked(url, None), lambda url: drop_parked(url, None)):
        with pytest.raises(StoreError, match="there is no store"):
            use(store_url)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"target": ""}, "a target has 1 to 2,000 bytes, not 0"),
        ({"target": "é" * 1_001}, "a target has 1 to 2,000 bytes, not 2,002"),
        ({"domain_id": 99}, "the store has no domain 99"),
        ({"store_settings": {}}, "store_settings must be StoreSettings"),
    ],
)
def test_refused_when_it_opens(store_url, options, problem):
    with opened(store_url) as receiver, pytest.raises(SettingsError, match=problem):
        Inbox(store_url, **{"domain_id": receiver.domain_id, "target": TARGET, **options})


def test_the_longest_name_of_a_target(store_url):
    names = ["é" * 1_000, "file:\0\ud800", "a"]
    with opened(store_url) as receiver:
        numbers = [inbox_of(receiver, store_url, name).target_id for name in names * 2]
    assert numbers[:3] == numbers[3:]
    assert len(set(numbers)) == 3


def test_closed(store_url):
    with opened_inbox(store_url) as (_, inbox):
        inbox.close()
        inbox.close()
        for use in (inbox.waiting, inbox.elsewhere, lambda: inbox.lease().__enter__()):
            with pytest.raises(ClosedError, match="the inbox is closed"):
                use()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_process_forked_off(store_url):
    """It is refused its parent's inbox, and opens its own."""
    with opened_inbox(store_url) as (receiver, inbox):
        receive(receiver, inbox, b"1")
        waiting_in(inbox)

        def child():
            for use in (inbox.waiting, lambda: inbox.lease().__enter__()):
                with pytest.raises(ClosedError, match="open another in the new process"):
                    use()
            inbox.close()
            with opened_inbox(store_url) as (_, own):
                return [row.sequence for row in waiting_in(own)]

        assert forked(child)() == [0]
        assert len(waiting_in(inbox)) == 1
    assert_sound(store_url)


def test_a_file_that_was_replaced(sqlite_url, tmp_path):
    """A store without the target replaced it. The error says so, and opening again is the remedy."""
    with opened_inbox(sqlite_url) as (_, inbox):
        waiting_in(inbox)
        opened(f"sqlite:///{tmp_path}/other.db").close()
        for ending in ("-wal", "-shm"):
            Path(f"{tmp_path}/receiver.db{ending}").unlink(missing_ok=True)
        shutil.move(tmp_path / "other.db", tmp_path / "receiver.db")
        with pytest.raises(StoreError, match="the target is gone") as caught:
            waiting_in(inbox)
        assert "Open it again" in caught.value.hint


@pytest.mark.parametrize("cut", Cut)
def test_a_link_cut_at_the_end_of_a_turn(fresh_postgres_url, cut):
    """It is an error, whatever the outcome was. The next turn shows the outcome."""
    with proxied(fresh_postgres_url) as proxy, opened_inbox(proxy.url) as (receiver, inbox):
        receive(receiver, inbox, b"1", b"2")
        assert len(waiting_in(inbox)) == 2
        proxy.arm(cut)
        with pytest.raises(StoreError), inbox.lease() as lease:
            lease.confirm([0])
        assert not proxy.armed
        assert [row.sequence for row in waiting_in(inbox)] == ([0, 1] if cut is Cut.BEFORE_COMMIT else [1])


def test_a_link_cut_in_a_turn_and_while_idle(fresh_postgres_url):
    with proxied(fresh_postgres_url) as proxy, opened_inbox(proxy.url) as (receiver, inbox):
        receive(receiver, inbox, b"1")
        with pytest.raises(StoreError), inbox.lease() as lease:  # noqa: PT012
            lease.confirm([0])
            proxy.cut()
            lease.tries_failed([0])
        assert len(waiting_in(inbox)) == 1
        proxy.cut()
        assert len(waiting_in(inbox)) == 1, "nothing was under way, so nothing fails"
        proxy.cut()
        inbox.give_back_space()
