"""The inbox of one target: it keeps messages, from the transaction of their ids on, until the target is known to have them.

The process that has a target's lease, by locking the target's row, delivers all messages that wait for it, in the order of
sequence numbers, whichever process left them. So no message belongs to a process, or waits for a dead one.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Collection, Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from functools import partial
from itertools import accumulate, chain
from operator import itemgetter
from typing import Any, NamedTuple

from sqlalchemy import Connection, Subquery, exists, func, literal, or_, select, union_all

from receiver.closing import Closing
from receiver.errors import LONGEST_ERROR, SettingsError, StoreError
from receiver.settings import StoreSettings
from receiver.store import packed
from receiver.store.codec import printable, to_bytes
from receiver.store.connections import KeptConnection, get_or_create
from receiver.store.databases import NONSENSE, database_of, translated
from receiver.store.databases.database import LONGEST_NAME_BYTES
from receiver.store.messages import FIELDS, StoredMessage, flat
from receiver.store.positions import Positions, lock_undropped
from receiver.store.sql_rows import driver_of
from receiver.store.tables import domains, message_codec, nodes, parked, targets, unpacked, waiting

_BYTES_AT_ONCE = 64 << 20
_BYTES_PER_VACUUMED_ROW = 500
"""A deleted row counts as 1 for the vacuum, plus 1 for each so many of its bytes: roughly the number of its messages."""


class TargetState(NamedTuple):
    """A target as it is stored, and the store id of its domain."""

    confirmed_bytes: int | None
    """How many bytes of a target file are ours for certain; None before the first message."""
    tail_digest: bytes | None
    """The digest of the last of the confirmed bytes of a target file; None before the first message."""
    last_turn: str | None
    """The target's own note; None before the first. A topic to which turns are sent notes the last turn. A queue of Artemis notes
    how often the broker has refused each message, but kept its id."""
    store_id: int
    has_unpacked: bool
    """Whether messages wait for it in rows of their own, left by a process of an older version."""
    name: bytes


class _Row(NamedTuple):
    """A row of waiting messages, without the messages themselves."""

    first: int
    last: int
    runs: str
    packed_bytes: int
    sources: bytes | None = None

    @property
    def numbers(self) -> Sequence[int]:
        """The sequence numbers of its messages."""
        return packed.numbers_of(self.runs)


class NodeRow(NamedTuple):
    """The node of a cluster to which a bridge of a domain connected last."""

    address: str
    """The cluster's address, which names several hosts."""
    node: str
    connected_at_us: int


