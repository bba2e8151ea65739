"""Interrupts at each point of a batch at which Python allows one. Ctrl-C is one, and so is a signal handler that
raises."""

import gc
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Self

import pytest
from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError

from receiver import closing, detector, recording
from receiver.closing import Mutex
from receiver.durable import batch, concurrent, session
from receiver.durable.audit import audit
from receiver.durable.holds import Hold, hold, release
from receiver.errors import StoreBusyError, StoreError
from receiver.policies import cmq
from receiver.senders import SequenceIdMaker
from receiver.settings import StoreSettings
from receiver.store import connections, log, sql_rows
from receiver.store.databases import sqlite, sqlite_file
from receiver.store.sql_rows import driver_of
from tests.durable.opened import DUPLICATE, NEW, opened, remembered, send, undone
from tests.stores import engine_of, execute

FILES = {
    module.__file__
    for module in (batch, closing, concurrent, session, connections, log, recording, sql_rows, sqlite, sqlite_file)
}
pytestmark = pytest.mark.filterwarnings("ignore:unclosed database:ResourceWarning")
ENDS = {batch.Batch.__exit__.__code__, concurrent.ConcurrentBatch.__exit__.__code__}


@pytest.fixture(autouse=True)
def collected():
    """Nobody can close a connection whose opening was interrupted. It is closed when it is collected, and Python
    3.13 warns of that."""
    yield
    gc.collect()


class Interrupt:
    """An interrupt at the `at`-th point. A point is where a function of ours begins, or where a C function that ours
    has called ends."""

    def __init__(self, at: int, kind: type[BaseException] = KeyboardInterrupt, files: Collection[str] = FILES) -> None:
        self.left = at
        self.kind = kind
        self.files = files
        self.has_come = False

    def __enter__(self) -> Self:
        sys.setprofile(self._watch)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _watch(self, frame, event, _of):
        is_point = event in {"call", "c_return"}
        if frame.f_code.co_filename == threading.__file__:  # a Condition, which is written in Python
            frame = frame.f_back
        # If `__exit__` itself is interrupted as it begins, nobody can know of it: that is Python's fault.
        if is_point and frame.f_code.co_filename in self.files and (event != "call" or frame.f_code not in ENDS):
            self.left -= 1
            if not self.left:
                sys.setprofile(None)
                self.has_come = True
                raise self.kind


class TimeLimitError(Exception):
    """Raised by a signal's handler, as Celery's SoftTimeLimitExceeded and RQ's JobTimeoutException are."""


def book(receiver, *ids):
    with receiver.batch() as batch:
        for id_ in ids:
            if batch.receive(id_).deliver:
                batch.connection.execute(text("INSERT INTO booked VALUES (:id)"), {"id": id_})


@pytest.mark.parametrize(
    ("is_concurrent", "kind"), [(False, KeyboardInterrupt), (True, KeyboardInterrupt), (True, TimeLimitError)]
)
def test_an_interrupt_anywhere_loses_and_doubles_nothing_and_lets_go_of_the_domain(store_url, is_concurrent, kind):
    if is_concurrent and not store_url.startswith("postgresql"):
        pytest.skip("concurrent receivers are for PostgreSQL")
    execute(store_url, "CREATE TABLE booked (id TEXT)")
    point, ids = 0, []
    with opened(store_url, patience_secs=0.3, concurrent=is_concurrent) as receiver:
        while True:
            point += 1
            ids += [f"{point}-a", f"{point}-b"]
            with Interrupt(point, kind) as interrupt, suppress(kind, StoreError):
                book(receiver, *ids[-2:])
            assert is_concurrent or not receiver.session.turn.locked()  # else the folding thread may have it
            book(receiver, *ids[-2:])
            if not interrupt.has_come:
                break
        gc.collect()  # while there is a pool that takes back, and closes, what interrupted batches leave
    assert point > 20
    assert audit(store_url).findings == ()
    with engine_of(store_url).connect() as connection:
        assert Counter(connection.scalars(text("SELECT id FROM booked"))) == Counter(ids)


