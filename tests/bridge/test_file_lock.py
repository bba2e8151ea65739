"""Two processes that share one file: each waits until the other has left it."""

import fcntl
import threading

import pytest
from sqlalchemy import text

from receiver.bridge.options import Mode
from receiver.bridge.targets import file_target
from receiver.errors import OutputError
from tests.bridge.bridged import Route, message
from tests.stores import execute


@pytest.fixture
def route(route):
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


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("mode", [Mode.EXACTLY_ONCE, Mode.APP_CONTROLLED])
def test_a_lease_that_the_server_has_given_to_another_cuts_nothing(tmp_path, postgresql_store, mode, caplog):
    """By its own old figures, the part that the other has confirmed would be beyond the file's confirmed end."""
    route = Route(postgresql_store, tmp_path, "file", mode)
    route.send(message("1"))
    route.run()
    route.send(message("2"), message("3"))
    slow = route.open()
    ready, lock = slow._target.ready, slow._target._lock
    sessions, seen = [], []

    def getting_ready(lease):
        sessions.append(lease.connection.scalar(text("SELECT pg_backend_pid()")))
        return ready(lease)

    def locking():
        if is_due and not seen:
            seen.append("")
            execute(postgresql_store, f"SELECT pg_terminate_backend({sessions[-1]}, 5000)")
            route.send(message("4"))
            other = threading.Thread(target=route.run)
            other.start()
            other.join()
            seen[0] = route.file.read_bytes()
        lock()

    is_due = []
    slow._target.ready, slow._target._lock = getting_ready, locking
    route.plan("taken", lambda: is_due.append(True))
    late = threading.Timer(30, slow.stop)  # a bridge waits without end for a file that was cut
    late.start()
    slow.run(stop_when_idle_secs=0)
    late.cancel()
    assert b'"4"' in seen[0]
    assert route.file.read_bytes().startswith(seen[0])
    assert sorted(route.effects()) == ["1", "2", "3", "4"]
    assert slow.figures.connection_errors == 1
    assert "cut off" not in caplog.text
