"""The recommendation: it misses no more than allowed, has its margin, and costs least, by the model's own replay."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_logs import SECOND_US, Receipt, analysed, judged, logs, repeats, with_a_repeat

from receiver.simulate.figures import Kind
from receiver.simulate.recommend import _rounded_up
from tests.choosing import cases

# In seconds, since no expiry below one is recommended.
LOGS = logs().map(lambda log: [receipt._replace(received_at_us=receipt.received_at_us * SECOND_US) for receipt in log])


@given(LOGS, st.integers(0, 6), st.sampled_from(["default", "destination", "name:x"]))
@cases(150)
def test_it_misses_no_more_than_allowed_and_its_figures_are_the_models(log, max_missed, key):
    recommendation = analysed(log, key, max_missed=max_missed).recommendation
    setting = recommendation.setting
    replay = judged(log, setting.window, setting.expiry_us, key)
    duplicates = len(repeats(log, key))
    assert (setting.window, setting.expiry_us) != (0, 0)
    assert setting.caught == replay.caught
    assert setting.missed == duplicates - replay.caught <= max_missed
    assert setting.peak_ids == replay.peak_ids


@pytest.mark.parametrize("log", [[Receipt(1)], [Receipt(1, "a")], [Receipt(1), Receipt(1, "a"), Receipt(1, "a")]])
@pytest.mark.parametrize("max_missed", [0, 1, 10**9])
def test_there_always_is_one(log, max_missed):
    """Nothing that shows an analysis asks whether it has a recommendation."""
    recommendation = analysed(log, max_missed=max_missed).recommendation
    assert recommendation.setting.missed <= max_missed
    assert recommendation.why


@given(LOGS.map(with_a_repeat), st.sampled_from([1.0, 1.5, 2.0, 3.0]))
@cases(100)
def test_lean_is_no_dearer_than_either_tier_alone_with_the_same_margin(log, margin):
    duplicates = len(repeats(log))
    window = next(w for w in range(1, len(log) + 1) if judged(log, w, 0).caught == duplicates)
    expiry_secs = next(e for e in range(1, 40 * len(log)) if judged(log, 0, e * SECOND_US).caught == duplicates)
    lean = next(sized for sized in analysed(log, margin=margin).kinds if sized.kind is Kind.LEAN)
    peak_ids = lean.setting.peak_ids
    assert peak_ids <= judged(log, _rounded_up(margin * window), 0).peak_ids
    assert peak_ids <= judged(log, 0, _rounded_up(margin * expiry_secs * SECOND_US)).peak_ids


@given(LOGS.map(with_a_repeat))
@cases(50)
def test_without_its_margin_it_would_still_miss_nothing(log):
    """The margin is over what the log needed, so half of the setting is enough, rounded up for windows."""
    setting = analysed(log, margin=2.0).recommendation.setting
    assert judged(log, setting.window // 2, setting.expiry_us // 2).caught == len(repeats(log))


@given(st.fractions(0, 10**17).filter(bool))
def test_settings_are_rounded_up_to_two_digits(value):
    rounded = _rounded_up(value)
    assert rounded >= value
    assert rounded <= max(1.1 * value, value + 1)
    assert rounded < 100 or len(str(rounded).rstrip("0")) <= 2


def test_bytes_come_from_the_cost_of_an_id():
    log = [Receipt(1, "a"), Receipt(2, "b"), Receipt(3, "a")]
    sized = analysed(log, memory_bytes_per_id=10, database_bytes_per_id=7).recommendation.sized
    assert sized.setting.peak_ids == 2
    assert (sized.memory_bytes, sized.database_bytes) == (20, 14)


def test_why_tells_need_margin_and_what_is_missed():
    log = [Receipt(1, "a"), *(Receipt(2, f"{n}") for n in range(9)), Receipt(3, "a")]
    recommendation = analysed(log).recommendation
    assert recommendation.margin == 2.0
    assert (
        "To catch its one duplicate, this log needs W = 10 without an expiry, or E = 0.000001 s" in recommendation.why
    )
    assert "raise Apama's defaults, not lower them" in recommendation.why
    lean = analysed([*log, Receipt(3, "a")], max_missed=1, budget_bytes=1, margin=1.5).recommendation
    assert "all 2 duplicates but 1" in lean.why
    assert "1.5 times what they need together" in lean.why
    assert "more memory than the budget of 1 bytes" in lean.why


def test_why_says_that_a_budget_decided():
    log = [*(Receipt(n * SECOND_US, f"{n}") for n in range(99)), Receipt(99 * SECOND_US, "98")]
    sizes = {sized.kind: sized.memory_bytes for sized in analysed(log).kinds}
    within = analysed(log, budget_bytes=sizes[Kind.LEAN]).recommendation
    assert within.why.endswith(f"than the budget of {sizes[Kind.LEAN]:,} bytes.")
    assert analysed(log, budget_bytes=1).recommendation.why.endswith("So does this: it is the smallest.")


def test_weak_evidence_with_a_small_budget_is_no_reason_to_set_less():
    recommendation = analysed([Receipt(1, "a"), Receipt(2, "a")], budget_bytes=1).recommendation
    assert recommendation.sized.kind is not Kind.DEFAULT
    assert "A log that says this little is no reason to set less: raise --budget if you can." in recommendation.why


@pytest.mark.parametrize("max_missed", [1, 2, 100])
def test_allowed_to_miss_all_it_still_tells_the_truth(max_missed):
    why = analysed([Receipt(1, "a"), Receipt(2, "a")], max_missed=max_missed).recommendation.why
    assert "no duplicate" not in why


def test_a_large_margin_stays_a_number():
    setting = analysed([Receipt(1, "a"), Receipt(10**15, "b"), Receipt(10**15, "a")], margin=1000.0).recommendation
    assert math.isfinite(setting.sized.memory_bytes)
    assert setting.setting.missed == 0
