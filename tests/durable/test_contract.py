"""A receiver's promises with any store: verdicts, exact text, all or nothing, settings, refusals."""

import json
import math
import time
from contextlib import suppress
from pathlib import Path

import pytest

from receiver import Receipt, ReceiverSettings
from receiver.domains import Channel, domain_key
from receiver.errors import ClosedError, SettingsError, StoreBusyError
from tests.durable.opened import DUPLICATE, MEMORY, NEW, UNCHECKED, UndoError, opened, remembered, send, sizes, undone

pytestmark = pytest.mark.thinned(3)

CASES = json.loads((Path(__file__).parents[1] / "vectors" / "two_tier.json").read_text(encoding="utf-8"))
REOPENED_AFTER = 60

LONE_PAIR = "\ud83d\ude00"
"""Two lone surrogates. In UTF-16 they would be one character, but here they aren't."""
TEXTS = [
    "a", "A", " a", "a ", "a\n", "a\0", "\0a", "\0", "\\0", "\\x61", " ", "\u00a0", "\u00e9", "e\u0301", "\ufeffa", "\ud800", "\udfff", "\\ud800",
    LONE_PAIR, "\U0001f600", "\U0010ffff", "NULL", "None", "nan", "007", "7", "1:s", "'", '"', "%s", "?", "x" * 65_536, "x" * 65_535 + "y", "\udcff",
    "\u00ff", "\u0130", "i\u0307", "I",
]  # fmt: skip


@pytest.mark.parametrize("batch_size", [1, 7, 1000])
def test_worked_cases(any_url, batch_size):
    for case in CASES:
        rows = [(r["unique_message_id"], r["message_source_id"], r["received_at_us"]) for r in case["receipts"]]
        options = {"domain": f"name:{case['name']}"}
        receiver = opened(any_url, settings=sizes(case["window"], round(case["expiry_secs"] * 1_000_000)), **options)
        verdicts = []
        since_opened = 0
        for first in range(0, len(rows), batch_size):
            if any_url != MEMORY and since_opened >= REOPENED_AFTER:
                receiver.close()
                receiver = opened(any_url, **options)
                since_opened = 0
            with receiver.batch() as batch:
                verdicts += [decision.verdict for decision in batch.receive_many(rows[first : first + batch_size])]
            since_opened += batch_size
        status = receiver.status()
        receiver.close()
        assert verdicts == case["verdicts"], case["name"]
        assert status.rx <= len(rows)
        assert status.rDupsDet <= case["caught"]


def test_ids_and_sources_are_exact_text(any_url):
    pairs = [(id_, source) for id_ in TEXTS for source in ("s", "\0", "\ud800")]
    sources = ["", *TEXTS]
    with opened(any_url, settings=sizes(1, 0)) as receiver:
        with receiver.batch() as batch:
            # With a window of one id, an id is forgotten once its source sends another. Other sources' ids stay.
            first = batch.receive_many((f"of {source!r}"[-99:] + source[-1:], source, 0) for source in sources)
            last = batch.receive_many((f"of {source!r}"[-99:] + source[-1:], source, 0) for source in sources)
        assert {decision.verdict for decision in first} == {NEW}
        assert {decision.verdict for decision in last} == {DUPLICATE}
    with opened(any_url, domain="name:ids", settings=sizes(10_000, 0)) as receiver:
        with receiver.batch() as batch:
            assert {batch.receive(id_, received_at_us=0).verdict for id_ in TEXTS} == {NEW}
        with receiver.batch() as batch:
            assert {batch.receive(id_, source, received_at_us=0).verdict for id_, source in pairs} == {DUPLICATE}
    if any_url == MEMORY:
        return
    with opened(any_url) as receiver, receiver.batch() as batch:
        again = [batch.receive(f"of {source!r}"[-99:] + source[-1:], source, received_at_us=0) for source in sources]
        assert {decision.verdict for decision in again} == {DUPLICATE}
    with opened(any_url, domain="name:ids") as receiver:
        assert send(receiver, *TEXTS) == [DUPLICATE] * len(TEXTS)


def test_body_digests_are_exact_text(any_url):
    """If an id came with one digest, every other digest is another body, before and after opening again."""
    settings = sizes(10_000, 0)
    digests = [text for text in TEXTS if len(text) < 100]
    receiver = opened(any_url, settings=settings)
    with receiver.batch() as batch:
        for digest in digests:
            batch.receive(f"same {digest}", received_at_us=0, body_digest=digest)
            batch.receive(f"next {digest}", received_at_us=0, body_digest=digest)
    if any_url != MEMORY:
        receiver.close()
        receiver = opened(any_url)
    with receiver.batch() as batch:
        for digest, other in zip(digests, [*digests[1:], digests[0]], strict=True):
            assert batch.receive(f"same {digest}", received_at_us=0, body_digest=digest).body_differs is False
            assert batch.receive(f"next {digest}", received_at_us=0, body_digest=other).body_differs is True
    receiver.close()


