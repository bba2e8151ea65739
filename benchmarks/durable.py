"""The durable receiver on SQLite and PostgreSQL, against their drivers, which only write and read the same rows.

Times are wall-clock times, since much of them is spent waiting for a disk or a server.

Where the time goes (2 cores, 25 GB; docs/performance.md has the results):

`durable-sqlite-1`, `durable-postgresql-1` depend on the disk. On SQLite a batch of one also takes about 45 us of processor
time, and 25 in the anchor. The difference is the lock, the domain's row, the decision and the counters. If a sync takes
20 us, the ratio is below 0.5. On PostgreSQL the anchor and ours both ask the server three times. Ours begins and locks,
records, and commits. The client takes 370 us of processor time for ours and 200 for the anchor. If a commit takes 2 ms
(`durable-postgresql-disk-1`), a batch takes 3.0 ms in all, and 2.5 in the anchor.

`durable-*-recorded`: a batch of 100 takes about 1,700 us, and its recording about 80 more. A tenth of the receipts' bytes
is left after compression, so the row is small. The 80 us are:

    packing the receipts, with 10 us of compression: 30
    writing the row in the batch's transaction (on PostgreSQL in one request with the domain's new state): 50

A thread makes the files, at 1.3 us of processor time a receipt. If no core is free for it, the ratios are 0.85 to 0.9.

`durable-postgresql-1000`: a receipt takes 5.6 us. About 2.9 us decide, 2.4 us append, 0.5 us delete, 0.3 us vacuum. We
tried to make COPY's text ourselves, by columns. That saves the client 0.4 us, and costs the server 0.3 us. The server waits
while we decide, and we wait while it appends. Sending rows during the batch would overlap both.

`durable-*-scattered`: only deciding takes longer, by half. An old id that its source still holds is noted under its
receipt, and forgotten when that receipt leaves. The deleted rows still lie in about a hundred runs for each 6,000 rows.

`durable-*-reopen` replays every row through the detector, which takes as long as fetching the row. PostgreSQL sends rows
while the detector works. The rest is mostly the new table of a million ids. We tried three more ways:

- Pausing the garbage collector: gains nothing, since it has no objects left to look at.
- Entering new ids by the block rather than one by one: gains less than a tenth, and states a rule twice. Writing out the
  common case of `replay` stated it twice too.
- Arrays made by the server: costs the server more than it saves the client.

The first batch can't begin before the old rows have been read: an id is new only if no row has it, and nearly all
receipts are new. An index of ids, with another that counts a source's later ids, could answer instead. But then each batch
would write to random pages, for ever, to save seconds after a crash. A digest of all ids, 8 bytes each, could be read
first. To be exact, each id that the digest may hold would have to wait for the rows. But senders resend after a crash,
and their receipts consist of such ids.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from tempfile import TemporaryDirectory

from benchmarks.orders import Orders, Rows, in_batches, open_receiver, receive, scaled, steady_orders
from benchmarks.pairing import Comparison, Goal, by_turns, seconds
from benchmarks.stores import SQLITE, Database, Raw, RawRow, on_a_disk, postgres, raw_rows
from receiver import Receiver, Recording

# Each source's window, for 10 k, 100 k and 1 M live ids in all.
_SMALL, _USUAL, _LARGE = 200, 2_000, 20_000
_TURNS = 7
_RECORDED_BYTES = 88
"""About how many bytes a receipt takes in a recording while it is written."""


def durable(scale: float) -> Iterator[Comparison]:
    with postgres() as server:
        for database in (SQLITE, server):
            yield from _speed(database, scale)
        yield from _one_by_one(on_a_disk(server), scale)
        for database in (SQLITE, server):
            for batch_size in (1_000, 100):
                yield _recorded(database, batch_size, scale)
        for database in (SQLITE, server):
            yield from _many_ids(database, scale)
        for database in (SQLITE, server):
            yield from _space(database, scale)


def _wall_seconds(run: Callable[[], object]) -> float:
    return seconds(run, time.perf_counter)


def _append(raw: Raw, rows: list[RawRow], batch_size: int) -> None:
    if batch_size == 1:
        for row in rows:
            raw.append_one(row)
    else:
        for batch_rows in in_batches(rows, batch_size):
            raw.append(batch_rows)


def _speed(database: Database, scale: float) -> Iterator[Comparison]:
    by_thousands, by_ones = Goal(0.5, aim=0.6), Goal(0.7 if database is SQLITE else 0.5, aim=0.8)
    window, turns = scaled(_USUAL, scale), scaled(_TURNS, scale, least=1)
    many, few = scaled(50_000, scale), scaled(3_000, scale)
    with database.new_url() as url, steady_orders(url, window, turns * (many + few)) as orders:
        yield _written(database, orders, turns=turns, count=many, batch_size=1_000, goal=by_thousands)
        yield _written(database, orders, turns=turns, count=few, batch_size=1, goal=by_ones)
    # A short expiry: the windows decide what is forgotten. Sources differ, so forgotten rows lie scattered among the oldest.
    with database.new_url() as url, steady_orders(url, window, turns * many, expiry_share=0.1) as orders:
        yield _written(
            database, orders, turns=turns, count=many, batch_size=1_000, goal=by_thousands, name="-scattered"
        )


def _one_by_one(database: Database, scale: float) -> Iterator[Comparison]:
    turns, few = scaled(_TURNS, scale, least=1), scaled(3_000, scale)
    with database.new_url() as url, steady_orders(url, scaled(_USUAL, scale), turns * few) as orders:
        yield _written(database, orders, turns=turns, count=few, batch_size=1, goal=Goal(0.95, aim=1.0))


def _written(
    database: Database, orders: Orders, *, turns: int, count: int, batch_size: int, goal: Goal, name: str = ""
) -> Comparison:
    """Receipts recorded by a receiver, against the same rows written to a new table by the driver."""
    rows = [orders.take(count) for _ in range(turns)]
    our_turns, anchor_turns = iter(rows), iter(rows)
    return by_turns(
        lambda: _our_rate(orders, next(our_turns), batch_size),
        lambda: _raw_rate(database, next(anchor_turns), batch_size),
        turns=turns,
        name=f"durable-{database.key}-{batch_size}{name}",
        work=f"{database.name}, batches of {batch_size:,}: {count:,} receipts, {orders}",
        unit="receipts/s",
        anchor_name=f"{'insert' if batch_size == 1 else database.bulk} and commit",
        goal=goal,
    )


def _recorded(database: Database, batch_size: int, scale: float) -> Comparison:
    """A receiver that records what it receives, against one that doesn't; about one file is finished in each turn."""
    window, turns, count = scaled(_USUAL, scale), scaled(_TURNS, scale, least=1), scaled(50_000, scale)
    more = turns * count
    with database.new_url() as url, database.new_url() as plain_url, TemporaryDirectory() as folder:
        record = Recording(folder, rotate_bytes=count * _RECORDED_BYTES)
        with (
            steady_orders(url, window, more, record=record) as recorded,
            steady_orders(plain_url, window, more) as plain,
        ):
            return by_turns(
                lambda: _our_rate(recorded, recorded.take(count), batch_size),
                lambda: _our_rate(plain, plain.take(count), batch_size),
                turns=turns,
                name=f"durable-{database.key}-{batch_size}-recorded",
                work=f"{database.name}, batches of {batch_size:,}, recorded: {count:,} receipts, {recorded}",
                unit="receipts/s",
                anchor_name="the same without a recording",
                goal=Goal(0.95, aim=0.98),
            )


