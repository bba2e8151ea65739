"""Each scenario does what its name says, for exactly as long as asked. Equal seeds give equal logs."""

import tracemalloc
from collections import Counter, defaultdict
from datetime import UTC, datetime
from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from receiver.errors import SettingsError
from receiver.simulate.scenarios import SCENARIOS, ScenarioPlan
from receiver.simulate.synthetic import SCENARIO_FUNCTIONS, SYNTHETIC_SCHEMA, batches
from tests.choosing import cases

SECOND_US = 1_000_000
HOUR_US = 3600 * SECOND_US

plans = st.builds(
    ScenarioPlan,
    scenario=st.sampled_from(list(SCENARIOS)),
    receipts=st.integers(1, 1_000),
    seed=st.integers(0, 2**40),
    sources=st.integers(1, 40),
    rate=st.sampled_from([0.001, 1.0, 100.0, 1e6, 1e12]),
    duplicates=st.sampled_from([0.0, 0.001, 0.01, 0.2, 0.9]),
)


def rows_of(plan, block_rows=1 << 20):
    table = pa.Table.from_batches(batches(plan, block_rows), SYNTHETIC_SCHEMA)
    table = table.set_column(0, "received_at", table["received_at"].cast(pa.int64()))
    return table.to_pylist()


def resends(rows):
    """Each duplicate, behind the first receipt of its id."""
    firsts = {}
    return [(first, row) for row in rows if (first := firsts.setdefault(row["unique_message_id"], row)) is not row]


@cases()
@given(plan=plans, block_rows=st.sampled_from([7, 100, 1 << 20]))
def test_every_log_is_plausible(plan, block_rows):
    rows = rows_of(plan, block_rows)
    assert len(rows) == plan.receipts
    times = [row["received_at"] for row in rows]
    assert times == sorted(times)
    assert times[0] >= plan.start.timestamp() * SECOND_US
    assert all(0 < row["jms_timestamp"] * 1000 <= row["received_at"] for row in rows)
    assert all(len(row["body_digest"]) == 8 and int(row["body_digest"], 16) >= 0 for row in rows)
    again = resends(rows)
    assert sum(row["jms_redelivered"] for row in rows) == sum(row["jms_redelivered"] for _, row in again)
    if plan.duplicates == 0:
        assert not again


@cases()
@given(plan=plans, block_rows=st.sampled_from([7, 100, 1 << 20]))
def test_every_source_counts_its_messages_from_1_and_sends_them_in_order(plan, block_rows):
    rows = rows_of(plan, block_rows)
    numbers, sent = defaultdict(list), defaultdict(list)
    again = {id(row) for _, row in resends(rows)}
    for row in rows:
        number, _, source = row["unique_message_id"].partition(":")
        assert source == row["message_source_id"]
        if id(row) not in again:
            numbers[source].append(int(number))
            sent[source].append(row["jms_timestamp"])
    assert len(numbers) <= plan.sources
    assert all(values == list(range(1, len(values) + 1)) for values in numbers.values())
    assert all(values == sorted(values) for values in sent.values())


@cases()
@given(plan=plans)
def test_a_resend_is_the_same_message(plan):
    for first, row in resends(rows_of(plan)):
        for column in ("message_source_id", "destination", "body_digest"):
            assert row[column] == first[column]


def test_different_messages_have_different_bodies():
    rows = rows_of(ScenarioPlan(scenario="mixed", receipts=20_000, sources=50))
    bodies = Counter({row["unique_message_id"]: row["body_digest"] for row in rows}.values())
    assert bodies.most_common(1)[0][1] <= 2  # of 2**32 digests


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_seed_alone_decides(scenario):
    def log(seed, receipts=5_000):
        return pa.Table.from_batches(batches(ScenarioPlan(scenario=scenario, receipts=receipts, seed=seed)))

    assert log(7).equals(log(7))
    assert not log(7).equals(log(8))


