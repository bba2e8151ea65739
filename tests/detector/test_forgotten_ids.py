"""Ids that were forgotten by hand. A detector rebuilt from its entries keeps their entries, and no id for them."""

from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from receiver.detector import ForgottenId, TwoTierDetector
from receiver.message import Tier
from tests.choosing import cases
from tests.model import Model

STEPS = st.lists(
    st.tuples(st.sampled_from("abcdef"), st.sampled_from([None, "s", "t"]), st.integers(0, 3)), max_size=40
)


@cases(100)
@given(st.integers(0, 4), st.integers(1, 9), STEPS, st.sampled_from("abcdef"), STEPS)
def test_all_other_ids_are_judged_as_if_it_were_remembered(window, expiry_us, before, forgotten, after):
    model, now_us = Model(window, expiry_us), 0
    for id_, source, step_us in before:
        now_us += step_us
        model.receive(id_, source, now_us)
    model.forget(forgotten)
    detector = TwoTierDetector(window, expiry_us / 1_000_000)
    # As a log has them: no row for an entry that isn't remembered, except the newest row.
    rows = [
        (
            entry.number,
            entry.received_at_us,
            None,
            entry.source,
            "" if entry.id.startswith("\0") else entry.id,
            None,
            None,
        )
        for entry in model.entries()
    ]
    detector.replay(rows, model.newest_us)
    for id_, source, step_us in after:
        now_us += step_us
        tier = model.tier(id_) if id_ in model.remembered() else None
        assert detector.tier_of(id_) == (tier and Tier(tier))
        verdict = detector.receive(id_, source, received_at_us=now_us).verdict
        assert verdict.value == model.receive(id_, source, now_us)
        assert detector.remembered_ids == len(model.remembered())


def test_a_forgotten_id_is_equal_to_no_text():
    forgotten = ForgottenId()
    assert forgotten != "forgotten"
    assert not any(each == "forgotten" for each in (forgotten, ForgottenId()))
    assert forgotten != ForgottenId()
    assert {forgotten: 1}.get("forgotten") is None
    assert {forgotten: 1}[forgotten] == 1


@cases(200)
@given(st.integers(0, 4), st.integers(1, 9), STEPS)
def test_what_is_remembered_and_what_went_is_told(window, expiry_us, steps):
    """Every id that a receipt makes forgotten is among those that are reported."""
    detector, now_us, before = TwoTierDetector(window, expiry_us / 1_000_000), 0, set()
    detector.forgotten_ids = deque()
    for id_, source, step_us in steps:
        now_us += step_us
        detector.receive(id_, source, received_at_us=now_us)
        remembered = set(detector.remembered())
        assert remembered == {known for known in "abcdef" if known in detector}
        assert before - remembered <= set(detector.forgotten_ids)
        before = remembered
        detector.forgotten_ids.clear()


def test_what_was_forgotten_by_hand_is_not_among_the_remembered():
    detector = TwoTierDetector(3, 0)
    detector.replay([(1, 0, None, None, "", None, None), (2, 0, None, None, "a", None, None)], None)
    assert detector.remembered_ids == 2
    assert list(detector.remembered()) == ["a"]
