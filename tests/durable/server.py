"""A PostgreSQL of its own that a test may kill: for whoever shares one, see the fixture `postgres_url`."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.postgres import sqlalchemy_url, wheel_server

ENDS_SECS = 30


def is_dead(process: Any) -> bool:
    import psutil

    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


class MortalServer:
    """Dies by kill -9 and comes back on the same data and the same address; made by `mortal_server`."""

    def __init__(self, server: Any) -> None:
        self._server = server
        self.url = sqlalchemy_url(server)

    def kill(self) -> None:
        """Kill -9 of the postmaster and all its children, at once."""
        import psutil  # comes with the wheel

        postmaster = psutil.Process(self._server.get_pid())
        postmaster.suspend()  # so that it starts no child between the list and the kill
        processes = [postmaster, *postmaster.children(recursive=True)]
        for process in processes:
            process.kill()
        give_up = time.monotonic() + ENDS_SECS
        while not all(map(is_dead, processes)):
            assert time.monotonic() < give_up, f"still alive: {processes}"
            time.sleep(0.01)
        # Nobody may have buried the dead yet, and a process number that exists counts as a running server.
        for lock in (self._server.pgdata / "postmaster.pid", *self._server.pgdata.glob(".s.PGSQL.*.lock")):
            lock.unlink()

    def start(self) -> None:
        """Start again and wait until the recovery from its log is through."""
        self._server.ensure_postgres_running()
        assert sqlalchemy_url(self._server) == self.url


@contextmanager
def mortal_server() -> Iterator[MortalServer]:
    with wheel_server() as server:
        yield MortalServer(server)
