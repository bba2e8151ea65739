"""Events and counters for operators: only of committed batches; bodies that differ; receivers that only observe."""

import logging
import sys
import threading
from contextlib import suppress

import pytest

from receiver import Receipt
from tests.durable.opened import DUPLICATE, MEMORY, NEW, UndoError, opened, send, sizes, undone

LOG = "receiver.duplicates"


@pytest.fixture
def events():
    return []


def test_an_event_tells_all_about_a_duplicate(any_url, events, caplog):
    caplog.set_level(logging.INFO, LOG)
    receiver = opened(any_url, settings=sizes(2, 10_000_000), on_duplicate=events.append)
    with receiver.batch() as batch:
        batch.receive("x", "s", received_at_us=1_000_000)
        batch.receive("y", "s", received_at_us=2_000_000)
        batch.receive("x", "t", received_at_us=3_000_000, redelivered=True)
    if any_url != MEMORY:
        receiver.close()
        receiver = opened(any_url, on_duplicate=events.append)
    with receiver.batch() as batch:
        batch.receive_many((str(number), source, 4_000_000) for number, source in enumerate("stst"))
        last = batch.receive("x", None, received_at_us=500_000)
        assert len(events) == 1  # not before the commit
        assert [event.decision for event in batch.duplicates] == [last]
    receiver.close()
    first, second = events
    assert (first.domain, first.unique_message_id, first.message_source_id) == ("broker:queue://orders", "x", "t")
    assert (first.received_at_us, first.first_received_at_us, first.last_received_at_us) == (3_000_000, 10**6, 10**6)
    assert (first.age_us, first.distance, first.tier, first.redelivered) == (2_000_000, 2, "source", True)
    assert (first.body_differs, first.delivered, first.decision.verdict) == (None, False, DUPLICATE)
    assert second.decision == last
    assert (second.received_at_us, second.first_received_at_us) == (4_000_000, 1_000_000)
    assert (second.last_received_at_us, second.age_us, second.distance) == (3_000_000, 1_000_000, 5)
    assert (second.tier, second.redelivered, second.message_source_id) == ("time", False, None)
    records = [record for record in caplog.records if record.name == LOG]
    assert [record.duplicate for record in records] == events
    assert all(record.levelno == logging.INFO for record in records)
    assert "'x' from 't' came again after 2.000000 s" in records[0].getMessage()


def test_first_receipt_is_remembered_as_long_as_the_id(any_url, events):
    with opened(any_url, settings=sizes(1, 0), on_duplicate=events.append) as receiver:
        for id_, received_at_us in [("x", 1), ("x", 2), ("x", 3), ("y", 4), ("x", 5), ("x", 6)]:
            with receiver.batch() as batch:
                batch.receive(id_, received_at_us=received_at_us)
    assert [(event.received_at_us, event.first_received_at_us) for event in events] == [(2, 1), (3, 1), (6, 5)]


def test_nothing_is_told_of_a_batch_rolled_back(any_url, events, caplog):
    caplog.set_level(logging.INFO, LOG)
    with opened(any_url, on_duplicate=events.append) as receiver:
        send(receiver, "x")
        assert undone(receiver, "x", "y", "y") == [DUPLICATE, NEW, DUPLICATE]
        assert send(receiver, "y") == [NEW]
    assert events == []
    assert caplog.records == []


def test_a_callback_that_raises_harms_nothing(any_url, caplog):
    def raise_always(event):
        raise ZeroDivisionError(event.unique_message_id)

    with opened(any_url, on_duplicate=raise_always) as receiver:
        assert send(receiver, "x", "x", "y", "y") == [NEW, DUPLICATE] * 2
        assert send(receiver, "x") == [DUPLICATE]
        assert receiver.status().rDupsDet == 3
    assert [record.exc_info[0] for record in caplog.records] == [ZeroDivisionError] * 3
    assert {record.levelno for record in caplog.records} == {logging.ERROR}


def test_a_callback_that_exits_leaves_the_block_of_a_committed_batch(any_url):
    """The program is to end. A message that it doesn't acknowledge therefore comes again, as a duplicate."""
    reported = []

    def exit_once(event):
        reported.append(event.unique_message_id)
        if len(reported) == 1:
            raise SystemExit

    with opened(any_url, on_duplicate=exit_once) as receiver:
        with pytest.raises(SystemExit):
            send(receiver, "x", "x", "y", "y")
        assert undone(receiver, "x", "y") == [DUPLICATE] * 2
        assert receiver.status().batches_committed == 1
    assert reported == ["x", "y"]


def test_a_callback_may_use_the_receiver(any_url, events):
    def use(event):
        events.append((event.unique_message_id, receiver.status().rDupsDet))
        if len(events) < 3:
            send(receiver, event.unique_message_id)

    with opened(any_url, on_duplicate=use) as receiver:
        send(receiver, "x", "x")
    assert events == [("x", 1), ("x", 2), ("x", 3)]


