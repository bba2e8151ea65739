"""What targets do with what they are given: files that others touch, brokers that refuse, functions that fail."""

import asyncio
import json
import logging
import os
import subprocess
import sys
import threading
from contextlib import suppress

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from receiver.bridge.connector import Message
from receiver.bridge.ids import IdRule
from receiver.bridge.memory import MemorySink
from receiver.bridge.mode import Mode
from receiver.bridge.opening import BridgeOptions, Origin, open_bridge
from receiver.bridge.received import Received
from receiver.bridge.targets.broker_target import BrokerTarget
from receiver.bridge.targets.file_target import FileTarget
from receiver.bridge.targets.python_target import PythonTarget, imported
from receiver.errors import MessageRefusedError, OutputError, SettingsError
from receiver.store.parking import parked_rows
from tests.bridge.bridged import Route, message
from tests.stores import engine_of, execute

pytestmark = pytest.mark.usefixtures("hasty")


@pytest.fixture
def route(tmp_path, sqlite_url):
    return Route(sqlite_url, tmp_path, "file")


def send(route, *ids):
    route.send(*(message(id_) for id_ in ids))


# A file


def test_what_was_written_and_not_confirmed_is_cut_at_the_restart(route, caplog):
    send(route, "1", "2")
    route.run()
    confirmed = route.file.read_bytes()
    send(route, "3", "4")
    route.run(dies="delivering")
    assert len(route.file.read_bytes()) > len(confirmed)
    with caplog.at_level(logging.INFO):
        route.run()
    assert "that weren't confirmed are cut off" in caplog.text
    assert route.effects() == ["1", "2", "3", "4"]


