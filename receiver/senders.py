"""Keys and numbers that a sender persists, so that a resent message can be told from a new one.

`DedupKeyMaker` makes a key for each message and keeps it until its send is confirmed, as TDMQ CMQ asks of producers.
`SequenceIdMaker` makes numbered ids, as Apama's senders do. A maker works in the caller's transaction, or on a connection of its
own, which threads share. Each call asks the store, so any number of processes may make ids under one name.

A store can lose its last commits: a standby takes over without them, or an older copy is restored. So each maker remembers the
numbers or keys that it has given. It gives no number again, whatever the store says. If another or a restarted server answers,
or the file is another, it gives a message the same key again. A process that starts after the loss can't know about it.
"""

from __future__ import annotations

import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import NamedTuple, Self, TypeVar
from weakref import WeakKeyDictionary

from sqlalchemy import ColumnElement, Connection, case, delete, event, select, update

from receiver.closing import Closing, Mutex
from receiver.errors import SettingsError, needs_open
from receiver.settings import StoreSettings
from receiver.store.codec import text_of, to_bytes
from receiver.store.connections import KeptConnection
from receiver.store.databases import database_of, translated
from receiver.store.databases.database import LONGEST_NAME_BYTES
from receiver.store.log import joinable
from receiver.store.tables import dedup_keys, sequences

__all__ = ["DedupKeyMaker", "Maker", "Pending", "SequenceIdMaker"]

_T = TypeVar("_T")
_LONGEST_NAME_BYTES = LONGEST_NAME_BYTES // 2  # two make a key


def _name_bytes(name: str, value: object) -> bytes:
    """A name as it is stored; `SettingsError` if it is empty, no text or too long."""
    if not isinstance(value, str) or not value:
        raise SettingsError(f"{name} must be text, and not empty, not {value!r:.80}")
    stored = to_bytes(value)
    if len(stored) > _LONGEST_NAME_BYTES:
        raise SettingsError(f"{name} has more than {_LONGEST_NAME_BYTES:,} bytes: {value!r:.80}")
    return stored


class Maker(Closing):
    """The base of both makers: a connection to the store, closed with `close` or at the end of a `with` block."""

    _OPENED_WITH = ""
    """The arguments that `open` needs besides the address, as a hint."""

    def __init__(self, kept: KeptConnection | None) -> None:
        if not isinstance(kept, KeptConnection):
            raise needs_open(type(self).__name__, self._OPENED_WITH)
        self._kept = kept
        self._notes: WeakKeyDictionary[Connection, dict[bytes, Callable[[], object]]] = WeakKeyDictionary()
        """What to note once the transaction under way on a caller's connection is committed; by what it is about."""

    def close(self) -> None:
        """Close the connection to the store. Closing again does nothing. In a forked process it does nothing either."""
        self._kept.close()

    def _run(self, work: Callable[[Connection], _T], connection: Connection | None) -> _T:
        """Do the work in the caller's transaction, or else in one of our own that is committed before this returns."""
        kept = self._kept
        if connection is None:
            with kept.transaction(work) as (_, done):
                return done
        kept.check_usable()
        with translated(kept.url):
            joined = joinable(connection, kept.engine.dialect, type(self).__name__)
        with translated(joined.engine.url):
            database_of(joined).refuse_autocommit(joined)
            return work(joined)

    def _note(self, about: bytes, note: Callable[[], object], connection: Connection | None) -> None:
        """Call `note` now or, in a caller's transaction, once the caller commits, unless another about the same replaces it.

        What was rolled back with a savepoint is noted too: better a gap than a number that is given twice.
        """
        if connection is None:
            note()
            return
        if connection not in self._notes:  # the listeners stay as long as the connection
            for end in ("", "_twophase"):
                event.listen(connection, f"commit{end}", self._on_commit)
                event.listen(connection, f"rollback{end}", self._on_rollback)
        self._notes.setdefault(connection, {})[about] = note

    def _on_commit(self, connection: Connection, *_: object) -> None:
        notes, self._notes[connection] = self._notes[connection], {}
        for note in notes.values():
            note()

    def _on_rollback(self, connection: Connection, *_: object) -> None:
        self._notes[connection] = {}


class Pending(NamedTuple):
    """A message whose send isn't confirmed."""

    reference: str
    key: str
    made_at_us: int
    """When the key was made, by the clock of the process that made it; microseconds since 1970."""


_MOST_GIVEN = 10_000
"""Keys that a maker keeps in memory: more than a sender has on the way."""


