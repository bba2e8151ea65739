"""PostgreSQL, by psycopg: a transaction that writes locks the domain's row.

A caller's transaction may use an asynchronous driver: psycopg's, or asyncpg.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import lru_cache
from itertools import chain, islice
from typing import Any

from sqlalchemy import URL, Connection, Engine, NullPool, QueuePool, Table, create_engine, event, text
from sqlalchemy.dialects import postgresql
from sqlalchemy.exc import ArgumentError

from receiver.errors import MissingExtraError, SettingsError, StoreError
from receiver.masking import masked
from receiver.message import ReceiptColumns, ReceiptValues
from receiver.settings import StoreSettings
from receiver.store import sql_rows
from receiver.store.codec import parts_of, runs_of
from receiver.store.databases.database import ADDRESSES, IDLE_AT_MOST, OUR_NAMES, Database, shown
from receiver.store.databases.postgres_faults import READ_ONLY, fault_of
from receiver.store.tables import TABLE_NAMES, DomainState, domains, receipt_codec, receipts, recorded_codec

_IDLE, _IN_ERROR = 0, 3  # of psycopg.pq.TransactionStatus
_LEAST_VACUUMED = 1_000


class TableVacuum:
    """Vacuums a PostgreSQL table, so that new rows reuse the space of deleted ones, once a quarter of the rows are deleted.

    Autovacuum does so too, but once a minute, which is late for a busy table.
    """

    def __init__(self, table: str, *, truncates: bool) -> None:
        """`truncates`: also cut off the table's empty end, which locks others out meanwhile."""
        self._sql_vacuum = f"VACUUM (SKIP_LOCKED, TRUNCATE {truncates}) {table}"
        self._sql_rows_left = f"SELECT reltuples FROM pg_class WHERE oid = '{table}'::regclass"
        self._deleted = 0
        self._due_after = _LEAST_VACUUMED

    def note(self, deleted: int) -> None:
        self._deleted += deleted

    def run_if_due(self, driver: Any) -> bool:
        """Vacuum if due. Returns False, because nothing is left to do."""
        if self._deleted <= self._due_after:
            return False
        self._deleted = 0
        autocommitted = driver.autocommit
        driver.autocommit = True
        try:
            driver.execute(self._sql_vacuum)
            (rows,) = driver.execute(self._sql_rows_left).fetchone()
        finally:
            driver.autocommit = autocommitted
        self._due_after = max(_LEAST_VACUUMED, rows // 4)
        return False


_ROWS_AWAITED_AT_ONCE = 250
_FEW = 5
"""Up to so many rows are appended by the statement that saves the domain's state; more are faster by COPY."""


def _streamed_at_once() -> int:
    """How many rows the driver passes on together; libpq before 17 only passes on single rows."""
    import psycopg

    return sql_rows.ROWS_AT_ONCE if psycopg.capabilities.has_stream_chunked() else 1


def lock_timeout_ms(secs: float) -> str:
    """A value for PostgreSQL's `lock_timeout`, never 0, which would mean no limit."""
    return str(max(1, round(secs * 1000)))


WRITING = "READ COMMITTED"
READING = "REPEATABLE READ"
_RUN = "receiver_server_run"
_SQL_RUN = (
    "SELECT extract(epoch FROM pg_postmaster_start_time())::text"
    " || ' ' || (SELECT coalesce(extract(epoch FROM stats_reset)::text, '') FROM pg_stat_bgwriter)"
)
"""Selects when the server was started, and when its statistics were reset. Recovery from a crash resets them, and with
synchronous_commit off a crash loses commits too."""


def server_run_of(connection: Connection, driver: Any) -> str:
    """Identifies the server's run, as `SqlRows.server_run`; queried once for each connection of the driver."""
    run: str | None = connection.info.get(_RUN)
    if run is None:
        (run,) = driver.execute(_SQL_RUN).fetchone()
        connection.info[_RUN] = run
    return str(run)


def _process_of(connection: Connection) -> int:
    """The id of the server process that serves a transaction of the connection."""
    process: int = connection.execute(text("SELECT pg_backend_pid()")).scalar_one()
    connection.rollback()
    return process


def _is_idle(driver: Any) -> bool:
    return int(driver.info.transaction_status) == _IDLE


def has_failed(driver: Any) -> bool:
    """Whether a statement of the psycopg connection's transaction has failed, so that it can only be rolled back."""
    return int(driver.info.transaction_status) == _IN_ERROR


def autocommits(driver: Any) -> bool:
    """Whether each statement is committed by itself. It isn't within a transaction begun by a BEGIN of ours; a driver without
    `info`, such as asyncpg, can't show one."""
    return bool(driver.autocommit) and (not hasattr(driver, "info") or _is_idle(driver))


def types_of(table: Table, columns: Iterable[str]) -> list[str]:
    """PostgreSQL's names for the types of these columns."""
    dialect = postgresql.dialect()  # type: ignore[no-untyped-call]
    by_name = {column.name: column.type.compile(dialect).lower() for column in table.c}
    return [by_name[name] for name in columns]


_COLUMNS = ", ".join(receipt_codec.columns)
_TYPES = types_of(receipts, receipt_codec.columns)
# Binary: in text, psycopg writes wrong bytes if standard_conforming_strings is off.
_APPEND_ARRAYS = (
    f"INSERT INTO {receipts.name} (domain_id, {_COLUMNS}) SELECT %s, *"
    f" FROM unnest({', '.join(f'%b::{type_}[]' for type_ in _TYPES)})"
)
_COPY = f"COPY {receipts.name} (domain_id, {_COLUMNS}) FROM STDIN (FORMAT BINARY)"
_COPIED_TYPES = [*types_of(receipts, ["domain_id"]), *_TYPES]
_DELETE = (
    f"DELETE FROM {receipts.name} USING unnest(%s::int8[], %s::int8[]) AS run(first, last)"
    " WHERE domain_id = %s AND seq BETWEEN first AND last"
)


_SQL = sql_rows.Statements("%s", for_update=" FOR NO KEY UPDATE")


@lru_cache
def _appended(rows: int) -> str:
    more = f", (%s{', %s' * len(receipt_codec.columns)})" * (rows - 1)
    return f"appended AS ({_SQL.append}{more})"


class PostgresRows(sql_rows.SqlRows):
    sql = _SQL

    @property
    def in_transaction(self) -> bool:
        return self.is_awaited or not _is_idle(self.driver)

    def begin(self) -> DomainState:
        return self.fetched(self._begun(WRITING, self.sql.lock))

    begin_at_once = begin

    def begin_if_free(self) -> DomainState | None:
        values = self._begun(WRITING, f"{self.sql.lock} SKIP LOCKED")
        if values is None:
            self.driver.rollback()
            return None
        return self.fetched(values)

    def begin_reading(self) -> DomainState:
        return self.fetched(self._begun(f"{READING}, READ ONLY", self.sql.read))

    def _begun(self, isolation_level: str, select: str) -> tuple[Any, ...] | None:
        """Begin a transaction and read the domain's row, in one round trip to the server. Returns the row's values."""
        if self.server_run is None:
            # Before autocommit: in autocommit the server's default isolation holds, and a standby refuses SERIALIZABLE.
            self.server_run = server_run_of(self.connection, self.driver)
            self.driver.rollback()
            # Otherwise the driver would begin a transaction of its own, and wait for that.
            self.driver.autocommit = True
        try:
            # Not by a pipeline: psycopg ends it with a Flush, which stops the server's idle_in_transaction_session_timeout.
            self.cursor.execute(f"BEGIN ISOLATION LEVEL {isolation_level}; {select % self.domain_id}", prepare=False)
            self.cursor.nextset()
        except Exception as error:
            if getattr(error, "sqlstate", None) == READ_ONLY:  # the address may lead to another server by now
                self.driver.close()
            raise
        values: tuple[Any, ...] | None = self.cursor.fetchone()
        return values

    def join(self, patience_secs: float) -> DomainState:
        if autocommits(self.driver):
            raise sql_rows.autocommit_error()
        before = "SELECT current_setting('lock_timeout'), set_config('lock_timeout', %s, true)"
        (caller_waits, _) = self.driver.execute(before, (lock_timeout_ms(patience_secs),)).fetchone()
        values = self.cursor.execute(self.sql.lock, (self.domain_id,)).fetchone()
        self.driver.execute("SELECT set_config('lock_timeout', %s, true)", (caller_waits,))
        self.server_run = server_run_of(self.connection, self.driver)
        return self.fetched(values)

    def rows_after(self, seq: int, last_seq: int) -> Generator[ReceiptColumns, None, None]:
        if self.is_awaited or last_seq - seq <= sql_rows.ROWS_AT_ONCE:
            yield from super().rows_after(seq, last_seq)
            return
        from psycopg import Cursor

        cursor_of: Any = Cursor  # a caller's connection may make others by default, which can't stream binary rows
        # By one statement: the server has no good plan for pages of a log that was just written.
        with (
            cursor_of(self.driver) as cursor,
            closing(
                cursor.stream(self.sql.rows_after, (self.domain_id, seq), binary=True, size=_streamed_at_once())
            ) as streamed,
        ):
            # The server goes on reading while we judge the rows that it has sent.
            while rows := list(islice(streamed, sql_rows.ROWS_AT_ONCE)):
                yield receipt_codec.read_columns(rows)

    def record(self, state: DomainState, changes: sql_rows.Changes) -> None:
        # Changes that go with the domain's new state in one statement save a round trip.
        parts, values = [], []
        if changes.batch_number is not None:
            parts.append(f"numbered AS ({self.sql.number_batch})")
            values += [self.domain_id, *changes.batch_number, state.last_seq]
        if changes.recorded is not None:
            parts.append(f"recorded AS ({self.sql.recorded})")
            values += recorded_codec.stored(changes.recorded)
        # A row may replace one that is deleted first, and policy states aren't for appended rows: then the order matters.
        if 0 < len(changes.rows) <= _FEW and not changes.gone and changes.policy_states is None:
            parts.append(_appended(len(changes.rows)))
            values += chain.from_iterable(self.stored(changes.rows))
            changes = changes._replace(rows=())
        self.save(state, f"WITH {', '.join(parts)} " if parts else "", values)
        self.change_rows(changes)

    def append(self, rows: Sequence[ReceiptValues]) -> None:
        if self.is_awaited:  # SQLAlchemy can't await a COPY
            for part in parts_of(rows, _ROWS_AWAITED_AT_ONCE):
                columns = receipt_codec.stored_columns(part)
                self.cursor.execute(_APPEND_ARRAYS, [self.domain_id, *map(list, columns)])
            return
        with self.cursor.copy(_COPY) as copy:
            copy.set_types(_COPIED_TYPES)
            for values in self.stored(rows):
                copy.write_row(values)

    def delete(self, seqs: Sequence[int]) -> None:
        firsts, lasts = zip(*runs_of(seqs), strict=True)
        self.cursor.execute(_DELETE, (list(firsts), list(lasts), self.domain_id))


_LOCK_KEY = int.from_bytes(b"receiver", "big")
_LONGEST_TABLE_WAIT_MS = 500
"""How long a migration waits for a table before it begins anew. Receivers queue behind it no longer than that, and in a
deadlock the migration gives up before the server ends a receiver's transaction."""
_CONNECTING = {
    "connect_timeout": 10,
    "application_name": "receiver",
    # A server that vanished silently is noticed within half a minute, not after the system's two hours.
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 4,
    "tcp_user_timeout": 30_000,
}


class Postgres(Database):
    name = "postgresql"
    drivers = ("postgresql", "postgresql+psycopg")
    rows = PostgresRows
    insert = staticmethod(postgresql.insert)
    fault_of = staticmethod(fault_of)
    checks_of_constraints = (
        "SAVEPOINT receiver_check",
        "SET CONSTRAINTS ALL IMMEDIATE",
        "ROLLBACK TO SAVEPOINT receiver_check",
    )
    sql_columns = (
        'SELECT c.relname, a.attname, replace(upper(format_type(a.atttypid, a.atttypmod) COLLATE "C"),'
        " 'CHARACTER VARYING', 'VARCHAR'), c.relpersistence = 'p' FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid"
        " WHERE pg_table_is_visible(c.oid) AND c.relkind IN ('r', 'p', 'f', 'v', 'm') AND c.relpersistence <> 't'"
        f" AND a.attnum > 0 AND NOT a.attisdropped AND c.relname IN ({OUR_NAMES})"
    )

    _SQL_OFF = (
        "SELECT name FROM pg_settings WHERE name IN ('fsync', 'synchronous_commit') AND setting = 'off' ORDER BY name"
    )
    _SQL_HIDDEN = (
        "SELECT relnamespace::regnamespace::text FROM pg_class"
        f" WHERE relname = '{domains.name}' AND NOT pg_table_is_visible(oid) ORDER BY 1 LIMIT 3"
    )

    def checked(self, url: URL) -> URL:
        if url.host and "@" in url.host:
            raise SettingsError(f"{masked(url)!r:.200} has more than one @", hint="write %40 for one in a password")
        try:
            import psycopg  # noqa: F401 - is it there, and its libpq?
        except ImportError as error:
            raise MissingExtraError("postgres", f"the store {shown(url)}") from error
        try:
            url.get_dialect()().create_connect_args(url)
        except ArgumentError as error:  # says which of several hosts and ports don't match
            raise SettingsError(f"{masked(url)!r:.200}: {error}", hint=ADDRESSES) from None
        return url.set(drivername="postgresql+psycopg")

    def writable(self, url: URL, settings: StoreSettings) -> Engine:
        return _engine(url, WRITING, settings, **_ALONE)

    def pooled(self, url: URL, settings: StoreSettings, *, is_awaited: bool = False) -> Engine:
        if not is_awaited:
            return _engine(url, WRITING, settings, **_POOLED)
        return _engine(url, WRITING, settings, _awaited_engine, **_AWAITED, pool_timeout=settings.lock_timeout_secs)

    def read_only(self, url: URL, settings: StoreSettings) -> Engine:
        return _engine(url, READING, settings, execution_options={"postgresql_readonly": True}, **_ALONE)

    def check_concurrent(self) -> None:
        """Raises nothing: PostgreSQL can have concurrent receivers."""

    def check_sessions(self, url: URL, settings: StoreSettings) -> None:
        engine = self.writable(url, settings)
        with engine.connect() as one, engine.connect() as other:
            first, second = ([_process_of(each) for each in (one, other)] for _ in range(2))
        if first != second or len({*first}) < len(first):
            raise SettingsError(
                "a pooler gives a connection another process of the server for each transaction",
                hint="concurrent receivers need pool_mode=session of PgBouncer",
            )

    def why_unsafe(self, connection: Connection) -> str | None:
        off = " and ".join(connection.scalars(text(self._SQL_OFF)))
        return f"its server may lose commits when it crashes, with {off} off: switch that on" if off else None

    def hidden_stores(self, connection: Connection) -> str:
        return " or ".join(connection.scalars(text(self._SQL_HIDDEN)))

    def may_hide_rows(self, connection: Connection) -> bool:
        return connection.get_isolation_level() in {"REPEATABLE READ", "SERIALIZABLE"}

    def keep_migrators_out(self, connection: Connection) -> None:
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK_KEY})

    def wait_briefly_for_tables(self, connection: Connection) -> None:
        connection.execute(text(f"SET LOCAL lock_timeout = {_LONGEST_TABLE_WAIT_MS}"))

    def lock_tables(self, connection: Connection, names: Iterable[str]) -> None:
        connection.execute(text(f"LOCK TABLE {', '.join(names)} IN ACCESS EXCLUSIVE MODE"))

    @contextmanager
    def committing(self, connection: Connection) -> Iterator[None]:
        """Raises if a COMMIT that waited for a synchronous standby was cancelled: only a warning shows that it committed."""
        warnings: list[str | None] = []

        def note(said: Any) -> None:
            if said.severity_nonlocalized == "WARNING":
                warnings.append(said.message_primary)

        driver: Any = connection.connection.driver_connection
        driver.add_notice_handler(note)
        try:
            yield
        finally:
            driver.remove_notice_handler(note)
        if warnings:
            raise StoreError(f"committed, but with a warning: {warnings[0]}")

    def codec_of_text(self, connection: Connection) -> str:
        encoding = sql_rows.driver_of(connection).info.parameter_status("server_encoding")
        return "utf-8" if encoding in {"UTF8", "SQL_ASCII"} else "ascii"  # SQL_ASCII takes any bytes

    def server_run(self, connection: Connection) -> str:
        return server_run_of(connection, sql_rows.driver_of(connection))

    def refuse_autocommit(self, connection: Connection) -> None:
        if autocommits(sql_rows.driver_of(connection)):
            raise sql_rows.autocommit_error()

    def vacuum_of(self, table: str, *, truncates: bool) -> TableVacuum:
        return TableVacuum(table, truncates=truncates)

    def size_bytes(self, connection: Connection) -> int:
        sizes = " + ".join(f"pg_total_relation_size('{table}')" for table in TABLE_NAMES)
        return int(connection.execute(text(f"SELECT {sizes}")).scalar_one())


