"""The rules of `docs/semantics.md`: the worked cases, and each consequence by its name."""

import json
from pathlib import Path

import pytest

from receiver import TwoTierDetector, Verdict
from receiver.message import Decision, Tier

VECTORS = Path(__file__).parents[1] / "vectors"
CASES = json.loads((VECTORS / "two_tier.json").read_text(encoding="utf-8"))
RETIREMENTS = json.loads((VECTORS / "retire.json").read_text(encoding="utf-8"))
NEW, DUPLICATE, UNCHECKED = Verdict.NEW, Verdict.DUPLICATE, Verdict.UNCHECKED


def verdicts(detector, *receipts, source=None):
    """Verdicts on receipts written `id@seconds`, or `id@seconds source`."""
    answers = []
    for receipt in receipts:
        what, _, named = receipt.partition(" ")
        id_, _, secs = what.partition("@")
        answers.append(detector.receive(id_, named or source, received_at_us=int(float(secs) * 1_000_000)).verdict)
    return answers


@pytest.fixture(params=["one by one", "at once"])
def receive_all(request):
    if request.param == "at once":
        return lambda detector, rows: detector.receive_many(rows)
    return lambda detector, rows: [detector.receive(row[0], row[1], received_at_us=row[2]) for row in rows]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_worked_case(case, receive_all):
    rows = [(r["unique_message_id"], r["message_source_id"], r["received_at_us"]) for r in case["receipts"]]
    detector = TwoTierDetector(case["window"], case["expiry_secs"])
    judged = [decision.verdict for decision in receive_all(detector, rows)]
    assert judged == case["verdicts"]
    assert judged.count(DUPLICATE) == case["caught"]
    assert judged.count(UNCHECKED) == case["unchecked"]
    assert detector.peak_ids == case["peak_ids"]


@pytest.mark.parametrize("case", RETIREMENTS, ids=lambda case: case["name"])
def test_worked_case_of_retiring(case):
    detector = TwoTierDetector(case["window"], case["expiry_secs"])
    for step in case["steps"]:
        if "retire" in step:
            detector.retire(step["retire"])
        else:
            id_, source = step["unique_message_id"], step["message_source_id"]
            assert detector.receive(id_, source, received_at_us=step["received_at_us"]).verdict == step["verdict"]
        assert detector.remembered_ids == step["remembered_ids"]
    assert all(id_ in detector for id_ in case["remembered"])
    assert detector.remembered_ids == len(case["remembered"])


def test_a_detector_shows_its_sizes():
    assert repr(TwoTierDetector(2, 0.5)) == "TwoTierDetector(window=2, expiry_secs=0.5)"


def test_a_receipt_without_id_is_delivered_and_changes_nothing():
    detector = TwoTierDetector(window=1, expiry_secs=0)
    verdicts(detector, "a@5")
    decision = detector.receive(None, "s", received_at_us=99_000_000)
    assert decision == detector.receive("", received_at_us=0) == Decision(UNCHECKED)
    assert decision.deliver
    assert (detector.remembered_ids, detector.clock_clamped) == (1, 0)
    assert detector.receive("a", received_at_us=6_000_000).age_us == 1_000_000  # the clock hadn't moved to 99 s


def test_a_decision_is_not_taken_for_true():
    """A consumer that forgets `.deliver` would otherwise handle every duplicate again."""
    detector = TwoTierDetector(window=1, expiry_secs=0)
    for _ in range(2):
        with pytest.raises(TypeError, match=r"decision\.deliver"):
            assert detector.receive("a", received_at_us=0)


def test_a_clock_set_back_forgets_nothing_early():
    detector = TwoTierDetector(window=0, expiry_secs=10)
    assert verdicts(detector, "a@100", "b@50", "c@60", "b@109", "a@110") == [NEW, NEW, NEW, DUPLICATE, DUPLICATE]
    assert detector.clock_clamped == 2


def test_an_id_is_remembered_whatever_its_source():
    detector = TwoTierDetector(window=5, expiry_secs=0)
    assert verdicts(detector, "a@0 s", "a@1 t", "a@2") == [NEW, DUPLICATE, DUPLICATE]


def test_ids_are_exact_text():
    detector = TwoTierDetector(window=9, expiry_secs=0)
    ids = ["7", "07", "7 ", "x", "X", "\u00e9", "e\u0301"]
    assert verdicts(detector, *(f"{id_}@0" for id_ in ids if " " not in id_)) == [NEW] * 6
    assert detector.receive("7 ", received_at_us=0).verdict is NEW


def test_a_duplicate_refreshes_its_id():
    detector = TwoTierDetector(window=2, expiry_secs=0)
    assert verdicts(detector, "a@0", "b@1", "a@2", "c@3", "a@4", "b@5") == [NEW, NEW, DUPLICATE, NEW, DUPLICATE, NEW]


def test_a_duplicate_of_another_source_refreshes_too():
    detector = TwoTierDetector(window=1, expiry_secs=0)
    assert verdicts(detector, "a@0 s", "a@1 t", "b@2 s", "a@3 t") == [NEW, DUPLICATE, NEW, DUPLICATE]


