"""Whatever comes, in whatever transactions, to however many receivers: the store and the naive model agree."""

import asyncio
import random
import uuid
from functools import partial

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from tests.choosing import examples
from tests.durable.async_in_lockstep import AsyncDomain
from tests.durable.opened import MEMORY, opened
from tests.durable.stores_in_lockstep import KEEP_ALL, Domain, Joining
from tests.model import Model

IDS = st.sampled_from([None, "", *"abcdefgh", "\0", "\ud800"])
FORGETTABLE = {*"abcdefgh", "\0", "\ud800"}
SOURCES = st.sampled_from([None, "", "s", "t", "\0"])
STEPS_US = st.sampled_from([0, 0, 0, 1, 1, 2, 3, 7, -1, -5])
STEPS = st.lists(st.tuples(IDS, SOURCES, STEPS_US), max_size=12)
SIZES = st.tuples(st.integers(0, 6), st.integers(0, 12)).filter(any)
HOUSEKEEPING = st.sampled_from([KEEP_ALL, KEEP_ALL, (2, 0), (0, 4), (3, 9)])
WHO = st.integers(0, 2)
FATES = st.sampled_from(["kept", "kept", "undone", "rolled back", "released"])


class StoreMachine(RuleBasedStateMachine):
    def __init__(self, url, make_domain=Domain):
        super().__init__()
        self.make_domain = make_domain
        self.url = url
        self.domain = None
        self.now_us = 0

    @initialize(chosen=SIZES, receivers=st.integers(1, 3), housekeeping=HOUSEKEEPING)
    def start(self, chosen, receivers, housekeeping):
        receivers = 1 if self.url == MEMORY else receivers
        self.domain = self.make_domain(self.url, uuid.uuid4().hex, receivers, *chosen, housekeeping)

    def _received(self, steps):
        received = []
        for id_, source, step_us in steps:
            self.now_us = max(0, self.now_us + step_us)
            received.append((id_, source, self.now_us))
        return received

    def _one(self, who):
        return who % len(self.domain.receivers)

    @rule(who=WHO, steps=STEPS, undo=st.sampled_from([False, False, True]))
    def batch(self, who, steps, undo):
        self.domain.batch(self._one(who), self._received(steps), undo=undo)

    @precondition(lambda self: self.url != MEMORY)
    @rule(batches=st.lists(st.tuples(WHO, STEPS, FATES), min_size=1, max_size=4), commit=st.booleans())
    def transaction(self, batches, commit):
        joining = [Joining(self._one(who), self._received(steps), fate) for who, steps, fate in batches]
        self.domain.transaction(joining, commit=commit)

    @precondition(lambda self: self.url != MEMORY)
    @rule(who=WHO)
    def reopen(self, who):
        self.domain.reopen(self._one(who))

    @precondition(lambda self: self.url != MEMORY)
    @rule(who=WHO, chosen=SIZES)
    def resize(self, who, chosen):
        self.domain.resize(self._one(who), *chosen)

    @precondition(lambda self: self.url != MEMORY)
    @rule(sources=st.lists(SOURCES.filter(lambda source: source is not None), min_size=1, max_size=3))
    def retire(self, sources):
        self.domain.retire(sources)

    @rule(which=st.integers(0, 9))
    def forget(self, which):
        known = sorted(id_ for id_ in self.domain.model.remembered() if id_ in FORGETTABLE)
        self.domain.forget([*known, "unknown"][which % (len(known) + 1)])

    @precondition(lambda self: self.url != MEMORY)
    @rule()
    def look_at_the_table(self):
        self.domain.assert_table_tells_all()

    def teardown(self):
        if self.domain is not None:
            self.domain.close()


@pytest.fixture(scope="module")
def sqlite_file(tmp_path_factory):
    url = f"sqlite:///{tmp_path_factory.mktemp('lockstep') / 'receiver.db'}"
    opened(url).close()
    return url


