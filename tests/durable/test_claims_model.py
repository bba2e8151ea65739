"""Concurrent receivers and a naive model of them, whatever their transactions do; and faults that the model must
notice.

These hold after each step, and `claimed_domain.py` checks them:

- Every id that the rule remembers is claimed, and so is every id that waits to be folded in. So no duplicate is missed
  that the rule would catch in the order of folding, and an id is delivered once while it is remembered.
- An id is claimed, and so dropped, only if a committed receipt has had it.
- Once everything is folded in, only ids that the rule remembers or that open transactions have touched are claimed.
"""

import sys
import uuid
from functools import partial
from unittest.mock import patch

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from sqlalchemy import text

from receiver.durable import concurrent
from receiver.store.codec import json_bytes, text_of
from receiver.store.databases import claims
from receiver.store.databases.claims import Claims
from tests.choosing import examples
from tests.durable.claimed_domain import ClaimedDomain, claimed_domain

IDS = st.sampled_from([None, "", *"abc", "\0", "\ud800", "forgotten"])
SOURCES = st.sampled_from([None, "", "s", "t"])
STEPS_US = st.sampled_from([0, 0, 1, 1, 2, 3, 7, -1, -5])
STEPS = st.lists(st.tuples(IDS, SOURCES, STEPS_US), min_size=1, max_size=6)
SIZES = st.tuples(st.integers(0, 3), st.integers(0, 4)).filter(any)
WHO = st.integers(0, 1)
WHICH = st.integers(0, 7)
BY_HAND = st.sampled_from(["resize", "reopen", "retire", "convert", "forget"])
FATES = st.sampled_from(["kept", "kept", "undone", "rolled back", "released"])
ENDS = st.sampled_from(["commit", "commit", "commit", "roll back", "die"])


class ClaimsMachine(RuleBasedStateMachine):
    def __init__(self, url):
        super().__init__()
        self.url = url
        self.domain = None
        self.now_us = 0

    @initialize(chosen=SIZES, receivers=st.integers(1, 2))
    def start(self, chosen, receivers):
        self.domain = ClaimedDomain(self.url, uuid.uuid4().hex, receivers, *chosen)

    def _received(self, steps):
        received = []
        for id_, source, step_us in steps:
            self.now_us = max(0, self.now_us + step_us)
            received.append((id_, source, self.now_us))
        return received

    def _one(self, which):
        under_way = self.domain.under_way
        return under_way[which % len(under_way)]

    @rule(who=WHO, steps=STEPS)
    def receive_and_commit(self, who, steps):
        """Receive ids that no open transaction has touched, and commit."""
        touched = self.domain.touched_by_others()
        going = self.domain.begin(who)
        self.domain.receive(going, [row for row in self._received(steps) if row[0] not in touched])
        self.domain.end(going, "commit")

    @precondition(lambda self: len(self.domain.under_way) < 3)
    @rule(who=WHO, joins=st.booleans(), steps=STEPS)
    def begin(self, who, joins, steps):
        self.domain.receive(self.domain.begin(who, joins=joins), self._received(steps))

    @precondition(lambda self: self.domain.under_way)
    @rule(which=WHICH, steps=STEPS, fate=FATES)
    def receive(self, which, steps, fate):
        self.domain.receive(self._one(which), self._received(steps), fate)

    @precondition(lambda self: self.domain.under_way)
    @rule(which=WHICH, how=ENDS)
    def end(self, which, how):
        self.domain.end(self._one(which), how)

    @precondition(lambda self: self.domain.under_way)
    @rule(which=WHICH, first=WHICH, steps=STEPS, meanwhile=STEPS, how=ENDS)
    def overtake(self, which, first, steps, meanwhile, how):
        holder = self._one(which)
        held = sorted(holder.touched)
        steps = [(held[first % len(held)], None, 0), *steps] if held else steps
        self.domain.overtake(holder, self._received(steps), self._received(meanwhile), how)

    @rule(who=WHO, at_most=st.integers(1, 4), undo=st.sampled_from([False, False, True]))
    def fold(self, who, at_most, undo):
        self.domain.fold(who, at_most, undo=undo)

    @rule(who=WHO)
    def fold_all(self, who):
        self.domain.fold_all(who)

    @rule(who=WHO, which=WHICH, by_hand=st.booleans(), meanwhile=STEPS, steps=STEPS)
    def fold_again(self, who, which, by_hand, meanwhile, steps):
        """Between two foldings, a process doesn't see what others release and what is claimed again."""
        domain = self.domain
        domain.fold(who, 2)
        claimed = domain.claimed()
        if by_hand:
            left = sorted(claimed - domain.model_remembers()) or ["unknown"]
            domain.forget(left[which % len(left)])
        else:
            self.receive_and_commit(who, meanwhile)
            domain.fold_all(who + 1)
        released = sorted(claimed - domain.claimed())
        for step in [*steps, *received(released)]:
            self.receive_and_commit(who, [step])
        domain.fold(who, 1)

    @rule(what=BY_HAND, who=WHO, which=WHICH, chosen=SIZES, steps=STEPS)
    def by_hand(self, what, who, which, chosen, steps):
        """Change the domain by hand, as happens now and then."""
        domain = self.domain
        if what == "resize":
            domain.resize(who, *chosen)
        elif what == "reopen":
            domain.reopen(who)
        elif what == "retire":
            domain.retire([source or "" for _, source, _ in steps[:2]])
        elif what == "convert":
            domain.convert(self._received(steps))
        else:
            known = sorted(domain.claimed())
            domain.forget([*known, "unknown"][which % (len(known) + 1)])

    @invariant()
    def holds(self):
        if self.domain is not None:
            self.domain.check()

    def teardown(self):
        if self.domain is not None:
            try:
                if sys.exception() is None:  # otherwise that error explains it, and the domain may be in any state
                    self.domain.check_at_end()
            finally:
                self.domain.close()