class DedupKeyMaker(Maker):
    """Makes one key for each message of a sender, however often the message is sent. `DedupKeyMaker.open` makes it.

    Source: "Message Deduplication" in the documentation of TDMQ for CMQ
    (https://www.tencentcloud.com/document/product/1111/43011): the producer persists a key before it sends, and uses the same key
    when it sends again. There a key may be made of the producer's IP address, a thread's ID, the time and a counter. Here it is a
    random UUID: addresses repeat behind NAT and in containers, thread IDs come again, clocks are set back and counters restart
    with the process, while 122 random bits never repeat, and reveal nothing about the sender's network.

    `reference` is the application's own name for one act of sending, exact text. The key never depends on the body: to send one
    body twice on purpose, use two references, or confirm the first send before the second.

    Threads may share it, and processes a sender's name: one reference gets one key. A forked process must open its own.
    """

    _OPENED_WITH = "sender=..."

    @classmethod
    def open(cls, url: str, *, sender: str, store_settings: StoreSettings | None = None) -> Self:
        """Open the keys of a sender in a store. Makes the tables if they are new.

        Args:
            url: The store: `sqlite:///file` or `postgresql+psycopg://…`.
            sender: The sender's name. References of different senders are different.
            store_settings: How this process uses the store.

        Raises:
            SettingsError: An argument is invalid.
            StoreError: The store can't be reached, is damaged, or belongs to a newer version.
        """
        stored = _name_bytes("sender", sender)
        return cls(KeptConnection(url, store_settings, cls.__name__), stored)

    def __init__(self, kept: KeptConnection | None = None, sender: bytes = b"", *_given: object) -> None:
        super().__init__(kept)
        self._sender = sender
        self._given: OrderedDict[bytes, tuple[str, Hashable]] = OrderedDict()
        """The newest keys given here that are committed and not confirmed, by reference; each with the server's run or the file. If a key
        goes within one run, it wasn't lost: another maker has confirmed it."""

    def key_for(self, reference: str, *, connection: Connection | None = None) -> str:
        """The key to send this message with: 32 characters. It stays the same until the send is confirmed.

        Args:
            reference: Your name for this act of sending.
            connection: A connection of yours whose transaction keeps the key. Send after your commit: a rollback takes
                the key back. None: the key is committed before this returns.

        Raises:
            StoreError: The key isn't known to be kept. Ask again.
        """
        stored = _name_bytes("reference", reference)

        def make(connection: Connection) -> tuple[str, Hashable]:
            key = {"sender": self._sender, "reference": stored}
            new = {"made_at_us": time.time_ns() // 1_000, "dedup_key": uuid.uuid4().hex}
            # An existing key stays. Writing it again unchanged locks it, so that no other maker confirms it before it is read;
            # and it violates no constraint, which would abort a caller's transaction.
            unchanged = {"made_at_us": dedup_keys.c.made_at_us}
            database_of(connection).insert_or_update(connection, dedup_keys, key | new, unchanged)
            kept: str = connection.execute(select(dedup_keys.c.dedup_key).where(self._is(stored))).scalar_one()
            run = database_of(connection).server_run(connection)
            known, known_run = self._given.get(stored, (kept, run))
            if kept == new["dedup_key"] and run != known_run:
                connection.execute(update(dedup_keys).where(self._is(stored)).values(dedup_key=known))
                kept = known
            return kept, run

        given = self._run(make, connection)
        self._note(stored, lambda: self._give(stored, given), connection)
        return given[0]

    def _give(self, reference: bytes, given: tuple[str, Hashable]) -> None:
        self._given[reference] = given
        while len(self._given) > _MOST_GIVEN:
            self._given.popitem(last=False)

    def confirm(self, reference: str, *, connection: Connection | None = None) -> None:
        """Forget the key, because the broker has the message. A reference that isn't pending is no error.

        Args:
            reference: Your name for this act of sending.
            connection: A connection of yours, whose transaction this joins. None: this is committed before it returns.

        Raises:
            StoreError: The key isn't known to be forgotten. Confirm again.
        """
        stored = _name_bytes("reference", reference)

        def forget(own: Connection) -> None:
            gone = delete(dedup_keys).where(self._is(stored))
            if own.execute(gone).rowcount == 0 and database_of(own).may_hide_rows(own):
                # The key may be newer than all that the transaction sees. Then this statement fails.
                unseen = {"sender": self._sender, "reference": stored, "made_at_us": 0, "dedup_key": ""}
                database_of(own).insert_unless_there(own, dedup_keys, unseen)
                own.execute(gone)

        self._run(forget, connection)
        self._note(stored, lambda: self._given.pop(stored, None), connection)

    def pending(self) -> list[Pending]:
        """The messages that have a key and aren't confirmed, oldest first. Send them again after a crash.

        If other processes share the sender's name, this includes messages that they are about to send.
        """
        keys = dedup_keys.c
        query = (
            select(keys.reference, keys.dedup_key, keys.made_at_us)
            .where(keys.sender == self._sender)
            .order_by(keys.made_at_us, keys.reference)
        )
        rows = self._run(lambda own: own.execute(query).all(), None)
        return [Pending(text_of(row.reference), row.dedup_key, row.made_at_us) for row in rows]

    def _is(self, reference: bytes) -> ColumnElement[bool]:
        return (dedup_keys.c.sender == self._sender) & (dedup_keys.c.reference == reference)


_MOST_AT_ONCE = 1_000_000


class SequenceIdMaker(Maker):
    """Makes ids `seqNo:messageSourceId`, with seqNo 1, 2, 3 ... for each source. `SequenceIdMaker.open` makes it.

    Source: the default uniqueMessageId of Apama's senders, such as `1:mymachinename1.domain:1234:567890:S01`
    (https://documentation.softwareag.com/apama/v10-15/apama10-15/webhelp/pam-webhelp/co-DepAndManApaApp_duplicate_detection.html).
    There each process gives the source a new name. Here the caller names it, so that numbers go on after a restart. An id is
    split at its first colon, so the name may have colons.

    No number is ever given twice, however many processes share the source, and whenever one of them dies. In the caller's own
    transaction numbers have no gap either: after a rollback, the next caller gets them. Other processes that ask for numbers of
    the source wait until the transaction ends. Without such a transaction, a number is committed before it is returned. So a
    process that dies before it sends leaves a gap.

    If a store loses its last commits, for example when an asynchronous standby takes over, a maker goes on after the numbers that
    it has given itself. If other processes share the source, or a process starts after the loss, give the source a new name.

    Threads may share it. A forked process must open its own.
    """

    _OPENED_WITH = "message_source_id=..."

    @classmethod
    def open(cls, url: str, *, message_source_id: str, store_settings: StoreSettings | None = None) -> Self:
        """Open the numbers of a source in a store. Makes the tables if they are new.

        Args:
            url: The store: `sqlite:///file` or `postgresql+psycopg://…`.
            message_source_id: The source's name, the second part of each id.
            store_settings: How this process uses the store.

        Raises:
            SettingsError: An argument is invalid.
            StoreError: The store can't be reached, is damaged, or belongs to a newer version.
        """
        _name_bytes("message_source_id", message_source_id)
        return cls(KeptConnection(url, store_settings, cls.__name__), message_source_id)

    def __init__(self, kept: KeptConnection | None = None, message_source_id: str = "", *_given: object) -> None:
        super().__init__(kept)
        self._stored_source = to_bytes(message_source_id)
        self._source = message_source_id
        self._given = 0
        """The largest number that was given here and committed."""
        self._guard = Mutex()

    def next(self, *, connection: Connection | None = None) -> str:
        """The id of the next message.

        Args:
            connection: A connection of yours, whose transaction this joins. None: the number is committed at once.

        Raises:
            StoreError: Ask again. At worst there is a gap.
        """
        return self.next_many(1, connection=connection)[0]

    def next_many(self, count: int, *, connection: Connection | None = None) -> list[str]:
        """The ids of the next `count` messages, with consecutive numbers, in one transaction. Otherwise as `next`."""
        if count.__class__ is not int or not 0 <= count <= _MOST_AT_ONCE:
            raise SettingsError(f"count must be a whole number from 0 to {_MOST_AT_ONCE:,}, not {count!r:.80}")

        def take(connection: Connection) -> int:
            given, kept = self._given, sequences.c.last_seq_no
            # The store's number is lower than ours if it has lost its last commits.
            first = {"message_source_id": self._stored_source, "last_seq_no": given + count}
            later = {"last_seq_no": case((kept < given, given), else_=kept) + count}
            database_of(connection).insert_or_update(connection, sequences, first, later)
            ours = sequences.c.message_source_id == self._stored_source
            last: int = connection.execute(select(kept).where(ours)).scalar_one()
            return last

        last = self._run(take, connection)
        self._note(self._stored_source, lambda: self.skip_to(last), connection)
        return [f"{number}:{self._source}" for number in range(last - count + 1, last + 1)]

    def skip_to(self, last: int) -> None:
        """Give only numbers above this one from now on."""
        with self._guard:
            self._given = max(self._given, last)
