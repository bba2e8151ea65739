"""Curves of needs, worst sources and the course of time, each by its definition. Counts of parts add up."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from small_logs import Batches, Receipt, analysed, batches, ingested, logs, repeats

from receiver.domains import domain_key
from receiver.logs import StatusLine
from receiver.simulate.domain_rows import reuse_distances
from receiver.simulate.facts import ValueCounts, missed_between, missed_by
from receiver.simulate.figures import WORST_SOURCES, LogFigures
from receiver.simulate.ingest import ingest
from receiver.simulate.shares import ROUND, Measures
from receiver.simulate.whole import WholeLog, split_domains
from tests.choosing import cases

VALUES = st.lists(st.integers(0, 4 * 10**17) | st.integers(0, 30), max_size=30)


def by_steps(values):
    """How many values lie between each number of ROUND and the next."""
    above = [*ROUND[1:].tolist(), float("inf")]
    return np.array(
        [sum(low <= value < high for value in values) for low, high in zip(ROUND.tolist(), above, strict=True)],
        np.int64,
    )


@given(logs())
@cases(50)
def test_expiry_needs_are_counted_between_round_ones(log):
    receipts = ingested(log)
    needs_us = [us for domain in split_domains(receipts) for us in reuse_distances(domain.rows).expiry_us.tolist()]
    facts = WholeLog(receipts).facts
    most_us = max(needs_us, default=0)
    assert facts.most_expiry_need_us == most_us
    assert facts.missed_by_expiry_us == missed_between(by_steps(needs_us), most_us)


@given(VALUES.filter(bool), st.data())
def test_values_counted_one_by_one_keep_their_ranks(values, data):
    counted = ValueCounts.of(np.array(values, np.int64))
    rank = data.draw(st.integers(0, len(values) - 1))
    assert counted.at(rank) == sorted(values)[rank]
    assert (counted.total, counted.most) == (len(values), max(values))


@given(logs())
@cases(50)
def test_needs_and_the_timeline_count_every_duplicate_once(log):
    analysis = analysed(log)
    duplicates = len(repeats(log))
    curves = (analysis.missed_by_window, analysis.missed_by_expiry_us)
    assert [curve[:1] for curve in curves] == [((0, duplicates),) if duplicates else ()] * 2
    timeline = analysis.timeline
    assert sum(timeline.receipts) == len(log)
    assert sum(timeline.duplicates) == duplicates
    assert timeline.start_us == min(receipt.received_at_us for receipt in log)
    assert all(repeated <= received for repeated, received in zip(timeline.duplicates, timeline.receipts, strict=True))


def test_the_timeline_slices_time_as_read():
    log = [Receipt(number * 1_000_000, f"{number % 500}") for number in range(1_000)]
    timeline = analysed(log).timeline
    assert timeline.slice_us == 5_000_000
    assert set(timeline.receipts) == {5}
    assert timeline.duplicates == (0,) * 100 + (5,) * 100


@given(st.integers(0, 10**15), st.integers(0, 10**15))
def test_slices_of_time_are_round_few_and_reach_the_end(first_us, span_us):
    log = LogFigures(2, 0, 0, 0, 1, 1, first_us, first_us + span_us, 0, 0, 0.0)
    _, _, _, start_us, slice_us, slices = Measures.of(log, 0)
    assert start_us == first_us
    assert str(slice_us).rstrip("0") in {"1", "2", "5"}
    assert slices <= 201
    assert (slices - 1) * slice_us <= span_us < slices * slice_us


def test_the_worst_sources_come_first_and_not_all_of_them():
    log = []
    for source in range(WORST_SOURCES + 10):
        ids = [f"{source}-{number}" for number in range(source + 1)]
        log += [Receipt(source, id_, f"s{source:03}") for id_ in [*ids, ids[0]]]
    sources = analysed(log).sources
    assert len(sources) == WORST_SOURCES
    assert [source.window_need for source in sources] == list(range(WORST_SOURCES + 10, 10, -1))
    assert sources[0].source == f"s{WORST_SOURCES + 9:03}"
    assert (sources[0].receipts, sources[0].duplicates) == (WORST_SOURCES + 11, 1)


def test_a_source_without_duplicates_is_no_worst_source():
    log = [Receipt(1, "a", "s"), Receipt(2, "b", "t"), Receipt(3, "a", "s")]
    assert [(source.source, source.window_need, source.expiry_need_us) for source in analysed(log).sources] == [
        ("s", 1, 1)
    ]


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 3)), min_size=1, max_size=4 * WORST_SOURCES), st.randoms())
@cases(50)
def test_names_decide_between_sources_that_need_alike(needs, random):
    """There are many ties here, and more sources than are listed."""
    names = [f"s{number}" for number in range(len(needs))]
    random.shuffle(names)
    log, now_us = [], 0
    for name, (window, expiry_us) in zip(names, needs, strict=True):
        ids = [f"{name}-{number}" for number in range(window)]
        log += [Receipt(now_us, id_, name) for id_ in ids] + [
            Receipt(now_us := now_us + expiry_us, f"{name}-end", name)
        ]
        log.append(Receipt(now_us, ids[0], name))
    expected = sorted((-window - 1, -expiry_us, name) for name, (window, expiry_us) in zip(names, needs, strict=True))
    found = WholeLog(ingested(log)).facts.sources
    assert [(-each.window_need, -each.expiry_need_us, each.source) for each in found] == expected[:WORST_SOURCES]


@given(st.permutations([(1, {"a": 2.0}), (1, {"a": 1.0, "b": 5.0}), (1, {"a": 1.0}), (0, {"z": 9.0}), (2, {})]))
@cases(20)
def test_status_lines_stand_in_the_order_they_were_logged_however_files_were_merged(lines):
    (batch,) = batches([Receipt(1, "a")])
    batch.status_lines += [StatusLine(*line) for line in lines]
    log = WholeLog(ingest(Batches([batch], {"connection_id", "destination"}), domain_key("default")))
    assert [(line.logged_at_us, line.values) for line in log.facts.status_lines] == [
        (0, {"z": 9.0}),
        (1, {"a": 1.0}),
        (1, {"a": 1.0, "b": 5.0}),
        (1, {"a": 2.0}),
        (2, {}),
    ]


@given(VALUES.map(lambda values: [value + 1 for value in values]))
def test_what_settings_miss_is_exact_where_it_is_said(needs):
    values = ValueCounts.of(np.array(needs, np.int64))
    exact, rounded = missed_by(values), missed_between(by_steps(needs), values.most)
    assert (bool(exact), bool(rounded)) == (bool(needs), bool(needs))
    for curve in filter(None, (exact, rounded)):
        assert [setting for setting, _ in curve] == sorted({setting for setting, _ in curve})
        assert curve[0] == (0, len(needs))
        assert curve[-1] == (max(needs), 0)
        for setting, missed in curve:
            assert missed == sum(need > setting for need in needs)
    distinct = sorted(set(needs))
    assert {need for need, _ in exact} >= set(distinct[-200:])


def test_an_expiry_of_0_misses_also_what_needs_no_time():
    assert missed_between(by_steps([0, 0, 1, 3]), 3) == ((0, 4), (1, 1), (3, 0))
    assert missed_between(by_steps([0, 0]), 0) == ((0, 2), (1, 0))


def test_a_curve_of_many_needs_is_exact_for_the_largest_and_stays_small():
    values = ValueCounts.of(np.arange(1, 100_001))
    curve = missed_by(values)
    assert curve[-200:] == tuple((need, 100_000 - need) for need in range(99_801, 100_001))
    assert len(curve) < 230