_ALONE: dict[str, Any] = {"poolclass": NullPool}
_POOLED: dict[str, Any] = {"poolclass": QueuePool, "pool_size": IDLE_AT_MOST, "max_overflow": -1, "pool_use_lifo": True}
_AWAITED: dict[str, Any] = {"pool_size": 20, "max_overflow": 0, "pool_use_lifo": True}
"""The pool for tasks. There may be thousands, which wait for one of these connections, so that the server needs few."""


def _awaited_engine(url: URL, **options: Any) -> Engine:
    try:
        from sqlalchemy.ext.asyncio import create_async_engine

        return create_async_engine(url, **options).sync_engine
    except (ImportError, ValueError) as error:  # either may say that greenlet is missing
        raise MissingExtraError("asyncio", "a receiver for an event loop") from error


def _engine(
    url: URL,
    isolation_level: str,
    settings: StoreSettings,
    create: Callable[..., Engine] = create_engine,
    **more: Any,
) -> Engine:
    options = {name: value for name, value in _CONNECTING.items() if name not in url.query}
    engine = create(
        url,
        **more,
        # Overrides the defaults of server, database and user.
        isolation_level=isolation_level,
        connect_args={**options, "client_encoding": "utf8"},
        # Our tables have none, and each new engine would ask the server for the type.
        use_native_hstore=False,
    )

    # First, before SQLAlchemy sets the isolation level, which no transaction allows.
    @event.listens_for(engine, "connect", insert=True)
    def end_transaction(connection: Any, _record: object) -> None:
        """End what an application's listener for all engines has begun, such as by SET."""
        connection.commit()

    @event.listens_for(engine, "connect")
    def set_up(connection: Any, _record: object) -> None:
        # SQLAlchemy wouldn't recognise quoted names of types, and `committing` needs warnings.
        ask = (
            "SELECT pg_backend_pid(), set_config('lock_timeout', %s, false),"
            " set_config('quote_all_identifiers', 'off', false), set_config('client_min_messages', 'warning', false)"
        )
        process, *_ = connection.execute(ask, (lock_timeout_ms(settings.lock_timeout_secs),)).fetchone()
        connection.commit()
        driver = getattr(connection, "driver_connection", connection)
        if process != driver.info.backend_pid:
            # A pooler is in between. If it changes the server's process with each transaction, the name of a statement that
            # was prepared in one may stand for another statement in the next, which would be executed.
            driver.prepare_threshold = None

    @event.listens_for(engine, "begin")
    def begin_unless_begun(connection: Connection) -> None:
        # The application ended the transaction of a connection that was lent to it. Its next statements must not be committed
        # one by one.
        if autocommits(sql_rows.driver_of(connection)):
            connection.exec_driver_sql(f"BEGIN ISOLATION LEVEL {isolation_level}")

    return engine