@pytest.mark.thinned(4)
@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("share", [0.01, 0.2])
def test_about_the_asked_share_of_the_receipts_are_duplicates(scenario, share):
    rows = rows_of(ScenarioPlan(scenario=scenario, receipts=30_000, duplicates=share, sources=50))
    assert 0.5 * share < len(resends(rows)) / len(rows) < 1.5 * share


def test_every_scenario_that_is_described_can_be_told():
    assert list(SCENARIOS) == list(SCENARIO_FUNCTIONS)


def test_steady_redelivers_soon_and_flags_it():
    resent = resends(rows_of(ScenarioPlan(scenario="steady", receipts=30_000)))
    assert all(row["jms_redelivered"] for _, row in resent)
    assert all(row["received_at"] - first["received_at"] < 30 * SECOND_US for first, row in resent)
    assert all(row["jms_timestamp"] == first["jms_timestamp"] for first, row in resent)


def test_sender_crash_sends_runs_of_one_source_again_as_new_messages():
    rows = rows_of(ScenarioPlan(scenario="sender-crash", receipts=30_000))
    resent = resends(rows)
    assert not any(row["jms_redelivered"] for row in rows)
    assert all(row["jms_timestamp"] > first["jms_timestamp"] for first, row in resent)
    follows = 0
    last = {}
    for _, row in resent:
        number, source = row["unique_message_id"].split(":", 1)
        follows += last.get(source) == int(number) - 1
        last[source] = int(number)
    assert follows > 0.8 * len(resent)


def test_sender_crash_sends_nothing_new_before_it_has_sent_all_again():
    highest = {}
    for row in rows_of(ScenarioPlan(scenario="sender-crash", receipts=30_000)):
        number, source = row["unique_message_id"].split(":", 1)
        if int(number) <= highest.get(source, 0):
            behind = highest[source] - int(number)
            assert behind < 50
        highest[source] = max(highest.get(source, 0), int(number))


def test_redelivery_storm_brings_runs_again_flagged_and_sent_long_ago():
    rows = rows_of(ScenarioPlan(scenario="redelivery-storm", receipts=30_000, duplicates=0.1))
    resent = resends(rows)
    assert len(resent) == sum(row["jms_redelivered"] for row in rows)
    assert all(row["jms_timestamp"] == first["jms_timestamp"] for first, row in resent)
    times = [row["received_at"] for _, row in resent]
    assert sum(after - before <= 20 for before, after in pairwise(times)) > len(times) / 2


def test_outage_is_hours_of_silence_and_then_everything_unacknowledged_again():
    rows = rows_of(ScenarioPlan(scenario="outage", receipts=30_000))
    times = [row["received_at"] for row in rows]
    resumed = [at for at in range(1, len(rows)) if times[at] - times[at - 1] >= 2 * HOUR_US]
    assert resumed
    resent = resends(rows)
    for at in resumed:
        again = [(first, row) for first, row in resent if 0 <= row["received_at"] - times[at] < SECOND_US]
        assert again
        assert all(row["jms_redelivered"] and first["received_at"] <= times[at - 1] for first, row in again)
        # The last receipt before the silence is among them. None between it and the oldest one is left out.
        assert again[-1][0] is rows[at - 1]
        assert len(again) == at - rows.index(again[0][0])


def test_two_bridges_share_the_orders_and_resends_often_cross():
    rows = rows_of(ScenarioPlan(scenario="two-bridges", receipts=30_000))
    ways = Counter((row["connection_id"], row["destination"], row["receiver_id"]) for row in rows)
    assert set(ways) == {
        ("bridge-1", "queue://orders", "orders-1"),
        ("bridge-2", "queue://orders", "orders-2"),
        ("bridge-1", "queue://payments", "payments-1"),
    }
    crossed = [row["connection_id"] != first["connection_id"] for first, row in resends(rows)]
    assert 0.3 < sum(crossed) / len(crossed) < 0.9


