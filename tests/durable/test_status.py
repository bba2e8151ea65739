"""The status line as Apama's users know it, and how nearly the windows missed a duplicate."""

import io
import logging
import threading
import time
from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import NullPool, create_engine

from receiver import Receipt, Tier
from receiver.durable.status import BOUNDS, LOG_FORMAT, Tally
from receiver.errors import StoreBusyError
from receiver.logs import ReadOptions, read_logs
from receiver.store.tables import DomainState
from tests.durable.opened import DUPLICATE, MEMORY, opened, send, sizes, undone
from tests.stores import execute

SECOND_US = 1_000_000
MESSAGE = """2017-03-05 18:17:36.091 INFO  [27192:JMSReceiver:orders] - 'orders' has received JMS message: Property.uniqueMessageId=1
   JMSDestination=Queue<orders>
   Body=""
"""


def logged(*lines: str) -> str:
    """These lines in a log, as a correlator writes them."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter(LOG_FORMAT))
    for line in lines:
        handler.emit(logging.LogRecord("app", logging.INFO, __file__, 1, line, None, None))
    return stream.getvalue()


def test_a_reader_of_correlator_logs_reads_the_line(tmp_path):
    with opened(MEMORY) as orders:
        send(orders, *(str(number) for number in range(1_234)), *("0",) * 1_000)
        with orders.batch() as batch:
            batch.receive_many([Receipt("1", None, 7_250_000, redelivered=True, jms_timestamp_ms=2_000)])
        status = orders.status()
        line = status.line()
    assert line.startswith("JMS Status: r=1 rx=2,235 rRate=")
    assert line.endswith(" rRedel=1 rMaxDeliverySecs=5.2 rDupsDet=1,001 rDupIds=1,234")
    log = tmp_path / "correlator.log"
    log.write_text(logged("before", line) + MESSAGE, encoding="utf-8")
    before_us = time.time_ns() // 1_000
    (status_line,) = [status for batch in read_logs([str(log)], ReadOptions()) for status in batch.status_lines]
    names = ("rx", "rRedel", "rDupsDet", "rDupIds")
    assert {name: status_line.values[name] for name in names} == {name: getattr(status, name) for name in names}
    assert set(status_line.values) == {"r", "rRate", "rMaxDeliverySecs", *names}
    assert status_line.values["rMaxDeliverySecs"] == 5.2
    assert status_line.values["rRate"] == round(status.rRate)
    assert abs(status_line.logged_at_us - before_us) < 86_400 * SECOND_US  # a local time without zone


def test_the_rate_is_of_the_time_since_the_last_status():
    began = time.monotonic()
    with opened(MEMORY) as orders:
        send(orders, *map(str, range(1_000)))
        assert orders.status().rRate >= 1_000 / (time.monotonic() - began)
        send(orders)
        orders.figures()
        assert orders.status().rRate == 0
        send(orders, *map(str, range(10)))
        assert orders.status().rRate > 0


def test_batches_are_counted_by_what_became_of_them(store_url):
    engine = create_engine(store_url, poolclass=NullPool)
    with opened(store_url) as orders, opened(store_url, patience_secs=0.05) as busy:
        send(orders, "a")
        send(orders)
        undone(orders, "b")
        for end in ("commit", "rollback", "rollback"):
            with engine.connect() as connection, connection.begin() as transaction:
                send(orders, end, connection=connection)
                getattr(transaction, end)()
        with orders.batch(), pytest.raises(StoreBusyError), orders.batch():
            pass
        with orders.batch():
            blocked = threading.Thread(target=pytest.raises, args=(StoreBusyError, busy.batch().__enter__))
            blocked.start()
            blocked.join()
        status = orders.status()
        counts = (status.batches_committed, status.batches_rolled_back, status.batches_failed)
        assert (*counts, busy.status().batches_failed) == (2, 3, 1, 1)


def test_where_all_outcomes_are_known_the_figures_need_no_database(store_url):
    with opened(store_url) as orders:
        send(orders, "a")
        execute(store_url, "ALTER TABLE receiver_domain RENAME TO gone")
        assert orders.status().rx == 1


def test_every_counter_of_a_batch_is_added():
    counters = [counter.name for counter in fields(Tally) if counter.type == "int"]
    batch = Tally(**{name: number for number, name in enumerate(counters, start=2)})
    total = Tally(**dict.fromkeys(counters, 1))
    total.add(batch)
    sums = {name: number + 1 for number, name in enumerate(counters, start=2)}
    sums["max_delivery_us"] -= 1  # the larger one, not the sum
    assert {name: getattr(total, name) for name in counters} == sums
    of_process = {"time_tier_dups"}  # no domain keeps it
    state = batch.added_to(DomainState(*[1] * len(DomainState._fields)))
    assert {name: getattr(state, name) for name in counters if name not in of_process} == {
        name: count for name, count in sums.items() if name not in of_process
    }


@pytest.mark.parametrize(
    ("window", "expiry_us", "ids", "tier", "expected"),
    [
        (4, 0, "aa", Tier.SOURCE, 3 / 4),  # three more ids would have pushed it to the end, a fourth out
        (4, 0, "abca", Tier.SOURCE, 1 / 4),
        (4, 0, "abcda", Tier.SOURCE, 0),
        (1, 0, "aa", Tier.SOURCE, 0),
        (0, 4 * SECOND_US, "aa", Tier.TIME, 1),
        (0, 4 * SECOND_US, "aba", Tier.TIME, 3 / 4),
        (0, 4 * SECOND_US, "abcdea", Tier.TIME, 0),
        (2, 4 * SECOND_US, "abca", Tier.TIME, 1),  # just pushed out: all of the expiry is left
        (2, 4 * SECOND_US, "abcda", Tier.TIME, 3 / 4),
        (4, 4 * SECOND_US, "abca", Tier.SOURCE, 1),  # little of the window is left, but then comes the expiry
    ],
)
def test_headroom_by_hand(window, expiry_us, ids, tier, expected):
    """One receipt comes each second. The last one is the duplicate."""
    reported = []
    with opened(MEMORY, settings=sizes(window, expiry_us), on_duplicate=reported.append) as orders:
        assert (orders.status().min_headroom, orders.status().recent_min_headroom) == (None, None)
        with orders.batch() as batch:
            batch.receive_many((id_, "s", second * SECOND_US) for second, id_ in enumerate(ids))
        status = orders.status()
    assert [(event.tier, event.headroom) for event in reported] == [(tier, expected)]
    assert (status.min_headroom, status.recent_min_headroom) == (expected, expected)
    assert (status.rDupsDet, status.time_tier_dups) == (1, int(tier is Tier.TIME))


@given(
    window=st.integers(0, 5),
    expiry_us=st.integers(1, 5),
    receipts=st.lists(st.tuples(st.sampled_from("abcdefgh"), st.sampled_from("st"), st.integers(0, 50)), max_size=60),
)
def test_headroom_is_a_share(window, expiry_us, receipts):
    """It is the share that was left of the better tier. Only duplicates count."""
    reported = []
    with opened(MEMORY, settings=sizes(window, expiry_us), on_duplicate=reported.append) as orders:
        with orders.batch() as batch:
            decisions = batch.receive_many(receipts)
        status = orders.status()
    shares = [event.headroom for event in reported]
    assert len(shares) == sum(decision.verdict is DUPLICATE for decision in decisions) == sum(status.headroom.counts)
    assert all(0 <= share <= 1 for share in shares)
    assert all(
        share * expiry_us >= event.decision.expiry_left_us for share, event in zip(shares, reported, strict=True)
    )
    assert all(share * window >= event.decision.window_left for share, event in zip(shares, reported, strict=True))
    assert status.min_headroom == status.recent_min_headroom == min(shares, default=None)
    assert status.headroom.total == pytest.approx(sum(shares))
    for index, bound in enumerate(BOUNDS):
        assert sum(status.headroom.counts[: index + 1]) == sum(share <= bound for share in shares)


def test_an_old_alarm_ends_and_is_remembered():
    with opened(MEMORY, settings=sizes(4, 0)) as orders:
        send(orders, *"abcda", *["a"] * 999)
        assert (orders.status().min_headroom, orders.status().recent_min_headroom) == (0, 0)
        send(orders, "a")
        assert (orders.status().min_headroom, orders.status().recent_min_headroom) == (0, 0.75)


def test_a_batch_rolled_back_tells_nothing_of_headroom():
    with opened(MEMORY, settings=sizes(4, 0)) as orders:
        undone(orders, *"abcda")
        assert orders.status().min_headroom is None