@pytest.mark.parametrize("is_concurrent", [False, True])
def test_a_time_limit_anywhere_in_a_joined_batch_keeps_no_id_though_its_caller_commits(
    fresh_postgres_url, is_concurrent
):
    point = 0
    with opened(fresh_postgres_url, concurrent=is_concurrent) as receiver:
        while True:
            point += 1
            interrupt = Interrupt(
                point, TimeLimitError, {module.__file__ for module in (batch, concurrent, log, session)}
            )
            begun = engine_of(fresh_postgres_url).begin()
            with suppress(SQLAlchemyError), begun as connection, suppress(TimeLimitError), interrupt:
                send(receiver, f"{point}", connection=connection)
            if not interrupt.has_come:
                break
            assert send(receiver, f"{point}") == [NEW]
    assert point > 20


@pytest.mark.parametrize("is_caught_inside", [False, True])
def test_a_time_limit_halfway_through_a_repeat_forgets_no_id(sqlite_url, is_caught_inside):
    inside, outside = (TimeLimitError, ()) if is_caught_inside else ((), TimeLimitError)
    point = 0
    while True:
        point += 1
        known = f"{point}-a"
        with opened(sqlite_url) as receiver:
            send(receiver, known, f"{point}-b")
            interrupt = Interrupt(point, TimeLimitError, {detector.__file__})
            with suppress(outside, StoreError), receiver.batch() as batch, suppress(inside), interrupt:
                batch.receive(known, received_at_us=0)
            send(receiver, f"{point}-c")
        assert remembered(sqlite_url, known) == [known]
        if not interrupt.has_come:
            break
    assert point > 20


def test_a_time_limit_halfway_through_an_advance_keeps_no_id_that_the_store_forgets(sqlite_url):
    point = 0
    while True:
        point += 1
        options = {"domain": f"name:{point}", "policy": "cmq:retry=0,network=0"}
        with opened(sqlite_url, **options) as receiver:
            send(receiver, "a")
            interrupt = Interrupt(point, TimeLimitError, {cmq.__file__})
            with suppress(StoreError), receiver.batch() as batch:
                with suppress(TimeLimitError), interrupt:
                    batch.advance(min_msg_time_us=1)
                batch.receive("b", received_at_us=1)
            verdicts = undone(receiver, "a", "b")
        with opened(sqlite_url, **options) as receiver:
            assert undone(receiver, "a", "b") == verdicts
        if not interrupt.has_come:
            break
    assert point > 5


def test_an_interrupt_anywhere_of_status_lets_go_of_the_receiver(store_url):
    point = 0
    with opened(store_url, patience_secs=0.3) as receiver, engine_of(store_url).connect() as connection:
        while True:
            point += 1
            with receiver.batch(connection) as joined:  # `status` looks up its outcome
                joined.receive(f"{point}-a")
            connection.commit()
            with Interrupt(point) as interrupt, suppress(KeyboardInterrupt):
                receiver.status()
            assert send(receiver, f"{point}-a", f"{point}-b") == [DUPLICATE, NEW]
            if not interrupt.has_come:
                break
    assert point > 10


def test_an_interrupt_anywhere_while_a_transaction_has_the_domain_leaves_nothing_locked(store_url):
    point = 0
    with (
        opened(store_url, patience_secs=0) as receiver,
        engine_of(store_url).connect() as connection,
        ThreadPoolExecutor(1) as pool,
    ):
        pool.submit(send, receiver, "a", connection=connection).result()
        domain = receiver.session
        held = Hold(domain.lock, object, threading.current_thread(), domain.store_id)
        hold(held)
        try:
            while True:
                point += 1
                with Interrupt(point) as interrupt, suppress(KeyboardInterrupt, StoreBusyError):
                    domain.acquire_for(held)
                assert not domain.turn.locked()
                assert not domain._thread_lock.locked()
                if not interrupt.has_come:
                    break
        finally:
            release(held)
        connection.rollback()
        assert send(receiver, "a") == [NEW]
    assert point > 20