def test_domains_never_collide(store_url):
    """All domains are in one store and have one id each. None sees another's."""
    channels = [
        Channel(connection, destination, receiver_id)
        for connection in ("a", "a:b", "a\\:b", "")
        for destination in ("queue://c", "topic://c", "b:c", "")
        for receiver_id in ("", "c", "queue://c")
    ]
    keys = ["default", "destination", "connection", "receiver", "name:a", "name:a:b:queue://c", "name:queue://c"]
    domains = {}
    for key in keys:
        needs = domain_key(key).needs
        for channel in channels:
            if any(channel.lacks(part) for part in needs):
                continue  # such a domain is refused
            domains.setdefault((key.partition(":")[0], domain_key(key).name(channel)), (key, channel))
    assert len(domains) > 25
    receivers = [opened(store_url, domain=key, **channel._asdict()) for key, channel in domains.values()]
    assert {receiver.domain_id for receiver in receivers} == set(range(1, len(receivers) + 1))
    for number, receiver in enumerate(receivers):
        assert send(receiver, "an id", str(number)) == [NEW, NEW]
    for receiver in receivers:
        assert send(receiver, "an id") == [DUPLICATE]
        receiver.close()
    for number, (key, channel) in enumerate(domains.values()):
        with opened(store_url, domain=key, **channel._asdict()) as receiver:
            verdicts = undone(receiver, *map(str, range(len(domains))))
        assert [other for other, verdict in enumerate(verdicts) if verdict is DUPLICATE] == [number]


def test_written_forms_of_a_destination_are_one_domain(store_url):
    with opened(store_url, destination="orders") as receiver:
        send(receiver, "x")
    assert remembered(store_url, "x", destination="Queue<orders>") == ["x"]
    assert remembered(store_url, "x", destination="topic://orders") == []


def test_a_domain_name_may_be_long_but_not_endless(any_url):
    with opened(any_url, domain="name:" + "n" * 2_000) as receiver:
        assert send(receiver, "x") == [NEW]
    with pytest.raises(SettingsError, match="2,000 bytes"):
        opened(any_url, domain="name:" + "n" * 2_001)


def test_a_batch_left_by_an_exception_records_nothing(any_url):
    with opened(any_url) as receiver:
        assert send(receiver, "before") == [NEW]
        assert undone(receiver, "lost", "before", None) == [NEW, DUPLICATE, UNCHECKED]
        assert undone(receiver) == []
        for ending in (KeyboardInterrupt, SystemExit, GeneratorExit):
            with pytest.raises(ending), receiver.batch() as batch:  # noqa: PT012
                batch.receive("lost")
                raise ending
        status = receiver.status()
        assert (status.rx, status.rDupsDet, status.unchecked, status.rDupIds) == (1, 0, 0, 1)
        assert send(receiver, "lost", "before") == [NEW, DUPLICATE]
        assert receiver.status().rx == 3


def test_a_rollback_restores_order_and_clock(any_url):
    """Ids that the batch pushed out or expired are back too."""
    with opened(any_url, settings=sizes(1, 10)) as receiver:
        with receiver.batch() as batch:
            batch.receive_many([("a", "s", 0), ("b", "s", 0)])
        with suppress(UndoError), receiver.batch() as batch:
            batch.receive_many([("c", "s", 100), ("d", "s", 100), ("e", "t", 10**9)])
            raise UndoError
        with receiver.batch() as batch:
            decisions = batch.receive_many([("a", "s", 5), ("x", "s", 7), ("b", "s", 8)])
        assert [decision.verdict for decision in decisions] == [DUPLICATE, NEW, DUPLICATE]
        assert receiver.status().clock_clamped == 0


