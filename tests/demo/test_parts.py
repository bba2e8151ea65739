"""The parts of the demo, each by itself: the plan, the journal, the count of effects, a process."""

import json
import signal
import sys
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples.demo import processes
from examples.demo.processes import ChildProcess, check_interrupted, free_ports, interruptible, uninterrupted
from examples.demo.sender import Sent, note, sent_by
from examples.demo.supervisor import DemoOutcome, DemoPlan, Effects, kills
from receiver.bridge.options import Mode
from receiver.errors import BrokerError


@given(seed=st.integers(0, 10**6), secs=st.integers(5, 3_600))
def test_all_kinds_are_killed_in_time_and_the_broker_once(seed, secs):
    plan = DemoPlan(seed=seed, secs=secs, protocol="stomp", mode=Mode.EXACTLY_ONCE)
    drawn = kills(plan)
    assert drawn == kills(plan) == sorted(drawn)
    assert 0 < drawn[0].at_secs < drawn[-1].at_secs < secs
    kinds = Counter(kill.victim.partition("-")[0] for kill in drawn)
    assert kinds["the broker"] == 1
    assert kinds["bridge"] >= 1
    assert kinds["sender"] >= 1


def test_a_journal_outlives_its_writer(tmp_path):
    file = tmp_path / "journal"
    assert sent_by(file) == Sent(0, 0, 0)
    for event in ["start", "send 30", "confirmed 30", "start", "send 7"]:
        note(file, event)
    assert sent_by(file) == Sent(starts=2, confirmed=30, tries=37)


def test_a_port_that_was_given_out_is_nobody_elses(monkeypatch):
    """It stays taken even before anybody listens on it."""
    (port,) = free_ports(9092)
    monkeypatch.setattr(processes, "_OFFSETS", range(1, 2))
    with pytest.raises(BrokerError, match="are taken"):
        free_ports(port - 1)


def test_effects_are_counted_by_id(tmp_path):
    file = tmp_path / "effects.jsonl"
    assert Effects.in_file(file, {"a"}) == (0, 1, 0)
    file.write_text("".join(json.dumps({"unique_message_id": id_}) + "\n" for id_ in "abcbb"))
    assert Effects.in_file(file, {"a", "b", "c"}) == Effects(lines=5, missing=0, double=2)
    assert Effects.in_file(file, {"a", "b", "x", "y"}) == Effects(lines=5, missing=2, double=2)


@pytest.mark.parametrize(
    ("missing", "double", "held"),
    [(0, 0, {Mode.EXACTLY_ONCE, Mode.AT_LEAST_ONCE}), (0, 1, {Mode.AT_LEAST_ONCE}), (1, 0, set()), (1, 1, set())],
)
def test_a_mode_holds_what_it_promises(missing, double, held):
    effects = Effects(lines=5, missing=missing, double=double)
    outcome = DemoOutcome(
        messages=5, sent=5, receipts=5, redelivered=0, duplicates=0, effects=effects, crashes=Counter()
    )
    assert {mode for mode in (Mode.EXACTLY_ONCE, Mode.AT_LEAST_ONCE) if outcome.holds(mode)} == held


PROGRAM = """
import signal, sys
{more}
print("ready")
sys.stdin.read() if {reads} else signal.sigwait([signal.SIGTERM])
print("stopped")
"""


@pytest.mark.parametrize("reads", [True, False])
@pytest.mark.parametrize("end", ["stop", "kill"])
def test_what_a_process_says_is_passed_on_to_its_end(reads, end):
    said = []
    more = "" if reads else "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])"
    program = [sys.executable, "-c", PROGRAM.format(reads=reads, more=more)]
    child = ChildProcess("it", program, lambda name, line: said.append((name, line)), reads_input=reads)
    for _ in range(2):  # lives
        said.clear()
        child.start()
        while not said:
            assert child.ended() is None
        if end == "kill":
            child.kill()
            assert said == [("it", "ready")]
        else:
            child.stop()
            assert child.wait_stopped() == 0
            assert said == [("it", "ready"), ("it", "stopped")]
        child.kill()  # does nothing any more


def test_a_signal_waits_for_what_must_not_be_interrupted():
    reached = []

    def reach_the_end() -> None:
        with interruptible():
            with uninterrupted():
                signal.raise_signal(signal.SIGTERM)
                reached.append("the end of it")
            reached.append("what comes after it")

    with pytest.raises(KeyboardInterrupt):
        reach_the_end()
    assert reached == ["the end of it"]


def test_an_interrupt_that_python_ignores_is_raised_again(monkeypatch):
    ignored = []
    monkeypatch.setattr(sys, "unraisablehook", lambda raised: ignored.append(raised.exc_type))

    class Finalized:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGTERM)

    with interruptible():
        Finalized()
        assert ignored == [KeyboardInterrupt]
        with pytest.raises(KeyboardInterrupt):
            check_interrupted()
    with interruptible():
        check_interrupted()


def test_a_second_signal_does_not_interrupt_the_cleaning_up():
    cleaned = []

    def clean_up() -> None:
        with interruptible():
            try:
                signal.raise_signal(signal.SIGINT)
            finally:
                signal.raise_signal(signal.SIGINT)
                cleaned.append("up")

    with pytest.raises(KeyboardInterrupt):
        clean_up()
    assert cleaned == ["up"]
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)  # interrupts again as before
