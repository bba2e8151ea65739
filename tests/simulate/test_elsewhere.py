"""What other systems' memories need, against a naive model of an id's first receipt."""

import pytest
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st
from small_logs import Receipt, analysed, domains_of, ingested, logs

from receiver.simulate.figures import Elsewhere
from receiver.simulate.recommend import elsewhere_with_margin
from receiver.simulate.whole import WholeLog
from tests.choosing import cases

KEYS = st.sampled_from(["default", "destination", "connection", "receiver", "name:all"])
UNSHRUNK = settings(phases=[Phase.generate], max_examples=2_000, database=None)
FAULTS = "refreshed", "counts duplicates", "one domain", "clock as read", "newest repeat", "from zero"


def model(log, key, fault=""):
    """Per domain: how many new ids came since the first receipt of a repeat's id, with that one, and how long ago it came."""
    sizes, ages_us = [], []
    names = ["all"] * len(log) if fault == "one domain" else domains_of(log, key)
    for name in set(names):
        firsts, clock_us, ids = {}, 0, 0
        for each, receipt in zip(names, log, strict=True):
            if each != name or not receipt.unique_message_id:
                continue
            clock_us = receipt.received_at_us if fault == "clock as read" else max(clock_us, receipt.received_at_us)
            if receipt.unique_message_id in firsts:
                number, first_us = firsts[receipt.unique_message_id]
                sizes.append(ids - number - (fault == "from zero"))
                ages_us.append(clock_us - first_us)
                ids += fault == "counts duplicates"
                if fault == "refreshed":
                    firsts[receipt.unique_message_id] = ids, clock_us
            else:
                firsts[receipt.unique_message_id] = ids, clock_us
                ids += 1
    if not sizes:
        return None
    return Elsewhere(sizes[-1], ages_us[-1]) if fault == "newest repeat" else Elsewhere(max(sizes), max(ages_us))


@given(logs(), KEYS)
@cases(300)
def test_needs_are_the_models(log, key):
    assert WholeLog(ingested(log, key)).facts.elsewhere == model(log, key)


@pytest.mark.parametrize("fault", FAULTS)
def test_the_logs_drawn_tell_a_wrong_rule_from_the_right_one(fault):
    log = find(logs(), lambda log: model(log, "default", fault) != model(log, "default"), settings=UNSHRUNK)
    assert analysed(log).elsewhere == model(log, "default") != model(log, "default", fault)


def test_needs_by_hand():
    """In q, a comes again after b and c, 50 us after its first receipt; in r, d does at once."""
    in_q = [Receipt(10, "a"), Receipt(20, "b"), Receipt(30, "a"), Receipt(40, "c"), Receipt(60, "a"), Receipt(50, "c")]
    in_r = [Receipt(61, "d", destination="r"), Receipt(61, "d", destination="r")]
    assert analysed([*in_q, *in_r]).elsewhere == Elsewhere(3, 50)
    assert analysed(in_r).elsewhere == Elsewhere(1, 0)
    assert analysed(in_r[:1]).elsewhere is None


@pytest.mark.parametrize(
    ("need", "margin", "sized"),
    [
        ((30_321, 40_487_904), 2.0, (61_000, 81_000_000)),
        ((1, 0), 2.0, (2, 1_000_000)),
        ((100, 60_000_000), 2.0, (200, 120_000_000)),
        ((100, 60_000_000), 1.0, (100, 61_000_000)),
        ((101, 60_000_001), 1.0, (110, 61_000_000)),
    ],
)
def test_what_to_set_has_the_margin_and_a_time_is_longer_than_its_need(need, margin, sized):
    assert elsewhere_with_margin(Elsewhere(*need), margin) == Elsewhere(*sized)


@given(st.integers(1, 10**9), st.integers(0, 10**15), st.sampled_from([1.0, 1.01, 1.1, 2.0, 3.0]))
def test_what_is_set_is_never_less_than_the_need(size, ttl_us, margin):
    wanted = elsewhere_with_margin(Elsewhere(size, ttl_us), margin)
    ids, us = wanted.artemis_id_cache_size, wanted.ttl_us
    assert ids >= size
    assert us > ttl_us