def run(url, full, **more):
    run_state_machine_as_test(
        partial(ClaimsMachine, url),
        # Shrinking a case takes minutes here.
        settings=settings(
            max_examples=full, stateful_step_count=25, phases=[Phase.explicit, Phase.reuse, Phase.generate], **more
        ),
    )


@pytest.mark.costly
@pytest.mark.scaled
def test_whatever_transactions_do(fresh_postgres_url):
    run(fresh_postgres_url, examples(120))


def received(ids):
    return [(id_, None, 0) for id_ in ids]


def commit(domain, ids):
    going = domain.begin(0)
    domain.receive(going, received(ids))
    domain.end(going, "commit")


def who_waits_is_overtaken(domain):
    """The waiting transaction draws its number for `x` once it has got `a`. So its number is higher than that of a
    transaction that came with `x` meanwhile."""
    holder = domain.begin(0)
    domain.receive(holder, received("a"))
    domain.overtake(holder, received("ax"), received("x"), "roll back")
    domain.end(domain.under_way[0], "commit")
    domain.check()
    domain.fold_all(0)


def somebody_is_at_what_is_forgotten(domain):
    commit(domain, "a")
    domain.fold_all(0)
    going = domain.begin(0, joins=True)
    domain.receive(going, received("a"))
    commit(domain, "bc")
    domain.fold_all(0)
    assert domain.claimed() == {"a", "b", "c"}
    domain.end(going, "roll back")
    domain.fold_all(0)


def what_is_forgotten_waits_to_be_folded_in(domain):
    """So does a receipt without id."""
    domain.fold_all(0)
    commit(domain, "abcde")
    commit(domain, [*"abc", None])
    domain.fold(0, 5)
    domain.check()


def who_takes_over_has_much_to_fold_in(domain):
    commit(domain, "a")
    commit(domain, "bc")
    domain.fold(0, 1)
    domain.check()


def two_fold_in_turn(domain):
    """One process has lost its lock, and doesn't know it yet. The other has released what was forgotten meanwhile."""
    commit(domain, "ab")
    domain.fold_all(0)
    commit(domain, "c")
    domain.fold_all(1)
    commit(domain, "d")
    commit(domain, "a")
    domain.fold(0, 1)
    domain.check()


def what_was_left_is_released_by_hand(domain):
    """The id is claimed again before the next folding."""
    commit(domain, "ab")
    domain.fold_all(0)
    going = domain.begin(0)
    domain.receive(going, received("a"))
    commit(domain, "c")
    domain.fold_all(0)
    domain.end(going, "roll back")
    domain.forget("a")
    commit(domain, "d")
    commit(domain, "a")
    domain.fold(0, 1)
    domain.check()


def what_came_once_is_released_at_once(domain):
    """It is released even while more receipts wait. It isn't released again once it is claimed anew."""
    domain.fold_all(0)
    commit(domain, "a")
    commit(domain, "bc")
    commit(domain, "d")
    domain.fold(0, 3)
    assert domain.claimed() == {"b", "c", "d"}
    commit(domain, "a")
    domain.fold(0, 1)
    assert domain.claimed() == {"c", "d", "a"}
    domain.check()


