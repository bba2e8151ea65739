"""A receiver's recording has the receiver's own verdicts: a window that is sized from it fits."""

import asyncio
import json
import random
import subprocess
import sys
from collections import Counter
from contextlib import suppress

import pytest
from pyarrow import parquet
from sqlalchemy import NullPool, create_engine, text

from receiver import Receipt, Recording, recording
from receiver.errors import OutputError, SettingsError
from receiver.logs import ReadOptions, read_logs
from tests.durable.async_opened import orders_and_engine, run
from tests.durable.async_opened import send as async_send
from tests.durable.opened import MEMORY, opened, send, sizes, undone
from tests.durable.stream import stream_of
from tests.stores import engine_of

WINDOW, EXPIRY_US = 20, 50_000


def ids(path) -> list[str]:
    return [id_ for batch in read_logs([str(path)], ReadOptions()) for id_ in batch.unique_message_id.tolist()]


def simulated(path) -> dict:
    command = [sys.executable, "-m", "receiver", "simulate", str(path), "--json"]
    command += ["--window", str(WINDOW), "--expiry", str(EXPIRY_US / 1_000_000)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


@pytest.mark.costly
@pytest.mark.thinned(2)
def test_simulate_finds_what_the_receiver_found(store_url, tmp_path, seed):
    rng = random.Random(seed)
    receipts = stream_of(seed, 0, 3_000)
    receipts[100:100] = [(None, "source-1", receipts[99][2]), ("back in time", "source-1", 0)]
    folder = tmp_path / "receipts"
    folder.mkdir()
    with opened(store_url, settings=sizes(WINDOW, EXPIRY_US), record=folder) as orders:
        while receipts:
            count = rng.randint(1, 300)
            undone(orders, *(id_ for id_, _, _ in receipts[:count]))
            with orders.batch() as batch:
                batch.receive_many(receipts[:count])
            del receipts[:count]
        status = orders.status()
    analysis = simulated(folder)
    assert [domain["domain"] for domain in analysis["domains"]] == [orders.domain]
    assert analysis["log"]["receipts"] == status.rx
    assert (analysis["log"]["unchecked"], analysis["log"]["clock_clamped"]) == (status.unchecked, status.clock_clamped)
    assert analysis["settings"][0]["caught"] == status.rDupsDet > 100
    assert (orders.figures().recorded, orders.figures().record_dropped) == (status.rx, 0)


def test_only_what_was_committed_is_recorded(store_url, tmp_path):
    engine = create_engine(store_url, poolclass=NullPool)
    with opened(store_url, record=Recording(tmp_path / "receipts.parquet")) as orders:
        send(orders, "a")
        undone(orders, "b")
        for id_, end in [("c", "commit"), ("d", "rollback"), ("e", "commit")]:
            with engine.connect() as connection, connection.begin() as transaction:
                send(orders, id_, connection=connection)
                undone(orders, f"undone in {id_}", connection=connection)
                getattr(transaction, end)()
        send(orders, None, "f", "a")
    assert ids(tmp_path / "receipts.parquet") == ["a", "c", "e", "", "f", "a"]
    assert orders.figures().recorded == 6


@pytest.mark.parametrize("joins", [False, True], ids=["own", "joined"])
def test_cancelled_tasks(url, driver, joins, tmp_path):
    """A batch's receipts are recorded exactly if the batch is committed."""
    folder = tmp_path / "receipts"
    folder.mkdir()

    async def main():
        async with orders_and_engine(url, driver, record=folder) as (orders, engine):
            for turns in range(20):

                async def take(id_=f"{turns}"):
                    async with engine.connect() as connection:
                        await async_send(orders, id_, connection=connection if joins else None)
                        await connection.commit()

                task = asyncio.create_task(take())
                for _ in range(3 * turns):
                    await asyncio.sleep(0)
                if turns % 4 == 3:
                    await asyncio.sleep(turns / 10_000)
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
            await async_send(orders, "last")

    run(main())
    with engine_of(url).connect() as connection:
        query = text("SELECT unique_message_id FROM receiver_receipt ORDER BY seq")
        committed = [bytes(id_).decode() for id_ in connection.execute(query).scalars()]
    assert ids(folder) == committed


def test_what_is_rolled_back_takes_no_room_from_what_is_committed(store_url, tmp_path, monkeypatch):
    """Many times, as much as may wait in the store was packed and never committed."""
    monkeypatch.setattr(recording, "_LEAST_LIMIT_BYTES", 0)
    engine = create_engine(store_url, poolclass=NullPool)
    with opened(store_url, record=Recording(tmp_path / "r.parquet", rotate_bytes=1_000)) as orders:
        for number in range(100):
            with engine.connect() as connection:
                send(orders, "x" * 200, connection=connection)
            if number % 10 == 9:
                orders.session.recorder.flush()
        send(orders, "a")
    assert ids(tmp_path / "r.parquet") == ["a"]
    assert orders.figures().record_dropped == 0


def test_the_last_joined_batch_is_recorded_when_the_receiver_is_closed(store_url, tmp_path):
    engine = create_engine(store_url, poolclass=NullPool)
    with opened(store_url, record=tmp_path / "receipts.jsonl.zst") as orders, engine.begin() as connection:
        send(orders, "a", connection=connection)
    assert ids(tmp_path / "receipts.jsonl.zst") == ["a"]


def test_receipts_are_recorded_as_they_came(tmp_path):
    with opened(MEMORY, record=tmp_path) as orders, orders.batch() as batch:
        batch.receive("a", "s", received_at_us=7)
        batch.receive("a", None, received_at_us=5, redelivered=True, jms_timestamp_ms=3, body_digest="x")
    (recorded,) = read_logs([str(tmp_path)], ReadOptions())
    assert recorded.received_at_us.tolist() == [7, 5]
    assert recorded.message_source_id.tolist() == ["s", ""]
    assert recorded.jms_redelivered.tolist() == [False, True]
    assert recorded.jms_timestamp_ms.tolist() == [0, 3]
    assert recorded.body_digest.tolist() == ["", "x"]


def test_what_cannot_be_recorded_is_counted_and_harms_nothing(tmp_path):
    with opened(MEMORY, record=tmp_path) as orders:
        send(orders, "a", "\ud800", "b")
    assert (orders.figures().recorded, orders.figures().record_dropped, orders.figures().rx) == (2, 1, 3)


@pytest.mark.parametrize(("name", "error"), [("missing/", OutputError), ("receipts.csv", SettingsError)])
def test_a_path_that_cannot_be_recorded_to_opens_nothing(sqlite_url, tmp_path, name, error):
    with pytest.raises(error, match="can't record to"):
        opened(sqlite_url, record=tmp_path / name if not name.endswith("/") else f"{tmp_path / name}/")
    with opened(sqlite_url) as orders:
        send(orders, "a")
    assert Counter(path.suffix for path in tmp_path.iterdir())[".zst"] == 0


def test_all_that_a_receipt_says_is_recorded(store_url, tmp_path):
    said = [
        Receipt("", None, 6),
        Receipt("a", "s", 7),
        Receipt("", "s", 7),
        Receipt("b", None, 7, redelivered=True),
        Receipt("c", None, 7, jms_timestamp_ms=5),
        Receipt("d", None, 7, body_digest="x"),
        Receipt("e", None, 1),
    ]
    with opened(store_url, record=tmp_path / "receipts.parquet") as orders, orders.batch() as batch:
        batch.receive_many(said)
    (file,) = tmp_path.glob("receipts*.parquet")
    recorded = [
        Receipt(
            row["unique_message_id"],
            row["message_source_id"],
            row["received_at"].microsecond,
            row["jms_redelivered"],
            row["jms_timestamp"],
            row["body_digest"],
        )
        for row in parquet.read_table(file).to_pylist()
    ]
    assert recorded == said
