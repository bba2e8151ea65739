"""Whatever comes, the detector and the naive model give the same answers."""

from itertools import pairwise

import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from receiver import TwoTierDetector
from receiver.message import Receipt
from tests.choosing import cases
from tests.detector.lockstep import Lockstep

# Few ids and sources and small time steps, so that receipts meet at every limit.
IDS = st.sampled_from([None, "", *"abcdefgh"])
SOURCES = st.sampled_from([None, "", "s", "t", "u"])
STEPS_US = st.sampled_from([0, 0, 0, 1, 1, 2, 3, 7, -1, -5])
WINDOWS_AND_EXPIRIES = st.tuples(st.integers(0, 6), st.integers(0, 12)).filter(any)
STEPS = st.lists(st.tuples(IDS, SOURCES, STEPS_US), min_size=1, max_size=120)
RETIREMENTS = st.dictionaries(st.integers(0, 119), SOURCES)
"""After which receipt which source is retired."""
Steps = list[tuple[str | None, str | None, int]]


def receipts_of(steps: Steps, start_us: int) -> list[Receipt]:
    now_us = start_us
    receipts = []
    for id_, source, step_us in steps:
        now_us = max(0, now_us + step_us)
        receipts.append(Receipt(id_, source, now_us))
    return receipts


@given(WINDOWS_AND_EXPIRIES, STEPS, RETIREMENTS, st.sampled_from([0, 1_800_000_000_000_000]))
def test_any_receipts(settings_, steps, retirements, start_us):
    pair = Lockstep(*settings_)
    for number, (id_, source, received_at_us, *_) in enumerate(receipts_of(steps, start_us)):
        pair.receive(id_, source, received_at_us)
        if number in retirements:
            pair.retire(retirements[number])


@cases(20)
@given(WINDOWS_AND_EXPIRIES, st.integers(2, 60), st.integers(1, 4), st.randoms(use_true_random=False))
def test_long_runs(settings_, ids, sources, random):
    """Long enough for each periodic sweep to run."""
    pair = Lockstep(*settings_)
    now_us = 0
    for _ in range(400):
        now_us = max(0, now_us + random.choice([0, 0, 0, 1, 2, -3]))
        pair.receive(str(random.randrange(ids)), "stuv"[random.randrange(sources)], now_us)
        if random.randrange(20) == 0:
            pair.retire("stuv"[random.randrange(sources)])


@pytest.mark.parametrize("expiry_us", [0, 20])
def test_what_is_replaced_behind_an_old_entry_is_swept_and_nothing_else(expiry_us):
    pair = Lockstep(6, expiry_us)
    for number, id_ in enumerate(["old", *"abc" * 20, *"defghi"]):
        pair.receive(id_, "s", number)


@given(WINDOWS_AND_EXPIRIES, STEPS, st.lists(st.integers(0, 120)))
def test_receive_many_is_receive_many_times(settings_, steps, cuts):
    window, expiry_us = settings_
    receipts = receipts_of(steps, 0)
    one_by_one = TwoTierDetector(window, expiry_us / 1_000_000)
    expected = [one_by_one.receive(r.unique_message_id, r.message_source_id, received_at_us=r[2]) for r in receipts]

    batched = TwoTierDetector(window, expiry_us / 1_000_000)
    edges = sorted({0, len(receipts), *(cut for cut in cuts if cut < len(receipts))})
    got = []
    for start, end in pairwise(edges):
        got += batched.receive_many(receipts[start:end])
    assert got == expected
    for figure in ("remembered_ids", "peak_ids", "clock_clamped"):
        assert getattr(batched, figure) == getattr(one_by_one, figure)


class DetectorMachine(RuleBasedStateMachine):
    """As `test_any_receipts`, but Hypothesis sees each answer before it chooses the next step."""

    @initialize(chosen=WINDOWS_AND_EXPIRIES)
    def start(self, chosen):
        self.pair = Lockstep(*chosen)
        self.now_us = 0
        self.sent = ["a"]

    def _receive(self, id_, source, step_us):
        self.now_us = max(0, self.now_us + step_us)
        note(self.pair.receive(id_, source, self.now_us))
        self.sent.append(id_ or "a")

    @rule(id_=IDS, source=SOURCES, step_us=STEPS_US)
    def receive(self, id_, source, step_us):
        self._receive(id_, source, step_us)

    @rule(back=st.integers(1, 12), source=SOURCES)
    def redeliver(self, back, source):
        self._receive(self.sent[-min(back, len(self.sent))], source, 0)

    @rule(count=st.integers(1, 20), source=SOURCES)
    def burst(self, count, source):
        for number in range(count):
            self._receive(f"{len(self.sent)}-{number}", source, 1)

    @rule(source=SOURCES)
    def retire(self, source):
        self.pair.retire(source)

    @rule(step_us=st.integers(10, 100))
    def silence(self, step_us):
        self.now_us += step_us

    @rule(bad=st.sampled_from([(1, None, 0), ("a", 1, 0), ("a", None, 0.5), ("a", None, None), ("a", [], 0)]))
    def refused(self, bad):
        id_, source, received_at_us = bad
        try:
            self.pair.detector.receive(id_, source, received_at_us=received_at_us)
        except (TypeError, ValueError):
            return
        raise AssertionError(bad)

    @invariant()
    def figures(self):
        if hasattr(self, "pair"):
            self.pair.assert_equal_figures()


TestMachine = DetectorMachine.TestCase
TestMachine.settings = settings(max_examples=60, stateful_step_count=40)
