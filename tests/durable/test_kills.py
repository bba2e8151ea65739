"""Kill -9 at random moments: a committed message is never delivered again, and no other message is lost."""

import random
import time
from collections import Counter
from dataclasses import replace

import pytest

from receiver import Verdict
from tests.campaigns import survived
from tests.durable import journal
from tests.durable.checks import assert_sound
from tests.durable.stream import stream_of
from tests.durable.worker import PROCESSES, Job, Worker, open_receiver, working
from tests.postgres import wait_for_the_dead

pytestmark = pytest.mark.costly

BATCH_SIZE = 50
BATCHES_PER_KILL = 10
LONGEST_BATCH_SECS = 0.02
LONGEST_OPENING_SECS = 0.3
NOTHING_FORGOTTEN = "apama:window=10000000,expiry=0"
MUCH_FORGOTTEN = "apama:window=40,expiry=0.2"


def live_and_die(job: Job, chosen: random.Random) -> Worker:
    """Work until killed at a random moment: between two reports, or a little after one."""
    with working(job) as worker:
        worker.listen(at_most=chosen.randrange(2 * BATCHES_PER_KILL))
        time.sleep(chosen.uniform(0, LONGEST_BATCH_SECS))
        worker.kill()
        wait_for_the_dead(job.url)
        return worker


def committed_unheard(worker: Worker, turns: list[tuple[int, int, str]]) -> bool:
    """Whether the worker could not report its last turn. All its other turns must be as reported."""
    heard = [(worker.job.stream, report.first, report.said) for report in worker.heard if report.event == "committed"]
    unheard = turns[len(heard) :]
    assert turns[: len(heard)] == heard
    assert [first for _, first, _ in unheard] in ([], [worker.unconfirmed])
    return bool(unheard)


JUDGED = [
    (NOTHING_FORGOTTEN, 0, False),
    (NOTHING_FORGOTTEN, 0, True),
    (MUCH_FORGOTTEN, 0, False),
    (MUCH_FORGOTTEN, 0, True),
    (MUCH_FORGOTTEN, 3, False),
    (MUCH_FORGOTTEN, 3, True),
    ("artemis:id_cache_size=300", 0, False),
    ("ttl:expiry=0.2", 0, True),
    ("cmq:retry=0.1,network=0.1", 0, False),
    ("sequence", 0, False),
    ("perfect", 0, True),
]
"""The policy, the most sources that it keeps, and whether its transactions are the caller's."""


def test_a_process_has_been_given_all_imports():
    """Otherwise each of hundreds of processes would take a second to start."""
    with PROCESSES.Pool(1) as pool:
        assert pool.apply(eval, ("'tests.durable.worker' in __import__('sys').modules",))


@pytest.mark.scaled
@pytest.mark.thinned(2)
@pytest.mark.parametrize(("policy", "max_sources", "joins"), JUDGED)
def test_kills_at_random_moments(store_url, seed, campaign, policy, max_sources, joins):  # noqa: PLR0917
    chosen = random.Random(seed)
    kills = campaign.kills // 4
    job = Job(
        url=store_url,
        seed=seed,
        stream=0,
        count=kills * BATCHES_PER_KILL * BATCH_SIZE,
        batch_size=BATCH_SIZE,
        policy=policy,
        max_sources=max_sources,
        joins=joins,
    )
    journal.make(store_url)
    open_receiver(store_url, policy).close()
    turns_before = unheard = 0
    for _ in range(kills):
        worker = live_and_die(job, chosen)
        assert_sound(store_url)
        turns, _ = journal.read(store_url)
        unheard += committed_unheard(worker, turns[turns_before:])
        turns_before = len(turns)
        # A broker sends again from the last batch that it knows to be confirmed.
        job = replace(job, first=worker.unconfirmed)
    with working(job) as worker:
        worker.listen()
        assert worker.is_done, worker.heard[-3:]
    assert_sound(store_url)
    print(f"{unheard} of {kills} kills came between a commit and its report")

    receipts = stream_of(seed, 0, job.count)
    took_effect = journal.verify(store_url, {0: receipts}, policy, max_sources)
    assert took_effect.keys() == {id_ for id_, _, _ in receipts}
    survived({"kills": kills}, len(took_effect))
    if policy in {NOTHING_FORGOTTEN, "cmq:retry=0.1,network=0.1", "sequence", "perfect"}:
        assert set(Counter(took_effect.values())) == {1}


@pytest.mark.scaled
def test_kills_while_the_store_is_made(unmade_store_url, seed, campaign):
    """The next process makes the store, whatever is left of it."""
    chosen = random.Random(seed)
    job = Job(url=unmade_store_url, seed=seed, stream=0, count=200, batch_size=BATCH_SIZE, policy=NOTHING_FORGOTTEN)
    journal.make(unmade_store_url)
    for _ in range(campaign.kills // 4):
        with working(replace(job, count=0)) as worker:
            time.sleep(chosen.uniform(0, LONGEST_OPENING_SECS))
            worker.kill()
        wait_for_the_dead(unmade_store_url)
        print(worker.heard)
    with working(job) as worker:
        worker.listen()
        assert worker.is_done, worker.heard[-3:]
    assert_sound(unmade_store_url)
    took_effect = journal.verify(unmade_store_url, {0: stream_of(seed, 0, job.count)}, NOTHING_FORGOTTEN)
    assert set(took_effect.values()) == {1}
    survived({"kills": campaign.kills // 4}, len(took_effect))


@pytest.mark.parametrize("is_committed", [False, True], ids=["before", "after"])
def test_an_interrupt_around_the_commit(store_url, monkeypatch, is_committed):
    """If a program catches it and goes on, it holds up nobody, and the batch's outcome decides the next verdicts."""
    with open_receiver(store_url, NOTHING_FORGOTTEN) as orders, open_receiver(store_url, NOTHING_FORGOTTEN) as other:
        log = orders.session.log
        commit = log.commit

        def interrupted() -> None:
            if is_committed:
                commit()
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(log, "commit", interrupted)
            with pytest.raises(KeyboardInterrupt), orders.batch() as batch:
                batch.receive("a", received_at_us=0)
        for receiver, verdict in (
            (other, Verdict.DUPLICATE if is_committed else Verdict.NEW),
            (orders, Verdict.DUPLICATE),
        ):
            with receiver.batch() as batch:
                assert batch.receive("a", received_at_us=0).verdict is verdict
        with orders.batch() as batch:
            assert batch.receive("b", received_at_us=0).verdict is Verdict.NEW
