"""`TwoTierModel` is the rule, and `traces` detect implementations that differ."""

import json
from pathlib import Path

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from receiver import Receipt, TwoTierDetector
from receiver.cli import app
from receiver.errors import SettingsError
from receiver.testing import TwoTierModel, traces
from tests.choosing import cases
from tests.model import Model

CASES = json.loads((Path(__file__).parents[1] / "vectors" / "two_tier.json").read_text(encoding="utf-8"))
EXPIRY_SECS = 10


def verdicts_of(model, trace):
    return [model.receive(receipt[0], receipt[1], receipt[2]) for receipt in trace]


def detected(window, expiry_secs, trace):
    return [decision.verdict for decision in TwoTierDetector(window, expiry_secs).receive_many(trace)]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_worked_cases(case):
    receipts = [
        (each["unique_message_id"], each["message_source_id"], each["received_at_us"]) for each in case["receipts"]
    ]
    assert verdicts_of(TwoTierModel(case["window"], case["expiry_secs"]), receipts) == case["verdicts"]


@cases()
@given(traces(), st.integers(0, 9), st.sampled_from([EXPIRY_SECS, 5, 0.000001]))
def test_it_is_the_rule(trace, window, expiry_secs):
    model, plain = TwoTierModel(window, expiry_secs), Model(window, round(expiry_secs * 1_000_000))
    assert repr(model) == repr(TwoTierDetector(window, expiry_secs)).replace("Detector", "Model")
    assert all(isinstance(receipt, Receipt) for receipt in trace)
    assert verdicts_of(model, trace) == verdicts_of(plain, trace) == detected(window, expiry_secs, trace)
    assert model.remembered_ids == plain.remembered()


class OneMoreId(TwoTierModel):
    def __init__(self, window, expiry_secs):
        super().__init__(window + 1, expiry_secs)


class AMicrosecondLess(TwoTierModel):
    """An id exactly as old as the expiry is forgotten."""

    def __init__(self, window, expiry_secs):
        super().__init__(window, expiry_secs - 0.000001)


class OneQueueForAll(TwoTierModel):
    def receive(self, unique_message_id, message_source_id, received_at_us):
        return super().receive(unique_message_id, message_source_id and "all", received_at_us)


class DuplicatesAreNotRecorded(TwoTierModel):
    def receive(self, unique_message_id, message_source_id, received_at_us):
        if unique_message_id in self.remembered_ids:
            return "duplicate"
        return super().receive(unique_message_id, message_source_id, received_at_us)


class AnEmptyIdIsAnId(TwoTierModel):
    def receive(self, unique_message_id, message_source_id, received_at_us):
        id_ = "(empty)" if unique_message_id == "" else unique_message_id
        return super().receive(id_, message_source_id, received_at_us)


class NoSourceIsNotTheEmptyOne(TwoTierModel):
    def receive(self, unique_message_id, message_source_id, received_at_us):
        return super().receive(
            unique_message_id, "?" if message_source_id is None else message_source_id, received_at_us
        )


class TimeRunsBackwards(TwoTierModel):
    def receive(self, unique_message_id, message_source_id, received_at_us):
        self._latest_us = 0
        return super().receive(unique_message_id, message_source_id, received_at_us)


class UncheckedMovesTime(TwoTierModel):
    def receive(self, unique_message_id, message_source_id, received_at_us):
        self._latest_us = max(self._latest_us, received_at_us)
        return super().receive(unique_message_id, message_source_id, received_at_us)


class ExpiresByTheClock(TwoTierModel):
    def receive(self, unique_message_id, message_source_id, received_at_us):
        if unique_message_id:
            now_us = max(self._latest_us, received_at_us)
            self._time_queue = [each for each in self._time_queue if now_us - each.received_at_us <= self._expiry_us]
        return super().receive(unique_message_id, message_source_id, received_at_us)


