"""Needs, kinds, unseen halves, grade and the setting recommended, against the naive model of the advice."""

from advice_model import Advice
from hypothesis import given, settings
from hypothesis import strategies as st
from small_logs import SECOND_US, Receipt, analysed, logs

BYTES_PER_ID = 10
START_US = 1_750_000_000_000_001
MARGINS = st.sampled_from([1.0, 1.1, 1.5, 2.0, 3.0])
KEYS = st.sampled_from(["name:x", "destination", "connection", "default"])
PRESENTS = st.sampled_from([(2000, 120 * SECOND_US), (0, 1), (1, 0), (3, 5 * SECOND_US)])
BUDGETS = st.tuples(st.sampled_from(["both", "window", "lean", "default"]), st.sampled_from([0, -1]))
"""What the setting of a kind takes, or an id less."""


@st.composite
def delivered(draw) -> list[Receipt]:
    """As `logs`, at several speeds, and with the times at which messages were sent."""
    speed = draw(st.sampled_from([1, 100_001, SECOND_US, 60 * SECOND_US]))
    longest_ms = draw(st.sampled_from([0, 1, 400, 7_291, 10**9]))
    log = draw(logs(most=5) | logs(least=12, most=30))
    times_us = [START_US + speed * receipt.received_at_us for receipt in log]
    waits_ms = [draw(st.integers(0, longest_ms)) for _ in log]
    return [
        receipt._replace(received_at_us=time_us, jms_timestamp_ms=time_us // 1000 - wait_ms)
        for receipt, time_us, wait_ms in zip(log, times_us, waits_ms, strict=True)
    ]


@st.composite
def disturbed(draw) -> list[Receipt]:
    """Ids that come again at once, and every so many once more some ids later: bursts enough for each grade."""
    count = draw(st.sampled_from([9, 10, 11, 29, 30, 31]))
    pauses = st.sampled_from([SECOND_US + 1, SECOND_US + 1, draw(st.sampled_from([SECOND_US, 3 * SECOND_US]))])
    later, every = draw(st.integers(0, 4)), draw(st.sampled_from([4, 7, 30]))
    log, time_us = [], START_US
    for number in range(count):
        source = draw(st.sampled_from(["", "", "s"]))
        log += [Receipt(time_us - draw(st.sampled_from([0, 1, 1000])), f"{number}", source)]
        log += [Receipt(time_us, f"{number}", source)]
        if later and number >= later and number % every == 0:
            log += [Receipt(time_us, f"{number - later}", source)]
        time_us += draw(pauses)
    return log


def check(log, key, margin, max_missed, budget, present):
    advice = Advice(log, key, margin=margin, max_missed=max_missed, present=present)
    kinds = advice.kinds()
    kind, more = budget
    budget_bytes = max(1, BYTES_PER_ID * (kinds[kind].peak_ids + more))
    sizing = {"margin": margin, "max_missed": max_missed, "budget_bytes": budget_bytes}
    analysis = analysed(log, key, [1], [1], present, memory_bytes_per_id=BYTES_PER_ID, **sizing)

    assert {
        sized.kind: (
            (sized.setting.window, sized.setting.expiry_us),
            sized.setting.missed,
            sized.setting.peak_ids,
            None if sized.unseen is None else (sized.unseen.duplicates, sized.unseen.missed),
        )
        for sized in analysis.kinds
    } == kinds
    evidence = analysis.evidence
    assert evidence.window_need == advice.window_need(advice.duplicates)
    assert evidence.expiry_need_us == advice.expiry_need_us(advice.duplicates)
    assert (evidence.span_us, evidence.bursts) == (advice.span_us, advice.bursts())
    assert evidence.grade == advice.grade()
    assert analysis.recommendation.sized.kind == advice.recommended(budget_bytes // BYTES_PER_ID)
    for domain in analysis.domains:
        own = [each for each in advice.duplicates if each.domain == domain.domain]
        assert (domain.window_need, domain.expiry_need_us) == (advice.window_need(own), advice.expiry_need_us(own))


@given(delivered(), KEYS, MARGINS, st.integers(0, 3), BUDGETS, PRESENTS)
@settings(max_examples=100)
def test_the_advice_is_the_models(log, key, margin, max_missed, budget, present):
    check(log, key, margin, max_missed, budget, present)


@given(disturbed(), MARGINS, st.sampled_from([0, 0, 1]), BUDGETS)
@settings(max_examples=25)
def test_the_advice_on_many_bursts_is_the_models(log, margin, max_missed, budget):
    check(log, "name:x", margin, max_missed, budget, (2000, 120 * SECOND_US))