def the_log_is_read_anew(domain):
    """Ids that are forgotten again thereby were released long ago, and have come again since."""
    with claimed_domain(domain.url, "large", window=8) as large:
        commit(large, "abcdefgh")
        commit(large, "i")
        large.fold_all(0)
        commit(large, "j")
        commit(large, "a")
        large.receivers[0].session.cache.drop()
        large.fold(0, 1)
        large.check()


def an_id_is_the_text_of_what_was_forgotten_by_hand(domain):
    commit(domain, "a")
    domain.fold_all(0)
    domain.forget("a")
    commit(domain, ["forgotten"])
    domain.fold_all(0)
    commit(domain, "b")
    domain.fold_all(0)


def few_are_left_while_much_waits(domain):
    """Then folding reads neither all claims nor all waiting receipts."""
    commit(domain, "a")
    commit(domain, "a")
    domain.fold_all(0)
    commit(domain, "bc")
    commit(domain, "d")
    refused = partial(patch.object, Claims, side_effect=AssertionError)
    with refused("folded_in"), refused("waiting_receipts"):
        domain.fold(0, 2)
    assert domain.claimed() == {"a", "b", "c", "d"}


def many_are_left_while_much_waits(domain):
    commit(domain, "ab")
    commit(domain, "ab")
    domain.fold_all(0)
    commit(domain, "cd")
    commit(domain, "e")
    domain.fold(0, 2)
    assert domain.claimed() == {"c", "d", "e"}


def another_domain_has_the_same_ids(domain):
    with claimed_domain(domain.url, "another") as other:
        for each in (other, domain):
            commit(each, "abc")
            commit(each, "a")
        domain.fold_all(0)
        commit(domain, "d")
        domain.fold(0, 1)
        domain.forget("d")
        domain.forget("b")  # the rule has forgotten it already
        going = domain.begin(0, joins=True)
        domain.receive(going, received("xyb"), "undone")
        domain.end(going, "commit")
        domain.convert(received("xy"))
        domain.fold_all(0)
        for id_ in "aaxy":
            commit(domain, id_)
        domain.fold_all(0)
        commit(domain, "c")
        going = domain.begin(0, joins=True)
        domain.receive(going, received("c"))
        commit(domain, "xy")
        domain.fold_all(0)
        domain.end(going, "roll back")
        domain.fold_all(0)
        other.check()
        assert other.claimed() == {"a", "b", "c"}


def more_come_than_are_remembered(domain):
    commit(domain, "abc")
    domain.fold_all(0)


def later_rows_stand_before_earlier_ones(domain):
    """PostgreSQL reuses the room of rows that it has cleared away."""
    for id_ in "abcd":
        commit(domain, id_)
    domain.fold(0, 3)
    with domain.engine.connect() as connection, patch.object(claims, "_ROWS_AT_ONCE", 2):
        connection.execution_options(isolation_level="AUTOCOMMIT").execute(text("VACUUM receiver_arrival"))
        commit(domain, "e")
        commit(domain, "f")
        waiting = domain.receivers[0].session.claims_of(connection).waiting_receipts()
        assert [receipt.unique_message_id for receipt in waiting] == ["d", "e", "f"]
    domain.fold(0, 1)
    domain.fold_all(0)


def who_fails_has_still_what_came_before_a_savepoint(domain):
    going = domain.begin(0, joins=True)
    domain.receive(going, received("a"))
    domain.receive(going, received("b"), "rolled back")
    domain.receive(domain.begin(1), received("c"))
    domain.receive(going, received("dc"))
    assert going.has_failed
    other = domain.begin(1)
    domain.receive(other, received("bd"))
    assert not other.has_failed
    domain.receive(other, received("a"))
    assert other.has_failed


def an_id_comes_twice_at_once(domain):
    commit(domain, "cbac")
    domain.check()


DRAWN_EARLY = (
    (
        "SELECT domain_id FROM receiver_domain",
        "SELECT domain_id, nextval('receiver_arrival_number') FROM receiver_domain",
    ),
    ("SELECT domain_id, nextval('receiver_arrival_number'), %s", "SELECT domain_id, nextval, %s"),
)


def edited(name, *edits):
    """Replace parts of one of the statements."""
    statement = getattr(claims, name)
    for before, after in edits:
        assert before in statement
        statement = statement.replace(before, after)
    return partial(patch.object, claims, name, statement)


