"""A function as a target: which functions are allowed, and what becomes of the transaction."""

import asyncio
import os
import sqlite3
import sys
import time
import uuid
from concurrent.futures import Future
from contextlib import closing, suppress

import pytest
from sqlalchemy import make_url, text
from sqlalchemy.exc import DBAPIError

from receiver.bridge.opening import BridgeOptions, Origin, open_bridge
from receiver.bridge.options import Mode
from receiver.bridge.targets import Target, python_target
from receiver.bridge.targets.file_target import FileTarget
from receiver.bridge.targets.python_target import PythonTarget, function_named
from receiver.errors import BrokerError, MessageRefusedError, OutputError, SettingsError, StoreError
from receiver.settings import BridgeSettings
from receiver.store.upkeep import parked_rows
from tests.bridge.bridged import TEN, Route, message, send
from tests.stores import engine_of, execute

pytestmark = [pytest.mark.usefixtures("hasty"), pytest.mark.thinned(4)]


def bridge_to(route, function, mode=Mode.EXACTLY_ONCE, **settings):
    options = BridgeOptions(mode=mode, settings=BridgeSettings(**settings))
    return open_bridge(route.origin, function, route.store, options)


@pytest.mark.parametrize("mode", [Mode.EXACTLY_ONCE, Mode.APP_CONTROLLED])
def test_a_message_for_which_it_fails_leaves_nothing_behind(tmp_path, store, mode):
    route, table = Route(store, tmp_path, "table", mode), f"book_{mode.lower()}"
    execute(store, f"CREATE TABLE {table} (id TEXT PRIMARY KEY)")

    def book(received, connection):
        connection.execute(text(f"INSERT INTO {table} VALUES (:id)"), {"id": received.unique_message_id})  # noqa: S608
        if received.unique_message_id == "2":
            connection.execute(text(f"INSERT INTO {table} VALUES ('1')"))  # noqa: S608 - it's there

    route.send(*(message(id_, id_) for id_ in "123"))
    bridge = bridge_to(route, book, mode)
    bridge.run(stop_when_idle_secs=0)
    with engine_of(store).connect() as connection:
        assert sorted(connection.scalars(text(f"SELECT id FROM {table}"))) == ["1", "3"]  # noqa: S608
    (parked,) = (row for row in parked_rows(store) if row.domain == route.domain)
    assert (parked.unique_message_id, parked.tries) == ("2", 5)
    assert "IntegrityError" in parked.error
    execute(store, f"DROP TABLE {table}")


def swallows_what_spoils_the_transaction(_received, connection):
    with suppress(DBAPIError):
        connection.exec_driver_sql("SELECT no_such_column")


def leaves_a_savepoint_open(_received, connection):
    connection.begin_nested()


@pytest.mark.parametrize("function", [swallows_what_spoils_the_transaction, leaves_a_savepoint_open])
@pytest.mark.parametrize("mode", [Mode.EXACTLY_ONCE, Mode.APP_CONTROLLED])
def test_what_else_it_leaves_behind_is_no_harm_to_others(tmp_path, store, mode, function):
    """PostgreSQL takes nothing more after an error, so in PostgreSQL the message fails."""
    route = Route(store, tmp_path, "call", mode)
    send(route, "1", "2")
    bridge = bridge_to(route, function, mode)
    bridge.run(stop_when_idle_secs=0)
    assert bridge.figures.delivered + bridge.figures.parked == 2
    assert (route.waiting(), route.queued) == (0, [])


def commits(_received, connection):
    connection.commit()


def rolls_back_and_fails(_received, connection):
    connection.rollback()
    raise ValueError


def closes(_received, connection):
    connection.close()


def commits_in_sql(_received, connection):
    connection.exec_driver_sql("COMMIT")


@pytest.mark.parametrize("function", [commits, rolls_back_and_fails, closes, commits_in_sql])
@pytest.mark.parametrize("mode", [Mode.EXACTLY_ONCE, Mode.APP_CONTROLLED])
def test_it_leaves_the_transaction_to_the_bridge(tmp_path, store, mode, function):
    route = Route(store, tmp_path, "call", mode)
    send(route, "1")
    with pytest.raises(SettingsError, match="ended the transaction"):
        bridge_to(route, function, mode).run(stop_when_idle_secs=0)
    assert (route.waiting(), len(route.queued)) in {(1, 0), (0, 1)}


