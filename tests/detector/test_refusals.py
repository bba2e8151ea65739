"""Arguments that make no sense are refused, and a refusal changes nothing."""

import copy
import math

import pytest

from receiver import TwoTierDetector, Verdict
from receiver.errors import SettingsError

LONGEST_SECS = 1_000_000_000_000


@pytest.mark.parametrize("window", [-1, 1.0, math.nan, "1", None, True, False])
def test_a_window_is_a_count(window):
    with pytest.raises(SettingsError, match="window"):
        TwoTierDetector(window, 1)


@pytest.mark.parametrize(
    "expiry_secs", [-1, -0.5, math.nan, math.inf, -math.inf, "1", None, True, False, LONGEST_SECS + 1]
)
def test_an_expiry_is_a_time(expiry_secs):
    with pytest.raises(SettingsError, match="expiry_secs"):
        TwoTierDetector(1, expiry_secs)


def test_the_longest_expiry_forgets_nothing():
    detector = TwoTierDetector(0, LONGEST_SECS)
    detector.receive("a", received_at_us=0)
    detector.receive("b", received_at_us=LONGEST_SECS * 1_000_000)
    assert "a" in detector


@pytest.mark.parametrize("expiry_secs", [0, 1])
def test_times_may_count_in_any_unit(expiry_secs):
    detector = TwoTierDetector(1, expiry_secs)
    receipts = [(id_, None, 10**30 + number * 10**7) for number, id_ in enumerate("abbc")]
    assert [str(decision.verdict) for decision in detector.receive_many(receipts)] == ["new", "new", "duplicate", "new"]
    assert "a" not in detector


@pytest.mark.parametrize("expiry_secs", [0, 0.0, -0.0, 0.000_000_4])
def test_settings_that_detect_nothing_point_to_what_was_meant(expiry_secs):
    with pytest.raises(SettingsError, match="AT_LEAST_ONCE"):
        TwoTierDetector(0, expiry_secs)


BAD_RECEIPTS = {
    "id that is no text": (1, None, 9),
    "id in bytes": (b"a", None, 9),
    "id that is false but no text": (0, None, 9),
    "source that is no text": ("b", 1, 9),
    "source that can't be hashed": ("b", [], 9),
    "source that is false but no text": ("b", 0, 9),
    "no time": ("b", "new", None),
    "time in fractions": ("b", "new", 9.0),
    "time that is no number": ("b", "new", math.nan),
    "time in words": ("b", "new", "9"),
    "time that is a truth": ("b", "new", True),
}
BAD_FIRST = {"first time below 0": ("b", "new", -1)}


def everything(detector):
    """All that the detector keeps, as comparable values."""

    def values(kept):
        if isinstance(kept, dict):
            return [(values(key), values(value)) for key, value in kept.items()]
        if isinstance(kept, (str, int, type(None))):
            return kept
        if hasattr(type(kept), "__slots__") and not hasattr(kept, "__iter__"):
            return [values(getattr(kept, name)) for name in type(kept).__slots__]
        return [values(each) for each in kept]

    return values(copy.deepcopy(detector))


@pytest.fixture
def refusing():
    detector = TwoTierDetector(window=1, expiry_secs=10)
    detector.receive("a", "s", received_at_us=5)
    detector.receive("c", "s", received_at_us=7)
    return detector


@pytest.mark.parametrize("receipt", BAD_RECEIPTS.values(), ids=BAD_RECEIPTS)
def test_a_refused_receipt_changes_nothing(receipt, refusing):
    before = everything(refusing)
    id_, source, received_at_us = receipt
    with pytest.raises(SettingsError):
        refusing.receive(id_, source, received_at_us=received_at_us)
    with pytest.raises(SettingsError):
        refusing.receive_many([receipt])
    assert everything(refusing) == before


@pytest.mark.parametrize("receipt", (BAD_RECEIPTS | BAD_FIRST).values(), ids=BAD_RECEIPTS | BAD_FIRST)
def test_a_refused_first_receipt_changes_nothing(receipt):
    detector = TwoTierDetector(window=1, expiry_secs=10)
    before = everything(detector)
    id_, source, received_at_us = receipt
    with pytest.raises(SettingsError):
        detector.receive(id_, source, received_at_us=received_at_us)
    assert everything(detector) == before


class Text(str):
    __slots__ = ()


@pytest.mark.parametrize("id_", ["b", Text("b")])
def test_a_later_time_below_zero_is_a_clock_set_back(id_, refusing):
    assert refusing.receive(id_, received_at_us=-1).verdict is Verdict.NEW
    assert refusing.clock_clamped == 1


def test_a_refusal_stops_the_rest_and_keeps_what_came_before(refusing):
    with pytest.raises(SettingsError, match="unique_message_id"):
        refusing.receive_many([("before", None, 8), (1, None, 8), ("after", None, 8)])
    again = refusing.receive_many([("before", None, 9), ("after", None, 9)])
    assert [decision.verdict for decision in again] == [Verdict.DUPLICATE, Verdict.NEW]


@pytest.mark.parametrize("given", [1, "abc", [1], ["abc"], [("a", None)], ("a", None, 8), [{"unique_message_id": "a"}]])
def test_what_is_no_receipt(given, refusing):
    before = everything(refusing)
    with pytest.raises(SettingsError, match="receive_many takes a list of receipts"):
        refusing.receive_many(given)
    assert everything(refusing) == before


def test_an_iterable_that_fails_keeps_what_came_before(refusing):
    def broken():
        yield "before", None, 8
        raise OSError("the log ends here")

    with pytest.raises(OSError, match="the log ends here"):
        refusing.receive_many(broken())
    assert refusing.receive("before", received_at_us=9).verdict is Verdict.DUPLICATE


def test_a_refusal_within_a_batch_leaves_all_figures_in_step():
    batched, single = (TwoTierDetector(window=1, expiry_secs=10) for _ in range(2))
    rows = [("a", "s", 5), ("b", "s", 4), ("c", "t", 7)]
    with pytest.raises(SettingsError):
        batched.receive_many([*rows, ("d", 1, 8)])
    for id_, source, received_at_us in rows:
        single.receive(id_, source, received_at_us=received_at_us)
    assert everything(batched) == everything(single)


@pytest.mark.parametrize("source", [1, b"s", [], True])
def test_a_source_to_retire_that_is_no_text(source):
    detector = TwoTierDetector(window=1, expiry_secs=0)
    detector.receive("a", "s", received_at_us=0)
    with pytest.raises(SettingsError, match="message_source_id must be text"):
        detector.retire(source)
    assert detector.sources == 1