@pytest.mark.parametrize("joins", [False, True])
def test_an_interrupt_as_a_concurrent_batch_begins_leaves_its_connection_to_others(
    fresh_postgres_url, monkeypatch, joins
):
    """Also once the connection is back in its pool."""

    @contextmanager
    def interrupted(_address):
        yield
        raise KeyboardInterrupt

    with opened(fresh_postgres_url, concurrent=True) as receiver, engine_of(fresh_postgres_url).connect() as callers:
        connection = callers if joins else None
        with monkeypatch.context() as patched, suppress(KeyboardInterrupt):
            patched.setattr(concurrent, "translated", interrupted)
            receiver.batch(connection).__enter__()
        gc.collect()
        assert send(receiver, "a", connection=connection) == [NEW]


def test_an_interrupt_anywhere_gives_no_number_twice_and_lets_go_of_the_store(sqlite_url):
    numbers, point = [], 0
    with SequenceIdMaker.open(
        sqlite_url, message_source_id="m", store_settings=StoreSettings(lock_timeout_secs=0.3)
    ) as maker:
        while True:
            point += 1
            with Interrupt(point) as interrupt, suppress(KeyboardInterrupt):
                numbers.append(maker.next())
            numbers.append(maker.next())
            if not interrupt.has_come:
                break
    assert point > 10
    assert len(set(numbers)) == len(numbers)


def test_an_interrupt_anywhere_leaves_a_recording_to_other_threads(sqlite_url, tmp_path):
    point = 0
    with opened(sqlite_url, patience_secs=0.3, record=tmp_path) as receiver:
        recorder = receiver.session.recorder
        while True:
            point += 1
            with Interrupt(point) as interrupt, suppress(KeyboardInterrupt):
                send(receiver, str(point))
            other = threading.Thread(target=recorder.packed, args=((), ()), daemon=True)
            other.start()
            other.join(5)
            if is_kept := other.is_alive():
                recorder._changed.release()  # otherwise nothing would end
            assert not is_kept
            if not interrupt.has_come:
                break
    assert point > 20


def test_a_mutex_is_the_lock_that_gevent_has_put_there():
    patched = "import threading; threading.RLock = threading._PyRLock"
    proof = "from receiver.closing import Mutex; assert issubclass(Mutex, threading._PyRLock)"
    subprocess.run([sys.executable, "-c", f"{patched}; {proof}"], check=True)


def test_a_signal_that_raises_leaves_no_mutex_locked():
    def interrupt(*_):
        raise KeyboardInterrupt

    mutex = Mutex()
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for _ in range(100):
            with suppress(KeyboardInterrupt):
                signal.setitimer(signal.ITIMER_REAL, 0.001)
                while True:
                    with mutex:
                        pass
            assert not mutex._is_owned()
    finally:
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("where", ["exclusive batch", "concurrent batch", "between batches"])
def test_an_interrupt_that_has_left_the_driver_locked(fresh_postgres_url, where):
    def interrupted():
        is_between = where == "between batches"
        with (
            suppress(KeyboardInterrupt),
            receiver.session._between_batches() if is_between else receiver.batch() as has,
        ):
            if is_between:
                has.begin_reading()
            locks.append(driver_of(has.connection).lock)
            locks[0].acquire()
            raise KeyboardInterrupt

    locks = []

    with opened(fresh_postgres_url, patience_secs=0.3, concurrent=where == "concurrent batch") as receiver:
        thread = threading.Thread(target=interrupted, daemon=True)
        thread.start()
        thread.join(10)
        if is_kept := thread.is_alive():
            locks[0].release()  # otherwise nothing would end
        assert not is_kept
        assert send(receiver, "a") == [NEW]
