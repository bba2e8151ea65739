"""Histograms, headroom, worst sources and the course of time, each by its definition."""

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from model import Model
from small_logs import Receipt, analysed, domains_of, logs, repeats

from receiver.simulate.summaries import WORST_SOURCES, counts_of, histogram_of


def histogram(values):
    return histogram_of(counts_of(np.array(values, np.int64)))


@given(st.lists(st.integers(0, 4 * 10**17) | st.integers(0, 30), max_size=30))
def test_a_histogram_counts_each_value_between_its_edges(values):
    counted = histogram(values)
    assert sum(counted.counts) == len(values)
    assert list(counted.edges) == sorted(set(counted.edges))
    assert len(counted.edges) == (len(counted.counts) + 1 if values else 0)
    for low, high, count in zip(counted.edges, counted.edges[1:], counted.counts, strict=False):
        assert count == sum(low <= value < high for value in values)


@given(logs())
@settings(max_examples=50)
def test_needs_and_the_timeline_count_every_duplicate_once(log):
    analysis = analysed(log)
    duplicates = len(repeats(log))
    assert sum(analysis.window_needs.counts) == sum(analysis.expiry_needs_us.counts) == duplicates
    timeline = analysis.timeline
    assert sum(timeline.receipts) == len(log)
    assert sum(timeline.duplicates) == duplicates
    assert timeline.start_us == min(receipt.received_at_us for receipt in log)
    assert all(some <= every for some, every in zip(timeline.duplicates, timeline.receipts, strict=True))


def test_the_timeline_slices_time_as_read():
    log = [Receipt(number * 1_000_000, f"{number % 500}") for number in range(1_000)]
    timeline = analysed(log).timeline
    assert timeline.slice_us == 5_000_000
    assert set(timeline.receipts) == {5}
    assert timeline.duplicates == (0,) * 100 + (5,) * 100


@given(logs())
@settings(max_examples=100)
def test_headroom_is_what_the_model_has_left(log):
    assume(repeats(log))
    analysis = analysed(log)
    setting = analysis.recommendation.setting
    models, windows, expiries_us = {}, [], []
    for domain, receipt in zip(domains_of(log), log, strict=True):
        model = models.setdefault(domain, Model(setting.window, setting.expiry_us))
        id_ = receipt.unique_message_id
        if id_ and id_ in model.remembered():
            if model.tier(id_) == "source":
                windows.append(model.window_left(id_))
            else:
                # An expiry of 0 catches nothing, so no duplicate needs less than 1.
                expiries_us.append(min(setting.expiry_us - 1, model.expiry_left_us(id_)))
        model.receive(id_, receipt.message_source_id, receipt.received_at_us)
    headroom = analysis.headroom
    assert headroom.caught_by_source == len(windows)
    assert headroom.caught_by_time == len(expiries_us)
    assert headroom.least_window_left == min(windows, default=None)
    assert headroom.least_expiry_left_us == min(expiries_us, default=None)
    assert headroom.window_left == histogram(windows)
    assert headroom.expiry_left_us == histogram(expiries_us)


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