@pytest.mark.parametrize("mode", [Mode.EXACTLY_ONCE, Mode.APP_CONTROLLED])
def test_a_database_that_is_lost_while_it_runs_is_no_fault_of_its(tmp_path, postgresql_store, mode):
    route, calls = Route(postgresql_store, tmp_path, "call", mode), []

    def book(received, connection):
        calls.append(received.unique_message_id)
        if len(calls) == 1:
            connection.exec_driver_sql("SELECT pg_terminate_backend(pg_backend_pid())")

    send(route, "1", "2")
    bridge = bridge_to(route, book, mode)
    bridge.run(stop_when_idle_secs=0)
    assert calls == ["1", "1", "2"]
    assert (bridge.figures.delivered, bridge.figures.failed) == (2, 0)


@pytest.mark.parametrize("mode", [Mode.EXACTLY_ONCE, Mode.APP_CONTROLLED])
def test_a_time_out_of_the_server_that_it_exceeds_is_named(tmp_path, postgresql_store, mode, caplog):
    """It is called again and again. Only the time-out's name leads to the remedy."""
    route, calls = Route(postgresql_store, tmp_path, "call", mode), []

    def book(received, connection):
        calls.append(received.unique_message_id)
        if len(calls) == 1:
            connection.exec_driver_sql("SET idle_in_transaction_session_timeout = 1")
            for _ in range(100):  # a busy server may be late
                time.sleep(0.2)
                connection.exec_driver_sql("SELECT 1")

    send(route, "1")
    bridge_to(route, book, mode).run(stop_when_idle_secs=0)
    assert calls == ["1", "1"]
    assert "terminating connection due to idle-in-transaction timeout (keep batches short" in caplog.text


@pytest.mark.parametrize("mode", [Mode.EXACTLY_ONCE, Mode.APP_CONTROLLED])
def test_a_deferred_constraint_is_its_messages_fault(tmp_path, postgresql_store, mode):
    """The constraint fails only at the commit, which is that of the whole batch."""
    route, table = Route(postgresql_store, tmp_path, "table", mode), f"account_{uuid.uuid4().hex}"
    execute(
        postgresql_store,
        f"CREATE TABLE {table} (id TEXT PRIMARY KEY, other TEXT REFERENCES {table} DEFERRABLE INITIALLY DEFERRED)",
    )

    def book(received, connection):
        other = "none" if received.text == "2" else f"{received.text}b"
        rows = [{"id": received.text, "other": other}, {"id": f"{received.text}b", "other": None}]
        for row in rows:
            connection.execute(text(f"INSERT INTO {table} VALUES (:id, :other)"), row)  # noqa: S608

    route.send(*(message(id_, id_) for id_ in "1234"))
    bridge = bridge_to(route, book, mode, max_tries=2)
    bridge.run(stop_when_idle_secs=0)
    assert (bridge.figures.delivered, bridge.figures.parked) == (3, 1)
    assert [(row.unique_message_id, row.tries) for row in parked_rows(route.store) if row.domain == route.domain] == [
        ("2", 2)
    ]
    with engine_of(postgresql_store).connect() as connection:
        assert sorted(connection.scalars(text(f"SELECT id FROM {table}"))) == ["1", "1b", "3", "3b", "4", "4b"]  # noqa: S608


def test_a_message_that_it_cannot_send_on_is_that_messages_fault(route):
    def forward(received):
        if received.unique_message_id == "1":
            raise MessageRefusedError("it can't be expressed")

    send(route, "1", "2")
    bridge = bridge_to(route, PythonTarget("python:tests:forward", forward))
    bridge.run(stop_when_idle_secs=0)
    (parked,) = parked_rows(route.store)
    assert (parked.unique_message_id, parked.tries) == ("1", 5)
    assert bridge.figures.delivered == 1


class Desk:
    """An object that can be called, and has a method. It notes each call, and whether there was a connection."""

    def __init__(self) -> None:
        self.booked = []

    def book(self, received, connection):
        self.booked.append((received.unique_message_id, connection is not None))

    def __call__(self, received):
        self.booked.append((received.unique_message_id, False))


