"""Messages that a function gets together: the outcome is as if it had got each by itself."""

import logging
from collections import Counter
from contextlib import suppress
from functools import partial

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from sqlalchemy import event, text
from sqlalchemy.engine import Engine
from sqlalchemy.exc import DBAPIError

from receiver.bridge.opening import BridgeOptions, open_bridge
from receiver.bridge.options import Mode
from receiver.bridge.targets import one_by_one, python_target
from receiver.bridge.targets.python_target import PythonTarget
from receiver.errors import SettingsError, StoreError
from receiver.settings import BridgeSettings
from receiver.store.upkeep import parked_rows
from tests.bridge.bridged import DiedError, Route, _die, message, send
from tests.choosing import cases, scaled, slow

pytestmark = [pytest.mark.usefixtures("hasty"), pytest.mark.thinned(3)]

TRANSACTIONAL = [Mode.EXACTLY_ONCE, Mode.APP_CONTROLLED]


def opened(route, target, mode=Mode.EXACTLY_ONCE, **settings):
    store = None if mode is Mode.BEST_EFFORT else route.store
    return open_bridge(route.origin, target, store, BridgeOptions(mode=mode, settings=BridgeSettings(**settings)))


def run(route, target, mode=Mode.EXACTLY_ONCE, **settings):
    bridge = opened(route, target, mode, **settings)
    bridge.run(stop_when_idle_secs=0)
    return bridge


def parked(route):
    return sorted(
        (row.unique_message_id, row.tries, row.error) for row in parked_rows(route.store) if row.domain == route.domain
    )


# In lockstep with messages one by one

POISONS = ["raises", "breaks", "swallows", "exits"]
IDS = [str(number) for number in range(8)]


class Desk:
    """An application that books rows. For certain messages it fails after it has booked."""

    def __init__(self, route, poisons, goes_down_at):
        self._route = route
        self._poisons = poisons
        self._goes_down_at = goes_down_at
        """The number of the call at which the desk says that it can't work just now."""
        self._calls = 0

    def book(self, received, connection):
        self._calls += 1
        if self._calls == self._goes_down_at:
            raise StoreError("down")
        self._route._book(received, connection)
        match self._poisons.get(received.text):
            case "raises":
                raise ValueError(received.text)
            case "breaks":
                connection.execute(text("SELECT no_such_column"))
            case "swallows":  # does no harm on SQLite
                with suppress(DBAPIError):
                    connection.execute(text("SELECT no_such_column"))
            case "exits":
                raise SystemExit(received.text)

    def book_all(self, messages, connection):
        for received in messages:
            self.book(received, connection)


class OneByOne(PythonTarget):
    """The naive way: the function never gets messages together."""

    def deliver(self, messages, lease):
        deliver = super().deliver
        return one_by_one(messages, lambda each: deliver([each], lease).failed.get(0))


WAYS = {
    "one by one": lambda desk: OneByOne("python:desk:book", desk.book),
    "together": lambda desk: PythonTarget("python:desk:book", desk.book),
    "as a list": lambda desk: PythonTarget("python:desk:book_all", desk.book_all),
}


def lived(route, way, mode, script):
    """The outcome of a bridge to such a desk. If the script says so, the bridge dies once and comes again."""
    poisons, goes_down_at, dies_at, batch_size = script
    route.send(*(message(id_, f"source {int(id_) % 3}") for id_ in IDS))
    dies, *counted = dies_at is not None, {}
    for life in range(1 + dies):
        route._plan.clear()
        if dies and life == 0:
            route.plan("delivering", _die, at=dies_at)
        down_at = goes_down_at if life == 0 else None  # the second bridge begins with a desk that works
        target = WAYS[way](Desk(route, poisons, down_at))
        bridge = opened(route, target, mode, max_batch_size=batch_size, max_tries=2)
        with suppress(DiedError):
            bridge.run(stop_when_idle_secs=0)
        counted = (bridge.figures.delivered, bridge.figures.failed, bridge.figures.parked)
    assert (route.waiting(), route.queued) == (0, [])
    of_sources = [[id_ for id_ in route.effects() if int(id_) % 3 == source] for source in range(3)]
    return of_sources, parked(route), () if dies or goes_down_at else counted


@pytest.mark.parametrize(
    ("store", "mode"),
    [
        scaled("sqlite", Mode.EXACTLY_ONCE),
        scaled("sqlite", Mode.APP_CONTROLLED),
        slow("postgresql", Mode.EXACTLY_ONCE),
    ],
    indirect=["store"],
)
@cases(16, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    script=st.tuples(
        st.dictionaries(st.sampled_from(IDS), st.sampled_from(POISONS), max_size=3),
        st.none() | st.integers(1, 12),
        st.none() | st.integers(1, 12),
        st.integers(2, 8),
    ),
    long_secs=st.sampled_from([0.0, 1.0]),
)
def test_whatever_fails_or_dies_together_does_as_one_by_one(tmp_path_factory, store, mode, script, long_secs):
    left = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(python_target, "_LONG_SECS", long_secs)
        for way in WAYS:
            left[way] = lived(Route(store, tmp_path_factory.mktemp("way"), "table", mode), way, mode, script)
    assert left["together"] == left["one by one"]
    assert left["as a list"] == left["one by one"]


