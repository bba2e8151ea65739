"""The sizing kernel beside the naive model: each pair of window and expiry, and each duplicate's need."""

from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from model import Model

from receiver.simulate import compiled
from receiver.simulate.domain_rows import link_rows
from receiver.simulate.kernel import WindowAsked, replay_windows
from tests.choosing import cases

SOURCES, IDS = 4, 12


class Receipt(NamedTuple):
    gap_us: int
    source: int
    id: int


class Judged(NamedTuple):
    caught: int
    peak_ids: int
    duplicates: list[tuple[bool, bool]]
    """For each repeat of an id: whether the first tier holds the id, and whether the verdict is duplicate."""


def traces(*, own_source):
    receipt = st.builds(
        lambda gap_us, source, id_: Receipt(gap_us, id_ % SOURCES if own_source else source, id_),
        st.sampled_from([0, 0, 1, 2, 7, 30]),
        st.integers(0, SOURCES - 1),
        st.integers(0, IDS - 1),
    )
    return st.lists(receipt, min_size=1, max_size=60)


def grid(*values):
    return st.sets(st.sampled_from(values), min_size=1, max_size=4).map(sorted)


def judged(trace, window, expiry_us):
    model = Model(window, expiry_us)
    now_us, seen, caught, duplicates = 0, set(), 0, []
    for gap_us, source, id_ in trace:
        now_us += gap_us
        held = any(entry.id == str(id_) for queue in model.queues.values() for entry in queue)
        verdict = model.receive(str(id_), str(source), now_us)
        caught += verdict == "duplicate"
        if id_ in seen:
            duplicates.append((held, verdict == "duplicate"))
        seen.add(id_)
    return Judged(caught, model.peak_ids, duplicates)


def replayed(trace, windows, expiries_us, *, with_needs=True, **how):
    gaps_us, sources, ids = zip(*trace, strict=True)
    rows = link_rows(
        np.cumsum(np.array(gaps_us, np.int64)),
        np.array(sources, np.int32),
        np.array(ids, np.int32),
        sources=SOURCES,
        distinct_ids=max(ids) + 1,
    )
    return replay_windows(rows, [WindowAsked(window, expiries_us, with_needs) for window in windows], **how)


def check(trace, windows, expiries_us):
    for window, counts in zip(windows, replayed(trace, windows, expiries_us), strict=True):
        for e, expiry_us in enumerate(expiries_us):
            expected = judged(trace, window, expiry_us)
            pair = f"W={window} E={expiry_us}"
            assert (counts.caught[e], counts.peak_ids[e]) == (expected.caught, expected.peak_ids), pair
            for (held, caught), need_us in zip(expected.duplicates, counts.needs_us.tolist(), strict=True):
                assert (need_us == -1) == held, pair
                assert (need_us <= expiry_us) == caught, pair


WINDOWS = grid(0, 1, 2, 3, 5, 50)
EXPIRIES_US = grid(0, 1, 2, 8, 40, 1_000)


@cases(150)
@given(traces(own_source=True), WINDOWS, EXPIRIES_US)
@example([Receipt(0, 0, id_) for id_ in (1, 2, 1, 3, 2)], [0, 1, 2], [0, 1])
def test_ids_that_keep_to_one_source(trace, windows, expiries_us):
    check(trace, windows, expiries_us)


@cases(150)
@given(traces(own_source=False), WINDOWS, EXPIRIES_US)
def test_ids_that_several_sources_send(trace, windows, expiries_us):
    check(trace, windows, expiries_us)


@cases(150)
@given(traces(own_source=False), WINDOWS, EXPIRIES_US, st.integers(1, 60))
def test_a_log_that_is_counted_in_two_parts_is_the_log(trace, windows, expiries_us, cut):
    first = replayed(trace[:cut], windows, expiries_us)
    second = replayed(trace, windows, expiries_us, counted_from=min(cut, len(trace)))
    for whole, before, after in zip(replayed(trace, windows, expiries_us), first, second, strict=True):
        assert whole.caught.tolist() == (before.caught + after.caught).tolist()
        assert whole.peak_ids.tolist() == np.maximum(before.peak_ids, after.peak_ids).tolist()
        assert whole.needs_us.tolist() == [*before.needs_us, *after.needs_us]


@cases(50)
@given(traces(own_source=False), WINDOWS, EXPIRIES_US)
def test_who_asks_for_no_needs_gets_the_rest(trace, windows, expiries_us):
    rest = [each._replace(needs_us=np.empty(0, np.int64)) for each in replayed(trace, windows, expiries_us)]
    np.testing.assert_equal(replayed(trace, windows, expiries_us, with_needs=False), rest)


@pytest.mark.parametrize("gaps_us", [[1], [0, 0, 5], [3, 1, 0, 40]])
@pytest.mark.parametrize("ids", [20, 400])
def test_long_steady_traffic_whose_limits_lag_far(gaps_us, ids):
    random = np.random.default_rng(20_240_229)
    trace = [
        Receipt(gaps_us[row % len(gaps_us)], int(id_) % SOURCES, int(id_))
        for row, id_ in enumerate(random.integers(ids, size=600))
    ]
    check(trace, [0, 3, 20], [0, 5, 60])


def test_threads_find_what_one_finds(monkeypatch):
    random = np.random.default_rng(20_240_229)
    trace = [Receipt(1, int(id_) % SOURCES, int(id_)) for id_ in random.integers(50, size=500)]
    alone = replayed(trace, [0, 1, 4, 9], [0, 10, 100])
    monkeypatch.setattr(compiled, "_ROWS_WORTH_THREADS", 1)
    np.testing.assert_equal(replayed(trace, [0, 1, 4, 9], [0, 10, 100]), alone)


def test_an_empty_domain_has_nothing_to_count():
    nothing = np.empty(0, np.int32)
    rows = link_rows(np.empty(0, np.int64), nothing, nothing, sources=0, distinct_ids=0)
    for counts in replay_windows(rows, [WindowAsked(window, [0, 1, 2], with_needs=True) for window in (0, 5)]):
        assert counts.caught.tolist() == counts.peak_ids.tolist() == [0, 0, 0]
        assert counts.needs_us.tolist() == []
