"""Kill -9 at each step, and at random moments: a recording has every receipt of every committed batch, and no other."""

import random
import signal
import time
from collections import Counter
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from mortal import BOOKED, ENDS_SECS, STEPS, Life, booked, live, receipts_of
from recorded import read, segments, simulate, unfinished
from sqlalchemy import text, update

from receiver import Recording
from receiver.durable.audit import look
from receiver.store.tables import recorded
from receiver.store.upkeep import drop_domain
from tests.campaigns import survived
from tests.durable.opened import opened, send
from tests.durable.worker import PROCESSES
from tests.postgres import wait_for_the_dead
from tests.stores import engine_of, rows_of

pytestmark = pytest.mark.costly
CALLERS = ["before the caller's commit", "the caller has committed"]
OWN = ["before the commit", "committed"]
MAKING = list(STEPS)[list(STEPS).index("before it is cut") :]
AT_EACH = [(step, False) for step in STEPS if step not in CALLERS]
AT_EACH += [(step, True) for step in STEPS if step not in OWN]
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
    """Run a life to its end. Returns the exit status, which is -9 if the life killed itself."""
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
    """The receipts file by file. Read together, the files would be merged by times, which clocks set back
    contradict."""
    folder = Path(life.path)
    return [receipt for name in segments(folder) for receipt in read(folder / name)]


def receipts_counted(url):
    with engine_of(url).connect() as connection:
        return connection.execute(text("SELECT coalesce(sum(receipts), 0) FROM receiver_domain")).scalar_one()


def assert_complete(life):
    """Check that all committed receipts are in finished files, and that nothing else is left."""
    committed = booked(life.url)
    assert recorded_receipts(life) == expected(life, committed)
    assert len(expected(life, committed)) == receipts_counted(life.url)
    assert unfinished(Path(life.path)) == []
    assert rows_of(life.url, "receiver_recorded") == 0


@pytest.mark.thinned(10)
@pytest.mark.parametrize(("step", "joins"), AT_EACH)
def test_kills_at_each_step(life, step, joins):
    for when in (1, 4):
        life = replace(life, number=life.number + 1, joins=joins, step=step, when=when)
        assert live_to_the_end(life) == KILLED
        before = expected(life, booked(life.url))
        # Files are finished in the order of commits, and each is whole.
        assert before[: len(recorded_receipts(life))] == recorded_receipts(life)
        opened(life.url, record=life.path).close()
        assert_complete(life)


@pytest.mark.thinned(5)
@pytest.mark.parametrize("step", MAKING)
@pytest.mark.parametrize("first", ["cut", "half deleted"])
def test_kills_of_those_who_finish_what_is_left(life, first, step):
    """Whatever others have received since."""
    assert live_to_the_end(replace(life, step=first)) == KILLED
    with opened(life.url) as other:
        for number in range(10):  # pushes out all earlier ids
            send(other, *(f"other {number}-{index}" for index in range(10)))
    known, committed = recorded_receipts(life), expected(life, booked(life.url))
    for again in (1, 2):
        assert live_to_the_end(replace(life, number=again, step=step, batches=0)) in {KILLED, 0}
        assert len(known) <= len(recorded_receipts(life))
        assert recorded_receipts(life) == committed[: len(recorded_receipts(life))]
    opened(life.url, record=life.path).close()
    assert recorded_receipts(life) == committed
    assert (unfinished(Path(life.path)), rows_of(life.url, "receiver_recorded")) == ([], 0)


def test_it_is_finished_by_whoever_records_there_and_has_the_store(life, store_url, tmp_path):
    """That includes batches of a dropped domain."""
    assert live_to_the_end(replace(life, step="committed", when=5)) == KILLED
    known = recorded_receipts(life)
    for options in ({"url": "memory://"}, {"url": f"sqlite:///{tmp_path / 'other.db'}"}, {"record": None}):
        opened(**{"url": store_url, "record": life.path} | options).close()
        assert recorded_receipts(life) == known
    committed = expected(life, booked(life.url))
    (domain,) = [stored.state for stored in look(store_url).domains]
    drop_domain(store_url, domain)
    opened(store_url, destination="queue://refunds", record=life.path).close()
    assert recorded_receipts(life) == committed
    assert rows_of(life.url, "receiver_recorded") == 0


def rename_hosts(url):
    with engine_of(url).begin() as connection:
        connection.execute(update(recorded).values(host=b"another"))


@pytest.mark.parametrize("step", ["committed", "cut", "renamed"])
def test_what_another_host_has_left_is_taken_once_it_is_old(life, store_url, step):
    assert live_to_the_end(replace(life, step=step, when=3)) == KILLED
    rename_hosts(store_url)
    known, committed = recorded_receipts(life), expected(life, booked(life.url))
    assert rows_of(store_url, "receiver_recorded") > 0
    opened(store_url, record=life.path).close()
    assert recorded_receipts(life) == known
    opened(store_url, record=Recording(life.path, rotate_secs=0.001)).close()
    assert recorded_receipts(life) == committed
    assert rows_of(store_url, "receiver_recorded") == 0


@pytest.mark.scaled
@pytest.mark.slow
def test_processes_killed_at_random(life, pytestconfig, seed):
    """Several processes record one domain in one folder."""
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
    opened(life.url, record=Recording(life.path, keep_files=None)).close()  # a fast machine makes more files than usual
    committed = booked(life.url)
    assert Counter(recorded_receipts(life)) == Counter(expected(life, committed))
    assert len(recorded_receipts(life)) == receipts_counted(life.url) > 0
    assert simulate(life.path)["log"]["receipts"] == len(recorded_receipts(life))
    assert unfinished(Path(life.path)) == []
    assert rows_of(life.url, "receiver_recorded") == 0
    survived({"kills": 3 * kills}, len(committed))
