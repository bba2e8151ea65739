"""A log that is held whole gives the naive model's answers."""

from hypothesis import given
from hypothesis import strategies as st
from small_logs import domains_of, ingested, judged, logs, repeats

from receiver.domains import Channel
from receiver.simulate.analysis import needs_together
from receiver.simulate.shares import parted_queues
from receiver.simulate.whole import WholeLog
from tests.choosing import cases


def clamped(log, key):
    latest_us, times = {}, []
    for domain, receipt in zip(domains_of(log, key), log, strict=True):
        if receipt.unique_message_id:
            latest_us[domain] = max(latest_us.get(domain, 0), receipt.received_at_us)
        times.append(latest_us.get(domain, 0))
    return times


def halves(log, key, times):
    """The rows of duplicates in the first half of a log, and those in the second."""
    as_read = [receipt.received_at_us for receipt in log]
    middle_us = (min(as_read) + max(as_read)) // 2
    rows = repeats(log, key)
    return [row for row in rows if times[row] < middle_us], [row for row in rows if times[row] >= middle_us]


KEYS = st.sampled_from(["default", "destination", "connection", "receiver", "name:all"])
PAIRS = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 60)).filter(any), max_size=4)


@given(logs(), KEYS, PAIRS)
@cases(60)
def test_pairs_are_replayed_beside_the_grid_in_any_order(log, key, pairs):
    reported = []
    whole = WholeLog(ingested(log, key), advance=reported.append)
    replayed = whole.replay([0, 2], [5], pairs)
    assert set(replayed.pairs) == set(pairs)
    for (window, expiry_us), outcome in replayed.pairs.items():
        by_model = judged(log, window, expiry_us, key)
        assert (outcome.caught, outcome.peak_ids) == (by_model.caught, by_model.peak_ids)
    of_grid = {(setting.window, setting.expiry_us): setting.caught for setting in replayed.settings}
    assert of_grid == {(0, 5): judged(log, 0, 5, key).caught, (2, 5): judged(log, 2, 5, key).caught}
    assert sum(domain.settings[1].caught for domain in replayed.domains) == of_grid[2, 5]
    assert reported == [1] * len(whole.facts.domains)


@given(logs(), KEYS, st.integers(0, 3))
@cases(60)
def test_the_expiry_that_a_window_needs_beside_it_is_the_smallest(log, key, max_missed):
    """It is so for the whole log, and for the duplicates of either half."""
    whole = WholeLog(ingested(log, key), max_missed=max_missed)
    windows = [0, 1, 3]
    times = clamped(log, key)
    parts = [list(part) for part in (repeats(log, key), *halves(log, key, times))]
    for rows, needs in zip(parts, needs_together(whole, (windows, windows, windows), (3, 0)), strict=True):
        assert [window for window, _ in needs] == windows
        for window, expiry_us in needs:

            def missed(expiry_us, window=window, rows=rows):
                if (window, expiry_us) == (0, 0):
                    return len(rows)
                verdicts = judged(log, window, expiry_us, key).verdicts
                return sum(verdicts[row] != "duplicate" for row in rows)

            assert missed(expiry_us) <= max_missed
            if expiry_us:
                assert missed(expiry_us - 1) > max_missed


def test_a_queue_is_parted_where_its_channels_are_of_several_domains():
    channels = [
        Channel("b1", "queue://q", ""),
        Channel("b2", "q", ""),
        Channel("b1", "queue://alone", ""),
        Channel("b1", "topic://t", ""),
        Channel("b2", "topic://t", ""),
    ]
    assert parted_queues(channels, [0, 1, 0, 0, 1]).tolist() == [0, 0, -1, -1, -1]
    assert parted_queues(channels, [0, 0, 0, 0, 1]).tolist() == [-1] * len(channels)
