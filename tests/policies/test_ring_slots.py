"""Artemis: one id on several slots of the ring, which only transactions cause."""

from random import Random

from receiver.message import ReceiptRow
from receiver.policies import ArtemisIdCache
from tests.policies.cases import KINDS
from tests.policies.test_durability import Store

ARTEMIS = next(kind for kind in KINDS if kind.name == "artemis")


def verdicts(cache: ArtemisIdCache, ids: str) -> list[str]:
    return [cache.receive(id_, received_at_us=0).verdict for id_ in ids]


def test_whichever_slot_goes_first_takes_the_id_with_it():
    cache = ArtemisIdCache(4)
    assert cache.receive_transaction(list("aba")) == "new"
    assert cache.receive("a", received_at_us=0).window_left == 1
    assert verdicts(cache, "cd") == ["new", "new"]  # d lies where the first a lay
    assert "a" not in cache
    assert cache.entries() == [2, 3, 5, 6]
    assert cache.restarted().receive("a", received_at_us=0).verdict == "duplicate"  # a broker reads it back


def test_a_dead_slot_takes_its_id_out_once_more():
    cache = ArtemisIdCache(4)
    cache.receive_transaction(list("aba"))
    assert verdicts(cache, "cdaa") == ["new", "new", "new", "duplicate"]
    assert cache.receive("a", received_at_us=0).window_left == 0  # the next id overwrites the second a
    assert verdicts(cache, "ea") == ["new", "new"]


def test_an_id_that_overwrites_itself_is_forgotten():
    cache = ArtemisIdCache(1)
    assert cache.receive_transaction(["a", "a"]) == "new"
    assert cache.remembered_ids == 0
    assert cache.entries() == [2]


def test_a_smaller_ring_keeps_the_newest_places_and_their_ids():
    cache = ArtemisIdCache(3)
    cache.receive_transaction(list("aba"))
    smaller = cache.restarted(2)
    assert verdicts(smaller, "ab") == ["duplicate", "duplicate"]
    assert smaller.sizes == (2, 0)
    assert verdicts(smaller.restarted(0), "aa") == ["new", "new"]


def test_what_others_have_accepted_ends_a_transaction_that_nobody_commits():
    """The transaction belongs to a batch that received nothing, so the ring was kept."""
    cache = ArtemisIdCache(3)
    cache.begin_transaction()
    cache.replay([ReceiptRow(1, 0, None, None, "a", policy_state=1)], None)
    cache.begin_transaction()
    assert verdicts(cache, "a") == ["duplicate"]


def test_an_id_that_never_comes_to_rest_does_not_keep_rows_for_ever():
    """An id on two slots is sent all the time. It dies by either slot in turn, once per turn of the ring."""
    store = Store(ARTEMIS, (7,))
    store.do(("together", [("receive", "a", None, 0, None)] * 2))
    for number in range(500):
        store.do(("receive", "a" if number % 2 else f"other {number}", None, 0, None))
        store.delete("all", Random(number), store.policy)  # noqa: S311 - draws by seed
        assert len(store.rows) <= 2 * 7 + 1