def test_methods_are_functions_too(route):
    desk = Desk()
    send(route, "1")
    bridge_to(route, desk.book).run(stop_when_idle_secs=0)
    assert desk.booked == [("1", True)]


def test_what_has_no_name_of_its_own_needs_one(route):
    """A store knows a target by its name, also in the bridge's next life."""
    desk = Desk()
    for nameless in (desk, lambda _received: None):
        with pytest.raises(SettingsError, match="no name"):
            bridge_to(route, nameless)
    send(route, "1")
    bridge_to(route, PythonTarget("python:desk", desk)).run(stop_when_idle_secs=0)
    assert desk.booked == [("1", False)]


async def asynchronous(_received):
    await asyncio.sleep(0)


def generates(_received):
    yield


def wants_nothing(): ...


def wants_three(_received, _connection, _more): ...


def wants_a_name(_received, *, name): ...


@pytest.mark.parametrize("function", [asynchronous, generates, wants_nothing, wants_three, wants_a_name])
def test_what_cannot_be_called_with_a_message_is_refused(route, function):
    with pytest.raises(SettingsError) as caught:
        bridge_to(route, function)
    assert function.__qualname__ in str(caught.value)


class OfOwn:
    """A target, of which the class is given instead of an object."""

    def __init__(self, path):
        self.path = path

    def deliver(self, _messages, _lease): ...


@pytest.mark.parametrize("function", [OfOwn, Target, "python:tests.bridge.test_python_target:OfOwn"])
def test_a_class_is_refused_because_calling_it_does_nothing(route, function):
    with pytest.raises(SettingsError, match="is a class, so calling it only makes an object"):
        bridge_to(route, function)


def test_a_source_where_a_function_should_make_it_is_refused(route):
    with (
        route.broker.source("orders") as source,
        pytest.raises(SettingsError, match="connect must be a function, not <"),
    ):
        open_bridge(Origin(source, "broker", "queue://orders"), print, route.store)


def hands_back_a_coroutine(received):
    return asynchronous(received)


class Asynchronous:
    async def __call__(self, received): ...


def leaves_it_to_others(_received):
    return Future()


async def generates_asynchronously(_received):
    yield


def is_cancelled(_received):
    raise asyncio.CancelledError


class UntellableError(Exception):
    def __str__(self):
        raise ValueError


def raises_what_cannot_be_told(_received):
    raise UntellableError


@pytest.mark.thinned(3)
@pytest.mark.parametrize("mode", [Mode.EXACTLY_ONCE, Mode.APP_CONTROLLED])
@pytest.mark.parametrize(
    ("function", "why"),
    [
        (hands_back_a_coroutine, "coroutine"),
        (Asynchronous(), "coroutine"),
        (generates_asynchronously, "async_generator"),
        (leaves_it_to_others, "it returned a Future, for whose end nobody waits"),
        (is_cancelled, "CancelledError"),
        (raises_what_cannot_be_told, "UntellableError"),
    ],
)
def test_what_does_nothing_or_fails_oddly_has_failed(route, mode, function, why, caplog):
    send(route, "1", "2")
    bridge = bridge_to(route, PythonTarget("python:odd", function), mode)
    bridge.run(stop_when_idle_secs=0)
    assert [(row.unique_message_id, row.tries) for row in parked_rows(route.store)] == [("1", 5), ("2", 5)]
    assert all(why in row.error for row in parked_rows(route.store))
    assert (bridge.figures.delivered, bridge.figures.failed, bridge.figures.parked) == (0, 10, 2)
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize("mode", [Mode.EXACTLY_ONCE, Mode.APP_CONTROLLED, Mode.BEST_EFFORT])
def test_what_it_raises_is_shortened_for_the_log(route, mode, caplog):
    """It may have a whole message in its text, and is logged at each try."""
    errors = [StoreError("down" * 1_000_000), *[ValueError("what a message" * 1_000_000)] * 2]

    def book(_received):
        raise errors.pop(0)

    send(route, "1")
    bridge_to(route, book, mode, max_tries=2).run(stop_when_idle_secs=0)
    assert not errors
    assert "what a message" in caplog.text
    assert len(caplog.text) < 100_000


