"""A receiver's promises under any policy: which policies it takes, what is refused, transactions, bodies, a sound
store."""

import json
from contextlib import suppress
from pathlib import Path

import pytest

from receiver import ReceiverSettings
from receiver.errors import BatchRejectedError, ClosedError, IdFormatError, SettingsError
from receiver.policies import policy
from tests.durable.checks import assert_sound
from tests.durable.opened import DUPLICATE, MEMORY, NEW, UndoError, opened, remembered, send, sizes, undone
from tests.policies.cases import KINDS
from tests.stores import engine_of

pytestmark = pytest.mark.thinned(4)

VECTORS = Path(__file__).parents[1] / "vectors"
BROKER = json.loads((VECTORS / "artemis_id_cache.json").read_text(encoding="utf-8"))["cases"]
RMGID = "rmid1:0d77c-b0b2e66aece-00000000-{:08x}"


def status_of(receiver):
    status = receiver.status()
    return status.policy, status.window, status.expiry_secs


def row_count(url):
    with engine_of(url).connect() as connection:
        return connection.exec_driver_sql("SELECT count(*) FROM receiver_receipt").scalar()


def test_a_domain_keeps_its_policy(store_url):
    opened(store_url, policy="artemis:id_cache_size=7").close()
    for other in ("ttl:expiry=1", "apama", "apama:window=7,expiry=0", "perfect"):
        with pytest.raises(SettingsError, match="has the policy artemis"):
            opened(store_url, policy=other)
    with pytest.raises(SettingsError, match="has the policy artemis"):
        opened(store_url, settings=ReceiverSettings())
    with opened(store_url) as receiver, opened(store_url, policy="ttl:expiry=1", domain="name:other") as other:
        assert status_of(receiver) == ("artemis:id_cache_size=7", 7, 0.0)
        assert status_of(other) == ("ttl:expiry=1", 0, 1.0)
        assert send(receiver, "x") == send(other, "x") == [NEW]
    opened(store_url, policy="cmq:retry=1,network=2", domain="name:formula").close()
    with pytest.raises(SettingsError, match="cmq-minimum, not cmq"):
        opened(store_url, policy="cmq:retention=1,retry=1,network=2", domain="name:formula")


def test_a_bare_name_leaves_the_sizes_to_the_domain(store_url):
    with pytest.raises(SettingsError, match="lacks expiry="):
        opened(store_url, policy="ttl")
    with opened(store_url, policy="artemis") as receiver:
        assert status_of(receiver) == ("artemis:id_cache_size=20000", 20_000, 0.0)
    opened(store_url, policy="artemis:id_cache_size=3").close()
    with opened(store_url, policy="artemis") as receiver:
        assert status_of(receiver) == ("artemis:id_cache_size=3", 3, 0.0)


def test_apama_by_name_is_the_default(store_url):
    with opened(store_url) as receiver:
        assert status_of(receiver) == ("apama:window=2000,expiry=120", 2000, 120.0)
    with opened(store_url, policy="apama:window=2,expiry=0") as receiver:
        assert send(receiver, "a", "b", "c") == [NEW] * 3
    assert remembered(store_url, "a", "b", "c", settings=sizes(2, 0)) == ["b", "c"]


def test_another_cache_size_keeps_the_newest(store_url):
    with opened(store_url, policy="artemis:id_cache_size=5") as follower:
        send(follower, *"abcde")
        with opened(store_url, policy="artemis:id_cache_size=2"):
            assert undone(follower, *"edcba") == [DUPLICATE] * 2 + [NEW] * 3
            assert status_of(follower)[1] == 2
    opened(store_url, policy="artemis:id_cache_size=5").close()
    assert remembered(store_url, *"abcde") == ["d", "e"]
    assert_sound(store_url)


@pytest.mark.parametrize(
    "bad",
    [
        {"policy": "artmis"},
        {"policy": 7},
        {"policy": "ttl:expiry=-1"},
        {"policy": "artemis:id_cache_size=x"},
        {"policy": "apama:window=0,expiry=0"},
        {"policy": "apama", "settings": ReceiverSettings()},
        {"reject_batches": "yes", "policy": "artemis"},
        {"reject_batches": True},
        {"reject_batches": True, "policy": "ttl:expiry=1"},
        {"reject_batches": True, "observe_only": True, "policy": "artemis"},
    ],
    ids=str,
)
def test_opening_refuses_what_cannot_be_meant(bad):
    with pytest.raises(SettingsError):
        opened(MEMORY, **bad)


