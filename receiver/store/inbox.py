"""The inbox of one target: messages kept, in the transaction of their ids, until the target is known to have them.

Whoever has the lease of a target, for which its row is locked, delivers all that waits for it in the order of sequence
numbers, whoever left it there. So no message belongs to a process, and none waits for one that is dead.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Collection, Hashable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from typing import Any, NamedTuple, Self

from sqlalchemy import (
    Connection,
    Executable,
    Select,
    Subquery,
    exists,
    func,
    literal,
    or_,
    select,
    union_all,
    update,
)

from receiver.closing import Closing
from receiver.errors import SettingsError, StoreCorruptError, StoreError
from receiver.settings import StoreSettings
from receiver.store.bundles import bundle_of, columns_of, numbers_of, rows_of
from receiver.store.connections import KeptConnection, get_or_create
from receiver.store.databases.database import LONGEST_NAME_BYTES
from receiver.store.engine import NONSENSE, database_of, translated
from receiver.store.positions import Positions
from receiver.store.sql_log import driver_of
from receiver.store.tables import (
    BundleRow,
    InboxColumns,
    InboxRow,
    bundles,
    domains,
    inbox,
    inbox_rows,
    parked,
    targets,
)
from receiver.store.values import printable, to_bytes

__all__ = ["Inbox", "Lease", "target_id_of", "waiting_by_row"]

_COLUMNS = ("target_id", *inbox_rows.columns)
_BUNDLE_COLUMNS = ("target_id", *BundleRow._fields)
_LONGEST_ERROR = 10_000
_BYTES_AT_ONCE = 64 << 20
_BYTES_PER_VACUUMED_ROW = 500
"""A deleted bundle counts as one row, and one more for each so many bytes, about as its messages would."""


class TargetState(NamedTuple):
    """What is stored of a target, and the store id of its domain."""

    confirmed_bytes: int | None
    tail_digest: bytes | None
    store_id: int
    name: bytes


class _Sql(NamedTuple):
    """The statements that each batch runs for one target, as text: for a single message, making them by SQLAlchemy each
    time would cost more than running them."""

    first_sequence: str
    lock: str
    waiting: str
    bundles: str
    packed: str
    add_bundle: str
    delete_bundle: str
    save_file: str


class _Bundle(NamedTuple):
    """A row of messages that wait together, without the messages."""

    first_sequence: int
    runs: str
    numbers: Sequence[int]
    """The sequence numbers of its messages."""
    bytes: int


class Inbox(Closing):
    """What waits for one target of a domain; made by `Inbox.open`.

    Threads may share it: their leases don't overlap, nor do those of any process. A process forked off must open its own.
    """

    def __init__(self, kept: KeptConnection, reader: KeptConnection, target: str, domain_id: int) -> None:
        self.target_id = target_id_of(kept, domain_id, target)
        self._stored_name = to_bytes(target)
        self._kept = kept
        self._domain_id = domain_id
        self._reader = reader
        """Not the connection that leases take, for a lease may last."""
        database = database_of(kept.url)
        self._is_file = database.locked_file(kept.url) is not None
        self._vacuum = database.vacuum_of(inbox.name, truncates=True)
        self._bundle_vacuum = database.vacuum_of(bundles.name, truncates=True)
        store_ids = self._read(select(domains.c.store_id).where(domains.c.domain_id == domain_id))
        self.sql = _sql_of(kept, self.target_id, domain_id, [row.store_id for row in store_ids])

    @classmethod
    def open(cls, url: str, *, domain_id: int, target: str, store_settings: StoreSettings | None = None) -> Self:
        """Open the inbox of a target, by the name that the domain's bridges have for it, and make it if it is new.

        Raises SettingsError for a name that can't be stored, and StoreError.
        """
        kept = KeptConnection(url, store_settings, "inbox")
        reader = KeptConnection(url, store_settings, "inbox", only_reads=True)
        return cls(kept, reader, target, domain_id)

    def close(self) -> None:
        """End the connections to the store. Closing again does nothing, and so does a process forked off."""
        self._reader.close()
        self._kept.close()

    def positions(self, source: str) -> Positions:
        """Those of a source of the domain; its name is the same for all that share them."""
        return Positions(self._kept, self._reader, self._domain_id, source)

    def first_sequence(self, connection: Connection) -> int:
        """The sequence number of the first receipt of the batch whose connection this is; each further receipt has the
        next."""
        with translated(self._kept.url):
            (receipts,) = driver_of(connection).execute(self.sql.first_sequence).fetchone()
            return int(receipts)

    def server_run(self, connection: Connection) -> Hashable:
        """Identifies the run of the store's server that the connection leads to; within one no commit is lost."""
        with translated(self._kept.url):
            return database_of(connection).server_run(connection)

    def add_columns(self, connection: Connection, columns: InboxColumns, *, packs: bool) -> None:
        """Have these messages wait, if and when the transaction on the connection is committed.

        Their sequence numbers ascend. `packs`: all in one row where that is faster, for whoever delivers all of them
        together.
        """
        with translated(self._kept.url):
            driver = driver_of(connection)
            bundle = bundle_of(columns) if packs else None
            if bundle is not None:
                driver.execute(self.sql.add_bundle, (self.target_id, *bundle))
                return
            rows = inbox_rows.stored_many(list(zip(*(columns[name] for name in InboxRow._fields), strict=True)))
            database_of(connection).add_waiting(driver, _COLUMNS, ((self.target_id, *stored) for stored in rows))

    def park(self, connection: Connection, row: InboxRow, error: str) -> None:
        """Set a message aside, in the transaction on the connection; `error` is why. It may be in the inbox or not."""
        with translated(self._kept.url):
            values = dict(zip(InboxRow._fields, inbox_rows.stored(row), strict=True))
            why = {"parked_at_us": time.time_ns() // 1_000, "error": _storable(error)}
            connection.execute(parked.insert().values(target_id=self.target_id, **why, **values))
            self.delete(connection, [row.sequence])

    @contextmanager
    def lease(self, joined: Connection | None = None) -> Iterator[Lease]:
        """A transaction that has the target for itself: committed at its end, rolled back by an exception.

        `StoreBusyError` if the target can't be had in time. Whatever a driver raises within is a `StoreError`. With a
        connection it joins the transaction that is under way there, and leaves commit and rollback to its owner.
        """
        if joined is not None:
            with translated(self._kept.url):
                yield Lease(self, joined, self.lock_target(joined))
            return
        with self._kept.transaction(self.lock_target) as (connection, state):
            yield Lease(self, connection, state)

    def lock_target(self, connection: Connection) -> TargetState:
        """Have the target for the transaction on the connection."""
        if self._is_file:  # which whoever begins to write has locked
            if not connection.in_transaction():
                connection.begin()
            values = driver_of(connection).execute(self.sql.lock).fetchone()
        else:
            # Not by the driver, as all that follows: this is what begins the transaction, and may find the server gone.
            values = connection.exec_driver_sql(self.sql.lock).one_or_none()
        # A store that has lost the commit by which it was made may have given its number to another.
        if values is None or values[-1] != self._stored_name:
            raise StoreError(
                "the target is gone from the database",
                hint="was its domain dropped, or the database replaced? Open it again",
            )
        return TargetState(*values)

    def has_waiting(self) -> bool:
        """Whether any message waits for the target, which costs next to nothing however many do."""
        there = (exists().where(table.c.target_id == self.target_id) for table in (inbox, bundles))
        ((any_waits,),) = self._read(select(or_(*there)))
        return bool(any_waits)

    def waiting(self) -> int:
        """How many messages wait for the target."""
        rows = waiting_by_row()
        ((count,),) = self._read(select(func.sum(rows.c.messages)).where(rows.c.target_id == self.target_id))
        return int(count or 0)

    def elsewhere(self) -> dict[str, int]:
        """How many messages of the domain wait for other targets, by target; those where none waits are left out."""
        rows = waiting_by_row()
        others = (
            select(targets.c.target, func.sum(rows.c.messages))
            .join_from(targets, rows, rows.c.target_id == targets.c.target_id)
            .where(targets.c.domain_id == self._domain_id, targets.c.target_id != self.target_id)
            .group_by(targets.c.target)
            .order_by(targets.c.target)
        )
        return {printable(target): int(count) for target, count in self._read(others)}

    def _read(self, query: Executable) -> Sequence[Any]:
        with self._reader.transaction(lambda connection: connection.execute(query).all()) as (_, rows):
            return rows

    def delete(self, connection: Connection, numbers: Collection[int]) -> None:
        """Have these messages wait no longer, if and when the transaction on the connection is committed."""
        with translated(self._kept.url):
            driver = driver_of(connection)
            self._vacuum.note(database_of(connection).delete_waiting(driver, self.target_id, sorted(numbers)))

    def delete_bundle(self, connection: Connection, bundle: _Bundle) -> None:
        """Have all messages of a bundle wait no longer, likewise."""
        with translated(self._kept.url):
            driver_of(connection).execute(self.sql.delete_bundle, (bundle.first_sequence,))
            self._bundle_vacuum.note(1 + bundle.bytes // _BYTES_PER_VACUUMED_ROW)

    def give_back_space(self) -> bool:
        """Give the space of deleted messages back, where there is much of it; between leases, and when there is time.

        It does a part at a time, so that nobody waits long; whether more is left to do. A failure is a warning only.
        """
        vacuums = (self._vacuum, self._bundle_vacuum)
        return self._kept.give_back_space(lambda driver: any(vacuum.run_if_due(driver) for vacuum in vacuums))


class Lease:
    """A lease of a target, under way: one transaction that has the target for itself."""

    def __init__(self, of: Inbox, connection: Connection, state: TargetState) -> None:
        self.connection = connection
        self.has_more = False
        """Whether more wait than `sequence_numbers` has given."""
        self.server_run = of.server_run(connection)
        """Identifies the run of the store's server."""
        self._inbox = of
        self._target_id = of.target_id
        self._state = state
        self._known_bundles: dict[int, _Bundle] | None = None
        """Those that wait, by their first number; None before they were looked for."""

    @property
    def confirmed_bytes(self) -> int | None:
        """How many bytes of a target file are ours for certain; None before the first message."""
        return self._state.confirmed_bytes

    @property
    def tail_digest(self) -> bytes | None:
        """The digest of the last of the confirmed bytes of a target file; None before the first message."""
        return self._state.tail_digest

    def look_again(self) -> None:
        """Read anew what is confirmed; StoreError if the lease has been lost meanwhile."""
        self._state = self._inbox.lock_target(self.connection)

    def handed_on_as(self, message: str) -> str:
        """A name that no other domain of any store gives: the store id, and `message`, the message's name in its own domain."""
        return f"{self._state.store_id:x}{message}"

    def other_domain(self) -> str | None:
        """Another domain of the store that has written to a file of the same name; None if there is none."""
        name = select(targets.c.target).where(targets.c.target_id == self._target_id).scalar_subquery()
        others = (
            select(domains.c.domain_name)
            .join(targets, targets.c.domain_id == domains.c.domain_id)
            .where(targets.c.target == name, targets.c.target_id != self._target_id)
            .where(targets.c.confirmed_bytes > 0)
        )
        name_there = self.connection.scalars(others.limit(1)).first()
        return None if name_there is None else printable(name_there)

    def sequence_numbers(self, at_most: int, *, but_of: Collection[str | None] = ()) -> list[int]:
        """The numbers of the messages that wait, ascending, without those of these sources; None is the anonymous one.

        No more than `at_most`, nor much more than 64 MB of bodies; `has_more` says whether others wait.
        """
        if but_of:
            self._unpack(self._bundles())
            source = func.coalesce(inbox.c.message_source_id, b"")
            others = _waiting(self._target_id).where(source.not_in([to_bytes(source or "") for source in but_of]))
            waiting = self.connection.execute(others.limit(at_most)).all()
            numbers, sizes = [number for number, _ in waiting], [size for _, size in waiting]
        else:
            numbers, sizes = self._first_waiting(at_most)
        bytes_before = list(accumulate(sizes, initial=0))
        count = min(bisect_left(bytes_before, _BYTES_AT_ONCE), len(numbers))
        self.has_more = count < len(numbers) or len(numbers) == at_most
        return numbers[:count]

    def rows(self, numbers: Collection[int]) -> list[InboxRow]:
        """The messages of these sequence numbers that are there, in order; `StoreCorruptError` where one is none."""
        wanted = set(numbers)
        rows = [
            row
            for bundle in self._bundles_with(wanted)
            for row in rows_of(self._unpacked(bundle))
            if row.sequence in wanted
        ]
        wanted.difference_update([row.sequence for row in rows])
        is_mixed = bool(rows and wanted)
        connection, target_id = self.connection, self._target_id
        columns, driver = inbox_rows.columns, driver_of(connection)
        for values in database_of(connection).waiting(driver, columns, target_id, sorted(wanted)) if wanted else ():
            try:
                rows.append(inbox_rows.read(values))
            except NONSENSE as error:
                raise _corrupt(connection, target_id, InboxRow._make(values).sequence, error) from error
        return sorted(rows) if is_mixed else rows

    def confirm(self, numbers: Collection[int]) -> None:
        """The target has the messages of these sequence numbers: they wait no longer."""
        gone = set(numbers)
        for bundle in self._bundles_with(gone):
            if gone.issuperset(bundle.numbers):
                self._delete(bundle)
                gone.difference_update(bundle.numbers)
            else:
                self._unpack([bundle])
        if gone:
            self._inbox.delete(self.connection, gone)

    def _bundles(self, at_most: int | None = None) -> list[_Bundle]:
        """Those that wait, in order; at most so many, if they haven't been looked for yet."""
        if self._known_bundles is None:
            text = self._inbox.sql.bundles + (f" LIMIT {at_most:d}" if at_most is not None else "")
            self._known_bundles = {}
            for first, runs, size in driver_of(self.connection).execute(text).fetchall():
                try:
                    self._known_bundles[first] = _Bundle(first, runs, numbers_of(runs), size)
                except NONSENSE as error:
                    raise _corrupt(self.connection, self._target_id, first, error) from error
        return list(self._known_bundles.values())

    def _bundles_with(self, numbers: Collection[int]) -> list[_Bundle]:
        """Those with any of these messages."""
        return [bundle for bundle in self._bundles() if not set(numbers).isdisjoint(bundle.numbers)]

    def _first_waiting(self, at_most: int) -> tuple[list[int], list[int]]:
        """The numbers of the messages that wait, in bundles or not, ascending; and how many bytes each has, about."""
        rows = driver_of(self.connection).execute(f"{self._inbox.sql.waiting} LIMIT {at_most:d}").fetchall()
        numbers: list[int] = []
        sizes: list[int] = []
        for bundle in self._bundles(at_most):
            if len(numbers) >= at_most:  # those that follow have greater numbers
                break
            numbers += bundle.numbers
            sizes += [bundle.bytes // len(bundle.numbers)] * len(bundle.numbers)
        if rows:
            both = sorted([*map(tuple, rows), *zip(numbers, sizes, strict=True)])
            numbers, sizes = [number for number, _ in both], [size for _, size in both]
        return numbers[:at_most], sizes[:at_most]

    def _unpacked(self, bundle: _Bundle) -> InboxColumns:
        ((packed,),) = driver_of(self.connection).execute(self._inbox.sql.packed, (bundle.first_sequence,)).fetchall()
        try:
            return columns_of(bundle.runs, packed)
        except NONSENSE as error:
            raise _corrupt(self.connection, self._target_id, bundle.first_sequence, error) from error

    def _unpack(self, packed: Sequence[_Bundle]) -> None:
        """Have the messages of these wait in rows of their own."""
        for bundle in packed:
            self._inbox.add_columns(self.connection, self._unpacked(bundle), packs=False)
            self._delete(bundle)

    def _delete(self, bundle: _Bundle) -> None:
        self._inbox.delete_bundle(self.connection, bundle)
        self._known_bundles = {first: one for first, one in (self._known_bundles or {}).items() if one != bundle}

    def try_failed(self, number: int) -> int:
        """Count a try of a message that failed; how many have failed."""
        self._unpack(self._bundles_with([number]))
        row = (inbox.c.target_id == self._target_id) & (inbox.c.sequence == number)
        self.connection.execute(update(inbox).where(row).values(tries=inbox.c.tries + 1))
        return int(self.connection.scalars(select(inbox.c.tries).where(row)).one())

    def park(self, row: InboxRow, error: str) -> None:
        """Set a message aside, out of the inbox; `error` is why."""
        self._unpack(self._bundles_with([row.sequence]))
        self._inbox.park(self.connection, row, error)

    def save_file(self, confirmed_bytes: int, tail_digest: bytes) -> None:
        """Note how much of the target's file is ours once this lease is committed, and a digest of its end."""
        self._state = self._state._replace(confirmed_bytes=confirmed_bytes, tail_digest=tail_digest)
        driver_of(self.connection).execute(self._inbox.sql.save_file, (confirmed_bytes, tail_digest))


def _corrupt(connection: Connection, target_id: int, number: int, error: Exception) -> StoreCorruptError:
    name = connection.execute(select(targets.c.target).where(targets.c.target_id == target_id)).scalar_one()
    return StoreCorruptError(
        f"the message with the sequence number {number} that waits for {printable(name)} makes no sense: {error}",
        hint="`receiver check` says what is wrong; restore a copy",
    )


def _sql_of(kept: KeptConnection, target_id: int, domain_id: int, store_ids: Sequence[int]) -> _Sql:
    def text(query: Select[Any]) -> str:
        return str(query.compile(kept.engine, compile_kwargs={"literal_binds": True}))

    state = select(targets.c.confirmed_bytes, targets.c.tail_digest, domains.c.store_id, targets.c.target).join_from(
        targets, domains, domains.c.domain_id == targets.c.domain_id
    )
    # A file of SQLite gives the numbers of a domain that was dropped, and of its targets, to others.
    itself = (targets.c.target_id == target_id) & domains.c.store_id.in_(store_ids)
    p = database_of(kept.url).log.placeholder
    saved = f"confirmed_bytes = {p}, tail_digest = {p}"
    values = ", ".join([p] * len(_BUNDLE_COLUMNS))
    of_target = f"{bundles.name} WHERE target_id = {target_id}"
    return _Sql(
        first_sequence=text(select(domains.c.receipts).where(domains.c.domain_id == domain_id)),
        lock=text(state.where(itself).with_for_update(of=targets)),
        waiting=text(_waiting(target_id)),
        bundles=f"SELECT first_sequence, runs, length(packed) FROM {of_target} ORDER BY first_sequence",  # noqa: S608
        packed=f"SELECT packed FROM {of_target} AND first_sequence = {p}",  # noqa: S608
        add_bundle=f"INSERT INTO {bundles.name} ({', '.join(_BUNDLE_COLUMNS)}) VALUES ({values})",  # noqa: S608
        delete_bundle=f"DELETE FROM {of_target} AND first_sequence = {p}",  # noqa: S608
        save_file=f"UPDATE {targets.name} SET {saved} WHERE target_id = {target_id}",  # noqa: S608
    )


def _waiting(target_id: int) -> Select[Any]:
    """The sequence number and the length in bytes of each message that waits for the target, by number."""
    of_target = select(inbox.c.sequence, func.length(inbox.c.body)).where(inbox.c.target_id == target_id)
    return of_target.order_by(inbox.c.sequence)


def waiting_by_row() -> Subquery:
    """What waits, for whoever counts it: each row of the inbox, or bundle, with how many messages it has."""
    return union_all(
        select(
            inbox.c.target_id,
            literal(1).label("messages"),
            inbox.c.received_at_us,
            inbox.c.sequence.label("last_sequence"),
            # The length of a body is known without reading it.
            func.length(inbox.c.body).label("body_bytes"),
        ),
        select(
            bundles.c.target_id,
            bundles.c.messages,
            bundles.c.received_at_us,
            bundles.c.last_sequence,
            bundles.c.body_bytes,
        ),
    ).subquery("waiting")


def target_id_of(kept: KeptConnection, domain_id: int, target: str) -> int:
    """The number of a domain's target, which is made if it is new; SettingsError for a name that can't be stored."""
    name = to_bytes(target)
    if not 0 < len(name) <= LONGEST_NAME_BYTES:
        raise SettingsError(f"a target has 1 to {LONGEST_NAME_BYTES:,} bytes, not {len(name):,}: {target!r:.80}")
    the_domain = select(domains.c.domain_id).where(domains.c.domain_id == domain_id)
    the_target = select(targets.c.target_id).where(targets.c.domain_id == domain_id, targets.c.target == name)

    def new(connection: Connection) -> dict[str, Any]:
        if connection.scalar(the_domain.with_for_update()) is None:  # else it may be dropped meanwhile
            raise SettingsError(f"the store has no domain {domain_id}", hint="open a receiver of the domain first")
        return {"domain_id": domain_id, "target": name}

    with translated(kept.url):
        return get_or_create(kept.url, kept.engine, the_target, targets, new)


def _storable(error: str) -> str:
    """Escaped where need be: PostgreSQL's text can't hold U+0000, nor either database's a lone surrogate."""
    return error[:_LONGEST_ERROR].encode("utf-8", "backslashreplace").decode().replace("\0", "\\x00")
