"""A store that is restored from a copy has forgotten what came since. Nothing is lost by that."""

import sqlite3
import time
from contextlib import closing

import pytest

from tests.bridge.bridged import Route, message, run_until, send

pytestmark = pytest.mark.usefixtures("hasty")


@pytest.fixture(params=["file", "queue", "topic"])
def restored(request, tmp_path, sqlite_url):
    """A route on which two messages were handed on. Its store knows nothing of the second any more."""
    route = Route(sqlite_url, tmp_path, request.param)
    send(route, "1")
    route.run()
    with closing(sqlite3.connect(tmp_path / "receiver.db")) as database:
        database.execute(f"VACUUM INTO '{tmp_path / 'copy.db'}'")
    send(route, "2")
    route.run()
    assert route.effects() == ["1", "2"]
    for file in tmp_path.glob("receiver.db*"):
        file.unlink()
    (tmp_path / "copy.db").rename(tmp_path / "receiver.db")
    return route


def test_what_comes_next_is_taken_for_nothing_else(restored):
    send(restored, "3")
    restored.run()
    assert restored.effects()[-1] == "3"


def test_the_lines_it_has_forgotten_are_kept_aside(restored, caplog):
    if restored.kind != "file":
        pytest.skip("a broker's queue can't be cut")
    forgotten = restored.file.read_bytes().splitlines(keepends=True)[1]
    send(restored, "3")
    restored.run()
    assert restored.effects() == ["1", "3"]
    aside = restored.file.with_name(f"{restored.file.name}.unconfirmed-1")
    assert aside.read_bytes() == forgotten
    assert str(aside) in caplog.text


@pytest.mark.parametrize("kind", ["queue", "topic"])
def test_no_message_gets_the_id_of_another_that_it_has_forgotten(sqlite_url, tmp_path, kind):
    """A receiver behind the target would drop it as a duplicate."""
    route = Route(sqlite_url, tmp_path, kind)
    for number in range(3):
        route.send(message(None, body=str(number)))
        route.run()
        for file in tmp_path.glob("receiver.db*"):
            file.unlink()
    arrived = route.broker.queue("out")
    assert [each.body for each in arrived] == [b"0", b"1", b"2"]
    assert len({each.properties["uniqueMessageId"] for each in arrived}) == 3


def test_a_bridge_goes_on_though_the_file_is_replaced_under_it(sqlite_url, tmp_path):
    """None of its connections keeps the removed log of the file before: then it could use no other."""
    route = Route(sqlite_url, tmp_path, "queue")
    bridge = route.open()
    gives_up_secs = time.monotonic() + 20

    def replace():
        with closing(sqlite3.connect(tmp_path / "receiver.db")) as database:
            database.execute(f"VACUUM INTO '{tmp_path / 'copy.db'}'")
        for file in tmp_path.glob("receiver.db*"):
            file.unlink()
        (tmp_path / "copy.db").rename(tmp_path / "receiver.db")
        send(route, "2")

    route.plan("confirmed", replace)
    send(route, "1")
    run_until(bridge, lambda: "2" in route.effects() or time.monotonic() > gives_up_secs)
    assert route.effects() == ["1", "2"]
    assert not route.queued
