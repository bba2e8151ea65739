"""Positions of sources: they move with what is committed, and only for a bridge that knows the present ones; on both
databases."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import text

from receiver.durable.audit import audit
from receiver.durable.receiver import Receiver
from receiver.errors import PositionMovedError, SettingsError, StoreError
from receiver.store.databases import store_url as url_of
from receiver.store.inbox import Inbox
from receiver.store.positions import Advance
from receiver.store.schema import losses, migrate
from receiver.store.upkeep import drop_domain
from tests.stores import engine_of, execute, rows_of

NUMBERS = itertools.count()


@pytest.fixture
def domain(store_url):
    with Receiver.open(store_url, connection_id="broker", destination="orders") as receiver:
        yield receiver


@pytest.fixture
def inbox(store_url, domain):
    with Inbox(store_url, domain_id=domain.domain_id, target="file:a") as inbox:
        yield inbox


def receive_and_move(domain, positions, *advances, redelivered=False):
    with domain.batch() as batch:
        positions.advance(batch.connection, advances)
        batch.receive("a", redelivered=redelivered)


def test_a_position_is_moved_only_from_where_it_is(domain, inbox):
    orders = inbox.positions("orders")
    with domain.batch() as batch:
        orders.advance(batch.connection, [Advance("0", None, "5"), Advance("1", None, "7")])
    assert orders.read() == {"0": "5", "1": "7"}
    with domain.batch() as batch:
        orders.advance(batch.connection, [Advance("0", "5", "9")])
    assert orders.read() == {"0": "9", "1": "7"}
    for stale in (Advance("0", "5", "10"), Advance("0", None, "10"), Advance("2", "1", "2")):
        with pytest.raises(PositionMovedError, match=f"in {stale.name} of orders"):
            receive_and_move(domain, orders, Advance("1", "7", "8"), stale)
    assert orders.read() == {"0": "9", "1": "7"}
    assert domain.status().rx == 0


def test_a_position_moves_with_the_batch_or_not_at_all(domain, inbox):
    orders = inbox.positions("orders")
    with pytest.raises(SettingsError):
        receive_and_move(domain, orders, Advance("0", None, "5"), redelivered=None)
    assert orders.read() == {}
    receive_and_move(domain, orders, Advance("0", None, "5"))
    assert (orders.read(), domain.status().rx) == ({"0": "5"}, 1)


def test_sources_and_domains_have_positions_of_their_own(store_url, inbox):
    orders, bills = inbox.positions("orders"), inbox.positions("bills")
    orders.begin({"0": "1"})
    bills.begin({"0": "2"})
    with (
        Receiver.open(store_url, connection_id="other", destination="orders") as other,
        Inbox(store_url, domain_id=other.domain_id, target="file:a") as others,
    ):
        assert others.positions("orders").read() == {}
        assert others.positions("orders").others() == set()
    assert (orders.read(), bills.read()) == ({"0": "1"}, {"0": "2"})
    assert (orders.others(), inbox.positions("none").others()) == ({"bills"}, {"orders", "bills"})


def test_beginning_keeps_what_is_there(inbox):
    orders = inbox.positions("orders")
    orders.begin({"0": "1"})
    orders.begin({"0": "2", "1": "3"})
    assert orders.read() == {"0": "1", "1": "3"}


@pytest.mark.parametrize("position", ["", "x" * 100_000])
def test_what_cannot_be_stored_is_refused(inbox, position):
    with pytest.raises(SettingsError, match="a position and its name have"):
        inbox.positions("orders").begin({"0": position})
    assert inbox.positions("orders").read() == {}


def test_any_text_comes_back_as_it_was(inbox):
    orders = inbox.positions("\ud800\0é")
    orders.begin({"\0": "\udfff"})
    assert orders.read() == {"\0": "\udfff"}


def test_positions_go_with_their_domain(store_url, inbox):
    inbox.positions("orders").begin({"0": "1"})
    inbox.note_node("amqp://a,b/queue/orders", "a:5672")
    (state,) = [each.state for each in audit(store_url).domains]
    drop_domain(store_url, state)
    assert rows_of(store_url, "receiver_position") == rows_of(store_url, "receiver_node") == 0
    with pytest.raises(StoreError, match="the domain is gone"):
        inbox.positions("orders").begin({"0": "1"})
    with pytest.raises(StoreError, match="is gone"):
        inbox.note_node("amqp://a,b/queue/orders", "b:5672")


def test_a_sound_position_is_no_finding(store_url, inbox):
    inbox.positions("orders").begin({"0": "1"})
    assert audit(store_url).findings == ()


def test_going_back_says_that_positions_are_lost(store_url, inbox):
    inbox.positions("orders").begin({"0": "1", "1": "1"})
    inbox.close()
    assert losses(url_of(store_url), "0005") == ["2 positions of bridges in partitions or streams"]
    migrate(url_of(store_url), "0005")
    migrate(url_of(store_url))
    assert rows_of(store_url, "receiver_position") == 0


STEPS = st.lists(
    st.tuples(st.sampled_from(["commit", "roll back", "assign"]), st.integers(0, 1), st.integers(1, 3)),
    min_size=10,
    max_size=30,
)


class Owners:
    """Two owners of one partition. Each may be frozen, revived or given the partition again at any time, and knows
    nothing of the other."""

    def __init__(self, positions, connection):
        self.positions = positions
        self.connection = connection
        self.kept = [0, 0]
        """The position that each believes to be stored."""
        self.behind = [0, 0]
        """How far each has read."""
        self.taken_effect = 0

    def assign(self, owner, _count):
        self.kept[owner] = self.behind[owner] = int(self.positions.read().get("0", "0"))

    def roll_back(self, owner, count):
        self.behind[owner] += count
        with self.connection.begin() as transaction:
            if self.kept[owner] == self.taken_effect:
                self.write(owner)
            transaction.rollback()

    def commit(self, owner, count):
        self.behind[owner] += count
        if self.kept[owner] == self.taken_effect:
            with self.connection.begin():
                self.write(owner)
            self.kept[owner] = self.taken_effect = self.behind[owner]
        else:
            with pytest.raises(PositionMovedError), self.connection.begin():
                self.write(owner)

    def write(self, owner):
        before, behind = self.kept[owner], self.behind[owner]
        for number in range(before, behind):
            insert = "INSERT INTO effect (source, number) VALUES (:source, :number)"
            self.connection.execute(text(insert), {"source": self.positions.source, "number": number})
        self.positions.advance(self.connection, [Advance("0", str(before) if before else None, str(behind))])


@pytest.mark.costly
@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_whoever_owns_it_when_each_message_takes_effect_once(request, database):
    store = request.getfixturevalue("sqlite_url" if database == "sqlite" else "fresh_postgres_url")
    with (
        Receiver.open(store, connection_id="broker", destination="orders") as domain,
        Inbox(store, domain_id=domain.domain_id, target="file:a") as inbox,
        engine_of(store).connect() as connection,
    ):
        execute(store, "CREATE TABLE effect (source TEXT, number INTEGER)")

        @given(STEPS)
        def play(steps):
            owners = Owners(inbox.positions(f"orders-{next(NUMBERS)}"), connection)
            for step, owner, count in steps:
                getattr(owners, step.replace(" ", "_"))(owner, count)
            rows = text("SELECT number FROM effect WHERE source = :source ORDER BY number")
            with connection.begin():
                numbers = list(connection.scalars(rows, {"source": owners.positions.source}))
            assert numbers == list(range(owners.taken_effect))

        play()
