"""Two processes that take turns at one file: each waits until the other is out."""

import fcntl
import threading

import pytest

from receiver.bridge.targets import file_target
from receiver.errors import OutputError
from tests.bridge.bridged import Route, message


@pytest.fixture
def route(tmp_path, sqlite_url):
    route = Route(sqlite_url, tmp_path, "file")
    route.send(message("a"))
    route.run()
    route.send(message("b"))
    return route


def test_whoever_is_about_to_leave_a_file_is_waited_for(route):
    with route.file.open() as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        leaving = threading.Timer(0.1, fcntl.flock, (other, fcntl.LOCK_UN))
        leaving.start()
        bridge = route.run()
        leaving.join()
    assert route.effects() == ["a", "b"]
    assert bridge.figures.connection_errors == 0


def test_whoever_stays_in_a_file_is_not_waited_for_for_ever(route, monkeypatch):
    monkeypatch.setattr(file_target, "_PATIENCE_SECS", 0.1)
    with route.file.open() as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(OutputError, match="another process is writing"):
            route.run()
    route.run()
    assert route.effects() == ["a", "b"]