# What a function takes, and which is called how often


@pytest.fixture
def statements():
    """Counts the statements that SQLAlchemy executes, by their first word."""
    seen = Counter()

    def see(_connection, _cursor, statement, *_more):
        seen[statement.split()[0]] += 1

    event.listen(Engine, "before_cursor_execute", see)
    yield seen
    event.remove(Engine, "before_cursor_execute", see)


@pytest.mark.parametrize("mode", TRANSACTIONAL)
def test_a_turn_that_goes_well_takes_one_savepoint(tmp_path, store, mode, statements):
    route = Route(store, tmp_path, "table", mode)
    send(route, *IDS)
    statements.clear()
    assert route.run().figures.delivered == len(IDS)
    assert (statements["SAVEPOINT"], statements["RELEASE"]) == (1, 1)


class Ledger:
    """Books whole lists, and fails for poisoned messages."""

    def __init__(self, *poisoned):
        self.poisoned = set(poisoned)
        self.calls = []

    def book(self, messages):
        self.calls.append("".join(each.text for each in messages))
        if self.poisoned & {each.text for each in messages}:
            raise ValueError("poisoned")

    def book_inside(self, messages, connection):
        assert connection.in_transaction()
        self.book(messages)


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize("with_connection", [False, True])
def test_a_function_of_many_gets_all_that_is_there_and_one_by_one_what_fails(tmp_path, store, mode, with_connection):
    if with_connection and mode is Mode.BEST_EFFORT:
        pytest.skip("it has none to give")
    route, ledger = Route(store, tmp_path, "call", mode), Ledger("2")
    route.send(*(message(id_, id_) for id_ in "123"))
    bridge = run(route, ledger.book_inside if with_connection else ledger.book, mode, max_tries=2)
    assert (bridge.figures.delivered, bridge.figures.failed, bridge.figures.parked) == (2, 2, 1)
    together = ["123", "1", "2", "3"]
    is_rolled_back = with_connection and mode is Mode.APP_CONTROLLED
    assert ledger.calls == together + (together if is_rolled_back else ["2"])
    if mode.keeps:
        assert parked(route) == [("2", 2, "ValueError: poisoned")]


def test_it_is_said_why_a_function_gets_messages_one_by_one(route, caplog):
    """Otherwise a function that fails only for many messages at once would just be slow."""
    send(route, "1", "2")
    with caplog.at_level(logging.INFO, "receiver.bridge"):
        run(route, PythonTarget("python:ledger", Ledger("1").book), max_tries=1)
    assert "python:ledger failed on 2 messages, and gets them one by one: ValueError: poisoned" in caplog.messages


def commits_for_all(messages, connection):  # noqa: ARG001 - its name says what it takes
    connection.commit()


def commits_in_sql(_received, connection):
    connection.exec_driver_sql("COMMIT")


def commits_before_another_fails(received, connection):
    if received.text != "1":
        raise ValueError
    connection.exec_driver_sql("COMMIT")


@pytest.mark.parametrize("function", [commits_for_all, commits_in_sql, commits_before_another_fails])
@pytest.mark.parametrize("mode", TRANSACTIONAL)
def test_it_leaves_the_transaction_to_the_bridge_also_with_many(tmp_path, store, mode, function):
    """The message that ends the transaction may fail, or others may. One by one, the bridge sees which message it
    is."""
    route = Route(store, tmp_path, "call", mode)
    route.send(*(message(id_, id_) for id_ in "123"))
    with pytest.raises(SettingsError, match="ended the transaction"):
        run(route, function, mode)


def many_without_connection(messages): ...


def many_with_connection(messages, connection): ...


def many_without_their_log(messages, log=None): ...


def many_by_position(messages, connection, /): ...


def each_that_comes(*messages): ...


@pytest.mark.parametrize(
    ("function", "form"),
    [
        (many_without_connection, (True, False)),
        (many_with_connection, (True, True)),
        (many_without_their_log, (True, False)),
        (many_by_position, (True, True)),
        (each_that_comes, (False, False)),
        (partial(many_with_connection, connection=None), (True, False)),
    ],
)
def test_its_first_parameter_says_that_it_takes_many(function, form):
    target = PythonTarget("python:desk", function)
    assert (target.takes_many, target.takes_part) == form


def many_behind_another(connection, messages): ...


def many_by_name(*, messages): ...


def many_and_more(messages, connection, more): ...


@pytest.mark.parametrize("function", [many_behind_another, many_by_name, many_and_more])
def test_what_fits_neither_form_is_refused(route, function):
    with pytest.raises(SettingsError, match=r"neither \(message\) nor .*\(messages, connection\)") as caught:
        opened(route, function)
    assert function.__qualname__ in str(caught.value)


def test_nothing_is_given_together_that_is_alone(route):
    ledger = Ledger("1")
    send(route, "1")
    run(route, ledger.book, max_tries=3)
    assert ledger.calls == ["1"] * 3
