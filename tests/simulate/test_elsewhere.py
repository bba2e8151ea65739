"""The needs of other systems' memories, compared with a naive model of the earlier receipts."""

from dataclasses import astuple

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
FAULTS = "refreshed", "counts duplicates", "one domain", "clock as read", "newest repeat", "from zero", "receipts"


def model(log, key, fault=""):
    """The needs of each domain with duplicates, by lists of its receipts."""
    names = ["all"] * len(log) if fault == "one domain" else domains_of(log, key)
    needs = {
        name: of_domain([each for each, its in zip(log, names, strict=True) if its == name], fault) for name in names
    }
    return {name: need for name, need in needs.items() if need is not None}


def of_domain(log, fault=""):
    """For the repeats of a domain, the largest of three figures: new ids since the id's first receipt, with that
    one; different ids since its latest receipt; the age of its first receipt."""
    firsts, clock_us, ids, received = {}, 0, 0, []
    rings, used, ages_us = [], [], []
    for receipt in log:
        id_ = receipt.unique_message_id
        if not id_:
            continue
        clock_us = receipt.received_at_us if fault == "clock as read" else max(clock_us, receipt.received_at_us)
        if id_ in firsts:
            number, first_us = firsts[id_]
            rings.append(ids - number - (fault == "from zero"))
            since = received[::-1][: received[::-1].index(id_) + 1]
            used.append(len(since) if fault == "receipts" else len(set(since)))
            ages_us.append(clock_us - first_us)
            ids += fault == "counts duplicates"
            if fault == "refreshed":
                firsts[id_] = ids, clock_us
        else:
            firsts[id_] = ids, clock_us
            ids += 1
        received.append(id_)
    if not rings:
        return None
    which = (lambda values: values[-1]) if fault == "newest repeat" else max
    sources = len({receipt.message_source_id for receipt in log})
    return Elsewhere(which(rings), which(used), which(ages_us), sources)


@given(logs(), KEYS)
@cases(300)
def test_needs_are_the_models(log, key):
    facts, needs = WholeLog(ingested(log, key)).facts, model(log, key)
    assert {domain.domain: domain.elsewhere for domain in facts.domains if domain.elsewhere} == needs
    assert facts.elsewhere == (Elsewhere(*map(max, zip(*map(astuple, needs.values()), strict=True))) if needs else None)


@pytest.mark.costly
@pytest.mark.parametrize("fault", FAULTS)
def test_the_logs_drawn_tell_a_wrong_rule_from_the_right_one(fault):
    log = find(
        logs(), lambda log: all_of(model(log, "default", fault)) != all_of(model(log, "default")), settings=UNSHRUNK
    )
    assert analysed(log).elsewhere == all_of(model(log, "default")) != all_of(model(log, "default", fault))


def all_of(needs):
    """The largest of each need."""
    return Elsewhere.largest(needs.values())


def test_needs_by_hand():
    """In q, a comes again after b and c, 50 us after its first receipt. In r, d comes again at once."""
    in_q = [Receipt(10, "a"), Receipt(20, "b"), Receipt(30, "a"), Receipt(40, "c"), Receipt(60, "a"), Receipt(50, "c")]
    in_r = [Receipt(61, "d", destination="r"), Receipt(61, "d", destination="r")]
    assert analysed([*in_q, *in_r]).elsewhere == Elsewhere(3, 2, 50, 1)
    assert [domain.elsewhere for domain in analysed([*in_q, *in_r]).domains] == [
        Elsewhere(3, 2, 50, 1),
        Elsewhere(1, 1, 0, 1),
    ]
    assert analysed(in_r[:1]).elsewhere is None


@pytest.mark.parametrize(
    ("need", "margin", "sized"),
    [
        ((30_321, 29_999, 40_487_904, 8), 2.0, (61_000, 60_000, 81_000_000, 16)),
        ((1, 1, 0, 1), 2.0, (2, 2, 1_000_000, 2)),
        ((100, 90, 60_000_000, 101), 2.0, (200, 180, 120_000_000, 210)),
        ((100, 90, 60_000_000, 1), 1.0, (100, 90, 61_000_000, 1)),
        ((101, 1, 60_000_001, 1), 1.0, (110, 1, 61_000_000, 1)),
        ((1, 1, 1_099_999, 1), 1.0, (1, 1, 1_100_000, 1)),
    ],
)
def test_what_to_set_has_the_margin_and_a_time_is_longer_than_its_need(need, margin, sized):
    assert elsewhere_with_margin(Elsewhere(*need), margin) == Elsewhere(*sized)


@given(st.integers(1, 10**9), st.integers(0, 10**15), st.sampled_from([1.0, 1.01, 1.1, 2.0, 3.0]))
def test_what_is_set_is_never_less_than_the_need(size, ttl_us, margin):
    wanted = elsewhere_with_margin(Elsewhere(size, size, ttl_us, size), margin)
    assert min(wanted.artemis_id_cache_size, wanted.lru_size, wanted.sources) >= size
    assert wanted.ttl_us > ttl_us
