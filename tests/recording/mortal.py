"""A process that records its receipts until it is killed: by itself at a step, or from outside.

With each batch it books the batch's number in the same transaction. So the store shows which batches were committed.
"""

import itertools
import os
import random
import signal
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from sqlalchemy import Column, Connection, Integer, MetaData, NullPool, RootTransaction, Table, create_engine, select

from receiver import Receipt, Receiver, Recording
from receiver.logs import rotating
from receiver.logs.columns import SCHEMA
from receiver.recording import Recorder
from receiver.store import recorded
from receiver.store.log import JoinedLog, OwnLog
from receiver.store.recorded import RecordedBatches
from tests.durable.opened import UndoError, opened, sizes
from tests.stores import engine_of

FEW_REMEMBERED = sizes(20, 0)
START_US = 1_795_225_068_711_509
ENDS_SECS = 120
PARTS, BATCHES = 10, 100_000

BOOKED = Table(
    "booked", MetaData(), Column("turn", Integer, primary_key=True, autoincrement=True), Column("batch", Integer)
)

HALF = 0.5
STEPS = {
    "packed": ((Recorder,), "packed", 1),
    "recorded": ((OwnLog, JoinedLog), "record", 1),
    "before the commit": ((OwnLog,), "commit", 0),
    "committed": ((OwnLog,), "commit", 1),
    "before the caller's commit": ((RootTransaction,), "commit", 0),
    "the caller has committed": ((RootTransaction,), "commit", 1),
    "counted": ((Recorder,), "commit", 1),
    "before it is cut": ((RecordedBatches,), "cut", 0),
    "cut": ((RecordedBatches,), "cut", 1),
    "half written": ((rotating,), "open_table", HALF),
    "written": ((Path,), "replace", 0),
    "renamed": ((rotating,), "sync_path", 0),
    "certain": ((rotating,), "sync_path", 1),
    "before it is deleted": ((RecordedBatches,), "_delete", 0),
    "half deleted": ((RecordedBatches,), "_delete", 1),
    "deleted": ((RecordedBatches,), "delete", 1),
}
"""By step: the classes or modules with the function, its name, and how much of it is done before the process dies."""


@dataclass(frozen=True, kw_only=True)
class Life:
    url: str
    path: str
    seed: int
    number: int = 0
    """The number of this life. Each life of a store has another."""
    joins: bool = False
    """Whether batches join transactions of the application."""
    batches: int = 30
    step: str | None = None
    """The step at which it kills itself; None if it is killed from outside or ends well."""
    when: int = 1
    """At which time of coming to the step it does so, counted from 1."""


def receipts_of(seed: int, batch: int) -> list[Receipt]:
    """The receipts of the batch with this number: with repeated ids, missing ids, clocks set back, and bodies."""
    chosen = random.Random(f"{seed} {batch}")  # noqa: S311

    def one(index: int) -> Receipt:
        plain = Receipt(
            chosen.choice((f"{batch}:{index}", f"again {chosen.randrange(20)}")),
            chosen.choice((None, "web", "phone")),
            START_US + batch * 1_000 + index,
        )
        other = {
            "no id": plain._replace(unique_message_id=None),
            "clock": plain._replace(received_at_us=plain.received_at_us - 5_000),
            "more": plain._replace(redelivered=True, jms_timestamp_ms=START_US // 1_000, body_digest="x"),
        }
        return other.get(chosen.choice(("no id", "clock", "more", *"plain")), plain)

    return [one(index) for index in range(chosen.randint(1, 6))]


def live(life: Life) -> None:
    recorded._ROWS_AT_ONCE = 2  # so that deleting a file's batches takes several transactions
    if life.step is not None:
        _die_at(life.step, life.when)
    chosen = random.Random(f"{life.seed} {life.number}")  # noqa: S311
    own = create_engine(life.url, poolclass=NullPool)
    record = Recording(life.path, rotate_bytes=300, keep_files=None)
    with opened(life.url, settings=FEW_REMEMBERED, record=record) as orders:
        first = life.number * BATCHES
        for number in range(first, first + life.batches * PARTS, PARTS):
            if life.joins:
                with suppress(UndoError), own.begin() as connection:
                    for batch in range(number, number + chosen.randint(1, 3)):
                        with suppress(UndoError), connection.begin_nested():
                            _receive(orders, life.seed, batch, connection)
                            _perhaps_undo(chosen)
                    _perhaps_undo(chosen)
            else:
                with suppress(UndoError):
                    _receive(orders, life.seed, number, None, chosen)


def _receive(
    orders: Receiver, seed: int, number: int, connection: Connection | None, chosen: random.Random | None = None
) -> None:
    with orders.batch(connection) as batch:
        batch.receive_many(receipts_of(seed, number))
        batch.connection.execute(BOOKED.insert().values(batch=number))
        if chosen is not None:
            _perhaps_undo(chosen)


def _perhaps_undo(chosen: random.Random) -> None:
    if chosen.random() < 1 / 4:
        raise UndoError


def _die_at(step: str, when: int) -> None:
    owners, name, share = STEPS[step]
    times_left = itertools.count(when - 1, -1)
    for owner in owners:
        setattr(owner, name, _mortal(getattr(owner, name), share, times_left))


def _mortal(real, share, times_left):
    def mortal(*args, **options):
        if next(times_left):
            return real(*args, **options)
        if share == HALF:
            with real(*args, **options) as write:
                write(pa.RecordBatch.from_pylist([], SCHEMA))
                _die()
        elif share:
            real(*args, **options)
        return _die()

    return mortal


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def booked(url: str) -> list[int]:
    """The committed batches, in order."""
    with engine_of(url).connect() as connection:
        return list(connection.execute(select(BOOKED.c.batch).order_by(BOOKED.c.turn)).scalars())