def _our_rate(orders: Orders, rows: Rows, batch_size: int) -> float:
    return len(rows) / _wall_seconds(lambda: receive(orders.receiver, rows, batch_size))


def _raw_rate(database: Database, rows: Rows, batch_size: int) -> float:
    ready = raw_rows(rows)
    with database.new_table() as raw:
        return len(rows) / _wall_seconds(lambda: _append(raw, ready, batch_size))


def _many_ids(database: Database, scale: float) -> Iterator[Comparison]:
    turns, count = scaled(_TURNS, scale, least=1), scaled(20_000, scale)
    with database.new_url() as large_url, database.new_url() as small_url:
        with (
            steady_orders(large_url, scaled(_LARGE, scale), turns * count) as large,
            steady_orders(small_url, scaled(_SMALL, scale), turns * count) as small,
        ):
            yield _costs(database, large, small, count, turns)
            live = str(large)
        yield _reopened(database, large_url, live, scale)


def _costs(database: Database, large: Orders, small: Orders, count: int, turns: int) -> Comparison:
    """A receipt's cost with many live ids against its cost with few."""

    def cost(orders: Orders) -> float:
        rows = orders.take(count)
        return _wall_seconds(lambda: receive(orders.receiver, rows, 1_000)) / count * 1_000_000

    return by_turns(
        lambda: cost(large),
        lambda: cost(small),
        turns=turns,
        name=f"durable-{database.key}-growth",
        work=f"{database.name}, batches of 1,000: {count:,} receipts, {large}",
        unit="us/receipt",
        anchor_name=str(small),
        goal=Goal(1.5, aim=1.2, at_most=True),
    )


def _reopened(database: Database, url: str, live: str, scale: float) -> Comparison:
    """Opening a receiver until it can decide, against fetching the rows that it must read."""

    def ours() -> float:
        opened: list[Receiver] = []
        took = _wall_seconds(lambda: opened.append(open_receiver(url, scaled(_LARGE, scale))))
        opened.pop().close()
        return took

    def anchor() -> float:
        fetched: list[list[RawRow]] = []
        with closing(database.raw(url)) as raw:
            return _wall_seconds(lambda: fetched.append(raw.fetch()))

    return by_turns(
        ours,
        anchor,
        turns=scaled(3, scale, least=1),
        name=f"durable-{database.key}-reopen",
        work=f"{database.name}, reopened: {live}",
        unit="s",
        anchor_name="select and fetch of the rows",
        goal=Goal(2.5, aim=2, at_most=True),
    )


def _space(database: Database, scale: float) -> Iterator[Comparison]:
    """A store's size after many receipts, against the size of a new store that has only its live rows."""
    count, window = scaled(10_000_000, scale), scaled(_SMALL, scale)
    with database.new_url() as used_url, database.new_url() as new_url:
        with steady_orders(used_url, window, count) as orders:
            while rows := orders.take(10_000):
                receive(orders.receiver, rows, 1_000)
            live = str(orders)
            while_open = _megabytes(database, used_url)
        with closing(database.raw(used_url)) as raw:
            raw.settle()
        closed = _megabytes(database, used_url)
        open_receiver(new_url, window).close()  # so that the tables exist
        with closing(database.raw(used_url)) as used, closing(database.raw(new_url)) as new:
            new.append([(1, *row) for row in used.fetch()])
        needed = _megabytes(database, new_url)

    for state, size, goal in (("closed", closed, Goal(2, aim=1.5, at_most=True)), ("open", while_open, None)):
        yield Comparison(
            name=f"durable-{database.key}-space-{state}",
            work=f"{database.name}, size while {state}, after {count:,} receipts in batches of 1,000: {live}",
            unit="MB",
            anchor_name="a new store with the live rows alone",
            our_figures=[size],
            anchor_figures=[needed],
            goal=goal,
        )


def _megabytes(database: Database, url: str) -> float:
    with closing(database.raw(url)) as raw:
        return raw.size_bytes() / 1_000_000
