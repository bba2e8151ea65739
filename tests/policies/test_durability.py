"""A policy that is rebuilt from a store's remaining rows, or follows another policy's rows, behaves exactly like that
policy.

No database is needed, since only the choice of rows to delete matters. `Store` does as the durable receiver: it appends
a row for each receipt with an id. It deletes rows that the policy has named forgotten, and rows that only show
duplicates. It always keeps the newest row.
"""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from receiver.message import Decision, ReceiptRow, Verdict
from receiver.policies import policy
from receiver.policies.interface import Policy
from receiver.policies.names import policy_of_kind
from tests.choosing import cases
from tests.policies.cases import KINDS, WORDS, Kind, Lockstep

EACH_KIND = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
RANDOMS = st.randoms(use_true_random=False)
HOW_MANY = st.lists(st.sampled_from(["none", "none", "some", "all"]), min_size=1, max_size=6)


class Store(Lockstep):
    """A policy that never stops, and the rows that are kept of it."""

    def __init__(self, kind: Kind, sizes: tuple[int, ...]) -> None:
        super().__init__(kind, sizes)
        self.policy.keep_forgotten()
        self.rows: dict[int, ReceiptRow] = {}
        self.named: set[int] = set()

    def _receive(self, id_, source, step_us, sent_ms) -> list[Decision]:
        (decision,) = super()._receive(id_, source, step_us, sent_ms)
        if decision.verdict is not Verdict.UNCHECKED:
            serial, now_us = self.policy.serial, self.policy.latest_us
            first_us, mark = None, self.policy.policy_state
            if decision.age_us is not None:
                first_us, mark = now_us - decision.age_us, None
            self.rows[serial] = ReceiptRow(serial, now_us, first_us, source, id_, policy_state=mark)
        return [decision]

    def delete(self, how_many: str, random: Random, namer: Policy) -> None:
        """Delete rows that `namer` has named up to now, or that no policy needs."""
        self.named = self.named.union(namer.take_forgotten()) & set(self.rows)
        assert namer.take_forgotten() == []
        reported = (
            set()
            if namer.records_duplicates
            else {serial for serial, row in self.rows.items() if row.first_received_at_us is not None}
        )
        share = {"none": 0.0, "some": 0.5, "all": 1.0}[how_many]
        for serial in sorted(self.named | reported):
            if random.random() < share and serial != self.policy.serial:
                del self.rows[serial]

    def made_again(self) -> Policy:
        again = policy_of_kind(self.policy.kind, *self.policy.sizes)
        again.keep_forgotten()
        again.replay(list(self.rows.values()), self.policy.clock_us)
        return again


@pytest.mark.thinned(3)
@EACH_KIND
@cases()
@given(data=st.data(), deletions=HOW_MANY, random=RANDOMS)
def test_made_again_from_what_is_left_is_never_having_stopped(kind: Kind, data, deletions, random):
    store = Store(kind, data.draw(kind.sizes))
    store.others = [store.made_again()]
    for number, step in enumerate(data.draw(kind.many_steps(stored=True))):
        store.do(step)
        store.delete(deletions[number % len(deletions)], random, store.others[0])
        if random.random() < 0.5:
            store.others = [store.made_again()]
        store.compare(store.others[0])


@EACH_KIND
@cases(40)
@given(data=st.data(), deletions=HOW_MANY, random=RANDOMS, every=st.integers(1, 20))
def test_following_now_and_then_is_having_seen_it_all(kind: Kind, data, deletions, random, every):
    store = Store(kind, data.draw(kind.sizes))
    follower = store.made_again()
    for number, step in enumerate(data.draw(kind.many_steps(stored=True))):
        store.do(step)
        store.delete(deletions[number % len(deletions)], random, store.policy)
        if number % every == 0:
            missed = [row for row in store.rows.values() if row.seq > follower.serial]
            follower.replay(missed, store.policy.clock_us)
            store.compare(follower)


@EACH_KIND
@cases(15)
@given(data=st.data(), random=RANDOMS)
def test_rows_go_when_they_no_longer_matter(kind: Kind, data, random):
    """However long it goes on, the remaining rows never outgrow what is remembered."""
    store = Store(kind, data.draw(kind.sizes))
    steps = data.draw(kind.many_steps(20, stored=True))
    for _ in range(100):
        store.do(random.choice(steps))
        store.delete("all", random, store.policy)
        firsts = [
            row for row in store.rows.values() if row.first_received_at_us is None or store.policy.records_duplicates
        ]
        # Apama names an id's newest entry together with the id. Of Artemis' slots, a few show that an id in others is
        # forgotten.
        spare = {"apama": store.policy.remembered_ids, "artemis": store.policy.sizes[0]}.get(kind.name, 0)
        assert len(firsts) <= len(store.policy.entries()) + spare + 1


def test_an_older_receipt_whose_row_still_stands_goes_without_its_id():
    """The id came again after it had been forgotten."""
    made = policy("cmq:retry=0,network=0")
    made.keep_forgotten()
    made.replay([ReceiptRow(sent, sent, None, None, "a", policy_state=sent) for sent in (1, 3)], clock_us=2)
    assert (made.entries(), made.take_forgotten()) == ([3], [1])


def test_a_number_is_forgotten_for_a_higher_one_of_its_source():
    made = policy("sequence")
    made.keep_forgotten()
    made.receive_many([("1:s", None, 0), ("2:t", None, 0), ("2:s", None, 0), ("1:s", None, 0)])
    assert made.take_forgotten() == [1]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.ids is WORDS], ids=lambda kind: kind.name)
def test_ids_that_were_forgotten_by_hand_each_keep_their_place(kind):
    made = policy(kind.text(*kind.roomy))
    made.replay([ReceiptRow(number, 1, None, None, "") for number in (1, 2)], made.clock_us)
    assert (made.entries(), "" in made) == ([1, 2], False)
