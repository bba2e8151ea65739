"""Processes that share a domain judge like one detector that receives in the order of their commits."""

import itertools
from contextlib import ExitStack
from dataclasses import replace

import pytest

from tests.durable import journal
from tests.durable.checks import assert_sound
from tests.durable.stream import Received, stream_of
from tests.durable.worker import PROCESSES as FORKED
from tests.durable.worker import Job, open_receiver, working
from tests.model import Model

PROCESSES = 4
LARGE = "apama:window=2000,expiry=120"
SMALL = "apama:window=20,expiry=0.1"


def received_together(job: Job) -> dict[int, list[Received]]:
    """Have each process work through a stream, all at the same time. Returns the streams."""
    journal.make(job.url)
    start = FORKED.Barrier(PROCESSES)
    with ExitStack() as stack:
        workers = [
            stack.enter_context(working(replace(job, stream=number, yields=True), start)) for number in range(PROCESSES)
        ]
        for worker in workers:
            worker.listen()
            assert worker.is_done, worker.heard[-3:]
    assert_sound(job.url)
    return {number: stream_of(job.seed, number, job.count) for number in range(PROCESSES)}


def interleavings(turns: list[tuple[int, int, str]]) -> int:
    """How often the turn went to another process. A process that pauses lets others go on, if they have begun by
    then."""
    return sum(before[0] != after[0] for before, after in itertools.pairwise(turns))


@pytest.mark.costly
@pytest.mark.scaled
@pytest.mark.thinned(5)
@pytest.mark.parametrize(
    ("policy", "max_sources"),
    [(LARGE, 0), (SMALL, 0), (SMALL, 3), ("artemis:id_cache_size=500", 0), ("ttl:expiry=0.1", 0)],
)
def test_many_receipts_against_one_policy(store_url, seed, campaign, policy, max_sources):
    job = Job(
        url=store_url,
        seed=seed,
        stream=0,
        count=campaign.receipts_per_process,
        batch_size=100,
        policy=policy,
        max_sources=max_sources,
    )
    streams = received_together(job)
    journal.verify(store_url, streams, policy, max_sources)
    turns, _ = journal.read(store_url)
    assert len(turns) == PROCESSES * job.count / job.batch_size
    assert interleavings(turns) > 2 * PROCESSES


@pytest.mark.costly
def test_few_receipts_against_the_model(store_url, seed):
    job = Job(url=store_url, seed=seed, stream=0, count=1_000, batch_size=7, policy=SMALL, joins=True)
    streams = received_together(job)
    model = Model(20, 100_000)
    turns, _ = journal.read(store_url)
    for stream, first, verdicts in turns:
        receipts = streams[stream][first : first + len(verdicts)]
        assert verdicts == "".join(model.receive(*receipt)[0] for receipt in receipts), (stream, first)
    assert interleavings(turns) > 2 * PROCESSES


@pytest.mark.parametrize("joins", [False, True], ids=["own-transaction", "joined"])
def test_a_second_process_takes_over_when_the_first_dies_with_the_lock(store_url, seed, joins):
    job = Job(url=store_url, seed=seed, stream=0, count=1_000, batch_size=100, policy=LARGE)
    journal.make(store_url)
    open_receiver(store_url, LARGE).close()
    with working(replace(job, holds=True)) as first, working(replace(job, joins=joins)) as second:
        first.listen(until="holding")
        second.listen(until="begun")
        first.kill()
        second.listen()
        assert second.is_done, second.heard[-3:]
        assert [report for report in second.heard if report.event == "failed"] == []
    assert_sound(store_url)
    streams = {0: stream_of(seed, 0, job.count)}
    assert set(journal.verify(store_url, streams, LARGE).values()) == {1}
