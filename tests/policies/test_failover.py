"""Solace: a failover to the replication mate, and to a broker that numbers messages by itself."""

import pytest

from receiver.policies import policy

SITE, ELSEWHERE = "rmid1:0d77c-b0b2e66aece", "rmid1:1f00d-0000000beef"


def id_of(origin: str, number: int) -> str:
    digits = f"{number:016x}"
    return f"{origin}-{digits[:8]}-{digits[8:]}"


class Consumer:
    """Takes an endpoint's messages, and lists those that its policy lets through."""

    def __init__(self, text: str) -> None:
        self.policy = policy(text)
        self.taken: list[str] = []
        self.now_us = 0

    def receive(self, *ids: str) -> None:
        for id_ in ids:
            self.now_us += 1
            if self.policy.receive(id_, received_at_us=self.now_us).deliver:
                self.taken.append(id_)


@pytest.fixture(params=["solace-last", "solace-lookup"])
def consumer(request):
    return Consumer(request.param)


def ids(origin: str, first: int, last: int) -> list[str]:
    return [id_of(origin, number) for number in range(first, last + 1)]


def test_the_mate_goes_on_with_the_same_ids(consumer):
    """Both mates of a replication group number a message alike. Unacknowledged messages come again from the mate."""
    consumer.receive(*ids(SITE, 1, 5))
    consumer.receive(*ids(SITE, 3, 8))  # the failover: 3 to 5 weren't acknowledged at the lost site
    assert consumer.taken == ids(SITE, 1, 8)
    consumer.receive(*ids(SITE, 7, 9))  # and back
    assert consumer.taken == ids(SITE, 1, 9)


def test_the_mate_may_lack_what_was_replicated_asynchronously(consumer):
    """With asynchronous replication the mate may lack the latest messages. A gap in the numbers does no harm."""
    consumer.receive(*ids(SITE, 1, 5))
    consumer.receive(*ids(SITE, 4, 4), *ids(SITE, 9, 10))
    assert consumer.taken == [*ids(SITE, 1, 5), *ids(SITE, 9, 10)]


def test_the_mate_may_write_the_ids_in_another_case():
    consumer = Consumer("solace-last")
    consumer.receive(id_of(SITE, 0xAB))
    consumer.receive(id_of(SITE, 0xAB).replace("ab", "AB"))
    assert consumer.taken == [id_of(SITE, 0xAB)]


def test_another_origin_begins_anew():
    """Ids of two origins can't be compared. So the first id of the other origin is new, and from then on its ids
    count."""
    last, lookup = Consumer("solace-last"), Consumer("solace-lookup")
    for consumer in (last, lookup):
        consumer.receive(*ids(SITE, 1, 5), *ids(ELSEWHERE, 1, 2), *ids(ELSEWHERE, 2, 3))
        assert consumer.taken == [*ids(SITE, 1, 5), *ids(ELSEWHERE, 1, 3)]
        consumer.receive(*ids(SITE, 4, 5))  # the old origin sends these again
    assert lookup.taken == [*ids(SITE, 1, 5), *ids(ELSEWHERE, 1, 3)]
    assert last.taken == [*ids(SITE, 1, 5), *ids(ELSEWHERE, 1, 3), *ids(SITE, 4, 5)]  # lets that through once
    last.receive(*ids(SITE, 4, 5))
    assert last.taken[-2:] == ids(SITE, 4, 5)
    assert len(last.taken) == 10


def test_two_origins_by_turns_let_everything_through():
    """The rule relies on one origin for each endpoint."""
    consumer = Consumer("solace-last")
    consumer.receive(*[id_of(origin, 1) for _ in range(3) for origin in (SITE, ELSEWHERE)])
    assert len(consumer.taken) == 6


def test_a_late_one_behind_newer_ones_is_lost():
    """The price of storing only one id: it counts as a duplicate, although it never came before."""
    last, lookup = Consumer("solace-last"), Consumer("solace-lookup")
    for consumer in (last, lookup):
        consumer.receive(id_of(SITE, 1), id_of(SITE, 3), id_of(SITE, 2))
    assert last.taken == [id_of(SITE, 1), id_of(SITE, 3)]
    assert lookup.taken == [id_of(SITE, 1), id_of(SITE, 3), id_of(SITE, 2)]


def test_a_duplicate_does_not_set_the_stored_id_back():
    consumer = Consumer("solace-last")
    consumer.receive(id_of(SITE, 5), id_of(SITE, 2), id_of(SITE, 4), id_of(SITE, 5), id_of(SITE, 6))
    assert consumer.taken == [id_of(SITE, 5), id_of(SITE, 6)]
