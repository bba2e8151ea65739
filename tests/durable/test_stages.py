"""Each moment of a thread belongs to one stage, whatever is nested in what."""

import threading

import pytest

from receiver.durable import stages as module
from receiver.durable.stages import Stage, Stages, stage_table
from receiver.errors import SettingsError, StoreBusyError
from tests.durable.opened import MEMORY, opened, send, undone

OF_EACH_BATCH = (Stage.RECEIVING, Stage.DB_WAIT, Stage.APP_CONTROLLED_BLOCKING, Stage.DB_COMMIT, Stage.TOTAL)


def work() -> None:
    """Take some time that can be told from none."""
    sum(range(10_000))


class Clock:
    """Stands still until it is told to move on."""

    def __init__(self) -> None:
        self.now_ns = 0

    def __call__(self) -> int:
        return self.now_ns

    def move_on(self, secs: int) -> None:
        self.now_ns += secs * 1_000_000_000


@pytest.fixture
def clock(monkeypatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "perf_counter_ns", clock)
    return clock


def told_secs(times: dict) -> float:
    return sum(of.total_secs for stage, of in times.items() if stage is not Stage.TOTAL)


def test_every_moment_is_told_of_once():
    with opened(MEMORY) as orders:
        for number in range(600):
            with orders.stage("R_TIMEOUTS"):
                work()
            with orders.batch() as batch, orders.stage("ENQUEUING"):
                batch.receive(f"id-{number}")
                with orders.stage("MAPPING"):
                    work()
        times = orders.status().stages
    assert list(times) == list(Stage)
    assert {stage: of.count for stage, of in times.items()} == dict.fromkeys(Stage, 600) | {Stage.JMS_ACK: 0}
    assert times[Stage.TOTAL].total_secs == pytest.approx(told_secs(times), rel=1e-9)
    assert sum(of.share for stage, of in times.items() if stage is not Stage.TOTAL) == pytest.approx(1)
    assert times[Stage.TOTAL].share == pytest.approx(1)
    for of in times.values():
        assert 0 <= of.min_secs <= of.mean_secs <= of.max_secs <= of.total_secs


def test_a_stage_within_another_is_taken_off_it(clock):
    stages = Stages()
    with stages.stage("ENQUEUING"):
        clock.move_on(1)
        for _ in range(3):
            with stages.stage("MAPPING"):
                clock.move_on(10)
    times = stages.times()
    assert (times[Stage.ENQUEUING].total_secs, times[Stage.MAPPING].total_secs) == (1, 30)


def test_a_stage_around_a_batch_leaves_the_batch_its_own_time(clock):
    with opened(MEMORY) as orders:
        for _ in range(2):
            clock.move_on(100)
            with orders.stage("ENQUEUING"):
                clock.move_on(1)
                with orders.batch() as batch:
                    batch.receive("id", received_at_us=0)
                    clock.move_on(10)
        send(orders, "last")  # a stage around a batch ends after it, so the next batch settles whose time it was
        times = orders.status().stages
    told = {stage: of.total_secs for stage, of in times.items() if of.total_secs}
    assert told == {Stage.RECEIVING: 200, Stage.ENQUEUING: 2, Stage.APP_CONTROLLED_BLOCKING: 20, Stage.TOTAL: 222}


def test_threads_keep_their_own_time():
    def receive(name: str) -> None:
        for number in range(100):
            send(orders, f"{name}-{number}")
            with orders.stage("JMS_ACK"):
                work()
        send(orders, f"{name}-last")

    with opened(MEMORY) as orders:
        threads = [threading.Thread(target=receive, args=(f"thread-{number}",)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        times = orders.status().stages
    assert {times[stage].count for stage in OF_EACH_BATCH} == {404}
    assert times[Stage.JMS_ACK].count == 400
    assert times[Stage.TOTAL].total_secs == pytest.approx(told_secs(times), rel=1e-9)


def test_batches_that_come_to_nothing_take_time_too(sqlite_url):
    with opened(sqlite_url) as one, opened(sqlite_url, patience_secs=0.01) as other:
        undone(one, "id")
        with one.batch():
            busy = threading.Thread(target=pytest.raises, args=(StoreBusyError, other.batch().__enter__))
            busy.start()
            busy.join()
        assert {one.status().stages[stage].count for stage in OF_EACH_BATCH} == {2}
        waited = other.status().stages
    assert {stage for stage, of in waited.items() if of.count} == {Stage.DB_WAIT}
    assert waited[Stage.DB_WAIT].total_secs > 0


@pytest.mark.parametrize("name", ["TOTAL", "jms_ack", "", "COFFEE"])
def test_there_are_no_other_stages(name):
    with (
        opened(MEMORY) as orders,
        pytest.raises(SettingsError, match="a stage is one of RECEIVING, "),
        orders.stage(name),
    ):
        pass


def test_the_table_has_a_line_for_each_stage():
    with opened(MEMORY) as orders:
        send(orders, "id")
        heading, *lines = stage_table(orders.status().stages).splitlines()
    assert heading.split()[:3] == ["stage", "share", "count"]
    assert [line.split()[0] for line in lines] == [str(stage) for stage in Stage]
    assert len({len(line) for line in (heading, *lines)}) == 1