@pytest.mark.thinned(3)
@pytest.mark.parametrize("mode", [Mode.EXACTLY_ONCE, Mode.APP_CONTROLLED, Mode.BEST_EFFORT])
@pytest.mark.parametrize("error", [StoreError("down"), BrokerError("down"), OutputError("down")], ids=repr)
def test_what_it_says_of_others_than_the_message_counts_for_no_try(route, mode, error):
    calls = []

    def book(received):
        calls.append(received.text)
        if len(calls) < 10:
            raise error

    send(route, "1", "2")
    bridge = bridge_to(route, book, mode)
    bridge.run(stop_when_idle_secs=0)
    assert calls == ["1"] * 10 + ["2"]
    assert (bridge.figures.delivered, bridge.figures.failed, bridge.figures.parked) == (2, 0, 0)


@pytest.mark.parametrize("mode", [Mode.EXACTLY_ONCE, Mode.APP_CONTROLLED])
@pytest.mark.parametrize("state", ["55P03", "40P01", "40001", "53100"])
def test_a_lock_of_others_or_a_full_disk_is_no_fault_of_the_message(tmp_path, postgresql_store, mode, state):
    """By SQLSTATE: a lock that isn't free in time, a deadlock, a commit of others, and a disk without room."""
    route, calls = Route(postgresql_store, tmp_path, "table", mode), []

    def book(received, connection):
        route._book(received, connection)
        calls.append(received.text)
        if len(calls) < 10:
            connection.exec_driver_sql(f"DO 'BEGIN RAISE EXCEPTION USING ERRCODE = ''{state}''; END'")

    send(route, "1", "2")
    bridge = bridge_to(route, book, mode)
    bridge.run(stop_when_idle_secs=0)
    assert (calls, route.effects()) == (["1"] * 10 + ["2"], ["1", "2"])
    assert (bridge.figures.delivered, bridge.figures.failed, bridge.figures.parked) == (2, 0, 0)


def test_others_go_on_while_a_message_waits_for_a_lock(tmp_path, postgresql_store):
    """Later messages of its source don't."""
    route, tries = Route(postgresql_store, tmp_path, "table"), []

    def book(received, connection):
        route._book(received, connection)
        if received.text == "1":
            tries.append(1)
            if len(tries) < 10:
                connection.exec_driver_sql("DO 'BEGIN RAISE lock_not_available; END'")

    route.send(message("1", "a"), message("2", "b"), message("3", "a"))
    bridge = bridge_to(route, book)
    bridge.run(stop_when_idle_secs=0)
    assert route.effects() == ["2", "1", "3"]
    assert (bridge.figures.delivered, bridge.figures.failed, bridge.figures.parked) == (3, 0, 0)


@pytest.mark.parametrize("mode", [Mode.EXACTLY_ONCE, Mode.APP_CONTROLLED])
def test_a_full_disk_below_a_file_is_no_fault_of_the_message(route, mode):
    execute(route.store, "CREATE TABLE large (body BLOB)")
    tries = []

    def book(_received, connection):
        tries.append(1)
        pages = 1_000_000 if len(tries) == 10 else connection.exec_driver_sql("PRAGMA page_count").scalar_one()
        connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}")
        connection.exec_driver_sql("INSERT INTO large VALUES (zeroblob(100000))")

    send(route, "1")
    bridge = bridge_to(route, book, mode)
    bridge.run(stop_when_idle_secs=0)
    assert (len(tries), bridge.figures.delivered, bridge.figures.failed) == (10, 1, 0)


@pytest.mark.parametrize("mode", [Mode.EXACTLY_ONCE, Mode.APP_CONTROLLED])
def test_a_file_that_it_keeps_from_itself_is_its_fault(route, mode):
    def book(_received, _connection):
        with closing(sqlite3.connect(make_url(route.store).database, timeout=0)) as second:
            second.execute("BEGIN IMMEDIATE")

    send(route, "1")
    bridge = bridge_to(route, book, mode)
    bridge.run(stop_when_idle_secs=0)
    assert (bridge.figures.failed, bridge.figures.parked) == (5, 1)


