"""Numbered ids are contiguous from 1 for each source, through restarts, exactly as the policy `sequence` reads them."""

from contextlib import ExitStack

from receiver.policies.sequence import parse_sequence
from tests.durable.checks import assert_sound
from tests.senders.making import SOURCE, gateway, numbers

SOURCES = ["mymachinename1.domain:1234:567890:S01", "a", "A", "a ", ":", "1:a", "\0", "\ud800", "é", "e\u0301"]


def test_numbered_from_1(ids):
    assert [ids.next() for _ in range(3)] == [f"1:{SOURCE}", f"2:{SOURCE}", f"3:{SOURCE}"]
    assert ids.next_many(3) == [f"4:{SOURCE}", f"5:{SOURCE}", f"6:{SOURCE}"]
    assert ids.next_many(0) == []
    assert ids.next() == f"7:{SOURCE}"


def test_through_restarts(store_url):
    made = []
    for count in (2, 1, 3):
        with gateway(store_url) as ids:
            made += ids.next_many(count)
    assert numbers(made) == [1, 2, 3, 4, 5, 6]
    assert_sound(store_url)


def test_a_number_is_committed_before_it_is_returned(ids, store_url):
    with gateway(store_url) as another:
        assert numbers([ids.next(), another.next(), ids.next(), another.next()]) == [1, 2, 3, 4]


def test_each_source_has_its_own(store_url):
    """The policy reads the source from the id, exactly as it was given."""
    with ExitStack() as stack:
        makers = {source: stack.enter_context(gateway(store_url, source=source)) for source in SOURCES}
        for number in (1, 2):
            for source, ids in makers.items():
                id_ = ids.next()
                assert id_ == f"{number}:{source}"
                assert parse_sequence(id_) == (number, source)


def test_many_at_once(ids):
    assert numbers(ids.next_many(100_000)) == list(range(1, 100_001))