def run(url, full, make_domain=Domain, **more):
    run_state_machine_as_test(
        lambda: StoreMachine(url, make_domain),
        settings=settings(max_examples=examples(full), stateful_step_count=20, **more),
    )


@pytest.mark.scaled
def test_memory():
    run(MEMORY, 40)


@pytest.mark.scaled
def test_sqlite(sqlite_file):
    run(sqlite_file, 100)


@pytest.mark.scaled
def test_postgresql(fresh_postgres_url):
    # Shrinking a case takes minutes here, and what fails on one database fails on the other.
    run(fresh_postgres_url, 20, phases=[Phase.explicit, Phase.reuse, Phase.generate])


@pytest.mark.scaled
@pytest.mark.parametrize(("driver", "full"), [("aiosqlite", 20), ("psycopg", 8), ("asyncpg", 8)])
def test_in_an_event_loop(request, driver, full):
    url = request.getfixturevalue("sqlite_file" if driver == "aiosqlite" else "fresh_postgres_url")
    with asyncio.Runner() as loop:
        make_domain = partial(AsyncDomain, loop, driver)
        run(url, full, make_domain, phases=[Phase.explicit, Phase.reuse, Phase.generate])


@pytest.mark.costly
@pytest.mark.scaled
@pytest.mark.thinned(2)
def test_long_runs_in_which_deleting_lags(store_url, seed, campaign):
    """The windows are so large that forgotten rows wait to be deleted. Many wait whenever a receiver reads the rows."""
    chosen = random.Random(seed)
    sizes_us = [(100, 0), (150, 300_000), (20, 900_000), (0, 500_000), (60, 1)]
    domain = Domain(store_url, "long", 3, *sizes_us[1])
    now_us, sent, most_spare = 0, [], 0
    for turn in range(campaign.turns):
        received = []
        for _ in range(chosen.choice([1, 3, 40, 120])):
            now_us += chosen.choice([0, 100, 1_000, 3_000])
            again = sent and chosen.random() < 0.3
            id_ = sent[-min(len(sent), int(chosen.expovariate(1 / 200)) + 1)] if again else f"{len(sent)}"
            sent.append(id_)
            received.append((id_, f"source {int(chosen.expovariate(0.5))}", max(0, now_us - chosen.choice([0, 0, 50]))))
        who, other = chosen.randrange(3), chosen.randrange(3)
        what = chosen.random()
        if what < 0.6:
            domain.batch(who, received, undo=chosen.random() < 0.1)
        elif what < 0.8:
            half = len(received) // 2
            fate = chosen.choice(["kept", "rolled back", "undone"])
            joining = [Joining(who, received[:half]), Joining(other, received[half:], fate)]
            domain.transaction(joining, commit=chosen.random() < 0.7)
        elif what < 0.95:
            domain.reopen(who)
        else:
            domain.resize(who, *chosen.choice(sizes_us))
        if turn % 5 == 0:
            most_spare = max(most_spare, domain.assert_table_tells_all())
    domain.close()
    assert most_spare > 20  # it did lag


def test_the_model_resizes_as_the_rules_have_it():
    """The model's resizing of a domain with two ids, worked by hand."""
    model = Model(1, 10)
    for id_, received_at_us in [("a", 0), ("b", 1), ("a", 2), ("c", 3)]:
        model.receive(id_, "s", received_at_us)
    # The source's queue has c. The time queue has b@1, and a@0, which a@2 supersedes.
    assert [(entry.id, entry.received_at_us) for entry in model.entries()] == [("b", 1), ("a", 2), ("c", 3)]
    larger = model.resized(2, 10)
    assert [entry.id for entry in larger.queues["s"]] == ["a", "c"]
    assert [entry.id for entry in larger.time_queue] == ["b"]
    assert larger.newest_us == 1
    shorter = model.resized(1, 0)
    assert shorter.remembered() == {"c"}
    assert shorter.latest_us == 3
    assert model.resized(0, 1).remembered() == {"a", "c"}
