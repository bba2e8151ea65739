"""The needs of duplicates, and the headroom of a log and of each source, by the naive model. Headroom of parts adds
up."""

import time
from collections import defaultdict
from itertools import chain

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from model import Model
from small_logs import SECOND_US, Receipt, analysed, domains_of, ingested, judged, logs, repeats, with_a_repeat

from receiver.simulate.domain_rows import link_rows, reuse_distances
from receiver.simulate.figures import DomainFigures
from receiver.simulate.kernel import WindowAsked
from receiver.simulate.replays import NONE_CAUGHT, ReplayAsked, ReplayShare, count_slack, replayed_of
from receiver.simulate.whole import split_domains
from tests.choosing import cases


@given(logs().map(with_a_repeat))
@cases(100)
def test_headroom_is_what_the_model_has_left(log):
    analysis = analysed(log)
    setting = analysis.recommendation.setting
    models, windows, expiries_us = {}, defaultdict(list), defaultdict(list)
    for domain, receipt in zip(domains_of(log), log, strict=True):
        model = models.setdefault(domain, Model(setting.window, setting.expiry_us))
        id_, source = receipt.unique_message_id, receipt.message_source_id
        if id_ and id_ in model.remembered():
            if model.tier(id_) == "source":
                windows[domain, source].append(model.window_left(id_))
            else:
                # An expiry of 0 catches nothing, so no duplicate needs less than 1.
                expiries_us[domain, source].append(min(setting.expiry_us - 1, model.expiry_left_us(id_)))
        model.receive(id_, source, receipt.received_at_us)
    for source in analysis.sources:
        assert source.window_left == min(windows[source.domain, source.source], default=None)
        assert source.expiry_left_us == min(expiries_us[source.domain, source.source], default=None)
    headroom = analysis.headroom
    all_windows, all_expiries_us = (list(chain.from_iterable(lefts.values())) for lefts in (windows, expiries_us))
    assert headroom.caught_by_source == len(all_windows)
    assert headroom.caught_by_time == len(all_expiries_us)
    assert headroom.least_window_left == min(all_windows, default=None)
    assert headroom.least_expiry_left_us == min(all_expiries_us, default=None)


SOURCES = 2
DUPLICATES = st.lists(
    # If the window of 5 catches a duplicate, its window need is at most 5.
    st.tuples(st.integers(1, 5), st.just(-1), st.integers(0, SOURCES))
    | st.tuples(st.integers(1, 99), st.integers(1, 20), st.integers(0, SOURCES)),
    max_size=20,
)


def outcome(*parts):
    shares, nothing = [], np.zeros(1, np.int64)
    for part in parts:
        windows, needs_us, source = np.array(part, np.int64).reshape(-1, 3).T
        least = np.full((2, SOURCES + 1), NONE_CAUGHT)
        counts = count_slack(5, 10, windows, needs_us, 0, source.astype(np.int32), *least)
        shares.append(ReplayShare(0, nothing, nothing, np.array(counts), least.ravel()))
    sources = {(0, str(source)): source for source in range(SOURCES)}
    asked = ReplayAsked([WindowAsked(5, [10], with_needs=True)], {(5, 10): 0}, [], [(5, 10)], sources)
    return replayed_of(shares, [DomainFigures("d", 0, 0, 0, 0, 0)], asked).pairs[5, 10]


@given(DUPLICATES, st.integers(0, 20))
def test_what_is_left_adds_up_over_parts_of_a_log(duplicates, cut):
    whole, in_parts = outcome(duplicates), outcome(duplicates[:cut], duplicates[cut:])
    assert in_parts.headroom == whole.headroom
    assert [in_parts.left(source) for source in range(SOURCES)] == [whole.left(source) for source in range(SOURCES)]


@given(DUPLICATES)
def test_sources_that_are_not_among_the_worst_count_for_the_log_alone(duplicates):
    windows = [(5 - window, source) for window, need_us, source in duplicates if need_us < 0]
    expiries_us = [(10 - need_us, source) for _, need_us, source in duplicates if 0 < need_us <= 10]
    measured = outcome(duplicates)
    headroom = measured.headroom
    assert headroom.least_window_left == min((left for left, _ in windows), default=None)
    assert headroom.least_expiry_left_us == min((left for left, _ in expiries_us), default=None)
    assert [measured.left(source) for source in range(SOURCES)] == [
        (
            min((left for left, of in windows if of == source), default=None),
            min((left for left, of in expiries_us if of == source), default=None),
        )
        for source in range(SOURCES)
    ]


def needs_by_row(log, key="default"):
    by_row = {}
    for domain in split_domains(ingested(log, key)):
        needs = reuse_distances(domain.rows)
        for row, window, expiry_us in zip(
            domain.log_rows[needs.row].tolist(), needs.window.tolist(), needs.expiry_us.tolist(), strict=True
        ):
            by_row[row] = window, expiry_us
    return by_row


@given(logs(most=25))
@cases(60)
def test_needs_are_the_smallest_settings_that_catch(log):
    needs = needs_by_row(log)
    assert sorted(needs) == repeats(log)
    replays = {}

    def caught(row, window, expiry_us):
        if (window, expiry_us) not in replays:
            replays[window, expiry_us] = judged(log, window, expiry_us).verdicts
        return replays[window, expiry_us][row] == "duplicate"

    for row, (window, expiry_us) in needs.items():
        assert caught(row, window, 0)
        assert not caught(row, window - 1, 0)
        assert caught(row, 0, max(1, expiry_us))
        assert not caught(row, 0, expiry_us - 1) if expiry_us else True


def test_an_id_of_several_sources_needs_the_window_of_the_nearest():
    log = [Receipt(1, "x", "far"), *(Receipt(2, f"{n}", "far") for n in range(5)), Receipt(3, "x", "near")]
    again = Receipt(4, "x", "third")
    assert needs_by_row([*log, again]) == {6: (6, 1), 7: (1, 0)}


def test_long_distances_are_counted_by_blocks():
    """There are more ids than a block of the count holds, and a part of them come again in between."""
    rng = np.random.default_rng(11)
    fill = [f"{number}" for number in rng.integers(0, 9_000, 20_000).tolist()]
    log = [Receipt(0, "x"), *(Receipt(SECOND_US, id_) for id_ in fill), Receipt(2 * SECOND_US, "x")]
    assert needs_by_row(log)[len(log) - 1] == (len(set(fill)) + 1, SECOND_US)


def test_an_id_of_very_many_sources_takes_no_time_for_each():
    """As where 'NULL' stands for no id, and each process is a source."""
    sources = 100_000
    source = np.repeat(np.arange(sources, dtype=np.int32), 3)
    ids = np.arange(3 * sources, dtype=np.int32)
    ids[::3] = 0
    times_us = np.arange(3 * sources, dtype=np.int64)
    rows = link_rows(times_us, source, ids, sources=sources, distinct_ids=3 * sources)
    reuse_distances(link_rows(times_us[:9], source[:9], ids[:9], sources=3, distinct_ids=9))  # compiles
    began = time.process_time()
    assert reuse_distances(rows).window.tolist() == [3] * (sources - 1)
    assert time.process_time() - began < 10
