"""Mistakes in the use of receivers of each kind: the error says what to do, and names nothing internal."""

import asyncio
import copy
import logging
import pickle
from datetime import UTC, datetime

import pytest
from sqlalchemy import create_engine

from receiver import AsyncReceiver, Receipt, Receiver
from receiver.errors import ClosedError, SettingsError
from tests.durable import async_opened
from tests.durable.opened import DUPLICATE, MEMORY, NEW, opened, sizes

NO_RECEIPTS = (
    1,
    None,
    "abc",
    ("a", "s", 0),
    [1],
    [None],
    ["ab"],
    ["abc"],
    [b"abc"],
    [()],
    [("a",)],
    [("a", "s")],
    [("a", "s", 0, False, None, None, None)],
    [{"a", "s", "t"}],
    [{"unique_message_id": "a", "message_source_id": "s", "received_at_us": 0}],
)


@pytest.fixture(params=["memory", "sqlite", "concurrent", "async", "async concurrent"])
def receive_many(request):
    """`receive_many` of an open batch, for each kind of receiver."""
    kind = request.param
    is_concurrent = kind.endswith("concurrent")
    url = request.getfixturevalue("fresh_postgres_url" if is_concurrent else "sqlite_url")
    if not kind.startswith("async"):
        with opened(MEMORY if kind == "memory" else url, concurrent=is_concurrent) as orders, orders.batch() as batch:
            yield batch.receive_many
        return
    with asyncio.Runner() as runner:
        orders = runner.run(async_opened.opened(url, concurrent=is_concurrent))
        batch = runner.run(orders.batch().__aenter__())
        yield lambda given: runner.run(batch.receive_many(given))
        runner.run(batch.__aexit__(None, None, None))
        runner.run(orders.close())


def test_what_is_no_receipt(receive_many):
    for given in NO_RECEIPTS:
        with pytest.raises(SettingsError, match="receive_many takes a list of receipts") as refusal:
            receive_many(given)
        assert "a tuple (unique_message_id, message_source_id, received_at_us)" in refusal.value.hint
    received = receive_many([("a", "s", 0), ["a", "s", 0], Receipt("b", None, 0)])
    assert [decision.verdict for decision in received] == [NEW, DUPLICATE, NEW]


def test_an_error_of_the_programs_own_passes(receive_many):
    def broken():
        yield "a", None, 0
        raise TypeError("of my own")

    with pytest.raises(TypeError, match="of my own"):
        receive_many(broken())


@pytest.mark.parametrize(
    ("wrong", "remedy"),
    [
        ({"unique_message_id": create_engine("sqlite://")}, "str(...) makes text"),
        ({"unique_message_id": b"x"}, ".decode() of bytes"),
        ({"message_source_id": 7}, "str(...) makes text"),
        ({"body_digest": b"x"}, ".decode() of bytes"),
        ({"received_at_us": datetime(2026, 1, 1, tzinfo=UTC)}, "round(TIME.timestamp() * 1_000_000)"),
        ({"received_at_us": 1.7e9}, "time.time_ns() // 1_000"),
        ({"received_at_us": 1_800_000_000_000_000_000}, "time.time_ns() // 1_000"),
        ({"jms_timestamp_ms": datetime(2026, 1, 1, tzinfo=UTC)}, "round(TIME.timestamp() * 1_000)"),
        ({"jms_timestamp_ms": 1_800_000_000_000_000}, "time.time_ns() // 1_000_000"),
    ],
    ids=str,
)
def test_an_argument_of_another_type(wrong, remedy):
    with opened(MEMORY) as orders, orders.batch() as batch:
        with pytest.raises(SettingsError) as refusal:
            batch.receive(**{"unique_message_id": "x"} | wrong)
        assert remedy in refusal.value.hint


USES = {
    "receive": lambda batch: batch.receive("x"),
    "receive_many": lambda batch: batch.receive_many([("x", None, 0)]),
    "connection": lambda batch: batch.connection,
    "advance": lambda batch: batch.advance(min_msg_time_us=0),
}


