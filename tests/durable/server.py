"""A PostgreSQL that a test may kill. The fixture `postgres_url` has a server for tests that share one."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.patience import until
from tests.postgres import sqlalchemy_url, wheel_server


def is_dead(process: Any) -> bool:
    import psutil

    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def kill_server(pid: int) -> None:
    """Kill -9 the postmaster and all its children at once."""
    import psutil  # psutil comes with the wheel

    postmaster = psutil.Process(pid)
    postmaster.suspend()  # so that it starts no child after the list was made
    processes = [postmaster, *postmaster.children(recursive=True)]
    for process in processes:
        process.kill()
    until(lambda: all(map(is_dead, processes)), lambda: f"still alive: {processes}")


class MortalServer:
    """A server that dies by kill -9 and comes back with the same data and address. `mortal_server` makes it."""

    def __init__(self, server: Any) -> None:
        self._server = server
        self.url = sqlalchemy_url(server)

    def kill(self) -> None:
        kill_server(self._server.get_pid())
        # If no parent has waited for the dead process yet, its number still exists and would count as a running server.
        for lock in (self._server.pgdata / "postmaster.pid", *self._server.pgdata.glob(".s.PGSQL.*.lock")):
            lock.unlink()

    def start(self) -> None:
        """Start again, and wait until the server has recovered from its log."""
        self._server.ensure_postgres_running()
        assert sqlalchemy_url(self._server) == self.url


@contextmanager
def mortal_server() -> Iterator[MortalServer]:
    with wheel_server() as server:
        yield MortalServer(server)