def test_every_event_is_told_once_though_threads_share_a_receiver(events):
    failures = []

    def work():
        try:
            for _ in range(150):
                send(receiver, "x")
                receiver.status()
        except Exception as error:  # noqa: BLE001 - whatever it is
            failures.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # threads change places at every turn
    try:
        with opened(MEMORY, on_duplicate=events.append) as receiver:
            threads = [threading.Thread(target=work) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert failures == []
    assert len(events) == 4 * 150 - 1


def test_counters(any_url):
    with opened(any_url) as receiver:
        assert (receiver.status().rx, receiver.status().rMaxDeliverySecs) == (0, 0.0)
        with receiver.batch() as batch:
            batch.receive_many(
                [
                    Receipt("a", "s", 10_000_000, redelivered=False, jms_timestamp_ms=1),
                    Receipt("b", "s", 10_000_000, redelivered=True),
                    Receipt("b", "s", 10_000_000, redelivered=True, jms_timestamp_ms=0),
                ]
            )
        assert (receiver.status().rRedel, receiver.status().rMaxDeliverySecs) == (2, 0.0)
        with receiver.batch() as batch:
            batch.receive("c", received_at_us=10_000_000, redelivered=True, jms_timestamp_ms=11_000)
        assert (receiver.status().rRedel, receiver.status().rMaxDeliverySecs) == (3, 0.0)
        with receiver.batch() as batch:
            # By the receipt's own time, not by the domain's clock, which is at 10 s.
            batch.receive("d", received_at_us=8_500_000, redelivered=True, jms_timestamp_ms=7_000)
        with receiver.batch() as batch:
            batch.receive(None, received_at_us=9_000_000, redelivered=True, jms_timestamp_ms=8_999)
        status = receiver.status()
        assert (status.rx, status.unchecked, status.rRedel, status.rMaxDeliverySecs) == (6, 1, 5, 1.5)
        assert (status.rDupsDet, status.rDupIds, status.clock_clamped) == (1, 4, 1)
        assert undone(receiver, "a", "e", None)[0] is DUPLICATE
        for figure in ("rx", "unchecked", "rRedel", "rMaxDeliverySecs", "rDupsDet", "rDupIds", "clock_clamped"):
            assert getattr(receiver.status(), figure) == getattr(status, figure), figure
        assert "rRedel=5 rMaxDeliverySecs=1.5 rDupsDet=1 rDupIds=4" in status.line()


def test_counters_begin_with_the_receiver(store_url):
    with opened(store_url) as receiver:
        send(receiver, "a", "a")
        with opened(store_url) as other:
            assert send(other, "a", "b") == [DUPLICATE, NEW]
            assert (other.status().rx, other.status().rDupsDet, other.status().rDupIds) == (2, 1, 2)
        # As of this receiver's last batch.
        assert (receiver.status().rx, receiver.status().rDupsDet, receiver.status().rDupIds) == (2, 1, 1)
    with opened(store_url) as receiver:
        assert (receiver.status().rx, receiver.status().rDupsDet, receiver.status().rDupIds) == (0, 0, 2)


def test_observing_only_delivers_and_marks(any_url, events):
    """Verdicts, state and counters are the same. Only delivery differs."""
    ids = ["a", "b", "a", "", "c", "b"]
    with (
        opened(any_url, domain="name:acts", settings=sizes(2, 0)) as acts,
        opened(
            any_url, domain="name:observes", settings=sizes(2, 0), observe_only=True, on_duplicate=events.append
        ) as observes,
    ):
        decisions = []
        for receiver in (acts, observes):
            with receiver.batch() as batch:
                decisions.append([batch.receive(id_, received_at_us=0) for id_ in ids])
        acting, observing = decisions
        assert [decision.verdict for decision in acting] == [decision.verdict for decision in observing]
        assert [decision.deliver for decision in acting] == [True, True, False, True, True, True]
        assert all(decision.deliver for decision in observing)
        assert [decision.delivered_anyway for decision in observing] == [False, False, True, False, False, False]
        for figure in ("rx", "unchecked", "rDupsDet", "rDupIds", "reused_ids"):
            assert getattr(acts.status(), figure) == getattr(observes.status(), figure), figure
    assert [event.delivered for event in events] == [True]


@pytest.mark.parametrize("id_reuse", ["duplicate", "deliver"])
def test_an_id_used_again_for_another_body(any_url, events, caplog, id_reuse):
    caplog.set_level(logging.INFO, LOG)
    receiver = opened(any_url, id_reuse=id_reuse, on_duplicate=events.append)
    decisions = []
    for digest in ["one", "one", None, "two", "two", "one", None]:
        if any_url != MEMORY:
            receiver.close()
            receiver = opened(any_url, id_reuse=id_reuse, on_duplicate=events.append)
        with receiver.batch() as batch:
            decisions.append(batch.receive("x", received_at_us=0, body_digest=digest))
    assert [decision.verdict for decision in decisions] == [NEW] + [DUPLICATE] * 6
    assert [decision.body_differs for decision in decisions] == [None, False, None, True, False, False, None]
    delivered = [decision.deliver for decision in decisions]
    assert delivered == [True, False, False, id_reuse == "deliver", False, False, False]
    assert [event.body_differs for event in events] == [decision.body_differs for decision in decisions[1:]]
    assert [event.delivered for event in events] == delivered[1:]
    warned = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warned) == 1
    assert "its body is another one" in warned[0].getMessage()
    if any_url == MEMORY:
        assert receiver.status().reused_ids == 1
    receiver.close()