@pytest.mark.parametrize("others", [{}, {"policy": "ttl:expiry=1"}], ids=str)
def test_what_is_refused_makes_no_domain(store_url, others):
    with pytest.raises(SettingsError, match="reject_batches is for the policy artemis"):
        opened(store_url, reject_batches=True, **others)
    opened(store_url, policy="artemis", reject_batches=True).close()
    opened(store_url, policy="ttl:expiry=1", domain="name:other").close()
    with pytest.raises(SettingsError, match="has the policy ttl, not artemis"):
        opened(store_url, reject_batches=True, domain="name:other")


@pytest.mark.parametrize("text", ["sequence", "solace-last"])
def test_an_id_that_cannot_be_judged_changes_nothing(any_url, text):
    good = {"sequence": "{}:s", "solace-last": RMGID}[text]
    with opened(any_url, policy=text) as receiver:
        with receiver.batch() as batch:
            assert batch.receive(good.format(1), received_at_us=0).verdict is NEW
            with pytest.raises(IdFormatError):
                batch.receive("order-17", received_at_us=10**9)
            assert batch.receive(good.format(2), received_at_us=1).verdict is NEW
            assert batch.receive(good.format(2), received_at_us=2).age_us == 1
        assert receiver.status().rx == 3
        # One id stands for many here, so a body can't be compared with an earlier one.
        with receiver.batch() as batch:
            batch.receive(good.format(3), received_at_us=3, body_digest="a")
            assert batch.receive(good.format(3), received_at_us=3, body_digest="b").body_differs is None


@pytest.mark.parametrize("case", BROKER, ids=lambda case: case["address"])
def test_what_a_broker_accepted(any_url, case):
    """Each send or transaction is a batch. Now and then the receiver is opened again."""
    options = {"policy": f"artemis:id_cache_size={case['id_cache_size']}", "reject_batches": True}
    receiver = opened(any_url, **options)
    for number, step in enumerate(case["steps"]):
        rejected: tuple[str, ...] = ()
        try:
            with receiver.batch() as batch:
                for id_ in step["ids"]:
                    batch.receive(id_, received_at_us=number)
        except BatchRejectedError as error:
            rejected = error.duplicates
        assert (not rejected, set(rejected) - set(step["ids"])) == (step["accepted"], set()), (number, step)
        if any_url != MEMORY and number % 40 == 39:
            receiver.close()
            receiver = opened(any_url, **options)
    receiver.close()
    if any_url != MEMORY:
        assert_sound(any_url)


def test_a_rejected_batch_leaves_no_trace(store_url):
    engine = engine_of(store_url)
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE paid (id TEXT)")
    with opened(store_url, policy="artemis:id_cache_size=9", reject_batches=True) as receiver:
        assert send(receiver, "a", "a") == [NEW, NEW]
        for joins in (False, True):
            with suppress(BatchRejectedError), engine.connect() as connection:  # it is rolled back when it is left
                with receiver.batch(connection if joins else None) as batch:
                    batch.connection.exec_driver_sql("INSERT INTO paid VALUES ('b')")
                    assert [batch.receive(id_, received_at_us=0).verdict for id_ in "bac"] == [NEW, DUPLICATE, NEW]
                pytest.fail("the batch wasn't rejected")
            assert undone(receiver, "b", "c", "a") == [NEW, NEW, DUPLICATE]
        status = receiver.status()
        assert (status.rx, status.rDupsDet, status.rDupIds, status.batches_rolled_back) == (2, 0, 1, 4)
    with engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM paid").scalar() == 0


def test_an_id_used_again_rejects_no_batch(any_url):
    """Such an id is delivered, so its batch needn't come again."""
    with opened(any_url, policy="artemis:id_cache_size=9", reject_batches=True, id_reuse="deliver") as receiver:
        for body in "123":
            with receiver.batch() as batch:
                assert batch.receive("a", received_at_us=0, body_digest=body).deliver
        with pytest.raises(BatchRejectedError), receiver.batch() as batch:
            batch.receive("a", received_at_us=0, body_digest="2")


