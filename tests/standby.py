"""A real PostgreSQL primary and its standby, which can take over any number of times.

Clients have one address, which always leads to the primary, as if a supervisor moved it. Or they have an address with
both hosts.
"""

import asyncio
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from sqlalchemy import NullPool, create_engine, make_url, text
from sqlalchemy.exc import OperationalError

from tests import links
from tests.durable.server import kill_server
from tests.patience import until
from tests.postgres import shown, sqlalchemy_url, wheel_server

_OPTIONS = "-c listen_addresses= -c fsync=off -c wal_keep_size=256MB -c max_wal_senders=8"
"""Kills need no sync: a file keeps what a killed process has written."""


class _Node:
    """One server with its own folder, which also has its socket."""

    def __init__(self, folder: Path, programs: Path, user: str | None) -> None:
        self.folder = folder
        self._programs = programs
        self._user = user

    @property
    def url(self) -> str:
        return f"postgresql+psycopg://postgres:@/postgres?host={self.folder}"

    def run(self, program: str, *arguments: str) -> None:
        command = [str(self._programs / program), *arguments]
        done = subprocess.run(  # noqa: PLW1510 - what it said is shown
            command, user=self._user, stdin=subprocess.DEVNULL, capture_output=True, text=True, cwd="/"
        )
        log = self.folder / "log"
        assert done.returncode == 0, done.stdout + done.stderr + (log.read_text() if log.exists() else "")

    def start(self) -> None:
        log = str(self.folder / "log")
        options = f"{_OPTIONS} -k {self.folder}"
        self.run("pg_ctl", "-w", "-t", "120", "-D", str(self.folder), "-l", log, "-o", options, "start")

    def copied_to(self, folder: Path, *, follows: bool = True) -> "_Node":
        """Another server with a copy of this one's data. With `follows` it is a standby of this one."""
        copy = _Node(folder, self._programs, self._user)
        follow = ["-R"] * follows
        self.run("pg_basebackup", "-D", str(folder), *follow, "-c", "fast", "-d", f"host={self.folder} user=postgres")
        for lock in folder.glob(".s.PGSQL.*"):  # copied too, since the first server's socket is in its folder
            lock.unlink()
        copy.start()
        return copy

    def ask(self, *statements: str) -> Any:
        """The result of the last of these statements."""
        engine = create_engine(self.url, isolation_level="AUTOCOMMIT", poolclass=NullPool)
        with engine.connect() as connection:
            for statement in statements[:-1]:
                connection.execute(text(statement))
            result = connection.execute(text(statements[-1]))
            return result.scalar() if result.returns_rows else None

    def wait_until(self, query: str) -> None:
        until(lambda: self.ask(query), lambda: query)

    def crash(self) -> None:
        """Kill -9 one child. The postmaster ends the other children, and the server recovers from its log."""
        import psutil

        child = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'checkpointer'"
        killed = self.ask(child)
        psutil.Process(killed).kill()

        def is_replaced() -> bool:  # the postmaster may answer before it has noticed the death
            with suppress(OperationalError):
                return self.ask(child) not in {None, killed}
            return False

        until(is_replaced)

    def kill(self) -> None:
        kill_server(int((self.folder / "postmaster.pid").read_text().split()[0]))


class _Link(links.Link):
    """A link that passes everything on."""

    async def from_client(self, reader: Any) -> None:
        await _pumped(reader, self.server)

    async def from_server(self, reader: Any) -> None:
        await _pumped(reader, self.client)


async def _connection(node: _Node) -> links.Streams:
    return await asyncio.open_unix_connection(f"{node.folder}/.s.PGSQL.5432")


async def _pumped(reader: Any, writer: Any) -> None:
    while some := await reader.read(1 << 16):
        writer.write(some)
        await writer.drain()


