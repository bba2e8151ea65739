"""What failed is tried again: after which errors, after which pauses, and for how long."""

import ast
from itertools import islice
from pathlib import Path

import pytest

from receiver import errors, retrying
from receiver.errors import (
    BrokerError,
    BrokerRefusedError,
    MessageRefusedError,
    MessagesLostError,
    MessageUnfitError,
    OutputError,
    PositionMovedError,
    SettingsError,
    StoreBusyError,
    StoreCorruptError,
    StoreError,
    StoreVersionError,
)
from receiver.retrying import Backoff, Retries, may_pass, until_done

PACKAGE = Path(retrying.__file__).parent


@pytest.fixture
def clock(monkeypatch):
    """A clock that only sleeping moves."""
    clock = Clock()
    monkeypatch.setattr(retrying, "time", clock)
    return clock


class Clock:
    def __init__(self):
        self.now = 1_000.0
        self.slept = []

    def monotonic(self):
        return self.now

    def sleep(self, secs):
        self.slept.append(secs)
        self.now += secs


def failing(times, error=None):
    tries = []

    def action():
        tries.append(1)
        if len(tries) <= times:
            raise error or StoreBusyError("busy")
        return "done"

    return action, tries


def test_pauses_double_up_to_the_longest_and_differ():
    pauses = list(islice(Backoff(0.1, 30).pauses_secs(), 40))
    assert all(Backoff(0.1, 30).pause_secs(n) / 2 <= pause for n, pause in enumerate(pauses, 1))
    assert all(pause <= 30 for pause in pauses)
    assert all(pause >= 15 for pause in pauses[20:])
    assert len(set(pauses)) == 40


def test_pauses_without_chance_are_exact():
    assert [Backoff(0.5, 30).pause_secs(n) for n in range(1, 9)] == [0.5, 1, 2, 4, 8, 16, 30, 30]


@pytest.mark.parametrize("failures", [1_024, 1_025, 1_026, 10**9])
def test_no_number_of_failures_is_too_large(failures):
    """2**1024 is too large for a float."""
    assert Backoff(0.5, 30).pause_secs(failures) == 30


def test_it_is_tried_until_it_works(clock):
    action, tries = failing(3)
    assert until_done(action, is_passing=may_pass, backoff=Backoff(1, 4), patience_secs=60) == "done"
    assert len(tries) == 4
    assert all(longest / 2 <= slept <= longest for slept, longest in zip(clock.slept, [1, 2, 4], strict=True))


def test_the_last_try_is_when_patience_is_over(clock):
    action, tries = failing(1_000)
    with pytest.raises(StoreBusyError):
        until_done(action, is_passing=may_pass, backoff=Backoff(8, 8), patience_secs=10)
    assert sum(clock.slept) == pytest.approx(10)
    assert len(tries) == len(clock.slept) + 1


def test_a_clock_that_stands_still_ends_the_wait_too(clock, monkeypatch):
    monkeypatch.setattr(clock, "monotonic", lambda: 1_000.0)
    test_the_last_try_is_when_patience_is_over(clock)


def test_without_patience_there_is_one_try(clock):
    action, tries = failing(1_000)
    with pytest.raises(StoreBusyError):
        until_done(action, is_passing=may_pass, backoff=Backoff(1, 1), patience_secs=0)
    assert (len(tries), clock.slept) == (1, [])


def test_what_lasts_is_raised_at_once(clock):
    action, tries = failing(1_000, StoreCorruptError("damaged"))
    with pytest.raises(StoreCorruptError):
        until_done(action, is_passing=may_pass, backoff=Backoff(1, 1), patience_secs=60)
    assert (len(tries), clock.slept) == (1, [])


def test_an_interrupt_is_no_failure_to_wait_for(clock):
    action, _ = failing(1_000, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        until_done(action, is_passing=lambda _: True, backoff=Backoff(1, 1), patience_secs=60)
    assert clock.slept == []


PASSING = {BrokerError, BrokerRefusedError, OutputError, StoreError, StoreBusyError}
LASTING = {
    MessageRefusedError,
    MessageUnfitError,
    MessagesLostError,
    PositionMovedError,
    StoreCorruptError,
    StoreVersionError,
    SettingsError,
}


def test_which_errors_may_pass():
    assert all(may_pass(kind("why")) for kind in PASSING)
    assert not any(may_pass(kind("why")) for kind in LASTING)
    assert not may_pass(OSError("why"))


def test_every_error_about_a_broker_or_a_store_is_decided():
    families = (BrokerError, StoreError, OutputError)
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, families)]
    assert set(kinds) <= PASSING | LASTING


def test_refusals_are_final_after_a_minute_of_nothing_else(clock):
    retries = Retries(Backoff(1, 1))
    assert not retries.is_final(BrokerRefusedError("no"))
    clock.now += 59
    assert not retries.is_final(BrokerRefusedError("no"))
    clock.now += 1
    assert retries.is_final(BrokerRefusedError("no"))
    assert not retries.is_final(BrokerError("lost"))
    assert not retries.is_final(BrokerRefusedError("no"))


def test_nobody_else_doubles_pauses_or_catches_to_sleep():
    """Other loops that sleep wait for an event, not for a failed action to succeed."""
    sleepers = {
        str(file.relative_to(PACKAGE))
        for file in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(node, ast.Attribute) and node.attr == "sleep"
    }
    assert sleepers == {
        "retrying.py",
        "bridge/modes/inbox_flow.py",  # lets others have the lease
        "bridge/consumers.py",  # looks now and then whether all have ended, or nothing comes
        "bridge/connectors/kafka_sink.py",  # waits for Kafka to say who coordinates the group
        "testing/broker.py",  # lets others have the event loop
        "durable/async_batch.py",  # lets others have the event loop
        "durable/async_receiver.py",  # lets others have the lock, and the event loop
        "spark/failures.py",  # until Java has ended
        "logs/rotating.py",  # until another process has done with the folder
        "store/databases/sqlite_file.py",  # lets another thread close the file
        "store/recorded.py",  # lets others have the file
        "store/upkeep.py",  # lets others have the file
    }
