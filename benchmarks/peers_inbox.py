"""A receiver in an application's own loop, against the usual inbox: a table whose key is the id, filled with ON
CONFLICT.

Packages such as sqlalchemy-inbox fill such a table for each message, in the transaction of its rows. We wrote ours by
hand: sqlalchemy-inbox is for asyncio alone, and python-cqrs needs another version of SQLAlchemy than we do. A kill
makes neither side lose or double a row: id and row are committed together, before the message is acknowledged.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from sqlalchemy import Connection, Engine, create_engine, text

from benchmarks.bridging import BATCH
from benchmarks.orders import in_batches, scaled
from benchmarks.pairing import Comparison, Goal, by_turns
from benchmarks.peers_effects import COUNT, INSERT, TABLES
from benchmarks.stores import Database
from receiver import Receiver

_TURNS = 5
_MESSAGES = 20_000
_ONE_BY_ONE = 4_000
_SENT_TWICE = 50
"""One message in so many is sent twice."""
_LATER = 10
BODY = "x" * 200
_CLAIM = text("INSERT INTO claimed (id) VALUES (:id) ON CONFLICT DO NOTHING RETURNING id")
_CLAIM_MANY = text("INSERT INTO claimed (id) SELECT unnest(CAST(:ids AS text[])) ON CONFLICT DO NOTHING RETURNING id")


def resent(count: int) -> list[str]:
    """The ids of `count` messages, as they are sent: one in 50 comes again, a few messages later."""
    ids = []
    for number in range(count):
        ids.append(f"{number}:gateway{number % 50:02d}.example.com:1234:567890")
        if number % _SENT_TWICE == _SENT_TWICE - 1:
            ids.append(ids[-_LATER])
    return ids


def inbox(database: Database, scale: float) -> Iterator[Comparison]:
    ways: list[tuple[str, int, int, Callable[[Connection, Sequence[str]], None], Goal | None]] = [
        ("peers-inbox-batch", _MESSAGES, BATCH, _claim_each, Goal(3, aim=5)),
        ("peers-inbox-batch-by-hand", _MESSAGES, BATCH, _claim_together, None),
        ("peers-inbox-1", _ONE_BY_ONE, 1, _claim_each, Goal(3, aim=5)),
    ]
    for name, messages, batch_size, claim, goal in ways:
        ids = resent(scaled(messages, scale))
        with _engine(database) as engine:
            yield by_turns(
                lambda: _our_rate(engine, ids, batch_size),  # noqa: B023 - each is called before the next is made
                lambda: _their_rate(engine, ids, batch_size, claim),  # noqa: B023
                turns=scaled(_TURNS, scale, least=1),
                name=name,
                work=f"{len(ids):,} messages of {len(BODY)} bytes into a table, {batch_size:,} in a transaction",
                unit="messages/s",
                anchor_name="ON CONFLICT DO NOTHING, "
                + ("by one statement" if claim is _claim_together else "for each"),
                goal=goal,
            )


@contextmanager
def _engine(database: Database) -> Iterator[Engine]:
    with database.new_url() as url:
        engine = create_engine(url)
        with engine.begin() as connection:
            for table in TABLES:
                connection.execute(text(table))
        yield engine
        engine.dispose()


def _our_rate(engine: Engine, ids: Sequence[str], batch_size: int) -> float:
    url = engine.url.render_as_string(hide_password=False)
    with Receiver.open(url, connection_id=f"peers-{time.time_ns()}", destination="orders") as receiver:

        def take(batch_ids: Sequence[str]) -> None:
            with receiver.batch() as batch:
                new = [id_ for id_ in batch_ids if batch.receive(id_, None).deliver]
                _write(batch.connection, new)

        return _rate(engine, ids, batch_size, take)


def _their_rate(
    engine: Engine, ids: Sequence[str], batch_size: int, claim: Callable[[Connection, Sequence[str]], None]
) -> float:
    with engine.connect() as connection:

        def take(batch_ids: Sequence[str]) -> None:
            with connection.begin():
                claim(connection, batch_ids)

        return _rate(engine, ids, batch_size, take)


def _claim_each(connection: Connection, ids: Sequence[str]) -> None:
    _write(connection, [id_ for id_ in ids if connection.execute(_CLAIM, {"id": id_}).first() is not None])


def _claim_together(connection: Connection, ids: Sequence[str]) -> None:
    _write(connection, connection.scalars(_CLAIM_MANY, {"ids": list(ids)}).all())


def _write(connection: Connection, ids: Sequence[str]) -> None:
    if ids:
        connection.execute(INSERT, [{"id": id_, "body": BODY} for id_ in ids])


def _rate(engine: Engine, ids: Sequence[str], batch_size: int, take: Callable[[Sequence[str]], None]) -> float:
    with engine.begin() as connection:
        connection.execute(text("TRUNCATE effect, claimed"))
    start = time.perf_counter()
    for batch_ids in in_batches(ids, batch_size):
        take(batch_ids)
    took = time.perf_counter() - start
    with engine.connect() as connection:
        seen = connection.execute(text(COUNT)).one()
    if tuple(seen) != (len(set(ids)), len(set(ids))):
        raise AssertionError(f"{seen[0]} rows of {seen[1]} messages, not one of each of {len(set(ids))}")
    return len(ids) / took