@pytest.mark.parametrize(
    "spoilt",
    [lambda lines: lines[:-1], lambda lines: lines[: len(lines) // 2], lambda lines: lines.replace(b'"2"', b'"x"')],
    ids=["a byte shorter", "half of it", "edited"],
)
def test_a_file_that_is_another_one_is_refused_and_never_cut(route, spoilt):
    send(route, "1", "2")
    route.run()
    lines = route.file.read_bytes()
    other = spoilt(lines) + b"" if len(spoilt(lines)) < len(lines) else spoilt(lines) + b"and more\n"
    route.file.write_bytes(other)
    send(route, "3")
    with pytest.raises(OutputError, match="isn't the file that was written to"):
        route.run()
    assert route.file.read_bytes() == other
    assert (route.waiting(), route.queued) == (0, ["3"])
    route.file.write_bytes(lines)
    route.run()
    assert route.effects() == ["1", "2", "3"]


def test_a_longer_file_in_its_place_is_refused_too(route):
    send(route, "1")
    route.run()
    route.file.rename(route.file.with_suffix(".old"))
    route.file.write_bytes(b"x" * 10_000)
    with pytest.raises(OutputError, match="isn't the file"):
        route.run()
    assert route.file.read_bytes() == b"x" * 10_000


@pytest.mark.parametrize("leave_it_empty", [False, True])
def test_a_file_that_is_moved_away_is_begun_anew(route, leave_it_empty, caplog):
    old = route.file.with_suffix(".1")

    def rotate():
        route.file.rename(old)
        if leave_it_empty:
            route.file.touch()
        send(route, "2", "3")

    send(route, "1")
    route.plan("confirmed", rotate)
    route.run()
    assert route.effects() == ["2", "3"]
    assert json.loads(old.read_text())["body"] == "1"
    assert "begun anew" in caplog.text
    send(route, "4")
    route.run(dies="delivered")
    route.run()
    assert route.effects() == ["2", "3", "4"]


def test_a_new_file_is_known_to_the_store_before_it_is_written_to(tmp_path, store):
    """Else what a death leaves there would be another file."""
    route = Route(store, tmp_path, "file", Mode.APP_CONTROLLED)

    def rotate():
        route.file.unlink()
        send(route, "2", "3")

    send(route, "1")
    route.plan("committed", rotate)
    route.run(dies="delivering", at=2)
    route.run()
    assert route.effects() == ["2", "3"]


def test_a_file_that_is_there_already_is_appended_to_and_its_lines_stay(route):
    route.file.write_text('{"body": "before"}\n')
    send(route, "1")
    route.run(dies="delivering")
    route.run()
    assert route.effects() == ["before", "1"]


def test_a_file_that_ends_in_the_middle_of_a_line_is_refused(route):
    route.file.write_text('{"body": "bef')
    send(route, "1")
    with pytest.raises(OutputError, match="ends in the middle of a line"):
        route.run()
    assert route.file.read_text() == '{"body": "bef'
    assert route.queued == ["1"]


def test_two_bridges_of_one_domain_share_a_file(tmp_path, store):
    route = Route(store, tmp_path, "file")
    ids = [str(number) for number in range(300)]
    send(route, *ids)
    bridges = [route.open(max_batch_size=7) for _ in range(2)]
    threads = [threading.Thread(target=bridge.run, kwargs={"stop_when_idle_secs": 0.1}) for bridge in bridges]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(route.effects(), key=int) == ids
    assert sum(bridge.figures.delivered for bridge in bridges) == len(ids)


def test_two_domains_of_a_store_never_cut_each_others_lines(tmp_path, store):
    """Each would take what the other wrote for what it wrote itself and never confirmed."""
    one, other = (Route(store, tmp_path, "file") for _ in range(2))
    send(one, "1")
    one.run()
    with pytest.raises(SettingsError, match="is written for another domain"):
        other.run()
    send(one, "2")
    one.run()
    assert one.effects() == ["1", "2"]


def test_a_file_belongs_to_the_domain_that_writes_to_it_first(tmp_path, store):
    """Not to one that only looked, as by an address that was mistyped."""
    mistyped, one = (Route(store, tmp_path, "file") for _ in range(2))
    for route in (mistyped, one):
        route.run()
    send(one, "1")
    one.run()
    send(mistyped, "2")
    with pytest.raises(SettingsError, match="is written for another domain"):
        mistyped.run()
    assert one.effects() == ["1"]


@pytest.mark.parametrize("mode", [Mode.BEST_EFFORT, Mode.EXACTLY_ONCE])
def test_where_no_file_can_be(tmp_path, sqlite_url, mode):
    (tmp_path / "text").write_text("")
    for place, words in {
        "nowhere/orders.jsonl": "no folder",
        "text/orders.jsonl": "no folder",
        "": "is a folder",
        "x" * 300: "too long",
        "a\0b": "no path",
    }.items():
        origin = Origin(lambda: pytest.fail("it connects first"), "c", "queue://orders")
        with pytest.raises((SettingsError, OutputError), match=words):
            open_bridge(origin, f"file:{tmp_path}/{place}", sqlite_url, BridgeOptions(mode=mode)).run()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="Linux has a disk that is always full")  # noqa: PTH110
def test_a_full_disk_loses_nothing(route, caplog):
    send(route, "1", "2")
    bridge = open_bridge(route.origin, "file:/dev/full", route.store)
    stopping = threading.Timer(0.3, bridge.stop)
    stopping.start()
    bridge.run()
    stopping.join()
    assert "No space left on device" in caplog.text
    assert (route.waiting(), route.queued, bridge.figures.delivered) == (2, [], 0)
    assert bridge.figures.connection_errors == 0
    # And the messages wait for that very target, as whoever names another one is told.
    caplog.clear()
    route.run()
    assert "2 messages wait for file:/dev/full" in caplog.text


def test_best_effort_leaves_no_torn_line_before_a_whole_one(tmp_path):
    route = Route("", tmp_path, "file", Mode.BEST_EFFORT)
    route.file.write_text('{"body": "torn')
    send(route, "1")
    route.run()
    torn, line = route.file.read_text().splitlines()
    assert (torn, json.loads(line)["body"]) == ('{"body": "torn', "1")


# Its lines


PROPERTIES = {
    "text": "a\nb\u2028\u2029\x00\ud800é😀",
    "true": True,
    "whole": 2**62,
    "part": 0.1,
    "nan": float("nan"),
    "infinite": float("-inf"),
    "bytes": b"\0\xff",
    "none": None,
    "": "",
}


def received(**given) -> Received:
    fields = {
        "unique_message_id": "1",
        "message_source_id": None,
        "received_at_us": 1_777_629_600_000_001,
        "redelivered": True,
        "jms_timestamp_ms": 5,
        "destination": "queue://orders",
        "message_id": "ID:1",
        "properties": {},
        "body": b"",
        "is_text": True,
    }
    return Received(**fields | given)


def test_a_line_is_exact_json_of_one_line_and_ascii():
    line = received(properties=PROPERTIES, body="a\r\n\u2028é\0".encode()).json_line()
    assert line.isascii()
    assert line.count(b"\n") == 1
    assert json.loads(line, parse_constant=pytest.fail) == {
        "unique_message_id": "1",
        "message_source_id": None,
        "received_at": "2026-05-01T10:00:00.000001Z",
        "jms_redelivered": True,
        "destination": "queue://orders",
        "properties": PROPERTIES | {"nan": "nan", "infinite": "-inf", "bytes": {"base64": "AP8="}},
        "body": "a\r\n\u2028é\0",
    }


def test_what_is_no_text_is_in_base64():
    for given in ({"body": b"\xff", "is_text": True}, {"body": b"a", "is_text": False}):
        line = json.loads(received(**given).json_line())
        assert "body" not in line
        assert line["body_base64"] in {"/w==", "YQ=="}


def test_properties_come_back_from_the_inbox_as_they_were():
    back = Received.of_row(received(properties=PROPERTIES).row(7)).properties
    assert str(back) == str(PROPERTIES)
    assert [type(value) for value in back.values()] == [type(value) for value in PROPERTIES.values()]


def test_the_lines_are_a_log_for_simulate(route):
    send(route, "1", "007", " a\u2028 ")
    route.run()
    command = [sys.executable, "-m", "receiver", "simulate", str(route.file), "--json", "--domain", "destination"]
    ran = subprocess.run(command, capture_output=True, check=True)
    assert json.loads(ran.stdout)["log"]["receipts"] == 3


# A broker


class Choosy:
    """A sink that refuses what has a body of "poison", as a protocol may that can't express it."""

    def __init__(self, sink: MemorySink) -> None:
        self._sink = sink

    def send(self, messages):
        for number, sent in enumerate(messages):
            if sent.body == b"poison":
                self._sink.send(messages[:number])
                self._sink.close()
                raise MessageRefusedError("it can't be expressed")
        self._sink.send(messages)

    def close(self):
        self._sink.close()


@pytest.mark.parametrize("mode", [Mode.EXACTLY_ONCE, Mode.APP_CONTROLLED])
def test_a_message_that_a_broker_refuses_is_found_and_the_others_go(tmp_path, store, mode):
    route = Route(store, tmp_path, "queue", mode)
    target = BrokerTarget(
        "amqp://choosy", lambda: Choosy(route.broker.sink("out")), IdRule(), marks_duplicates=mode.detects
    )
    sent = [("1", "a"), ("2", "b"), ("poison", "a"), ("3", "a"), ("4", "b"), ("5", None)]
    route.send(*(message(id_, source) for id_, source in sent))
    bridge = open_bridge(route.origin, target, store, BridgeOptions(mode=mode))
    bridge.run(stop_when_idle_secs=0)
    assert sorted(route.effects()) == ["1", "2", "3", "4", "5"]
    of_a = [id_ for id_ in route.effects() if id_ in {"1", "3"}]
    assert of_a == ["1", "3"]
    parked = [row for row in parked_rows(store) if row.domain == route.domain]
    assert [(row.unique_message_id, row.tries) for row in parked] == [("poison", 5)]
    assert "can't be expressed" in parked[0].error
    assert (bridge.figures.delivered, bridge.figures.parked) == (5, 1)


def test_what_goes_out_carries_its_id_and_nothing_of_the_sender_before(tmp_path, sqlite_url):
    route = Route(sqlite_url, tmp_path, "queue")
    route.send(Message(body=b"x", properties={"uniqueMessageId": 7, "_AMQ_DUPL_ID": "theirs", "messageSourceId": 8}))
    route.send(Message(body=b"y", message_id="ID:9"))
    route.run()
    assert [dict(found.properties) for found in route.broker.queue("out")] == [
        {"uniqueMessageId": "7", "_AMQ_DUPL_ID": "7", "messageSourceId": "8"},
        {"uniqueMessageId": "ID:9", "_AMQ_DUPL_ID": "ID:9"},
    ]


def test_at_least_once_sends_what_came_twice_twice(tmp_path, sqlite_url):
    route = Route(sqlite_url, tmp_path, "queue", Mode.AT_LEAST_ONCE)
    send(route, "1", "1")
    route.run()
    assert route.effects() == ["1", "1"]
    assert all("_AMQ_DUPL_ID" not in found.properties for found in route.broker.queue("out"))


# A function


def bridge_to(route, function, mode=Mode.EXACTLY_ONCE):
    return open_bridge(route.origin, function, route.store, BridgeOptions(mode=mode))


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
    """PostgreSQL takes nothing more after an error, so there the message has failed."""
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


class Desk:
    """What may be called, and how often it is asked for."""

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
    """By its name a store knows a target, in the next life too."""
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


def test_best_effort_has_no_connection_to_give():
    with pytest.raises(SettingsError, match="BEST_EFFORT has none to give"):
        open_bridge("amqp://h/q", commits, None, BridgeOptions(mode=Mode.BEST_EFFORT))


MODULE = """
import sys
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
    assert not imported(f"{name}:book").takes_part
    assert imported(f"{name}:Desk.book").takes_part


@pytest.mark.parametrize("path", ["", ":", "desk_nothing", "desk_nothing:", ":book", "no_such:book", "desk_nothing:cook",
                                  "desk_nothing:number", "desk_nothing:Desk.cook", "desk nothing:book", "desk_raises:book",
                                  "desk_exits:book", "..:book"])  # fmt: skip
def test_what_cannot_be_imported(tmp_path, monkeypatch, path):
    for wanted in ("nothing", "raises", "exits"):
        module(tmp_path, monkeypatch, wanted)
    with pytest.raises(SettingsError) as caught:
        imported(path)
    assert f"python:{path}" in str(caught.value)


@pytest.mark.parametrize("to", ["", "x", "file:", "http://h/q", "file", "amqp:x", "stomp://h", "python:"])
def test_what_is_no_target(route, to):
    with pytest.raises(SettingsError) as caught:
        open_bridge(route.origin, to, route.store)
    assert caught.value.hint


def test_a_file_keeps_others_out_only_while_it_has_the_turn(tmp_path):
    target = FileTarget(tmp_path / "x")
    target.release()
    target.close()
    target.close()
