"""Messages for a target that no bridge serves any more are listed, moved to another target, or dropped: in order,
and no others."""

import threading
import time

import pytest

from receiver.errors import SettingsError
from receiver.store.upkeep import drop_waiting, move_waiting, parked_rows, target_rows
from tests.durable.checks import assert_sound
from tests.durable.opened import LONG_SECS, opened
from tests.store.waiting import all_of, inbox_of, message, opened_inbox, receive, waiting_in
from tests.stores import execute

OLD, NEW = "amqp://old:5672/queue/out", "file:/new.jsonl"


def target(url, name):
    (row,) = [row for row in target_rows(url) if row.name == name]
    return row


def test_targets_are_listed_with_what_waits(store_url):
    with opened_inbox(store_url, OLD) as (receiver, inbox), inbox_of(receiver, store_url, NEW):
        receive(receiver, inbox, b"x" * 1_000, b"", b"yy")
        with inbox.lease() as lease:
            lease.confirm([0])
        old, new = target_rows(store_url)
        assert (old.domain_key, old.domain) == ("default", "broker:queue://orders")
        assert (old.name, old.waiting, old.oldest_us, old.newest_sequence, old.body_bytes) == (
            OLD,
            2,
            message(1).received_at_us,
            2,
            2,
        )
        assert (new.name, new.waiting, new.oldest_us, new.newest_sequence, new.body_bytes) == (NEW, 0, None, -1, 0)


def test_what_waits_is_moved_in_order_and_as_never_tried(store_url):
    """They go between the messages of the other target. Another domain's targets with the same names keep theirs."""
    with (
        opened_inbox(store_url, OLD) as (receiver, old),
        inbox_of(receiver, store_url, NEW) as new,
        opened(store_url, destination="queue://other") as other,
        inbox_of(other, store_url, OLD) as beside,
    ):
        rows = [*receive(receiver, old, b"0", b"1"), *receive(receiver, new, b"2"), *receive(receiver, old, b"3")]
        receive(other, beside, b"other")
        with old.lease() as lease:
            lease.tries_failed([1])
            lease.park(rows[0], "refused")
        of = next(row for row in target_rows(store_url) if row.number == old.target_id)
        assert move_waiting(store_url, of, NEW) == 2
        assert waiting_in(new) == [row for row in rows if row.message.body != b"0"]
        assert waiting_in(old) == []
        assert len(waiting_in(beside)) == 1
        assert [row.target for row in parked_rows(store_url)] == [OLD]
    assert_sound(store_url)


def test_a_target_that_is_new_is_made(store_url):
    with opened_inbox(store_url, OLD) as (receiver, old):
        rows = receive(receiver, old, b"0", b"1")
        assert move_waiting(store_url, target(store_url, OLD), NEW) == 2
        with inbox_of(receiver, store_url, NEW) as new:
            assert waiting_in(new) == rows


def test_no_bridge_is_in_the_middle_of_handing_on_what_is_moved(store_url):
    """The other target doesn't deliver messages that a turn delivers."""
    moved = []
    with opened_inbox(store_url, OLD) as (receiver, old):
        receive(receiver, old, b"0", b"1", b"2")
        of = target(store_url, OLD)
        mover = threading.Thread(target=lambda: moved.append(move_waiting(store_url, of, NEW)))
        with inbox_of(receiver, store_url, NEW), old.lease() as lease:
            assert len(all_of(lease)) == 3
            mover.start()
            time.sleep(0.5)  # so that a mover that didn't wait would be done
            lease.confirm([0, 1])
        mover.join(LONG_SECS)
    assert moved == [1]


def test_the_length_of_a_file_stays_with_the_file(store_url):
    with opened_inbox(store_url, NEW) as (receiver, file):
        receive(receiver, file, b"0", b"1")
        with file.lease() as lease:
            lease.confirm([0])
            lease.save_file(17, b"digest")
        assert move_waiting(store_url, target(store_url, NEW), OLD) == 1
        with file.lease() as lease:
            assert (lease.target.confirmed_bytes, lease.target.tail_digest) == (17, b"digest")
        with inbox_of(receiver, store_url, OLD) as old, old.lease() as lease:
            assert lease.target.confirmed_bytes is None


def test_what_is_moved_nowhere_is_refused(store_url):
    with opened_inbox(store_url, OLD) as (receiver, old):
        receive(receiver, old, b"0")
        of = target(store_url, OLD)
        for to, problem in {OLD: "already", "": "1 to 2,000 bytes", "x" * 2_001: "1 to 2,000 bytes"}.items():
            with pytest.raises(SettingsError, match=problem):
                move_waiting(store_url, of, to)
        assert old.waiting() == 1
    execute(store_url, "UPDATE receiver_target SET target = :name", name=b"another's by now")
    with pytest.raises(SettingsError, match="dropped meanwhile"):
        drop_waiting(store_url, of)


def test_what_came_after_the_question_is_not_dropped(store_url):
    with opened_inbox(store_url, OLD) as (receiver, old), inbox_of(receiver, store_url, NEW) as new:
        receive(receiver, old, b"0", b"1")
        of = target(store_url, OLD)
        kept = [*receive(receiver, new, b"2"), *receive(receiver, old, b"3")]
        assert drop_waiting(store_url, of) == 2
        assert waiting_in(new) + waiting_in(old) == kept
        with old.lease() as lease:
            lease.confirm([3])
        assert drop_waiting(store_url, target(store_url, OLD)) == 0