@pytest.mark.parametrize("scenario", sorted(set(SCENARIOS) - {"two-bridges", "mixed"}))
def test_elsewhere_there_is_one_connection(scenario):
    assert {row["connection_id"] for row in rows_of(ScenarioPlan(scenario=scenario, receipts=5_000))} == {"bridge-1"}


def test_quiet_source_sends_old_ids_again_long_after_the_clock_moved_on():
    rows = rows_of(ScenarioPlan(scenario="quiet-source", receipts=60_000))
    counts = Counter(row["message_source_id"] for row in rows)
    quiet = min(counts, key=counts.get)
    assert counts[quiet] < len(rows) / 300
    late = [
        row["received_at"] - first["received_at"] for first, row in resends(rows) if row["message_source_id"] == quiet
    ]
    assert len(late) > 5
    assert max(late) > 180 * SECOND_US


def test_mixed_has_all_the_others():
    rows = rows_of(ScenarioPlan(scenario="mixed", receipts=60_000))
    resent = resends(rows)
    times = [row["received_at"] for row in rows]
    assert max(after - before for before, after in pairwise(times)) >= 2 * HOUR_US
    assert any(row["connection_id"] != first["connection_id"] for first, row in resent)
    assert 0 < sum(row["jms_redelivered"] for _, row in resent) < len(resent)


def test_nothing_from_before_an_outage_is_received_during_it():
    rows = rows_of(ScenarioPlan(scenario="mixed", receipts=60_000), block_rows=2_000)
    gaps = [after["received_at"] - before["received_at"] for before, after in pairwise(rows)]
    silences = [gap for gap in gaps if gap > 10 * SECOND_US]
    assert len(silences) >= 4
    assert min(silences) >= 2 * HOUR_US


@pytest.mark.thinned(4)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_long_log_holds_no_more_rows_than_a_short_one(scenario):
    """NumPy's memory and that of Python's objects are traced. A log ten times as long must not need more."""

    def peak_bytes(receipts):
        tracemalloc.start()
        total = sum(
            batch.num_rows for batch in batches(ScenarioPlan(scenario=scenario, receipts=receipts, sources=50), 4_096)
        )
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert total == receipts
        return peak

    peak_bytes(40_000)  # objects that are made only once
    assert peak_bytes(400_000) < 1.3 * peak_bytes(40_000)


def test_the_log_starts_when_asked():
    start = datetime(1999, 12, 31, 23, 59, 59, tzinfo=UTC)
    first = rows_of(ScenarioPlan(scenario="steady", receipts=1, start=start))[0]["received_at"]
    assert 0 <= first - start.timestamp() * SECOND_US < SECOND_US


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"receipts": 0}, "receipts must be at least 1, not 0"),
        ({"receipts": -5}, "receipts must be at least 1, not -5"),
        ({"scenario": "storm"}, "redelivery-storm"),
        ({"scenario": "two_bridges"}, "did you mean two-bridges?"),
        ({"scenario": "xyz"}, "one of steady, sender-crash"),
        ({"seed": -1}, "seed"),
        ({"sources": 0}, "sources"),
        ({"sources": 10**9}, "sources"),
        ({"rate": 0.0}, "rate"),
        ({"rate": float("nan")}, "rate"),
        ({"rate": float("inf")}, "rate"),
        ({"duplicates": -0.1}, "duplicates"),
        ({"duplicates": 1.0}, "duplicates"),
        ({"duplicates": float("nan")}, "duplicates"),
        ({"start": datetime(1970, 1, 1, tzinfo=UTC)}, "1970"),
        ({"start": datetime(9999, 1, 1, tzinfo=UTC)}, "9998"),
        ({"rate": 1e-300}, "9998"),
    ],
)
def test_what_cannot_be_meant_is_refused(wrong, message):
    with pytest.raises(SettingsError) as refused:
        ScenarioPlan(**{"scenario": "steady", "receipts": 10} | wrong)
    assert message in str(refused.value)
