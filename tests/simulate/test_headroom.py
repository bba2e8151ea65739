"""Headroom, of the log and of each source, by the naive model, and whether that of parts adds up."""

from collections import defaultdict
from itertools import chain

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from model import Model
from small_logs import analysed, domains_of, histogram, logs, repeats

from receiver.simulate.headroom import LeftCounts, count_left, headroom_of, pair_outcome


@given(logs())
@settings(max_examples=100)
def test_headroom_is_what_the_model_has_left(log):
    assume(repeats(log))
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
    assert headroom.window_left == histogram(all_windows)
    assert headroom.expiry_left_us == histogram(all_expiries_us)


SOURCES = 2
DUPLICATES = st.lists(
    # What is caught by the window of 5 has a window need of at most that.
    st.tuples(st.integers(1, 5), st.just(-1), st.integers(0, SOURCES))
    | st.tuples(st.integers(1, 99), st.integers(1, 20), st.integers(0, SOURCES)),
    max_size=20,
)


def outcome(*parts):
    counts = LeftCounts.none(SOURCES)
    for part in parts:
        windows, needs_us, source = np.array(part, np.int64).reshape(-1, 3).T
        counts += count_left((5, 10), windows, needs_us, source.astype(np.int32), SOURCES)
    return pair_outcome(0, 0, counts)


@given(DUPLICATES, st.integers(0, 20))
def test_what_is_left_adds_up_over_parts_of_a_log(duplicates, cut):
    whole, in_parts = outcome(duplicates), outcome(duplicates[:cut], duplicates[cut:])
    assert headroom_of(in_parts.lefts) == headroom_of(whole.lefts)
    assert in_parts.source_lefts == whole.source_lefts


@given(DUPLICATES)
def test_sources_that_are_not_among_the_worst_count_for_the_log_alone(duplicates):
    windows = [(5 - window, source) for window, need_us, source in duplicates if need_us < 0]
    expiries_us = [(10 - need_us, source) for _, need_us, source in duplicates if 0 < need_us <= 10]
    found = outcome(duplicates)
    assert found.lefts.least_window == min((left for left, _ in windows), default=None)
    assert found.lefts.least_expiry_us == min((left for left, _ in expiries_us), default=None)
    assert found.source_lefts == tuple(
        (
            min((left for left, of in windows if of == source), default=None),
            min((left for left, of in expiries_us if of == source), default=None),
        )
        for source in range(SOURCES)
    )
