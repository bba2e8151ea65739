"""The link to PostgreSQL breaks around a commit. Its outcome is read, not guessed, and a resend is judged right."""

import random
import threading
import time
from collections import Counter
from contextlib import nullcontext
from pathlib import Path

import pytest
from sqlalchemy import Column, Integer, MetaData, NullPool, Table, create_engine, insert, select
from sqlalchemy.exc import OperationalError

from receiver import Receiver, StoreSettings
from receiver.errors import StoreError
from receiver.logs import ReadOptions, read_logs
from tests.campaigns import survived
from tests.durable import journal
from tests.durable.checks import assert_sound
from tests.durable.proxy import Cut, proxied
from tests.durable.server import mortal_server
from tests.durable.stream import stream_of
from tests.durable.worker import PATIENCE_SECS, Job, working
from tests.patience import until

POLICY = "apama:window=1000,expiry=60"
BATCH_SIZE = 30
COUNT = 10 * BATCH_SIZE


class Bridge:
    """Sends a stream's batches through a receiver, each as often as the test asks, and writes the journal."""

    folder: Path
    """The folder in which all of a test's bridges record."""

    def __init__(self, url: str, seed: int, *, joins: bool = False, patience_secs: float = PATIENCE_SECS) -> None:
        self.receipts = stream_of(seed, 0, COUNT)
        self._engine = create_engine(url, poolclass=NullPool) if joins else None
        self.orders = Receiver.open(
            url,
            connection_id="broker",
            destination="queue://orders",
            policy=POLICY,
            store_settings=StoreSettings(lock_timeout_secs=patience_secs),
            record=self.folder,
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.orders.close()

    def send(self, number: int, during=lambda: None) -> str:
        """Send the batch with this number. Returns its verdicts."""
        first = number * BATCH_SIZE
        received = self.receipts[first : first + BATCH_SIZE]
        if self._engine is None:
            with self.orders.batch() as batch:
                decisions = batch.receive_many(received)
                journal.write(batch.connection, 0, first, received, decisions)
                during()
        else:
            with self._engine.begin() as connection:
                with self.orders.batch(connection=connection) as batch:
                    decisions = batch.receive_many(received)
                journal.write(connection, 0, first, received, decisions)
                during()
        return journal.letters(decisions)

    def verify(self, url: str, *, batches: list[int]) -> None:
        """Check that exactly these batches were committed, in this order, with the right verdicts, and are recorded."""
        assert_sound(url)
        turns, _ = journal.read(url)
        assert [first // BATCH_SIZE for _, first, _ in turns] == batches
        took_effect = journal.verify(url, {0: self.receipts}, POLICY)
        assert set(Counter(took_effect.values())) == {1}
        recorded = [
            id_ for batch in read_logs([str(self.folder)], ReadOptions()) for id_ in batch.unique_message_id.tolist()
        ]
        sent = (self.receipts[number * BATCH_SIZE : (number + 1) * BATCH_SIZE] for number in batches)
        assert Counter(recorded) == Counter(id_ for received in sent for id_, _, _ in received)
        assert not [path for path in self.folder.iterdir() if path.name.endswith(".journal")]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    folder = tmp_path / "receipts"
    folder.mkdir()
    monkeypatch.setattr(Bridge, "folder", folder, raising=False)


@pytest.fixture
def direct_url(fresh_postgres_url):
    """The store's address without the proxy."""
    journal.make(fresh_postgres_url)
    return fresh_postgres_url


@pytest.fixture
def proxy(direct_url):
    with proxied(direct_url) as proxy:
        yield proxy


ALL_DUPLICATES = "d" * BATCH_SIZE


def test_cut_before_the_commit(proxy, direct_url, seed):
    """The commit proves not to have happened. So the batch fails, and its resend is delivered."""
    with Bridge(proxy.url, seed) as bridge:
        bridge.send(0)
        proxy.arm(Cut.BEFORE_COMMIT)
        with pytest.raises(StoreError):
            bridge.send(1)
        assert not proxy.armed
        bridge.send(1)
        bridge.send(2)
    bridge.verify(direct_url, batches=[0, 1, 2])


@pytest.mark.parametrize("cut", [Cut.BEFORE_REPLY, Cut.LATE_COMMIT])
def test_cut_after_the_commit(proxy, direct_url, seed, cut):
    """The commit proves to have happened, although no answer came. So the batch ends normally, and a resend is all
    duplicates."""
    with Bridge(proxy.url, seed) as bridge:
        bridge.send(0)
        proxy.arm(cut)
        bridge.send(1)
        assert not proxy.armed
        with Bridge(direct_url, seed, patience_secs=2) as other:  # it isn't kept waiting
            other.send(2)
        assert bridge.send(1) == ALL_DUPLICATES
        bridge.send(3)
    bridge.verify(direct_url, batches=[0, 1, 2, 1, 3])


def test_the_outcome_is_read_once_the_database_is_back(proxy, direct_url, seed):
    def come_back() -> None:
        until(lambda: not proxy.armed)
        time.sleep(0.3)
        proxy.reachable = True

    with Bridge(proxy.url, seed) as bridge:
        proxy.arm(Cut.BEFORE_REPLY, then_unreachable=True)
        coming = threading.Thread(target=come_back)
        coming.start()
        bridge.send(0)
        coming.join()
        assert bridge.send(0) == ALL_DUPLICATES
    bridge.verify(direct_url, batches=[0, 0])


@pytest.mark.parametrize("cut", Cut)
def test_a_batch_that_only_lent_its_connection(proxy, direct_url, seed, cut):
    """Without a receipt, the caller's rows are committed or not, and the report is just as sure."""
    lines = Table("lines", MetaData(), Column("line", Integer))
    engine = create_engine(direct_url, poolclass=NullPool)
    lines.create(engine)
    with Bridge(proxy.url, seed) as bridge:
        for line in range(2):
            with bridge.orders.batch() as batch:
                batch.connection.execute(insert(lines).values(line=line))
        bridge.send(0)
        with bridge.orders.batch() as batch:
            batch.connection.execute(insert(lines).values(line=2))
        proxy.arm(cut)
        expected = pytest.raises(StoreError) if cut is Cut.BEFORE_COMMIT else nullcontext()
        with expected, bridge.orders.batch() as batch:
            batch.connection.execute(insert(lines).values(line=3))
        assert not proxy.armed
        bridge.send(1)
    with engine.connect() as connection:
        assert set(connection.scalars(select(lines.c.line))) == {0, 1, 2} | (set() if cut is Cut.BEFORE_COMMIT else {3})
    bridge.verify(direct_url, batches=[0, 1])


@pytest.mark.parametrize("cut", [Cut.BEFORE_COMMIT, Cut.BEFORE_REPLY])
def test_outcome_that_cant_be_read(proxy, direct_url, seed, cut):
    """Nothing is proven. So the batch fails, and the resend shows the outcome."""
    with Bridge(proxy.url, seed, patience_secs=0.5) as bridge:
        bridge.send(0)
        proxy.arm(cut, then_unreachable=True)
        with pytest.raises(StoreError) as failure:
            bridge.send(1)
        assert failure.value.hint
        with pytest.raises(StoreError):
            bridge.send(1)
        proxy.reachable = True
        was_committed = cut is Cut.BEFORE_REPLY
        assert (bridge.send(1) == ALL_DUPLICATES) == was_committed
        bridge.send(2)
    bridge.verify(direct_url, batches=[0, 1, 1, 2] if was_committed else [0, 1, 2])


def test_others_commit_before_the_outcome_is_read(proxy, direct_url, seed):
    """Then nobody can know whether the batch is among those recorded since."""
    failures = []

    def send_and_be_cut_off() -> None:
        try:
            bridge.send(1)
        except StoreError as failure:
            failures.append(failure)

    with Bridge(proxy.url, seed) as bridge, Bridge(direct_url, seed) as other:
        bridge.send(0)
        proxy.arm(Cut.BEFORE_REPLY, then_unreachable=True)
        sending = threading.Thread(target=send_and_be_cut_off)
        sending.start()
        until(lambda: not proxy.armed)
        other.send(2)
        proxy.reachable = True
        sending.join()
        (failure,) = failures
        assert "isn't known" in failure.message
        assert bridge.send(1) == ALL_DUPLICATES
        bridge.send(3)
    bridge.verify(direct_url, batches=[0, 1, 2, 1, 3])


@pytest.mark.parametrize("joins", [False, True], ids=["own-transaction", "joined"])
def test_cut_in_the_middle_of_a_batch(proxy, direct_url, seed, joins):
    with Bridge(proxy.url, seed, joins=joins) as bridge:
        bridge.send(0)
        with pytest.raises(OperationalError if joins else StoreError):
            bridge.send(1, during=proxy.cut)
        bridge.send(1)
        bridge.send(2)
    bridge.verify(direct_url, batches=[0, 1, 2])


def test_cut_while_idle(proxy, direct_url, seed):
    """No batch is under way, so none fails."""
    with Bridge(proxy.url, seed) as bridge:
        bridge.send(0)
        proxy.cut()
        bridge.send(1)
        proxy.cut()
    bridge.verify(direct_url, batches=[0, 1])


@pytest.mark.parametrize("cut", Cut)
def test_the_callers_own_commit_is_cut(proxy, direct_url, seed, cut):
    """The caller gets an error of the lost link. The receiver looks up the batch's outcome before it judges the
    resend."""
    with Bridge(proxy.url, seed, joins=True) as bridge:
        bridge.send(0)
        proxy.arm(cut)
        with pytest.raises(OperationalError):
            bridge.send(1)
        assert not proxy.armed
        was_committed = cut is not Cut.BEFORE_COMMIT
        assert (bridge.send(1) == ALL_DUPLICATES) == was_committed
        bridge.send(2)
    bridge.verify(direct_url, batches=[0, 1, 1, 2] if was_committed else [0, 1, 2])


def test_the_figures_are_asked_for_before_a_late_commit(proxy, direct_url, seed):
    """A commit that may still arrive doesn't count as failed."""
    with Bridge(proxy.url, seed, joins=True) as bridge:
        bridge.send(0)
        proxy.arm(Cut.LATE_COMMIT)
        with pytest.raises(OperationalError):
            bridge.send(1)
        status = bridge.orders.status()
        assert (status.batches_committed, status.batches_rolled_back) == (1, 0)
        assert bridge.send(1) == ALL_DUPLICATES
        status = bridge.orders.status()
        assert (status.batches_committed, status.batches_rolled_back) == (3, 0)
    bridge.verify(direct_url, batches=[0, 1, 1])


@pytest.mark.costly
@pytest.mark.scaled
@pytest.mark.parametrize("joins", [False, True], ids=["own-transaction", "joined"])
def test_the_server_is_killed_and_restarted(seed, campaign, joins):
    """It is killed at random moments, under a worker that sends failed batches again."""
    chosen = random.Random(seed)
    with mortal_server() as server:
        journal.make(server.url)
        job = Job(
            url=server.url,
            seed=seed,
            stream=0,
            count=20 * campaign.restarts * BATCH_SIZE,
            batch_size=BATCH_SIZE,
            policy=POLICY,
            joins=joins,
        )
        with working(job) as worker:
            worker.listen(until="opened")
            for _ in range(campaign.restarts):
                worker.listen(at_most=chosen.randrange(20))
                server.kill()
                time.sleep(chosen.uniform(0, 0.2))
                server.start()
            worker.listen()
            assert worker.is_done, worker.heard[-3:]
        failures = [report.said for report in worker.heard if report.event == "failed"]
        print(f"{len(failures)} failures: {set(failures)}")
        assert_sound(server.url)
        receipts = stream_of(seed, 0, job.count)
        took_effect = journal.verify(server.url, {0: receipts}, POLICY)
        assert took_effect.keys() == {id_ for id_, _, _ in receipts}
        assert set(Counter(took_effect.values())) == {1}
        survived({"kills of the server": campaign.restarts}, len(took_effect))
