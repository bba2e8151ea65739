"""Kill -9 at each step, and at random: a recording holds every receipt of every committed batch, and no other."""

import random
import signal
import time
from collections import Counter
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from mortal import BOOKED, ENDS_SECS, STEPS, Life, booked, live, receipts_of
from recorded import read, simulate, unfinished
from sqlalchemy import text

from receiver import Recording
from receiver.errors import LogFormatError
from tests.durable.opened import opened, send
from tests.durable.worker import PROCESSES
from tests.postgres import wait_for_the_dead
from tests.stores import engine_of

CALLERS = ["before the caller's commit", "the caller has committed"]
OWN = ["before the commit", "committed"]
SETTLING = ["before it is settled", "half settled", "settled"]
BETWEEN_JOURNALS = ["begun", "before it is finished", "finished"]
AT_EACH = [(step, False) for step in STEPS if step not in SETTLING + CALLERS]
AT_EACH += [(step, True) for step in STEPS if step not in SETTLING + OWN]
KILLS = {"quick": 1, "small": 3, "long": 100}
KILLED = -signal.SIGKILL


@contextmanager
def living(life):
    process = PROCESSES.Process(target=live, args=(life,))
    process.start()
    try:
        yield process
    finally:
        process.kill()
        process.join()
        process.close()


def live_to_the_end(life):
    """The exit status: -9 for a life that killed itself."""
    with living(life) as process:
        process.join(ENDS_SECS)
        wait_for_the_dead(life.url)
        return process.exitcode


@pytest.fixture
def life(store_url, tmp_path, seed):
    folder = tmp_path / "receipts"
    folder.mkdir()
    BOOKED.create(engine_of(store_url))
    return Life(url=store_url, path=str(folder), seed=seed)


def as_read(receipt):
    return receipt._replace(
        unique_message_id=receipt.unique_message_id or "", jms_timestamp_ms=receipt.jms_timestamp_ms or None
    )


def expected(life, batches):
    return [as_read(receipt) for batch in batches for receipt in receipts_of(life.seed, batch)]


def recorded_receipts(life):
    try:
        return read(life.path)
    except LogFormatError as error:
        assert "folder without logs" in str(error) or "no receipt" in str(error)  # noqa: PT017
        return []


def receipts_counted(url):
    with engine_of(url).connect() as connection:
        return connection.execute(text("SELECT coalesce(sum(receipts), 0) FROM receiver_domain")).scalar_one()


def marks_left(url):
    with engine_of(url).connect() as connection:
        return connection.execute(text("SELECT count(*) FROM receiver_joined")).scalar_one()


def assert_complete(life):
    committed = booked(life.url)
    assert recorded_receipts(life) == expected(life, committed)
    assert len(expected(life, committed)) == receipts_counted(life.url)
    return committed


@pytest.mark.thinned(12)
@pytest.mark.parametrize(("step", "joins"), AT_EACH)
def test_kills_at_each_step(life, step, joins):
    for when in (1, 4):
        life = replace(life, number=life.number + 1, joins=joins, step=step, when=when)
        assert live_to_the_end(life) == KILLED
        before = expected(life, booked(life.url))
        # All but the last transaction can be read at once, and nothing else.
        assert before[: len(recorded_receipts(life))] == recorded_receipts(life)
        assert len(before) - len(recorded_receipts(life)) <= 3 * 6
        opened(life.url, record=life.path).close()
        assert_complete(life)
    assert unfinished(Path(life.path)) == []
    # A writer that is killed between two journals leaves its mark, and nothing else.
    assert marks_left(life.url) <= (2 if step in BETWEEN_JOURNALS else 0)


@pytest.mark.thinned(16)
@pytest.mark.parametrize("joins", [False, True], ids=["own", "joined"])
@pytest.mark.parametrize("step", SETTLING)
@pytest.mark.parametrize("committed", [False, True], ids=["rolled back", "committed"])
def test_kills_while_it_is_settled(life, step, joins, committed):
    """What the killed process has forgotten to say is in the store, whatever others have done since."""
    uncertain = "before that is said" if committed else "written"
    life = replace(life, joins=joins, step=uncertain, when=5)
    assert live_to_the_end(life) == KILLED
    with opened(life.url) as other:
        for number in range(10):  # pushes out whatever was received
            send(other, *(f"other {number}-{index}" for index in range(10)))
    known, committed = recorded_receipts(life), booked(life.url)
    for again in (1, 2):
        assert live_to_the_end(replace(life, number=again, step=step, when=1, batches=0)) == KILLED
        assert len(known) <= len(recorded_receipts(life))
        assert recorded_receipts(life) == expected(life, committed)[: len(recorded_receipts(life))]
    opened(life.url, record=life.path).close()
    assert recorded_receipts(life) == expected(life, committed)
    assert (unfinished(Path(life.path)), marks_left(life.url)) == ([], 0)


def test_other_domains_leave_it_alone(life, store_url):
    """Who records to the same path, but can't tell, finishes nothing that is uncertain."""
    assert live_to_the_end(replace(life, step="before that is said", when=5)) == KILLED
    known = recorded_receipts(life)
    for options in ({"destination": "queue://refunds"}, {"url": "memory://"}):
        opened(**{"url": store_url, "record": life.path} | options).close()
        assert recorded_receipts(life) == known
    opened(store_url, record=life.path).close()
    assert_complete(life)


@pytest.mark.scaled
@pytest.mark.slow
def test_processes_killed_at_random(life, pytestconfig, seed):
    """Several record one domain in one folder."""
    chosen = random.Random(seed)  # noqa: S311
    kills = KILLS[pytestconfig.getoption("--campaign")]
    for _ in range(kills):
        first = life.number + 1
        lives = [replace(life, number=first + n, joins=bool(n % 2), batches=1_000) for n in range(3)]
        with ExitStack() as stack:
            before = len(booked(life.url))
            processes = [stack.enter_context(living(each)) for each in lives]
            give_up = time.monotonic() + ENDS_SECS
            while len(booked(life.url)) < before + 10 and time.monotonic() < give_up:
                time.sleep(0.01)
            time.sleep(chosen.uniform(0, 0.5))
            for process in processes:
                process.kill()
        wait_for_the_dead(life.url)
        life = replace(life, number=first + 3)
    opened(life.url, record=Recording(life.path, keep_files=None)).close()  # a fast machine makes more than are kept
    committed = booked(life.url)
    assert Counter(recorded_receipts(life)) == Counter(expected(life, committed))
    assert len(recorded_receipts(life)) == receipts_counted(life.url) > 0
    assert simulate(life.path)["log"]["receipts"] == len(recorded_receipts(life))
    assert unfinished(Path(life.path)) == []
    assert marks_left(life.url) <= kills * len(lives)  # of those that were killed between two journals
