"""The needs that duplicates had of each tier, as the status shows them, against the log itself, over restarts and
processes."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from receiver import Receipt, Tier
from receiver.durable.audit import audit, look
from receiver.durable.duplicates import HOUR_US, Need, needs_read, needs_stored, with_needs
from tests.choosing import cases
from tests.durable.opened import DUPLICATE, MEMORY, opened, send, sizes, undone
from tests.stores import execute

SECOND_US = 1_000_000
KEEP_SOURCES = {"max_sources": 0, "retire_sources_after_days": 0}


def model_need(log, window):
    """The need of a log's last receipt, which is a duplicate. The log has (id, source, time), and is searched
    backwards."""
    id_ = log[-1][0]
    earlier = log[:-1]
    newest = max(row for row, (known, _, _) in enumerate(earlier) if known == id_)
    windows = []
    for source in {source for known, source, _ in earlier if known == id_}:
        last = max(row for row, entry in enumerate(earlier) if entry[:2] == (id_, source))
        windows.append(1 + len({known for known, by, _ in earlier[last:] if by == source and known != id_}))
    expiry_us = max(1, earlier[-1][2] - earlier[newest][2])
    if min(windows) > window:
        return window + 1, True, expiry_us
    return min(windows), False, expiry_us


def model_status(needs, latest_us):
    """The largest of the needs, by their times: in the latest receipt's hour and the 24 hours before."""
    recent = [need for us, need in needs if us // HOUR_US >= latest_us // HOUR_US - 24]
    if not recent:
        return None, None, None
    windows, bounds, expiries_us = zip(*recent, strict=True)
    return max(windows), any(bounds), max(expiries_us) / SECOND_US


def of_status(status):
    return status.window_need, status.window_need_is_lower_bound, status.expiry_need_secs


STEPS_US = st.sampled_from([0, 1, 2, 5, SECOND_US, HOUR_US // 2, HOUR_US, 7 * HOUR_US, 25 * HOUR_US, -3])
BATCHES = st.lists(
    st.lists(st.tuples(st.sampled_from(["", *"abcdefgh"]), st.sampled_from("st"), STEPS_US), max_size=12), max_size=8
)


@cases()
@given(window=st.integers(0, 5), expiry_us=st.sampled_from([1, 5, HOUR_US, 30 * HOUR_US]), batches=BATCHES)
@example(window=1, expiry_us=HOUR_US, batches=[[("a", "s", 0), ("b", "s", 1)], [("a", "s", 1)]])
def test_the_status_and_a_naive_model(window, expiry_us, batches):
    """The receiver gives only the verdict. Missed duplicates show in neither."""
    log, needs, now_us = [], [], 0
    with opened(MEMORY, settings=sizes(window, expiry_us, **KEEP_SOURCES)) as orders:
        for steps in batches:
            with orders.batch() as batch:
                for id_, source, step_us in steps:
                    now_us = max(0, now_us + step_us)
                    verdict = batch.receive(id_, source, received_at_us=now_us).verdict
                    if id_:
                        log.append((id_, source, max([now_us] + [us for *_, us in log[-1:]])))
                    if verdict is DUPLICATE:
                        needs.append((log[-1][2], model_need(log, window)))
            assert of_status(orders.status()) == model_status(needs, log[-1][2] if log else 0)


@pytest.mark.parametrize(
    ("window", "expiry_us", "ids", "tier", "expected"),
    [
        (4, 0, "aa", Tier.SOURCE, (1, False, 0.000001)),
        (4, 0, "abca", Tier.SOURCE, (3, False, 2.0)),  # by the receipt before, which sets the clock with W = 0
        (4, 0, "abcda", Tier.SOURCE, (4, False, 3.0)),  # less than W wouldn't catch it
        (0, 4 * SECOND_US, "abca", Tier.TIME, (1, True, 2.0)),
        (2, 4 * SECOND_US, "abca", Tier.TIME, (3, True, 2.0)),
        (2, 9 * SECOND_US, "abcdefga", Tier.TIME, (3, True, 6.0)),  # in truth 7, which it cannot know
        (2, 0, "abca", None, (None, None, None)),  # missed
    ],
)
def test_needs_by_hand(window, expiry_us, ids, tier, expected):
    """One receipt comes each second. The last one is the duplicate."""
    events = []
    with opened(MEMORY, settings=sizes(window, expiry_us), on_duplicate=events.append) as orders:
        with orders.batch() as batch:
            batch.receive_many((id_, "s", second * SECOND_US) for second, id_ in enumerate(ids))
        assert of_status(orders.status()) == expected
    assert [event.tier for event in events] == [tier] * (tier is not None)
    assert [(event.need.window, event.need.is_lower_bound, event.need.expiry_us / SECOND_US) for event in events] == (
        [expected] if tier else []
    )


def test_a_silence_is_no_need():
    """While no receipt came, the clock stood still. So the least expiry would have caught it, however late."""
    with opened(MEMORY, settings=sizes(4, SECOND_US, **KEEP_SOURCES)) as orders:
        for us in (0, 24 * HOUR_US):
            with orders.batch() as batch:
                batch.receive("a", received_at_us=us)
        assert orders.status().expiry_need_secs == 0.000001


def receive(orders, *rows):
    with orders.batch() as batch:
        batch.receive_many(Receipt(id_, "s", us) for id_, us in rows)


def test_a_need_is_of_the_last_day():
    """Needs are kept by hours, by the times of receipts. Once the larger need is over, the smaller one shows."""
    with opened(MEMORY, settings=sizes(10, 0, **KEEP_SOURCES)) as orders:
        receive(orders, ("a", 0), ("b", 1), ("c", 2), ("a", 3))
        receive(orders, ("d", 5 * HOUR_US), ("e", 5 * HOUR_US), ("d", 5 * HOUR_US))
        shown = []
        for hour in (24, 25, 29, 30):
            receive(orders, (f"new {hour}", hour * HOUR_US))
            shown.append(orders.status().window_need)
    assert shown == [3, 2, 2, None]


def test_what_is_needed_survives_restarts_and_is_the_domains(store_url):
    """They are the largest over its receivers. Another receiver knows them at its next batch, a newly opened one at
    once, and so does a look from outside."""
    settings = sizes(3, 20 * SECOND_US)
    with opened(store_url, settings=settings) as one, opened(store_url) as other:
        receive(one, *((id_, second * SECOND_US) for second, id_ in enumerate("abcda")))
        assert of_status(one.status()) == (4, True, 3.0)
        assert of_status(other.status()) == (None, None, None)
        receive(other, ("a", 5 * SECOND_US))
        assert of_status(other.status()) == (4, True, 3.0)
        undone(other, *"dxyzd")
    with opened(store_url) as anew:
        assert of_status(anew.status()) == (4, True, 3.0)
        receive(anew, ("d", 9 * SECOND_US))
        assert of_status(anew.status()) == (4, True, 3.0)
    (domain,) = look(store_url).domains
    assert domain.need == Need(4, True, 3 * SECOND_US)
    assert audit(store_url).findings == ()


def test_a_wider_window_makes_no_guess_exact(store_url):
    """A need above the old W is a lower bound with the new W too."""
    with opened(store_url, settings=sizes(2, 9 * SECOND_US)) as orders:
        receive(orders, *((id_, second * SECOND_US) for second, id_ in enumerate("abcdefga")))
    with opened(store_url, settings=sizes(8, 9 * SECOND_US)) as orders:
        assert of_status(orders.status()) == (3, True, 6.0)
        receive(orders, *((id_, second * SECOND_US) for second, id_ in enumerate("hijklh", start=8)))
        assert of_status(orders.status()) == (5, True, 6.0)


def test_duplicates_that_raise_nothing_leave_what_is_stored():
    """It stays the same object, so it isn't written out again for them."""
    events = []
    with opened(MEMORY, settings=sizes(9, 0), on_duplicate=events.append) as orders:
        send(orders, *"abca")
        needs = orders.session.cache.needs
        send(orders, *"xxaxa")
    assert len(events) == 5
    assert with_needs(needs, events, 0) is needs


@pytest.mark.parametrize("policy", ["perfect", "artemis:id_cache_size=3", "ttl:expiry=9"])
def test_other_policies_have_no_two_tiers(policy, store_url):
    with opened(store_url, policy=policy) as orders:
        send(orders, *"aba")
        assert orders.status().rDupsDet == 1
        assert of_status(orders.status()) == (None, None, None)
    assert look(store_url).domains[0].need is None


def test_a_domain_of_an_earlier_version_has_none_yet(store_url):
    with opened(store_url, settings=sizes(4, 0)) as orders:
        send(orders, *"abca")
    execute(store_url, "UPDATE receiver_domain SET needs_by_hour = NULL")
    with opened(store_url) as orders:
        assert (orders.status().rDupsDet, orders.status().window_need) == (0, None)
        send(orders, "a")
        assert orders.status().window_need == 1


HOURS = st.dictionaries(
    st.integers(100, 124), st.builds(Need, st.integers(1, 9), st.booleans(), st.integers(1, 9)), max_size=25
)


@given(HOURS)
def test_what_is_stored_is_read(by_hour):
    by_hour = dict(sorted(by_hour.items()))
    assert needs_read(needs_stored(by_hour)) == by_hour
    assert list(with_needs(by_hour, [], 124 * HOUR_US)) == list(by_hour)


def test_25_hours_are_kept_at_most():
    with opened(MEMORY, settings=sizes(9, 0, **KEEP_SOURCES)) as orders:
        for hour in range(100):
            receive(orders, (f"{hour}", hour * HOUR_US), (f"{hour}", hour * HOUR_US))
        assert list(orders.session.cache.needs) == list(range(75, 100))
        receive(orders, *((f"{hour // 2}", hour // 2 * HOUR_US) for hour in range(200, 400)))
        assert list(orders.session.cache.needs) == list(range(175, 200))