def test_a_minimum_message_time(any_url):
    """It is recorded with its batch, or without receipts. An id without a send time goes by the time of its receipt."""
    options = {"policy": "cmq:retry=2,network=1"}
    receiver = opened(any_url, **options)
    with receiver.batch() as batch:
        for id_, sent_ms in [("a", 10_000), ("b", 14_000), ("c", None)]:
            batch.receive(id_, received_at_us=20_000_000, jms_timestamp_ms=sent_ms)
    with suppress(UndoError), receiver.batch() as batch:
        batch.advance(min_msg_time_us=99_000_000)
        raise UndoError
    assert undone(receiver, "a", "b", "c") == [DUPLICATE] * 3
    for minimum_us, verdicts in [
        (13_000_000, [DUPLICATE, DUPLICATE, DUPLICATE]),
        (13_000_001, [NEW, DUPLICATE, DUPLICATE]),
        (5, [NEW, DUPLICATE, DUPLICATE]),
        (23_000_000, [NEW, NEW, DUPLICATE]),
        (23_000_001, [NEW, NEW, NEW]),
    ]:
        with receiver.batch() as batch:
            batch.advance(min_msg_time_us=minimum_us)
        if any_url != MEMORY:
            receiver.close()
            receiver = opened(any_url)
        assert undone(receiver, "a", "b", "c") == verdicts, minimum_us
    with pytest.raises(ClosedError):
        batch.advance(min_msg_time_us=0)
    receiver.close()
    with opened(MEMORY) as other, other.batch() as batch, pytest.raises(SettingsError, match="advance is for"):
        batch.advance(min_msg_time_us=0)


def test_a_minimum_moved_by_another_receiver_is_followed(store_url):
    """Nothing else shows it, because no receipt came with it. A receiver that lags must not set it back."""
    with opened(store_url, policy="cmq:retry=0,network=0") as orders, opened(store_url) as other:
        send(orders, "a", "b")
        send(other, "c")
        with orders.batch() as batch:
            batch.advance(min_msg_time_us=1)
        assert send(other, "a") == [NEW]
        assert undone(orders, "b") == [NEW]
    assert remembered(store_url, "a", "b", "c") == []
    assert_sound(store_url)


def test_times_that_are_none_or_that_no_store_can_hold(any_url):
    with opened(any_url, policy="cmq:retry=0,network=0") as receiver:
        with receiver.batch() as batch:
            for late in (253_402_300_800_000_000, 1 << 63, 10**30):
                with pytest.raises(SettingsError, match="before the year 10000"):
                    batch.advance(min_msg_time_us=late)
                with pytest.raises(SettingsError, match="before the year 10000"):
                    batch.receive("a", received_at_us=0, jms_timestamp_ms=late // 1000)
            for odd in (-1, 1.5, None, "soon"):
                with pytest.raises(SettingsError, match="at least 0"):
                    batch.advance(min_msg_time_us=odd)
            assert batch.receive("b", received_at_us=0, jms_timestamp_ms=253_402_300_799_999).verdict is NEW
            batch.advance(min_msg_time_us=253_402_300_799_999_999)
        assert receiver.status().rx == 1


def test_a_duplicate_is_told_of_without_a_tier_where_there_is_none(caplog):
    caplog.set_level("INFO", logger="receiver.duplicates")
    with opened(MEMORY, policy="perfect") as receiver:
        send(receiver, "a", "a")
    assert caplog.messages == ["broker:queue://orders: 'a' from '' came again after 0.000000 s and 1 receipts"]


@pytest.mark.thinned(2)
@pytest.mark.parametrize("text", ["artemis:id_cache_size=4", "ttl:expiry=1", "perfect"])
def test_bodies_are_told_apart_through_restarts(store_url, text):
    options = {"policy": text, "id_reuse": "deliver"}
    bodies = ["1", "2", "2", None, "1", "3", "3", "2"]
    delivered = []
    for body in bodies:
        with opened(store_url, **options) as receiver, receiver.batch() as batch:
            delivered.append(batch.receive("a", received_at_us=0, body_digest=body).deliver)
    assert delivered == [True, True, False, False, False, True, False, False]
    assert row_count(store_url) <= 3  # the first receipt, the one with all bodies, and the newest
    assert_sound(store_url)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_the_store_is_sound_and_stays_small(store_url, kind):
    text = kind.text(*kind.roomy)
    name = {"solace-last": RMGID, "sequence": "{}:s"}.get(kind.name, "id {}")
    judge = policy(text)
    for first in range(0, 2_000, 500):
        with opened(store_url, policy=text) as receiver:
            for begin in range(first, first + 500, 50):
                rows = [(name.format(n // 2), "s", n) for n in range(begin, begin + 50)]
                with receiver.batch() as batch:
                    assert [d.verdict for d in batch.receive_many(rows)] == [
                        d.verdict for d in judge.receive_many(rows)
                    ]
        assert_sound(store_url)
    assert row_count(store_url) <= judge.remembered_ids + 1