BAD_RECEIPTS = [
    {"unique_message_id": 1},
    {"unique_message_id": b"x"},
    {"unique_message_id": 0},
    {"unique_message_id": b""},
    {"unique_message_id": False},
    {"unique_message_id": "x", "message_source_id": 1},
    {"unique_message_id": "x", "message_source_id": []},
    {"unique_message_id": "x", "received_at_us": 0.5},
    {"unique_message_id": "x", "received_at_us": math.nan},
    {"unique_message_id": "x", "received_at_us": math.inf},
    {"unique_message_id": "x", "received_at_us": "0"},
    {"unique_message_id": "x", "received_at_us": True},
    {"unique_message_id": "x", "received_at_us": 1_800_000_000_000_000_000},  # nanoseconds
    {"unique_message_id": "x", "received_at_us": 1 << 63},
    {"unique_message_id": "x", "redelivered": "yes"},
    {"unique_message_id": "x", "redelivered": [1]},
    {"unique_message_id": "x", "redelivered": 2},
    {"unique_message_id": "x", "redelivered": None},
    {"unique_message_id": "x", "jms_timestamp_ms": -1},
    {"unique_message_id": "x", "jms_timestamp_ms": 1.5},
    {"unique_message_id": "x", "jms_timestamp_ms": math.nan},
    {"unique_message_id": "x", "jms_timestamp_ms": True},
    {"unique_message_id": "x", "jms_timestamp_ms": 0.0},
    {"unique_message_id": "x", "jms_timestamp_ms": "1"},
    {"unique_message_id": "x", "jms_timestamp_ms": 1 << 63},
    {"unique_message_id": "x", "body_digest": 7},
    {"unique_message_id": "x", "body_digest": b"7"},
    {"unique_message_id": "x", "body_digest": b""},
]


@pytest.mark.parametrize("any_url", ["memory", "sqlite"], indirect=True)
@pytest.mark.parametrize("bad", BAD_RECEIPTS, ids=str)
def test_a_receipt_that_cannot_be_meant_changes_nothing(any_url, bad):
    with opened(any_url) as receiver:
        with receiver.batch() as batch:
            with pytest.raises(SettingsError):
                batch.receive(**{"received_at_us": 0} | bad)
            assert batch.receive("good", received_at_us=0).verdict is NEW
            with pytest.raises(SettingsError):
                batch.receive_many([Receipt("in time", None, 0), Receipt(**{"received_at_us": 0} | bad)])
            assert [batch.receive(id_, received_at_us=0).verdict for id_ in ("x", "in time")] == [NEW, DUPLICATE]
        assert send(receiver, "good", "x", "in time", "y") == [DUPLICATE, DUPLICATE, DUPLICATE, NEW]
        assert receiver.status().rx == 4 + 4


@pytest.mark.parametrize("any_url", ["memory", "sqlite"], indirect=True)
@pytest.mark.parametrize(
    "bad",
    [
        {"connection_id": None},
        {"destination": b"orders"},
        {"receiver_id": 7},
        {"receiver_id": 0},
        {"domain": "nonsense"},
        {"domain": "name:"},
        {"domain": None},
        {"id_reuse": "perhaps"},
        {"settings": (2000, 120)},
        {"store_settings": 10.0},
        {"on_duplicate": "print"},
        {"observe_only": "no"},
    ],
    ids=str,
)
def test_opening_refuses_what_cannot_be_meant(any_url, bad):
    with pytest.raises(SettingsError):
        opened(any_url, **bad)
    with opened(any_url) as receiver:
        assert send(receiver, "x") == [NEW]


def test_a_domain_does_not_begin_before_its_origin(any_url):
    with opened(any_url) as receiver, receiver.batch() as batch:
        with pytest.raises(SettingsError):
            batch.receive("x", received_at_us=-1)
        assert batch.receive("x", received_at_us=0).verdict is NEW


def test_settings_that_detect_nothing():
    with pytest.raises(SettingsError, match="AT_LEAST_ONCE"):
        sizes(0, 0)


def test_no_time_means_the_clock(any_url):
    before_us = time.time_ns() // 1000
    with opened(any_url) as receiver:
        with receiver.batch() as batch:
            batch.receive("x")
            assert batch.receive_many([("x", None, None), Receipt("x")])[0].verdict is DUPLICATE
        with receiver.batch() as batch:
            decision = batch.receive("x", received_at_us=before_us + 3_600_000_000)
    assert 3_500_000_000 < decision.age_us <= 3_600_000_000


def test_unchecked_receipts_count_and_change_nothing(any_url):
    with opened(any_url, settings=sizes(1, 10)) as receiver:
        with receiver.batch() as batch:
            batch.receive("a", "s", received_at_us=5)
        with receiver.batch() as batch:  # a batch with nothing else
            for id_ in (None, ""):
                decision = batch.receive(id_, "s", received_at_us=10**9, redelivered=True, jms_timestamp_ms=1)
                assert (decision.verdict, decision.deliver) == (UNCHECKED, True)
        with receiver.batch() as batch:
            assert batch.receive("a", "s", received_at_us=6).age_us == 1
        status = receiver.status()
        assert (status.rx, status.unchecked, status.rRedel, status.clock_clamped) == (4, 2, 2, 0)


