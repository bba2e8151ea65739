"""Needs, kinds, unseen halves, grade and recommended setting, compared with the naive model of the advice."""

from typing import NamedTuple

import pytest
from advice_model import Advice
from hypothesis import given
from hypothesis import strategies as st
from small_logs import SECOND_US, Receipt, analysed, ingested, logs

from receiver.settings import SimulateSettings
from receiver.simulate.analysis import analyse
from receiver.simulate.question import Question
from receiver.simulate.whole import WholeLog
from tests.choosing import cases

BYTES_PER_ID = 10
START_US = 1_750_000_000_000_001
KEYS = st.sampled_from(["name:x", "destination", "connection", "default"])


@st.composite
def delivered(draw) -> list[Receipt]:
    """Logs as `logs` gives, at several speeds, with the times at which messages were sent."""
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
    """Logs in which ids come again at once, and now and then once more after a few other ids: enough bursts for each
    grade."""
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


class Asked(NamedTuple):
    """The options of the advice."""

    margin: float
    max_missed: int
    budget: tuple[str, int]
    """The budget in ids: a kind whose setting it just fits, and how many ids more."""
    present: tuple[int, int] = (2000, 120 * SECOND_US)


ASKED = st.builds(
    Asked,
    margin=st.sampled_from([1.0, 1.1, 1.5, 2.0, 3.0]),
    max_missed=st.integers(0, 3),
    budget=st.tuples(st.sampled_from(["both", "window", "lean", "keep"]), st.sampled_from([0, -1])),
    present=st.sampled_from(
        [(2000, 120 * SECOND_US), (0, 1), (1, 0), (3, 5 * SECOND_US), (1, 600 * SECOND_US), (40, 1)]
    ),
)


def check(log: list[Receipt], key: str, asked: Asked) -> None:
    advice = Advice(log, key, margin=asked.margin, max_missed=asked.max_missed, present=asked.present)
    kinds = advice.kinds()
    kind, more = asked.budget
    budget_bytes = max(1, BYTES_PER_ID * (kinds[kind].peak_ids + more))
    sizing = SimulateSettings(
        margin=asked.margin, max_missed=asked.max_missed, budget_bytes=budget_bytes, memory_bytes_per_id=BYTES_PER_ID
    )
    whole = WholeLog(ingested(log, key), max_missed=asked.max_missed)
    analysis = analyse(whole, Question(key, [1], [1], sizing, asked.present))

    for needs, duplicates in zip(whole.facts.halves, (advice.first, advice.second), strict=True):
        assert needs.windows.total == len(duplicates)
        assert needs.window == advice.window_need(duplicates)
        assert needs.expiry_us == advice.expiry_need_us(duplicates)
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
    advised, budget_ids = analysis.recommendation, budget_bytes // BYTES_PER_ID
    assert advised.sized.kind == advice.recommended(budget_ids)
    assert [advised.window_move, advised.expiry_move] == advice.moves(budget_ids)
    assert advised.lowers == ("lower" in advice.moves(budget_ids))
    assert ("A log that says this little" in advised.risk) is (advised.lowers and advice.grade() == "weak")
    for domain in analysis.domains:
        own = [each for each in advice.duplicates if each.domain == domain.domain]
        assert (domain.window_need, domain.expiry_need_us) == (advice.window_need(own), advice.expiry_need_us(own))


@given(delivered(), KEYS, ASKED)
@cases(150)
def test_the_advice_is_the_models(log, key, asked):
    check(log, key, asked)


@given(disturbed(), ASKED)
@cases(25)
def test_the_advice_on_many_bursts_is_the_models(log, asked):
    check(log, "name:x", asked._replace(max_missed=asked.max_missed // 2))


REGULAR = Asked(margin=2.0, max_missed=0, budget=("keep", 0))


@pytest.mark.parametrize(
    ("bursts", "span_us", "pause_us", "grade"),
    [
        (30, 33_000_000, SECOND_US + 1, "strong"),
        (30, 32_999_999, SECOND_US + 1, "fair"),
        (29, 33_000_000, SECOND_US + 1, "fair"),
        (10, 13_000_000, SECOND_US + 1, "fair"),
        (9, 13_000_000, SECOND_US + 1, "weak"),
        (30, 33_000_000, SECOND_US, "weak"),
    ],
)
def test_where_each_grade_begins(bursts, span_us, pause_us, grade):
    """Each id comes again after 3.3 s. Each repeat is a burst if the pause is longer than a second."""
    log = [Receipt(START_US, "first"), Receipt(START_US + span_us, "last")]
    for number in range(bursts):
        began_us = START_US + number * pause_us
        again_us = began_us + 3_300_000
        log += [Receipt(began_us, f"{number}"), Receipt(again_us, f"between {number}"), Receipt(again_us, f"{number}")]
    log.sort(key=lambda receipt: receipt.received_at_us)
    check(log, "name:x", REGULAR)
    analysis = analysed(log)
    assert analysis.evidence.expiry_need_us == 3_300_000
    assert analysis.evidence.grade == grade


@pytest.mark.parametrize(("late", "grade"), [([], "strong"), (["54"], "weak")])
def test_what_one_half_would_let_through_makes_it_weak(late, grade):
    """Ids come again at once, except the last one, which comes after five others."""
    times_us = [START_US + number * (SECOND_US + 1) for number in range(60)]
    log = [Receipt(time_us, f"{number}") for number, time_us in enumerate(times_us) for _ in range(2)]
    log += [Receipt(times_us[-1], id_) for id_ in late]
    check(log, "name:x", REGULAR._replace(budget=("lean", 0)))
    assert analysed(log).evidence.grade == grade


@pytest.mark.parametrize("odd_us", [0, 1])
def test_the_middle_is_rounded_down_and_begins_the_second_half(odd_us):
    first_us = 2 * SECOND_US
    log = [Receipt(first_us, "a"), Receipt(first_us, "b"), Receipt(first_us + 9, "a"), Receipt(first_us + 10, "b")]
    whole = WholeLog(ingested([*log, Receipt(first_us + 20 + odd_us, "c")]))
    assert [half.windows.total for half in whole.facts.halves] == [1, 1]
