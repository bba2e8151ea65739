"""The recommendation misses no more than allowed, has its margin, and costs least, by the model's own replay."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_logs import SECOND_US, Receipt, analysed, ingested, judged, logs, repeats, with_a_repeat

from receiver.message import LATEST_US
from receiver.settings import SimulateSettings
from receiver.simulate.analysis import analyse
from receiver.simulate.figures import Kind
from receiver.simulate.question import Question
from receiver.simulate.recommend import rounded_up
from receiver.simulate.whole import WholeLog
from tests.choosing import cases

# In seconds, since no expiry below a second is recommended.
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
    """Code that shows an analysis relies on a recommendation, and on kinds that remember at least one id."""
    analysis = analysed(log, max_missed=max_missed)
    recommendation = analysis.recommendation
    assert recommendation.setting.missed <= max_missed
    assert ("holds no duplicate" in recommendation.why) is (not repeats(log))
    assert all(any(sized.setting.pair) for sized in analysis.kinds)


@given(LOGS.map(with_a_repeat), st.sampled_from([1.0, 1.5, 2.0, 3.0]))
@cases(100)
def test_lean_is_no_dearer_than_either_tier_alone_with_the_same_margin(log, margin):
    duplicates = len(repeats(log))
    window = next(w for w in range(1, len(log) + 1) if judged(log, w, 0).caught == duplicates)
    expiry_secs = next(e for e in range(1, 40 * len(log)) if judged(log, 0, e * SECOND_US).caught == duplicates)
    lean = next(sized for sized in analysed(log, margin=margin).kinds if sized.kind is Kind.LEAN)
    peak_ids = lean.setting.peak_ids
    assert peak_ids <= judged(log, rounded_up(margin * window), 0).peak_ids
    assert peak_ids <= judged(log, 0, rounded_up(margin * expiry_secs * SECOND_US)).peak_ids


@given(LOGS.map(with_a_repeat))
@cases(50)
def test_without_its_margin_it_would_still_miss_nothing(log):
    """The margin doubles what the log needed. So half of the setting is enough, rounded up for windows."""
    setting = analysed(log, margin=2.0).recommendation.setting
    assert judged(log, setting.window // 2, setting.expiry_us // 2).caught == len(repeats(log))


@given(st.fractions(0, 10**17).filter(bool))
def test_settings_are_rounded_up_to_two_digits(value):
    rounded = rounded_up(value)
    assert rounded >= value
    assert rounded <= max(1.1 * value, value + 1)
    assert rounded < 100 or len(str(rounded).rstrip("0")) <= 2


def test_bytes_come_from_the_cost_of_an_id():
    log = [Receipt(1, "a"), Receipt(2, "b"), Receipt(3, "a")]
    sized = analysed(log, memory_bytes_per_id=10, database_bytes_per_id=7).recommendation.sized
    assert sized.setting.peak_ids == 2
    assert (sized.memory_bytes, sized.database_bytes) == (20, 14)


def recommended(log, present, key="default", **settings):
    question = Question(key, present=present, settings=SimulateSettings(**settings))
    return analyse(WholeLog(ingested(log, key), max_missed=question.settings.max_missed), question)


PRESENT = st.tuples(st.integers(0, 90), st.integers(0, 90 * SECOND_US)).filter(any)
BUDGETS = st.integers(1, 40)


@given(LOGS, PRESENT, BUDGETS, st.integers(0, 2), st.sampled_from(["default", "destination"]))
@cases(200)
def test_nothing_is_lowered_but_for_memory(log, present, budget_ids, max_missed, key):
    """A setting is raised only for the log, and only by as much as the log needs."""
    analysis = recommended(log, present, key, budget_bytes=budget_ids, memory_bytes_per_id=1, max_missed=max_missed)
    advised, keep, both = analysis.recommendation, analysis.of(Kind.KEEP), analysis.of(Kind.BOTH)
    before = [sized for sized in analysis.kinds if list(Kind).index(sized.kind) < list(Kind).index(advised.sized.kind)]
    before = [keep, *before] if advised.sized is not keep else []
    assert all(sized.memory_bytes > budget_ids for sized in before)
    assert keep.setting.pair == tuple(map(max, present, both.setting.pair))
    assert keep.setting.missed <= analysis.of(Kind.PRESENT).setting.missed
    assert ("The risk: a repeat that comes more than" in advised.risk) is advised.lowers
    if advised.lowers:
        assert judged(log, *keep.setting.pair, key).peak_ids > budget_ids
    for move, today, new, asked in zip(
        (advised.window_move, advised.expiry_move), present, advised.setting.pair, both.setting.pair, strict=True
    ):
        assert (move == "raise", move == "lower") == (new > today, new < today)
        if advised.sized is keep and move == "raise":
            assert new == asked
    assert bool(advised.risk) is (advised.sized is not keep)


def test_what_is_set_today_is_kept_or_raised_by_what_each_tier_lacks():
    """With the margin, the log needs W = 20 and E = 18 s."""
    log = [Receipt(at * SECOND_US, f"{at % 10}") for at in range(10)] + [Receipt(9 * SECOND_US, "0")]
    for present, moves in {
        (20, 18_000_000): ("keep", "keep"),
        (19, 18_000_000): ("raise", "keep"),
        (20, 17_999_999): ("keep", "raise"),
        (1, 0): ("raise", "raise"),
        (2000, 120_000_000): ("keep", "keep"),
    }.items():
        advised = recommended(log, present).recommendation
        assert (advised.sized.kind, advised.window_move, advised.expiry_move) == (Kind.KEEP, *moves)
        assert advised.setting.pair == (max(20, present[0]), max(18_000_000, present[1]))


def test_memory_may_raise_one_and_lower_the_other():
    """`window` needs W, and hardly any expiry."""
    log = [Receipt(at * SECOND_US, f"{at}") for at in range(100)] + [Receipt(99 * SECOND_US, "90")]
    analysis = recommended(log, (2, 60 * SECOND_US), budget_bytes=25, memory_bytes_per_id=1)
    advised = analysis.recommendation
    assert (advised.sized.kind, advised.window_move, advised.expiry_move) == (Kind.WINDOW, "raise", "lower")


def test_why_tells_need_margin_and_what_is_missed():
    log = [Receipt(1, "a"), *(Receipt(2, f"{n}") for n in range(9)), Receipt(3, "a")]
    recommendation = analysed(log).recommendation
    assert recommendation.margin == 2.0
    assert (
        "To catch its one duplicate, this log needs W = 10 without an expiry, or E = 0.000001 s" in recommendation.why
    )
    assert "is kept, and raised where it is less than 2 times that" in recommendation.why
    assert recommendation.explanation == recommendation.why
    lean = analysed([*log, Receipt(3, "a")], max_missed=1, budget_bytes=1, margin=1.5).recommendation
    assert "all 2 duplicates but 1" in lean.why
    assert "1.5 times what they need together" in lean.why
    assert lean.explanation == f"{lean.why} {lean.risk}"


def test_the_risk_says_that_a_budget_decided():
    log = [*(Receipt(n * SECOND_US, f"{n}") for n in range(99)), Receipt(99 * SECOND_US, "98")]
    sizes = {sized.kind: sized.memory_bytes for sized in analysed(log).kinds}
    budget_bytes = sizes[Kind.LEAN]
    risk = analysed(log, budget_bytes=budget_bytes).recommendation.risk
    assert risk.startswith(
        f"Memory decides: 'keep' takes {sizes[Kind.KEEP]:,} bytes, and --budget allows {budget_bytes:,}. The risk: a repeat that "
        "comes more than 1 s and 0 ids later may get through. What is set today catches each within 120 s or 2,000 ids."
    )
    risk = analysed(log, budget_bytes=1).recommendation.risk
    assert (
        f"--budget allows 1. This takes {sizes[Kind.LEAN]:,}, the least that catches what the log holds, with the margin. The risk"
        in risk
    )


def test_weak_evidence_with_a_small_budget_is_no_reason_to_set_less():
    recommendation = analysed([Receipt(1, "a"), Receipt(2, "a")], budget_bytes=1).recommendation
    assert recommendation.sized.kind is not Kind.KEEP
    assert "A log that says this little is no reason to set less: raise --budget if you can." in recommendation.risk


def test_a_budget_that_raises_everything_risks_nothing():
    log = [Receipt(at * SECOND_US, f"{at}") for at in range(100)] + [Receipt(99 * SECOND_US, "90")]
    risk = recommended(log, (0, 1), budget_bytes=1).recommendation.risk
    assert "the least that catches what the log holds, with the margin" in risk
    assert "The risk" not in risk


@pytest.mark.parametrize(("counted", "is_said"), [(9, True), (10, False)])
def test_a_key_that_hides_more_than_a_tenth_is_in_doubt(counted, is_said):
    log = [Receipt(at, "a", connection_id="b1") for at in range(counted + 1)] + [Receipt(99, "a", connection_id="b2")]
    caveat = analysed(log).recommendation.caveat
    assert (
        caveat
        == (
            f"But first run again with --domain destination: this KEY counts {counted} duplicates, and not the 1 repeat that came "
            "over another connection or receiver of the same queue."
        )
        * is_said
    )
    assert analysed(log).recommendation.explanation.endswith(caveat)
    assert not analysed(log, "destination").recommendation.caveat


@given(logs(), st.sampled_from(["default", "connection", "receiver", "destination", "name:x"]))
@cases(100)
def test_the_key_proposed_counts_what_this_one_hides(log, key):
    """Each receiver of a topic gets its messages, so only queues count."""
    log = [receipt._replace(destination="q") for receipt in log]
    hidden = len(repeats(log, "destination")) - len(repeats(log, key))
    analysis = analysed(log, key)
    caveat = analysis.recommendation.caveat
    assert bool(caveat) is (10 * hidden > analysis.log.duplicates)
    assert not caveat or f"and not the {hidden} repeat" in caveat


@pytest.mark.parametrize("max_missed", [1, 2, 100])
def test_allowed_to_miss_all_it_still_tells_the_truth(max_missed):
    why = analysed([Receipt(1, "a"), Receipt(2, "a")], max_missed=max_missed).recommendation.why
    assert why == "All duplicates of this log may be missed, so it asks for nothing."


@pytest.mark.parametrize("latest_us", [10**15, LATEST_US])
def test_a_large_margin_stays_a_number(latest_us):
    log = [Receipt(1, "a"), Receipt(latest_us, "b"), Receipt(latest_us, "a")]
    advised = analysed(log, margin=1000.0).recommendation
    assert math.isfinite(advised.sized.memory_bytes)
    assert advised.setting.missed == 0
    assert advised.setting.expiry_us == 10**18


def test_a_margin_of_numpy_is_its_number():
    log = [Receipt(1, "a"), Receipt(2 * SECOND_US, "a")]
    assert analysed(log, margin=np.float64(1.1)).kinds == analysed(log, margin=1.1).kinds
