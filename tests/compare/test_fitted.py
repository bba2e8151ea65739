"""A comparison confirms the needs of other systems that `simulate` gives: with so much they miss nothing, with a
little less they miss a message."""

from pathlib import Path

import pytest
from compared_logs import PLAIN, SEQUENCE, judged, logs
from hypothesis import assume, given
from hypothesis import strategies as st

from receiver.compare.engine import compare_policies
from receiver.domains import domain_key
from receiver.logs import ReadOptions, read_logs
from receiver.policies.names import compared_by_default, fitted_policies
from receiver.settings import ReceiverSettings
from receiver.simulate.figures import Elsewhere
from receiver.simulate.ingest import ingest
from tests.choosing import cases
from tests.simulate.small_logs import Receipt, analysed, ingested, repeats

SAMPLE = Path(__file__).resolve().parents[2] / "examples" / "artemis-receipts.csv.gz"
KEYS = st.sampled_from(["default", "name:x"])


def texts_of(needs, fewer_ids=0, less_us=0):
    ring, lru = (max(1, ids - fewer_ids) for ids in (needs.artemis_id_cache_size, needs.lru_size))
    return list(map(str, fitted_policies(Elsewhere(ring, lru, needs.ttl_us - less_us).of)))


@given(logs(PLAIN), KEYS)
@cases(150)
def test_needs_miss_nothing_and_less_misses_something(log, key):
    """Compiled and readable policies agree on it."""
    needs, duplicates = analysed(log, key).elsewhere, len(repeats(log, key))
    assume(needs)
    for less in (0, 1):
        texts = texts_of(needs, less, less if needs.ttl_us else 0)
        figures = compare_policies(ingested(log, key), key, texts).comparison.policies
        can_have_less = {"artemis": needs.artemis_id_cache_size > 1, "lru": needs.lru_size > 1, "ttl": needs.ttl_us > 0}
        assert [one.policy.partition(":")[0] for one in figures] == list(can_have_less)
        for one in figures:
            caught = judged(log, one.policy, key).verdicts.count("duplicate")
            assert one.missed == duplicates - caught
            has_less = less and can_have_less[one.policy.partition(":")[0]]
            assert (one.missed > 0) == bool(has_less), one.policy


@pytest.fixture(scope="module")
def sample():
    return ingest(read_logs([str(SAMPLE)], ReadOptions()), domain_key("destination"))


def test_the_sample_log_needs_30321_ids_of_artemis(sample):
    texts = ["artemis:id_cache_size=30321", "artemis:id_cache_size=30320"]
    enough, short = compare_policies(sample, "destination", texts).comparison.policies
    assert (enough.missed, short.missed > 0) == (0, True)


def test_a_comparison_that_chooses_fits_its_rivals(sample):
    comparison = compare_policies(sample, "destination").comparison
    fitted = [figures for figures in comparison.policies if figures.is_fitted]
    texts = ["artemis:id_cache_size=61000", "lru:size=32000", "ttl:expiry=82", "apama:window=360,expiry=41"]
    assert [figures.policy for figures in fitted] == texts
    assert [figures.missed for figures in fitted] == [0] * 4
    assert comparison.recommendation.setting.pair == ReceiverSettings().sizes
    vendors = [text for text in compared_by_default() if text != "solace-last"]  # solace-last can't judge this log
    assert [figures.policy for figures in comparison.policies][: len(vendors)] == vendors


def test_policies_that_were_asked_for_are_not_fitted(sample):
    asked = ["artemis:id_cache_size=61000", "ttl:expiry=82"]
    comparison = compare_policies(sample, "destination", asked).comparison
    assert [(figures.policy, figures.is_fitted) for figures in comparison.policies] == [(text, False) for text in asked]


def test_a_log_without_duplicates_fits_nothing():
    comparison = compare_policies(ingested([Receipt(1, "a"), Receipt(2, "b")]), "default").comparison
    assert [figures.policy for figures in comparison.policies if figures.is_fitted] == []


def test_a_vendors_default_that_is_what_the_log_needs_is_one_row():
    log = [Receipt(0, "a"), Receipt(150_000_000, "a")]
    policies = compare_policies(ingested(log), "default").comparison.policies
    assert [figures.is_fitted for figures in policies if figures.policy == "ttl:expiry=300"] == [True]


@given(logs(SEQUENCE), KEYS)
@cases(30)
def test_what_is_fitted_never_misses(log, key):
    fitted = [figures for figures in compare_policies(ingested(log, key), key).comparison.policies if figures.is_fitted]
    assert [figures.missed for figures in fitted] == [0] * (4 if repeats(log, key) else 0)