@pytest.mark.costly
@pytest.mark.parametrize(
    "wrong",
    [
        OneMoreId,
        AMicrosecondLess,
        OneQueueForAll,
        DuplicatesAreNotRecorded,
        AnEmptyIdIsAnId,
        NoSourceIsNotTheEmptyOne,
        TimeRunsBackwards,
        UncheckedMovesTime,
        ExpiresByTheClock,
    ],
)
def test_who_gets_it_wrong_is_found(wrong):
    @settings(max_examples=1_000, database=None, phases=[Phase.generate], derandomize=True)  # shrinking takes minutes
    @given(traces(expiry_secs=EXPIRY_SECS))
    def held_against_the_model(trace):
        assert verdicts_of(wrong(2, EXPIRY_SECS), trace) == verdicts_of(TwoTierModel(2, EXPIRY_SECS), trace)

    with pytest.raises(AssertionError):
        held_against_the_model()


def generated(path, *options):
    ran = CliRunner().invoke(app, ["generate", str(path), "--vectors", *options])
    assert ran.exit_code == 0, ran.output
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.costly
def test_generated_vectors_are_worked_cases(tmp_path):
    cases = generated(tmp_path / "cases.jsonl", "--receipts", "40", "--seed", "7")
    assert len(cases) == 40
    assert cases == generated(tmp_path / "again.ndjson", "--receipts", "40", "--seed", "7")
    assert cases != generated(tmp_path / "others.jsonl", "--receipts", "40", "--seed", "8")
    for case in cases:
        trace = [Receipt(*each.values()) for each in case["receipts"]]
        assert detected(case["window"], case["expiry_secs"], trace) == case["verdicts"]
    assert {verdict for case in cases for verdict in case["verdicts"]} == {"new", "duplicate", "unchecked"}


@pytest.mark.parametrize(
    ("name", "options", "error"),
    [
        ("cases.csv", [], "isn't named as JSON Lines"),
        ("cases.jsonl", ["--scenario", "steady"], "with --vectors go --receipts and --seed alone"),
        ("cases.jsonl", ["--rate", "7"], "with --vectors go --receipts and --seed alone"),
        ("cases.jsonl", ["--receipts", "0"], "receipts must be at least 1"),
    ],
)
def test_vectors_that_cannot_be_made(tmp_path, name, options, error):
    ran = CliRunner().invoke(app, ["generate", str(tmp_path / name), "--vectors", "--receipts", "1", *options])
    assert isinstance(ran.exception, SettingsError)
    assert error in str(ran.exception)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: traces(receipts=0), "receipts must be a whole number, 1 or more, not 0"),
        (lambda: traces(ids=True), "ids must be"),
        (lambda: traces(sources="3"), "sources must be"),
        (lambda: traces(expiry_secs=-1), "expiry_secs must be"),
        (lambda: traces(expiry_secs=float("nan")), "expiry_secs must be"),
        (lambda: TwoTierModel(0, 0), "would detect nothing"),
        (lambda: TwoTierModel(1.5, 0), "window must be"),
        (lambda: TwoTierModel(1, None), "expiry_secs must be"),
        (lambda: TwoTierModel(1, 1).receive(17, None, 0), "unique_message_id must be text, not 17"),
        (lambda: TwoTierModel(1, 1).receive(0, None, 0), "unique_message_id must be text, not 0"),
        (lambda: TwoTierModel(1, 1).receive(b"", None, 0), "unique_message_id must be text, not b''"),
        (lambda: TwoTierModel(1, 1).receive("1", 2, 0), "message_source_id must be text"),
        (lambda: TwoTierModel(1, 1).receive("1", None, -1), "^received_at_us must not be negative"),
        (lambda: TwoTierModel(1, 1).receive("1", None, 0.5), "received_at_us must be whole microseconds"),
    ],
)
def test_what_it_cannot_take(make, error):
    with pytest.raises(SettingsError, match=error):
        make()