@pytest.mark.parametrize("mode", [Mode.EXACTLY_ONCE, Mode.APP_CONTROLLED, Mode.BEST_EFFORT])
@pytest.mark.parametrize("error", [OutputError("too many requests"), ValueError("no")], ids=repr)
def test_what_it_has_handled_it_does_not_get_again_if_it_cannot_handle_more(route, mode, error):
    """Otherwise a service that takes two messages at a time would get the first two for ever."""
    calls = []

    def post(received):
        calls.append(received.text)
        if len(calls) % 3 == 0:
            raise error

    send(route, *TEN)
    bridge = bridge_to(route, post, mode)
    bridge.run(stop_when_idle_secs=0)
    assert [call for number, call in enumerate(calls, 1) if number % 3] == TEN
    assert len(calls) == 14
    assert bridge.figures.delivered == 10


@pytest.mark.parametrize("mode", [Mode.EXACTLY_ONCE, Mode.APP_CONTROLLED, Mode.BEST_EFFORT])
def test_what_it_has_handled_alone_it_does_not_get_again_if_it_cannot_handle_more(route, mode):
    """A function of many gets them one by one once it has failed."""
    calls = []

    def post(messages):
        if len(messages) > 1:
            raise ValueError
        calls.append(messages[0].text)
        if len(calls) == 2:
            raise OutputError("too many requests")

    send(route, "1", "2", "3")
    bridge = bridge_to(route, post, mode)
    bridge.run(stop_when_idle_secs=0)
    assert calls == ["1", "2", "2", "3"]
    assert bridge.figures.delivered == 3


@pytest.mark.parametrize("mode", [Mode.EXACTLY_ONCE, Mode.APP_CONTROLLED])
@pytest.mark.parametrize("is_given_many", [False, True])
def test_what_outlasts_a_transaction_is_handed_on_once(tmp_path, postgresql_store, mode, is_given_many):
    """By `idle_in_transaction_session_timeout`, the server ends the transaction during each slow call."""
    route, calls = Route(postgresql_store, tmp_path, "call", mode), []

    def post(received):
        assert len(calls) < 10
        calls.append(received.text)
        ended = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = current_database() AND state = "
        execute(route.store, f"{ended}'idle in transaction'")

    def post_all(messages):
        for each in messages:
            post(each)

    route.send(message("1", "a"), message("2", "b"))
    bridge = bridge_to(route, post_all if is_given_many else post, mode)
    bridge.run(stop_when_idle_secs=0)
    assert (calls, route.waiting(), route.queued) == (["1", "2"], 0, [])
    assert (bridge.figures.delivered, bridge.figures.failed) == (2, 0)


@pytest.mark.parametrize("mode", [Mode.EXACTLY_ONCE, Mode.APP_CONTROLLED])
@pytest.mark.parametrize("error", [StoreError("down"), BrokerError("down")], ids=repr)
def test_what_it_wrote_before_it_said_so_is_taken_back(tmp_path, store, mode, error):
    """So it is too if messages are handed over one by one, as here after a message has failed."""
    route, calls = Route(store, tmp_path, "table", mode), []

    def book(received, connection):
        route._book(received, connection)
        calls.append(received.text)
        if calls == ["1", "2", "3"]:
            raise ValueError("no")
        if calls == ["1", "2", "3", "1", "2"]:
            raise error

    send(route, "1", "2", "3")
    bridge_to(route, book, mode).run(stop_when_idle_secs=0)
    assert route.effects() == ["1", "2", "3"]


def wants_a_log(_received, log=None):
    assert log is None


def may_have_a_connection(_received, connection=None):
    assert connection.in_transaction()


@pytest.mark.parametrize("function", [wants_a_log, may_have_a_connection])
def test_what_it_could_do_without_is_given_to_it_only_by_name(route, function):
    send(route, "1")
    bridge = bridge_to(route, function)
    bridge.run(stop_when_idle_secs=0)
    assert (bridge.figures.delivered, bridge.figures.failed) == (1, 0)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="only where there is fork(2)")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