def test_a_body_is_forgotten_with_its_id(any_url):
    with opened(any_url, settings=sizes(1, 0)) as receiver:
        for id_, digest in [("x", "one"), ("y", None), ("x", "two"), ("x", None), ("y", None), ("x", None)]:
            with receiver.batch() as batch:
                decision = batch.receive(id_, received_at_us=0, body_digest=digest)
            assert not decision.body_differs
        with receiver.batch() as batch:
            assert batch.receive("x", received_at_us=0, body_digest="one").body_differs is None


def test_an_empty_digest_is_none(any_url):
    with opened(any_url) as receiver, receiver.batch() as batch:
        digests = ["one", "", "one", None, "two"]
        differing = [batch.receive("x", received_at_us=0, body_digest=digest).body_differs for digest in digests]
    assert differing == [None, None, False, None, True]


@pytest.mark.parametrize("without", [None, ""])
def test_nothing_is_claimed_of_an_id_that_first_came_without_a_digest(any_url, without):
    """Nobody knows its first body. Otherwise that body would be delivered again after any other had come with the
    id."""
    with opened(any_url, id_reuse="deliver") as receiver:
        for digest in [without, "another", "its own", "another", "a third"]:
            with receiver.batch() as batch:
                decision = batch.receive("x", received_at_us=0, body_digest=digest)
            assert (decision.deliver, decision.body_differs) == (receiver.status().rx == 1, None)
        assert receiver.status().reused_ids == 0


def test_a_body_rolled_back_was_never_there(any_url):
    with opened(any_url) as receiver:
        with receiver.batch() as batch:
            batch.receive("x", received_at_us=0, body_digest="one")
        with pytest.raises(ZeroDivisionError), receiver.batch() as batch:
            batch.receive(
                "x", received_at_us=0, body_digest=str(1 / 0) if batch.receive("x", body_digest="two").verdict else ""
            )
        with receiver.batch() as batch:
            assert batch.receive("x", received_at_us=0, body_digest="two").body_differs is True


def test_an_id_keeps_its_last_sixteen_bodies(any_url):
    """Each body counts once: a body that comes again and again pushes no other out."""
    others = [f"other {number}" for number in range(14)]
    with opened(any_url) as receiver:

        def differing(*digests):
            with receiver.batch() as batch:
                return [batch.receive("x", received_at_us=0, body_digest=digest).body_differs for digest in digests]

        assert differing("one", "two", *["two"] * 16, "one") == [None, True] + [False] * 17
        assert differing(*others, "one", "last", "two", "one") == [True] * 14 + [False, True, False, True]


def test_what_is_kept_of_ids_goes_with_them(any_url):
    """Beside the detector, a receiver keeps the bodies of ids. These must not outlive the ids by much."""
    with opened(any_url, settings=sizes(10, 0)) as receiver:
        for first in range(0, 4_000, 500):
            with receiver.batch() as batch:
                for number in range(first, first + 500):
                    batch.receive(str(number), received_at_us=0, body_digest="body")
        assert len(receiver.session.cache._histories) <= 1_500 + 500
        with receiver.batch() as batch:
            assert batch.receive("3999", received_at_us=0, body_digest="another").body_differs


def test_a_bodys_row_that_was_rolled_back_takes_no_other_with_it(store_url):
    """Another row has its number now."""
    with opened(store_url, policy="artemis:id_cache_size=10") as receiver:
        with receiver.batch() as batch:
            batch.receive("x", received_at_us=0, body_digest="one")
        with suppress(UndoError), receiver.batch() as batch:
            batch.receive("x", received_at_us=0, body_digest="two")
            raise UndoError
        for id_ in ("y", "z"):
            with receiver.batch() as batch:
                assert batch.receive(id_, received_at_us=0).deliver
    with opened(store_url, policy="artemis:id_cache_size=10") as receiver, receiver.batch() as batch:
        assert not any(batch.receive(id_, received_at_us=0).deliver for id_ in "xyz")