@pytest.mark.parametrize("use", [*USES.values(), lambda batch: batch.duplicates], ids=[*USES, "duplicates"])
def test_a_batch_that_has_not_begun(use):
    with opened(MEMORY) as orders, pytest.raises(ClosedError, match="use it inside `with receiver"):
        use(orders.batch())


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_a_batch_that_is_over(use):
    with opened(MEMORY) as orders:
        with orders.batch() as batch:
            pass
        with pytest.raises(ClosedError, match="use it inside `with receiver"):
            use(batch)


def test_a_batch_in_an_event_loop_that_has_not_begun():
    async def main():
        async with await async_opened.opened(MEMORY) as orders:
            with pytest.raises(ClosedError, match="use it inside `async with receiver"):
                await orders.batch().receive("x")

    async_opened.run(main())


def test_what_run_sync_cannot_run(sqlite_url):
    """Nobody would await the coroutine. Then its effect would be missing, although the id is recorded."""

    async def effect(_connection):
        raise AssertionError

    async def main():
        async with await async_opened.opened(sqlite_url) as orders, orders.batch() as batch:
            for wrong in (effect, effect(None), 5):
                with pytest.raises(SettingsError, match="run_sync takes a function without async"):
                    await batch.run_sync(wrong)
                if asyncio.iscoroutine(wrong):
                    wrong.close()

    async_opened.run(main())


@pytest.mark.parametrize("take", [pickle.dumps, copy.copy, copy.deepcopy])
def test_a_receiver_is_of_its_process(sqlite_url, take):
    with opened(sqlite_url) as orders, pytest.raises(TypeError, match="a Receiver can't be pickled or copied: open"):
        take(orders)


def test_a_receiver_shows_its_domain(sqlite_url):
    with opened(sqlite_url) as orders:
        assert repr(orders) == f"<Receiver of {orders.domain!r}>"
        assert repr(orders.batch()) == f"<Batch of {orders.domain!r}>"
    assert repr(orders) == f"<Receiver of {orders.domain!r} (closed)>"


def test_an_async_receiver_shows_its_domain_too(sqlite_url):
    async def main():
        async with await async_opened.opened(sqlite_url) as orders:
            assert repr(orders) == f"<AsyncReceiver of {orders.domain!r}>"
            assert repr(orders.batch()) == f"<AsyncBatch of {orders.domain!r}>"

    async_opened.run(main())


def test_a_receiver_that_is_closed():
    orders = opened(MEMORY)
    orders.close()
    with pytest.raises(ClosedError, match="open another"), orders.batch():
        pass


@pytest.mark.parametrize("kind", [Receiver, AsyncReceiver])
@pytest.mark.parametrize(
    ("arguments", "named"), [((), {}), ((MEMORY,), {}), ((MEMORY,), {"destination": "q"}), ((), {"url": MEMORY})]
)
def test_the_class_opens_nothing(kind, arguments, named):
    with pytest.raises(SettingsError, match=rf"call {kind.__name__}\.open\(URL, connection_id"):
        kind(*arguments, **named)


@pytest.mark.parametrize(
    ("wrong", "remedy"),
    [
        (
            {"settings": {"window": 5}},
            "ReceiverSettings(dup_detection_per_source_expiry_window_size=..., dup_detection_ex",
        ),
        ({"store_settings": 10}, "StoreSettings(lock_timeout_secs=..."),
        ({"connection_id": 7}, "str(...) makes text"),
    ],
)
def test_an_option_of_another_type(wrong, remedy):
    with pytest.raises(SettingsError) as refusal:
        opened(MEMORY, **wrong)
    assert remedy in refusal.value.hint


@pytest.mark.parametrize(("expiry_secs", "is_doubted"), [(120, False), (86_400, False), (120_000, True)])
def test_an_expiry_that_may_be_in_milliseconds_is_a_warning(expiry_secs, is_doubted, caplog):
    with caplog.at_level(logging.WARNING, "receiver"):
        opened(MEMORY, settings=sizes(2_000, expiry_secs * 1_000_000)).close()
    assert ("was it meant in milliseconds?" in caplog.text) == is_doubted