def in_reverse(self, at_most, take=Claims.take):
    return take(self, at_most)[::-1]


def trusting(batch, claims, known, at_most, fold=concurrent.fold):
    return fold(batch, claims, known and known._replace(last_writer=batch.transaction.state.last_writer), at_most)


def as_if_never_read_anew(batch, claims, known, at_most, fold=concurrent.fold):
    return fold(batch, claims, known and known._replace(policy=batch.transaction.cache.policy), at_most)


def from_the_end(ids, claimed_before, repeated=claims._repeated):
    return list(repeated(ids[::-1], claimed_before))[::-1]


def never_again(self, ids, release=Claims.release):
    release(self, ids)
    return set()


FAULTS = {
    "numbers drawn before the id is had": (who_waits_is_overtaken, edited("_CLAIM", *DRAWN_EARLY)),
    "a skipped claim never tried again": (
        somebody_is_at_what_is_forgotten,
        partial(patch.object, Claims, "release", never_again),
    ),
    "release without a look for arrivals": (
        what_is_forgotten_waits_to_be_folded_in,
        partial(patch.object, Claims, "waiting_receipts", lambda _self: iter(())),
    ),
    "what several receipts have released at once": (
        what_is_forgotten_waits_to_be_folded_in,
        edited("_RELEASE_SINGLE", (" AND is_single", "")),
    ),
    "what is released taken for left": (
        what_came_once_is_released_at_once,
        edited("_RELEASE_SINGLE", ("NOT EXISTS", "NOT NOT EXISTS")),
    ),
    "what waits taken for folded in": (
        who_takes_over_has_much_to_fold_in,
        partial(patch.object, Claims, "folded_in", lambda self: set(map(text_of, self._ids("")))),
    ),
    "what others released released again": (two_fold_in_turn, partial(patch.object, concurrent, "fold", trusting)),
    "what was released by hand released again": (
        what_was_left_is_released_by_hand,
        partial(patch.object, concurrent, "fold", trusting),
    ),
    "folding in another order": (more_come_than_are_remembered, partial(patch.object, Claims, "take", in_reverse)),
    "a batch reordered": (
        an_id_comes_twice_at_once,
        partial(patch.object, claims, "json_bytes", lambda receipts: json_bytes(receipts[::-1])),
    ),
    "the last of a batch claims": (
        an_id_comes_twice_at_once,
        partial(patch.object, claims, "_repeated", from_the_end),
    ),
}

UNUSUAL = {
    "nothing released while much waits": (
        many_are_left_while_much_waits,
        partial(patch.object, concurrent, "_LEFT_AT_MOST", 2),
    ),
    "what was released released again from memory read anew": (
        the_log_is_read_anew,
        partial(patch.object, concurrent, "fold", as_if_never_read_anew),
    ),
    "what was forgotten by hand taken for an id": (
        an_id_is_the_text_of_what_was_forgotten_by_hand,
        partial(patch.object, concurrent, "ForgottenId", int),
    ),
    "all read while few are left": (
        few_are_left_while_much_waits,
        partial(patch.object, concurrent, "_LEFT_AT_MOST", 0),
    ),
}
"""Faults that the model rarely gets to see."""


@pytest.fixture(autouse=True)
def _few_are_left(monkeypatch):
    """The most claims of repeated ids that may wait until everything is folded in."""
    monkeypatch.setattr(concurrent, "_LEFT_AT_MOST", 1)


STORIES = sorted(
    {story for story, _ in (FAULTS | UNUSUAL).values()}
    | {
        another_domain_has_the_same_ids,
        later_rows_stand_before_earlier_ones,
        who_fails_has_still_what_came_before_a_savepoint,
    },
    key=lambda story: story.__name__,
)


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_a_story(fresh_postgres_url, story):
    with claimed_domain(fresh_postgres_url, "story") as domain:
        story(domain)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("fault", FAULTS | UNUSUAL)
def test_a_fault_is_noticed(fresh_postgres_url, fault):
    story, broken = (FAULTS | UNUSUAL)[fault]
    with broken(), pytest.raises(AssertionError), claimed_domain(fresh_postgres_url, "story") as domain:
        story(domain)


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_the_model_notices_a_fault(fresh_postgres_url, fault):
    """It notices the fault with random steps, without a given story."""
    _, broken = FAULTS[fault]
    with broken(), pytest.raises((AssertionError, pytest.fail.Exception)):
        run(fresh_postgres_url, 1_000, report_multiple_bugs=False, database=None)
