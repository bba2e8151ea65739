"""Sources that have ended give up their queues: by hand, in the transactions of batches, and for all processes."""

import json
import random
from contextlib import suppress
from pathlib import Path

import pytest

from receiver import Verdict
from receiver.durable.audit import look
from receiver.durable.forgetting import retire_sources
from receiver.errors import SettingsError, StoreError
from receiver.quantities import DAY_US
from receiver.settings import ReceiverSettings
from tests.durable.checks import assert_sound
from tests.durable.opened import DUPLICATE, NEW, UndoError, opened, sizes, undone
from tests.stores import rows_of

pytestmark = pytest.mark.thinned(3)

CASES = json.loads((Path(__file__).parents[1] / "vectors" / "retire.json").read_text(encoding="utf-8"))
SENDERS = 150
WINDOW = 20


def receive(receiver, *received):
    """Receive (id, source, time in us) in one batch, and return the verdicts."""
    with receiver.batch() as batch:
        return [batch.receive(id_, source, received_at_us=us).verdict for id_, source, us in received]


@pytest.mark.thinned(16)
@pytest.mark.parametrize("reopens", [False, True], ids=["open", "reopened"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_worked_case(case, reopens, store_url):
    settings = sizes(case["window"], case["expiry_secs"] * 1_000_000)
    receiver = opened(store_url, settings=settings)
    for step in case["steps"]:
        if "retire" not in step:
            received = step["unique_message_id"], step["message_source_id"], step["received_at_us"]
            assert receive(receiver, received) == [step["verdict"]]
            assert receiver.status().rDupIds == step["remembered_ids"]
            continue
        retire_sources(store_url, sources=[step["retire"] or ""])
        (domain,) = look(store_url).domains
        assert domain.remembered_ids == step["remembered_ids"]
        if reopens:
            receiver.close()
            receiver = opened(store_url)
    receiver.close()
    assert_sound(store_url)


def test_a_source_that_has_not_sent_for_long_is_retired(any_url):
    settings = sizes(2, 0, retire_sources_after_days=1)
    with opened(any_url, settings=settings) as orders:
        receive(orders, ("a", "old", 0), ("b", "new", 0))
        receive(orders, ("c", "new", DAY_US))
        assert orders.status().sources == 2, "exactly a day isn't longer"
        receive(orders, ("d", "new", DAY_US + 1))
        status = orders.status()
        assert (status.sources, status.silent_sources, status.retired_sources, status.rDupIds) == (1, 0, 1, 2)
        assert receive(orders, ("a", "other", DAY_US + 2), ("c", "other", DAY_US + 2)) == [NEW, DUPLICATE]


def test_silent_sources_are_counted_anew_for_the_status(any_url):
    """Batches count them only each quarter of an hour, because counting looks at all sources."""
    with opened(any_url, settings=sizes(2, 0, retire_sources_after_days=0)) as orders:
        receive(orders, ("a", "old", 0), ("b", "new", DAY_US))
        assert orders.status().silent_sources == 0, "exactly a day isn't longer"
        receive(orders, ("c", "new", DAY_US + 1))
        assert orders.figures().silent_sources == 0
        assert orders.status().silent_sources == 1
        with orders.batch():
            assert orders.status().silent_sources == 1, "and nobody waits for the batch"
        receive(orders, ("d", "new", 0), ("e", "old", DAY_US + 15 * 60 * 1_000_000))
        assert orders.figures().silent_sources == 1
        receive(orders, ("f", "old", DAY_US + 15 * 60 * 1_000_000 + 1))
        assert orders.figures().silent_sources == 0


def test_the_next_are_retired_together_a_thirtieth_of_the_time_later(any_url):
    """Sources aren't retired one by one, because each time every other process must read the log anew."""
    with opened(any_url, settings=sizes(2, 0, retire_sources_after_days=30)) as orders:
        receive(orders, ("a", "s", 0), ("b", "t", 1), ("c", "u", 2))
        for us, retired in [
            (30 * DAY_US, 0),
            (30 * DAY_US + 1, 1),
            (30 * DAY_US + 3, 1),
            (31 * DAY_US, 1),
            (31 * DAY_US + 1, 3),
        ]:
            receive(orders, (f"{us}", "v", us))
            assert orders.status().retired_sources == retired


@pytest.mark.parametrize("disturbance", ["reopened", "rolled back"])
def test_reading_the_log_often_delays_nothing(store_url, disturbance):
    settings = sizes(2, 0, retire_sources_after_days=1)
    orders = opened(store_url, settings=settings)
    receive(orders, ("a", "old", 0))
    for hour in range(0, 25, 5):
        if disturbance == "reopened":
            orders.close()
            orders = opened(store_url, settings=settings)
        else:
            with suppress(UndoError), orders.batch() as batch:
                batch.receive("undone", "new", received_at_us=hour)
                raise UndoError
        receive(orders, (f"{hour}", "new", hour * 3_600_000_000))
        assert orders.status().retired_sources == 0
    receive(orders, ("b", "new", DAY_US + 1))
    assert orders.status().retired_sources == 1
    orders.close()


def test_time_goes_by_receipts_not_by_the_clock_on_the_wall(any_url):
    with opened(any_url, settings=sizes(2, 0, retire_sources_after_days=1)) as orders:
        receive(orders, ("a", "s", 0))
        receive(orders, ("b", "t", 1))
        assert orders.status().sources == 2


@pytest.mark.thinned(2)
@pytest.mark.parametrize("days", [0, 30])
def test_a_sender_with_a_source_per_message_fills_no_memory(any_url, days):
    with opened(any_url, settings=sizes(1, 0, max_sources=20, retire_sources_after_days=days)) as orders:
        for number in range(190):
            receive(orders, (f"{number}", f"source {number}", number))
        status = orders.status()
        assert 18 < status.sources <= 20
        assert status.retired_sources == 190 - status.sources
        assert status.rDupIds == status.sources
        assert receive(orders, ("189", "other", 190), ("100", "other", 190)) == [DUPLICATE, NEW]


def test_sources_that_are_retired_early_are_warned_of_once(any_url, caplog):
    """Their senders aren't silent for long, and W is to hold their ids."""
    with opened(any_url, settings=sizes(1, 0, max_sources=20, retire_sources_after_days=1)) as orders:
        receive(orders, ("a", "old", 0), ("b", "new", DAY_US + 1))
        receive(orders, *((str(number), str(number), DAY_US + 1) for number in range(19)))
        assert (orders.status().retired_sources, caplog.messages) == (1, [])
        for number in range(100, 150):
            receive(orders, (str(number), str(number), DAY_US + 1))
        assert orders.status().retired_sources > 40
        (warning,) = caplog.messages
        assert f"{orders.domain} has 21 sources, and max_sources is 20: those silent for longest are retired" in warning


def test_as_many_sources_as_may_be_are_kept(any_url):
    with opened(any_url, settings=sizes(1, 0, max_sources=20)) as orders:
        receive(orders, *((f"{number}", f"source {number}", number) for number in range(20)))
        assert orders.status().sources == 20


@pytest.mark.thinned(2)
@pytest.mark.parametrize("reads_anew", ["reopened", "rolled back"])
def test_who_often_reads_the_log_anew_retires_too(reads_anew, store_url):
    """For example, a process that soon ends, or one whose batches fail now and then."""
    orders = opened(store_url, settings=sizes(2, 0, retire_sources_after_days=30))
    for number in range(100):
        receive(orders, (f"{number}", f"source {number}", number * DAY_US // 2))
        if reads_anew == "reopened":
            orders.close()
            orders = opened(store_url, settings=sizes(2, 0, retire_sources_after_days=30))
        else:
            undone(orders, "poison")
    status = orders.status()
    assert 60 < status.sources <= 63
    assert status.retired_sources == 100 - status.sources
    orders.close()


def test_nothing_is_retired_where_both_bounds_are_0(any_url):
    settings = sizes(1, 0, max_sources=0, retire_sources_after_days=0)
    with opened(any_url, settings=settings) as orders:
        receive(orders, *((f"{number}", f"source {number}", number * 100 * DAY_US) for number in range(300)))
        assert orders.status().sources == 300
        assert orders.status().silent_sources == 299


def test_the_defaults_of_the_settings():
    settings = ReceiverSettings()
    assert (settings.max_sources, settings.retire_sources_after_days) == (10_000, 30)


@pytest.mark.parametrize(
    "bad", [{"max_sources": -1}, {"max_sources": 0.5}, {"retire_sources_after_days": -1}, {"max_sources": None}]
)
def test_bounds_that_cannot_be_meant(bad):
    with pytest.raises(SettingsError, match=next(iter(bad))):
        ReceiverSettings(**bad)


def test_what_a_batch_retires_is_rolled_back_with_it(any_url):
    settings = sizes(1, 0, max_sources=2)
    with opened(any_url, settings=settings) as orders:
        receive(orders, ("a", "s", 0), ("b", "t", 0))
        with suppress(UndoError), orders.batch() as batch:
            batch.receive("c", "u", received_at_us=0)
            raise UndoError
        assert orders.status().retired_sources == 0
        assert receive(orders, ("a", "s", 0)) == [DUPLICATE]


def test_what_a_batch_retires_that_fails_is_not_retired(store_url):
    """Even if the batch has decided on nothing."""
    with opened(store_url, settings=sizes(2, 0)) as orders:
        receive(orders, ("a", "s", 0), ("b", "t", 0))
    with opened(store_url, settings=sizes(2, 0, max_sources=1)) as orders:
        with pytest.raises(StoreError), orders.batch() as batch:
            batch.connection.exec_driver_sql("ALTER TABLE receiver_receipt RENAME TO gone")
        assert undone(orders, "a", "b") == [DUPLICATE, DUPLICATE]
        receive(orders, (None, None, 0))
        assert undone(orders, "a", "b") == [NEW, DUPLICATE]


@pytest.mark.thinned(2)
def test_the_newest_row_stays_whichever_source_is_retired_last(store_url):
    """That row has the number and the time of the latest receipt."""
    names = [f"{number}" for number in range(20)]
    with opened(store_url, settings=sizes(2, 0)) as orders:
        receive(orders, *((f"of {name}", name, 0) for name in names))
    retire_sources(store_url, sources=names)
    with opened(store_url) as orders:
        assert undone(orders, f"of {names[-1]}") == [NEW]
    assert_sound(store_url)


def test_another_process_notices(store_url):
    """It reads the log anew, although no new row shows the change."""
    with opened(store_url, settings=sizes(2, 0)) as orders, opened(store_url) as other:
        receive(orders, ("a", "s", 0), ("b", "t", 0))
        assert receive(other, ("x", "t", 0)) == [NEW]
        retire_sources(store_url, sources=["s"])
        assert receive(other, ("a", "t", 0)) == [NEW]
        assert other.status().retired_sources == 1
        assert receive(orders, ("a", "t", 0)) == [DUPLICATE]


def test_who_reads_the_log_anew_for_others_retiring_waits_with_its_own(store_url):
    """Otherwise two processes would make each other read the log again and again."""
    minute_us = 60_000_000
    settings = sizes(2, 0, retire_sources_after_days=1)
    with opened(store_url, settings=settings) as orders, opened(store_url, settings=settings) as other:
        receive(orders, ("a", "s", 0), ("b", "t", 10 * minute_us), ("c", "u", 20 * minute_us))
        receive(other, ("x", "u", 20 * minute_us))
        receive(orders, ("y", "u", DAY_US + minute_us))
        receive(other, ("z", "u", DAY_US + 11 * minute_us))
        assert look(store_url).domains[0].state.retired_sources == 1
        receive(other, ("z", "u", DAY_US + 50 * minute_us))
        assert look(store_url).domains[0].state.retired_sources == 2


def test_a_source_that_is_retired_by_its_own_batch_has_another_queue_later(store_url):
    """The source's rows of that batch show it to others, and no other rows do."""
    with opened(store_url, settings=sizes(2, 10, max_sources=1)) as orders:
        receive(orders, ("a", "s", 0), ("b", "t", 0))
        assert orders.status().retired_sources == 1
    with opened(store_url, settings=sizes(2, 10, max_sources=0)) as orders:
        receive(orders, ("c", "s", 0), *((id_, "u", 20) for id_ in "defg"))
        assert receive(orders, ("a", "u", 20), ("b", "u", 20)) == [NEW, DUPLICATE]
    assert_sound(store_url)


def test_resizing_gives_what_is_remembered_of_a_retired_source_a_queue_again(store_url):
    """By the rule on changed settings, what is remembered is replayed through an empty domain."""
    with opened(store_url, settings=sizes(2, 10)) as orders:
        receive(orders, ("a", "s", 0), ("b", "t", 1))
        retire_sources(store_url, sources=["s"])
        assert receive(orders, ("b", "t", 1)) == [DUPLICATE]
        assert orders.status().sources == 1
    with opened(store_url, settings=sizes(2, 20)) as orders:
        assert orders.status().sources == 2
    assert_sound(store_url)


def test_a_forgotten_newest_receipt_stays_forgotten_through_a_resize(store_url):
    """Its row stays, since it has the latest number and time."""
    with opened(store_url, settings=sizes(2, 0)) as orders:
        receive(orders, ("a", "s", 7))
    retire_sources(store_url, sources=["s"])
    for _ in range(2):
        with opened(store_url, settings=sizes(2, 10)) as orders:
            assert orders.status().rDupIds == 0
        with opened(store_url, settings=sizes(3, 0)):
            pass
    with opened(store_url, settings=sizes(2, 10)) as orders:
        assert receive(orders, ("a", "s", 0)) == [NEW]
        assert orders.session.cache.policy.latest_us == 7
        receive(orders, *((f"{number}", "s", 8) for number in range(20)))
    assert rows_of(store_url, "receiver_receipt") == 21
    assert_sound(store_url)


def test_a_batch_that_retires_nobody_needs_no_more_statements(sqlite_url):
    statements = []
    with opened(sqlite_url, settings=sizes(2, 10)) as orders:
        receive(orders, ("a", "s", 0))
        orders.session.log.rows.driver.set_trace_callback(statements.append)
        receive(orders, ("b", "t", 1))
        verbs = [statement.split()[0] for statement in statements]
        assert verbs == ["PRAGMA", "BEGIN", "PRAGMA", "SELECT", "UPDATE", "INSERT", "COMMIT"]


@pytest.mark.parametrize("policy", ["artemis:id_cache_size=2", "sequence"])
def test_other_policies_have_no_sources_to_retire(store_url, policy):
    with opened(store_url, policy=policy) as orders:
        receive(orders, ("1:s", "s", 0))
        assert orders.status().sources == 0
    assert retire_sources(store_url, sources=["s"], idle_days=0) == []


def test_by_hand_only_in_the_domains_named(store_url):
    for name in ("one", "two"):
        with opened(store_url, domain=f"name:{name}", settings=sizes(2, 0)) as orders:
            receive(orders, ("a", "s", 0), ("b", None, DAY_US), ("c", "t", 2 * DAY_US))
    (one,) = retire_sources(store_url, domain="one", idle_days=1)
    assert (one.domain, one.sources, one.forgotten_ids, one.sources_left) == ("one", 1, 1, 2)
    both = retire_sources(store_url, sources=["", "t", "nobody"])
    assert [(each.domain, each.sources, each.sources_left) for each in both] == [("one", 2, 0), ("two", 2, 1)]
    with pytest.raises(SettingsError, match="has no domain 'three'"):
        retire_sources(store_url, domain="three", idle_days=1)
    assert_sound(store_url)


@pytest.mark.costly
@pytest.mark.scaled
def test_years_of_restarts_need_no_more_than_the_live_sources(store_url, seed, campaign):
    """Each restart of the senders makes as many new sources, and the earlier ones have ended."""
    chosen = random.Random(seed)
    settings = sizes(WINDOW, 1_000_000, retire_sources_after_days=1, max_sources=0)
    live = SENDERS * WINDOW
    with opened(store_url, settings=settings) as orders:
        for restart in range(campaign.sender_restarts):
            start_us = restart * 2 * DAY_US
            received = [
                (f"{restart}:{sender}:{number}", f"sender-{sender}:{restart}", start_us + number)
                for number in range(WINDOW)
                for sender in range(SENDERS)
            ]
            with orders.batch() as batch:
                assert {decision.verdict for decision in batch.receive_many(received)} == {Verdict.NEW}
            again = [(id_, source, start_us + WINDOW) for id_, source, _ in chosen.sample(received, 10)]
            assert receive(orders, *again) == [DUPLICATE] * 10
            policy = orders.session.cache.policy
            assert orders.status().sources <= SENDERS
            assert policy.remembered_ids <= 1.5 * live
            assert len(policy._queues_by_number) <= 2 * SENDERS
            assert rows_of(store_url, "receiver_receipt") <= 1.5 * live
        assert orders.status().retired_sources == (campaign.sender_restarts - 1) * SENDERS
    assert_sound(store_url)