def test_a_busy_source_pushes_out_only_its_own_ids():
    detector = TwoTierDetector(window=2, expiry_secs=0)
    verdicts(detector, "a@0 quiet", *(f"{number}@1 busy" for number in range(100)))
    assert verdicts(detector, "a@2 quiet", "97@2 busy") == [DUPLICATE, NEW]


def test_without_expiry_what_leaves_its_queue_is_forgotten():
    detector = TwoTierDetector(window=1, expiry_secs=0)
    assert verdicts(detector, "a@0", "b@0", "a@0") == [NEW, NEW, NEW]
    assert detector.remembered_ids == detector.peak_ids == 1


def test_an_idle_domain_forgets_nothing():
    detector = TwoTierDetector(window=0, expiry_secs=10)
    assert verdicts(detector, "a@0", "a@1000000") == [NEW, DUPLICATE]


def test_an_outage_forgets_nothing():
    """The storm of redeliveries after it meets every id, although each is hours old."""
    detector = TwoTierDetector(window=5, expiry_secs=10)
    assert verdicts(detector, *(f"{secs}@{secs}" for secs in range(10))) == [NEW] * 10
    assert verdicts(detector, *(f"{id_}@7200" for id_ in range(5))) == [DUPLICATE] * 5


def test_an_entry_exactly_as_old_as_the_expiry_is_remembered():
    exactly, longer = (TwoTierDetector(window=0, expiry_secs=10) for _ in range(2))
    assert verdicts(exactly, "a@0", "b@10", "a@10") == [NEW, NEW, DUPLICATE]
    assert verdicts(longer, "a@0", "b@10.000001", "a@10.000001") == [NEW, NEW, NEW]


def test_an_old_entry_is_forgotten_the_moment_it_spills():
    detector = TwoTierDetector(window=1, expiry_secs=10)
    verdicts(detector, "a@0 quiet", "b@50 busy", "c@51 busy")
    assert detector.remembered_ids == 3
    assert verdicts(detector, "d@52 quiet", "a@53 other") == [NEW, NEW]


def test_an_old_entry_keeps_its_id_when_a_newer_one_is_left():
    detector = TwoTierDetector(window=1, expiry_secs=10)
    verdicts(detector, "a@0 quiet", "a@49 other", "b@50 busy", "c@51 busy", "d@52 quiet")
    assert detector.receive("a", "quiet", received_at_us=53_000_000).tier is Tier.SOURCE


def test_entries_in_sources_queues_move_no_expiry():
    detector = TwoTierDetector(window=1, expiry_secs=10)
    verdicts(detector, "a@0 s", "b@1 s")  # a in the time queue
    verdicts(detector, *(f"{secs}@{secs} source-{secs}" for secs in range(100, 200)))
    assert verdicts(detector, "a@200 t") == [DUPLICATE]


def test_an_entry_replaced_within_its_queue_moves_the_expiry():
    detector = TwoTierDetector(window=2, expiry_secs=10)
    verdicts(detector, "a@0 s", "b@1 s", "c@2 s", "d@50 t", "d@51 t")  # a in the time queue, then d@50
    assert verdicts(detector, "a@52 u") == [NEW]


def test_the_time_queue_has_no_newest_time_before_its_first_entry():
    with_expiry, without = TwoTierDetector(window=1, expiry_secs=10), TwoTierDetector(window=1, expiry_secs=0)
    for detector, newest_us in ((with_expiry, 1_000_000), (without, None)):
        assert detector.time_queue_newest_us is None
        verdicts(detector, "a@1", "b@2")
        assert detector.time_queue_newest_us == newest_us


def test_no_source_and_the_empty_source_are_one():
    detector = TwoTierDetector(window=1, expiry_secs=0)
    detector.receive("a", None, received_at_us=0)
    detector.receive("b", "", received_at_us=0)
    assert detector.receive("a", None, received_at_us=0).verdict is NEW


def test_headroom_in_the_source_tier():
    detector = TwoTierDetector(window=5, expiry_secs=10)
    verdicts(detector, "a@0", "b@1", "c@2", "b@4")
    assert detector.receive("a", received_at_us=7_000_000) == Decision(
        DUPLICATE, Tier.SOURCE, age_us=7_000_000, window_left=2, expiry_left_us=9_000_000, distance=4
    )


def test_headroom_in_the_time_tier():
    detector = TwoTierDetector(window=0, expiry_secs=10)
    verdicts(detector, "a@0", "b@4")
    assert detector.receive("a", received_at_us=9_000_000) == Decision(
        DUPLICATE, Tier.TIME, age_us=9_000_000, window_left=0, expiry_left_us=6_000_000, distance=2
    )


def test_window_left_is_that_of_the_source_that_has_most():
    detector = TwoTierDetector(window=3, expiry_secs=0)
    verdicts(detector, "a@0 s", "a@1 t", "b@2 t", "c@3 t")
    assert detector.receive("a", "u", received_at_us=4_000_000).window_left == 2


def test_peak_ids_outlives_the_peak():
    detector = TwoTierDetector(window=0, expiry_secs=10)
    verdicts(detector, "a@0", "b@1", "c@2", "d@100")
    assert (detector.remembered_ids, detector.peak_ids) == (1, 3)