def test_a_clock_set_back_forgets_nothing_early(any_url):
    receiver = opened(any_url, settings=sizes(0, 10))
    for id_, received_at_us in [("a", 100), ("b", 50), ("c", 60), ("b", 109), ("a", 110)]:
        if any_url != MEMORY:
            receiver.close()
            receiver = opened(any_url)
        with receiver.batch() as batch:
            decision = batch.receive(id_, received_at_us=received_at_us)
        assert decision.verdict is (DUPLICATE if received_at_us > 100 else NEW)
        assert receiver.status().clock_clamped == (received_at_us < 100) or any_url == MEMORY
    receiver.close()


def test_no_settings_keep_what_the_domain_has(store_url):
    with opened(store_url) as receiver:
        status = receiver.status()
        assert (status.window, status.expiry_secs) == (2000, 120.0)
    with opened(store_url, settings=sizes(3, 5_000_000)) as receiver:
        assert (receiver.status().window, receiver.status().expiry_secs) == (3, 5.0)
    with opened(store_url) as receiver:
        assert (receiver.status().window, receiver.status().expiry_secs) == (3, 5.0)


def test_other_settings_resize_before_open_returns_and_others_follow(store_url):
    ids = list("abcdef")
    with opened(store_url, settings=sizes(6, 0)) as follower:
        assert send(follower, *ids) == [NEW] * 6
        with opened(store_url, settings=sizes(2, 0)) as resizer:
            assert (resizer.status().window, resizer.status().rDupIds) == (2, 2)
            assert remembered(store_url, *ids) == ["e", "f"]
            assert follower.status().window == 6  # until its next batch
            assert undone(follower, "e", "f", "d") == [DUPLICATE, DUPLICATE, NEW]
            assert follower.status().window == 2
            # A forgotten id stays forgotten, whatever the window is now.
            opened(store_url, settings=sizes(6, 0)).close()
            assert undone(resizer, "e", "f", *"abcd") == [DUPLICATE] * 2 + [NEW] * 4


def test_opening_with_the_same_settings_changes_nothing(store_url):
    with opened(store_url, settings=sizes(2, 7)) as receiver:
        send(receiver, "a", "b", "c")
        with opened(store_url, settings=sizes(2, 7)) as other:
            assert undone(other, "a", "b", "c") == [DUPLICATE] * 3
        assert send(receiver, "a") == [DUPLICATE]


def test_receivers_in_memory_share_nothing():
    with opened(MEMORY) as one, opened(MEMORY) as other:
        assert send(one, "x") == send(other, "x") == [NEW]
        with one.batch(), other.batch() as batch:  # not even a lock
            assert batch.receive("y", received_at_us=0).verdict is NEW
    assert remembered(MEMORY, "x") == []


def test_closed(any_url):
    receiver = opened(any_url)
    with receiver.batch() as batch:
        batch.receive("x", received_at_us=0)
    for use in (lambda: batch.receive("y", received_at_us=0), lambda: batch.receive_many([("y", None, 0)]), lambda: batch.receive(None), lambda: batch.connection):  # fmt: skip
        with pytest.raises(ClosedError):
            use()
    receiver.close()
    receiver.close()
    with pytest.raises(ClosedError), receiver.batch():
        pass
    assert receiver.status().rx == 1  # the last figures are still available


def test_a_batch_belongs_inside_with(any_url):
    with opened(any_url) as receiver:
        never_begun = receiver.batch()
        with pytest.raises(ClosedError):
            never_begun.receive("x", received_at_us=0)
        with pytest.raises(ClosedError):
            never_begun.receive("x")
        with receiver.batch() as batch:
            batch.receive("x", received_at_us=0)
            with pytest.raises(StoreBusyError), batch:
                pass
            assert batch.receive("x", received_at_us=0).verdict is DUPLICATE
        with batch:  # a batch that is over may be begun again
            assert batch.receive("x", received_at_us=0).verdict is DUPLICATE
        assert receiver.status().rx == 3


def test_memory_has_no_connection(sqlite_url):
    with opened(MEMORY) as receiver:
        with receiver.batch() as batch, pytest.raises(SettingsError):
            batch.connection  # noqa: B018 - looking is what is refused
        assert receiver.domain_id == 0
        with opened(sqlite_url) as other, other.batch() as batch, pytest.raises(SettingsError):
            receiver.batch(batch.connection).__enter__()


def test_default_settings_are_those_documented():
    assert ReceiverSettings().sizes == (2000, 120_000_000)