@pytest.mark.parametrize("ends", [lambda: None, sys.exit], ids=["returns", "exits"])
@pytest.mark.parametrize("mode", [Mode.EXACTLY_ONCE, Mode.APP_CONTROLLED])
def test_a_process_that_it_forks_off_ends_where_it_ends(tmp_path, store, mode, ends):
    """The forked process has its parent's connections. It must neither commit on them nor go on as a second bridge."""
    route, parent, children = Route(store, tmp_path, "table", mode), os.getpid(), []

    def book(received, connection):
        route._book(received, connection)
        child = os.fork()
        if child == 0:
            ends()
        else:
            children.append(child)

    send(route, "1", "2", "3")
    try:
        bridge = bridge_to(route, book, mode)
        bridge.run(stop_when_idle_secs=0)
    finally:
        if os.getpid() != parent:  # otherwise it would run the other tests too
            os._exit(7)
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [1, 1, 1]
    assert route.effects() == ["1", "2", "3"]
    assert (bridge.figures.delivered, bridge.figures.failed, route.queued) == (3, 0, [])


def test_best_effort_has_no_connection_to_give():
    with pytest.raises(SettingsError, match="BEST_EFFORT has none to give"):
        open_bridge("amqp://h/q", commits, None, BridgeOptions(mode=Mode.BEST_EFFORT))


MODULE = """
import sys
import time
if "{wanted}" == "exits":
    sys.exit(3)
if "{wanted}" == "raises":
    raise RuntimeError("at import")
def book(message): ...
class Desk:
    @staticmethod
    def book(message, connection): ...
number = 7
"""


def module(folder, monkeypatch, wanted="nothing"):
    name = f"desk_{wanted}"
    (folder / f"{name}.py").write_text(MODULE.format(wanted=wanted))
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
    return name


def test_a_function_is_imported_by_its_name(tmp_path, monkeypatch):
    name = module(tmp_path, monkeypatch)
    assert not PythonTarget(name, function_named(f"{name}:book", "python:")).takes_part
    assert PythonTarget(name, function_named(f"{name}:Desk.book", "python:")).takes_part


@pytest.mark.parametrize("path", ["", ":", "desk_nothing", "desk_nothing:", ":book", "no_such:book", "desk_nothing:cook",
                                  "desk_nothing:number", "desk_nothing:Desk.cook", "desk nothing:book", "desk_raises:book",
                                  "desk_exits:book", "..:book"])  # fmt: skip
def test_what_cannot_be_imported(tmp_path, monkeypatch, path):
    for wanted in ("nothing", "raises", "exits"):
        module(tmp_path, monkeypatch, wanted)
    with pytest.raises(SettingsError) as caught:
        function_named(path, "python:")
    assert f"python:{path}" in str(caught.value)


@pytest.mark.parametrize("to", ["", "x", "file:", "http://h/q", "file", "amqp:x", "stomp://h", "python:"])
def test_what_is_no_target(route, to):
    with pytest.raises(SettingsError) as caught:
        open_bridge(route.origin, to, route.store)
    assert caught.value.hint


@pytest.mark.parametrize("to", ["python:u:PW@h", "python:u:PW:x@h", "ampq://u:PW@h/queue/x", "AMQP://u:PW@h/x", "ampq:PW@h",
                                "amqp://u:PW/x@h/queue/x", "amqp://u:12345/PW@host/queue/x", "amqp:u:PW@h/queue/x"])  # fmt: skip
def test_what_is_no_target_may_hold_a_password(route, to):
    with pytest.raises(SettingsError) as caught:
        open_bridge(route.origin, to, route.store)
    assert "PW" not in str(caught.value)
    assert "***@" in str(caught.value)
    assert caught.value.hint


def test_a_file_keeps_others_out_only_while_it_has_the_lease(tmp_path):
    target = FileTarget(tmp_path / "x")
    target.release()
    target.close()
    target.close()


def test_a_slow_function_is_not_waited_for_longer_than_a_lease(route, monkeypatch):
    """What was done by then is committed, and a request to stop is heeded. The other messages wait for the next
    bridge."""
    monkeypatch.setattr(python_target, "_LONG_SECS", 0.0)
    seen = []

    def slow(received):
        time.sleep(0.001)
        seen.append(received.unique_message_id)
        if len(seen) == 3:
            bridge.stop()

    send(route, *"123456")
    bridge = bridge_to(route, slow)
    bridge.run()
    assert seen == ["1", "2", "3"]
    assert route.waiting() == 3
    bridge = bridge_to(route, slow)
    bridge.run(stop_when_idle_secs=0)
    assert seen == list("123456")