class Inbox(Closing):
    """The messages that wait for one target of a domain.

    Threads may share it. Leases of a target never overlap, in any thread or process. A forked process must open its own.
    """

    def __init__(self, url: str, *, domain_id: int, target: str, store_settings: StoreSettings | None = None) -> None:
        """Open the inbox of a target, by its name among the domain's bridges, and make it if it is new.

        Raises `SettingsError` for a name that can't be stored, and `StoreError`.
        """
        kept = self._kept = KeptConnection(url, store_settings, "inbox")
        self._reader = KeptConnection(url, store_settings, "inbox", only_reads=True)
        """A connection of its own, because a lease may last long."""
        self.target_id = target_id_of(kept, domain_id, target)
        self._stored_name = to_bytes(target)
        self._domain_id = domain_id
        database = database_of(kept.url)
        self._is_file = database.locked_file(kept.url) is not None
        self.vacuum = database.vacuum_of(waiting.name, truncates=True)
        self._lock = self._locking_statement()

    def close(self) -> None:
        """End the connections to the store. Closing again does nothing, nor does closing in a forked process."""
        self._reader.close()
        self._kept.close()

    def positions(self, source: str) -> Positions:
        """The positions of a source of the domain. All bridges that share them use the same name."""
        return Positions(self._kept, self._reader, self._domain_id, source)

    def note_node(self, address: str, node: str) -> None:
        """Store which node of a cluster was connected to just now, for `receiver status` and the like."""
        at = {"node": to_bytes(node), "connected_at_us": time.time_ns() // 1_000}
        values = {"domain_id": self._domain_id, "address": to_bytes(address), **at}
        with self._kept.transaction(partial(lock_undropped, domain_id=self._domain_id)) as (connection, _):
            database_of(connection).insert_or_update(connection, nodes, values, at)

    def _locking_statement(self) -> str:
        """Compiled once: compiling it takes SQLAlchemy longer than running it takes the database."""
        has_unpacked = exists().where(unpacked.c.target_id == self.target_id)
        of_target = targets.c["confirmed_bytes", "tail_digest", "last_turn"]
        state = select(*of_target, domains.c.store_id, has_unpacked, targets.c.target).join_from(
            targets, domains, domains.c.domain_id == targets.c.domain_id
        )
        # SQLite reuses the numbers of dropped domains and of their targets.
        store_ids = self._reader.read(select(domains.c.store_id).where(domains.c.domain_id == self._domain_id))
        of_domain = domains.c.store_id.in_([row.store_id for row in store_ids])
        itself = state.where(targets.c.target_id == self.target_id, of_domain).with_for_update(of=targets)
        return str(itself.compile(self._kept.engine, compile_kwargs={"literal_binds": True}))

    def add(self, connection: Connection, messages: Sequence[StoredMessage]) -> None:
        """Add these messages, in ascending order of sequence numbers, in the transaction on the connection."""
        with translated(self._kept.url):
            packed.add_waiting(connection, self.target_id, messages)

    def park(self, connection: Connection, message: StoredMessage, error: str) -> None:
        """Park a message that isn't in the inbox, in the transaction on the connection; `error` says why."""
        with translated(self._kept.url):
            values = dict(zip(FIELDS, message_codec.stored(flat(message)), strict=True))
            why = {"parked_at_us": time.time_ns() // 1_000, "error": _storable(error, connection)}
            connection.execute(parked.insert().values(target_id=self.target_id, **why, **values))

    @contextmanager
    def lease(self, joined: Connection | None = None) -> Iterator[Lease]:
        """A transaction that locks the target: committed at its end, rolled back by an exception.

        `StoreBusyError` if the target can't be locked in time. A driver's errors within become `StoreError`s. Given a
        connection, the lease joins the transaction under way there, and leaves commit and rollback to its owner.
        """
        if joined is not None:
            with translated(self._kept.url):
                yield Lease(self, joined, self.lock_target(joined))
            return
        with self._kept.transaction(self.lock_target) as (connection, state):
            yield Lease(self, connection, state)

    def lock_target(self, connection: Connection) -> TargetState:
        """Lock the target for the transaction on the connection."""
        if self._is_file:  # the transaction locked the whole file when it began to write
            if not connection.in_transaction():
                connection.begin()
            values = driver_of(connection).execute(self._lock).fetchone()
        else:
            # By SQLAlchemy, unlike the statements that follow: this one begins the transaction, and may show that the server
            # is gone.
            values = connection.exec_driver_sql(self._lock).one_or_none()
        # If the store has lost the commit that made the target, its number may be another target's by now.
        if values is None or values[-1] != self._stored_name:
            raise StoreError(
                "the target is gone from the database",
                hint="was its domain dropped, or the database replaced? Open it again",
            )
        state = TargetState(*values)
        if state.has_unpacked:
            packed.pack_of_target(connection, self.target_id)
        return state

    def has_waiting(self) -> bool:
        """Whether any message waits for the target. Costs next to nothing, however many wait."""
        there = (exists().where(table.c.target_id == self.target_id) for table in (waiting, unpacked))
        ((any_waits,),) = self._reader.read(select(or_(*there)))
        return bool(any_waits)

    def waiting(self) -> int:
        """How many messages wait for the target."""
        rows = waiting_by_row()
        ((count,),) = self._reader.read(select(func.sum(rows.c.messages)).where(rows.c.target_id == self.target_id))
        return int(count or 0)

    def elsewhere(self) -> dict[str, int]:
        """How many messages of the domain wait for other targets, by target; without targets for which none waits."""
        rows = waiting_by_row()
        others = (
            select(targets.c.target, func.sum(rows.c.messages))
            .join_from(targets, rows, rows.c.target_id == targets.c.target_id)
            .where(targets.c.domain_id == self._domain_id, targets.c.target_id != self.target_id)
            .group_by(targets.c.target)
            .order_by(targets.c.target)
        )
        return {printable(target): int(count) for target, count in self._reader.read(others)}

    def give_back_space(self) -> bool:
        """Give back the space of deleted messages if it is much. Call it between leases, when there is time.

        Each call does a part, so that nobody waits long, and returns whether more is left. A failure is only a warning.
        """
        return self._kept.give_back_space(self.vacuum.run_if_due)


class Lease:
    """A lease of a target that is under way: one transaction that locks the target."""

    def __init__(self, of: Inbox, connection: Connection, target: TargetState) -> None:
        self.connection = connection
        self.target = target
        """The target as it is stored once this lease is committed."""
        self.has_more = False
        """Whether more messages wait than `sequence_numbers` has given."""
        self.server_run = database_of(connection).server_run(connection)
        """Identifies the run of the store's server, or its file. Within one no commit is lost."""
        self._inbox = of
        self._target_id = of.target_id
        self._from = f"FROM {waiting.name} WHERE target_id = {of.target_id:d}"
        self._row_of: dict[int, _Row] = {}
        """The row of each message that `sequence_numbers` has given, unless the row has changed since."""

    @property
    def target_key(self) -> str:
        """A name of the target that is unique among all stores."""
        return self.handed_on_as(f"-{self._target_id}")

    def look_again(self) -> None:
        """Read the target's row again; `StoreError` if the lease was lost meanwhile."""
        self.target = self._inbox.lock_target(self.connection)

    def handed_on_as(self, message: str) -> str:
        """A message's name that is unique among all stores: the store id, and `message`, its name in the domain."""
        return f"{self.target.store_id:x}{message}"

    def other_domain(self) -> str | None:
        """Another domain of the store that has written to a file of the same name; None if there is none."""
        others = (
            select(domains.c.domain_name)
            .join(targets, targets.c.domain_id == domains.c.domain_id)
            .where(targets.c.target == self.target.name, targets.c.target_id != self._target_id)
            .where(targets.c.confirmed_bytes > 0)
        )
        name_there = self.connection.scalars(others.limit(1)).first()
        return None if name_there is None else printable(name_there)

    def sequence_numbers(self, at_most: int, *, but_of: Collection[str | None] = ()) -> list[int]:
        """The numbers of the waiting messages, ascending, except those of these sources; None is the anonymous source.

        At most `at_most` messages, with not much more than 64 MB of bodies; `has_more` says whether others wait.
        """
        blocked = {source or "" for source in but_of}
        # Skipping a row whose sources are all left out costs little. So all rows may be searched.
        rows = self._rows(", sources") if blocked else self._rows(at_most=at_most)
        self._row_of = {}
        last = -1
        for row in rows:
            if len(self._row_of) >= at_most and row.first > last:
                break
            with self._making_sense_of(row):
                numbers = self._numbers_but_of(blocked, row) if blocked else row.numbers
            self._row_of |= dict.fromkeys(numbers, row)
            last = max(last, row.last)
        numbers = sorted(self._row_of)[:at_most]
        sizes = (row.packed_bytes // len(row.numbers) for row in map(self._row_of.__getitem__, numbers))
        bytes_before = list(accumulate(sizes, initial=0))
        count = min(bisect_left(bytes_before, _BYTES_AT_ONCE), len(numbers))
        self.has_more = count < len(numbers) or len(numbers) == at_most
        return numbers[:count]

    def messages(self, numbers: Collection[int]) -> list[StoredMessage]:
        """The messages of these sequence numbers that still wait, in order; `StoreCorruptError` if one is broken."""
        wanted = set(numbers)
        messages = chain.from_iterable(self._unpacked(self._rows_with(wanted)))
        return sorted((each for each in messages if each.sequence in wanted), key=itemgetter(0))

    def confirm(self, numbers: Collection[int]) -> None:
        """Note that the target has the messages of these sequence numbers: delete them from the inbox."""
        gone = set(numbers)
        rows = self._rows_with(gone)
        left = self._unpacked([row for row in rows if not gone.issuperset(row.numbers)])
        self._replace(rows, [[each for each in messages if each.sequence not in gone] for messages in left])

    def tries_failed(self, numbers: Collection[int]) -> dict[int, int]:
        """Count a failed try for each of these messages. Returns their numbers of failed tries, by sequence number."""
        failed = set(numbers)
        rows = self._rows_with(failed)
        counted = [
            [each._replace(tries=each.tries + 1) if each.sequence in failed else each for each in messages]
            for messages in self._unpacked(rows)
        ]
        self._replace(rows, counted)
        return {each.sequence: each.tries for each in chain.from_iterable(counted) if each.sequence in failed}

    def park(self, message: StoredMessage, error: str) -> None:
        """Park a message, and take it out of the inbox if it is there; `error` says why."""
        if message.sequence is not None:
            self.confirm([message.sequence])
        self._inbox.park(self.connection, message, error)

    def _rows(self, and_column: str = "", *, where: str = "", at_most: int | None = None) -> list[_Row]:
        """The waiting rows, in order: all, or the first `at_most`."""
        limit = "" if at_most is None else f" LIMIT {at_most:d}"
        statement = f"SELECT first_sequence, last_sequence, runs, length(packed){and_column} {self._from}{where}"
        rows = driver_of(self.connection).execute(f"{statement} ORDER BY first_sequence{limit}").fetchall()
        return [_Row(*values) for values in rows]

    def _rows_with(self, numbers: AbstractSet[int]) -> list[_Row]:
        if numbers <= self._row_of.keys():
            return list({row.first: row for row in map(self._row_of.__getitem__, numbers)}.values())
        rows = []
        for row in self._rows(where=f" AND first_sequence <= {max(numbers):d} AND last_sequence >= {min(numbers):d}"):
            with self._making_sense_of(row):
                if not numbers.isdisjoint(row.numbers):
                    rows.append(row)
        return rows

    def _unpacked(self, rows: Sequence[_Row]) -> list[list[StoredMessage]]:
        by_first = {row.first: row for row in rows}
        among = ", ".join(map(str, by_first))
        messages = []
        statement = f"SELECT first_sequence, packed, tries {self._from} AND first_sequence IN ({among})"
        for first, values, tries in driver_of(self.connection).execute(statement) if rows else ():
            with self._making_sense_of(by_first[first]):
                messages.append(packed.unpack(by_first[first].runs, values, tries))
        return messages

    def _numbers_but_of(self, blocked: AbstractSet[str], row: _Row) -> Sequence[int]:
        sources = packed.sources_of(row.sources)
        if sources is None or not (sources <= blocked or sources.isdisjoint(blocked)):
            (messages,) = self._unpacked([row])
            of_numbers = zip(row.numbers, messages, strict=True)
            return [number for number, each in of_numbers if (each.message_source_id or "") not in blocked]
        return row.numbers if sources.isdisjoint(blocked) else ()

    def _replace(self, rows: Sequence[_Row], by: Sequence[Sequence[StoredMessage]]) -> None:
        """Delete these rows, and add each list of messages in rows of its own."""
        if rows:
            self._row_of = {}
            among = ", ".join(str(row.first) for row in rows)
            driver_of(self.connection).execute(f"DELETE {self._from} AND first_sequence IN ({among})")
            self._inbox.vacuum.note(sum(1 + row.packed_bytes // _BYTES_PER_VACUUMED_ROW for row in rows))
            for messages in by:
                packed.add_waiting(self.connection, self._target_id, messages)

    @contextmanager
    def _making_sense_of(self, row: _Row) -> Iterator[None]:
        try:
            yield
        except NONSENSE as error:
            raise packed.corrupt_error(self.connection, self._target_id, row.first, error) from error

    def save_file(self, confirmed_bytes: int, tail_digest: bytes) -> None:
        """Save how much of the target's file is ours once this lease is committed, and a digest of the end of that."""
        self._save(confirmed_bytes=confirmed_bytes, tail_digest=tail_digest)

    def save_turn(self, note: str | None) -> None:
        """Save the note of the target once this lease is committed."""
        self._save(last_turn=note)

    def _save(self, **columns: Any) -> None:
        self.target = self.target._replace(**columns)
        placeholder = database_of(self.connection).rows.sql.placeholder
        values = ", ".join(f"{column} = {placeholder}" for column in columns)
        update = f"UPDATE {targets.name} SET {values} WHERE target_id = {self._target_id:d}"  # noqa: S608
        driver_of(self.connection).execute(update, tuple(columns.values()))


def waiting_by_row() -> Subquery:
    """The rows of waiting messages, for counting: each has its number of messages."""
    return union_all(
        select(*waiting.c["target_id", "messages", "received_at_us", "last_sequence", "body_bytes"]),
        select(
            unpacked.c.target_id,
            literal(1),
            unpacked.c.received_at_us,
            unpacked.c.sequence,
            func.length(unpacked.c.body),  # doesn't read the body
        ),
    ).subquery("waiting")


def target_id_of(kept: KeptConnection, domain_id: int, target: str) -> int:
    """The number of a domain's target, made if it is new; `SettingsError` for a name that can't be stored."""
    name = to_bytes(target)
    if not 0 < len(name) <= LONGEST_NAME_BYTES:
        raise SettingsError(f"a target has 1 to {LONGEST_NAME_BYTES:,} bytes, not {len(name):,}: {target!r:.80}")
    the_domain = select(domains.c.domain_id).where(domains.c.domain_id == domain_id)
    the_target = select(targets.c.target_id).where(targets.c.domain_id == domain_id, targets.c.target == name)

    def new(connection: Connection) -> dict[str, Any]:
        if connection.scalar(the_domain.with_for_update()) is None:  # locked, so that nobody drops it meanwhile
            raise SettingsError(f"the store has no domain {domain_id}", hint="open a receiver of the domain first")
        return {"domain_id": domain_id, "target": name}

    with translated(kept.url):
        return get_or_create(kept.engine, the_target, targets, new, kept.settings)


def _storable(error: str, connection: Connection) -> str:
    """The text, escaped where needed: PostgreSQL's text can't hold U+0000, and neither database's a lone surrogate."""
    codec = database_of(connection).codec_of_text(connection)
    return error[:LONGEST_ERROR].encode(codec, "backslashreplace").decode().replace("\0", "\\x00")