class Pair:
    """A primary, its standby, and their addresses. `primary_and_standby` makes it."""

    def __init__(self, folder: Path, first: _Node, *, is_synchronous: bool) -> None:
        self._folder = folder
        self._is_synchronous = is_synchronous
        self._copies = 0
        self.primary = first
        self.standby = self._new_standby()
        self._hosts: list[_Node | None] = [self.primary, self.standby]
        """None until there is a new standby."""
        self.proxy = links.Proxy(lambda: _connection(self.primary), _Link)
        self.host_proxies = [links.Proxy(partial(self._connect, number), _Link) for number in range(2)]

    async def _connect(self, number: int) -> links.Streams:
        node = self._hosts[number]
        if node is None:
            raise ConnectionRefusedError
        return await _connection(node)

    @property
    def url(self) -> str:
        """The address of the present primary, for clients by psycopg."""
        return shown(make_url(self.primary.url).set(host="127.0.0.1", port=self.proxy.port, query={}))

    @property
    def hosts_url(self) -> str:
        """An address that names both hosts."""
        ports = ",".join(str(proxy.port) for proxy in self.host_proxies)
        query = {"host": "127.0.0.1,127.0.0.1", "port": ports, "target_session_attrs": "read-write"}
        return shown(make_url(self.primary.url).set(query=query))

    def detach(self) -> None:
        """Keep from the standby all that is committed from now on."""
        self.catch_up()
        self.standby.ask("ALTER SYSTEM SET primary_conninfo = ''", "SELECT pg_reload_conf()")
        self.standby.wait_until("SELECT NOT EXISTS (SELECT FROM pg_stat_wal_receiver)")

    def catch_up(self) -> None:
        """Wait until the standby has all that is committed."""
        position = self.primary.ask("SELECT pg_current_wal_lsn()")
        self.standby.wait_until(f"SELECT pg_last_wal_replay_lsn() >= '{position}'")

    def fail_over(self) -> None:
        """Kill -9 the primary, and promote the standby."""
        self.proxy.reachable = False
        self.primary.kill()
        self.proxy.cut()
        self.standby.ask("SELECT pg_promote(true, 120)")
        self.standby.wait_until("SELECT NOT pg_is_in_recovery()")
        lost, self.primary = self.primary, self.standby
        self._hosts[self._hosts.index(lost)] = None
        self.proxy.reachable = True
        shutil.rmtree(lost.folder, ignore_errors=True)

    def build_standby(self) -> None:
        """Make a new standby of the present primary, on the host of the lost server."""
        self.standby = self._new_standby()
        self._hosts[self._hosts.index(None)] = self.standby

    def _new_standby(self) -> _Node:
        self._copies += 1
        standby = self.primary.copied_to(self._folder / f"copy{self._copies}")
        self.primary.wait_until("SELECT EXISTS (SELECT FROM pg_stat_replication WHERE state = 'streaming')")
        if self._is_synchronous:
            self.primary.ask("ALTER SYSTEM SET synchronous_standby_names = '*'", "SELECT pg_reload_conf()")
            self.primary.wait_until("SELECT EXISTS (SELECT FROM pg_stat_replication WHERE sync_state = 'sync')")
        return standby

    def close(self) -> None:
        for node in (self.standby, self.primary):
            if (node.folder / "postmaster.pid").exists():
                node.kill()


@contextmanager
def primary_and_standby(*, is_synchronous: bool = False) -> Iterator[Pair]:
    """A pair of servers in a temporary folder. They end with the block."""
    with wheel_server() as made, tempfile.TemporaryDirectory(prefix="receiver-standby-") as name:
        folder = Path(name)
        if made.system_user is not None:
            shutil.chown(folder, made.system_user)
        folder.chmod(0o755)
        source = _Node(Path(str(make_url(sqlalchemy_url(made)).query["host"])), made.bin_path, made.system_user)
        primary = source.copied_to(folder / "first", follows=False)
        pair = Pair(folder, primary, is_synchronous=is_synchronous)
        try:
            with ExitStack() as serving:
                for proxy in (pair.proxy, *pair.host_proxies):
                    serving.enter_context(links.serving(proxy))
                yield pair
        finally:
            pair.close()
