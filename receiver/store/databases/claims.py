"""Claims: they let many transactions of one domain go on at once, on PostgreSQL.

The first receipt with an id claims it, in that receipt's transaction. If an open transaction has touched the id, others
wait until it ends: then the id is claimed or free. Receipts are stored as *arrivals* beside their claims. They are numbered
once their ids are claimed, and later folded into the domain's log in the order of these numbers. A claim is released once the
log's rule has forgotten its id.

Why this is exact, statement by statement:

- A claim locks the domain's row FOR KEY SHARE. That doesn't conflict with folding, which updates other columns. A conversion
  of the domain to the other kind locks the row FOR UPDATE, and so waits for open transactions. A locking SELECT sees the row
  as it is once the lock is granted, whatever the statement's snapshot was: so no claim is made in a domain that isn't
  concurrent any more.
- Before that lock, a conversion closes a gate, an advisory lock. FOR KEY SHARE overtakes a waiting FOR UPDATE: without the
  gate, ever new transactions could keep it waiting.
- Ids are claimed in the order of their bytes, so that two statements never wait for each other.
- The number is drawn in a SELECT from an aggregate over all claims, so only after the last id is claimed. Drawn earlier, it
  could put the loser of a race for an id before the winner. All receipts of a statement stand in one row, in their order.
- A release first locks the claims that no open transaction has touched. No other transaction can touch them until the lock is
  gone. A claim that a single statement has touched is released at once: its receipts are folded in together. For each other
  claim, a further statement, with a later snapshot, looks for arrivals of its id.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from hashlib import sha256
from typing import Any, NamedTuple

from sqlalchemy import Connection

from receiver.errors import StoreError
from receiver.message import Receipt
from receiver.store.codec import json_bytes, parts_of, text_of, to_bytes
from receiver.store.databases import NONSENSE, nonsense_error
from receiver.store.databases.database import READ_ONLY
from receiver.store.databases.postgres import has_failed, lock_timeout_ms
from receiver.store.sql_rows import AwaitedDriver, driver_of
from receiver.store.tables import CONCURRENT_POLICY, ArrivalRow, arrival_numbers, arrivals, claims, domains

_INCARNATION = domains.c.store_id.name
_LONGEST_KEY_BYTES = 1_000
"""The longest id that is indexed as it is: a longer one is claimed by its beginning and its digest."""
_INDEX_BITS = 20
"""A receipt's number is the number of its row, followed by its index in the row, in so many bits."""
_ROWS_AT_ONCE = 1_000


def _key_of(stored: bytes) -> bytes:
    is_long = len(stored) > _LONGEST_KEY_BYTES
    return stored[:_LONGEST_KEY_BYTES] + sha256(stored).digest() if is_long else stored


_GATE = int.from_bytes(b"gate")
"""The first key of a domain's gate; the second is the domain's number. So it differs from the locks with one key."""
_ID = "coalesce(long_id, unique_message_id)"
_HERE = f"""
WITH waits AS MATERIALIZED (
    SELECT current_setting('lock_timeout') AS before, set_config('lock_timeout', %s, true), pg_advisory_xact_lock_shared({_GATE}, %s)
), here AS MATERIALIZED (
    SELECT domain_id FROM {domains.name}
    WHERE domain_id = %s AND {_INCARNATION} = %s AND policy = '{CONCURRENT_POLICY}' AND (SELECT before FROM waits) IS NOT NULL FOR KEY SHARE
)"""
_TO_CLAIMS = f"INSERT INTO {claims.name} (domain_id, unique_message_id, long_id, is_repeated, is_single)"
_CLAIMED_BEFORE = "ON CONFLICT (domain_id, unique_message_id) DO UPDATE SET is_repeated = true, is_single = false"
_TO_ARRIVALS = f"INSERT INTO {arrivals.name} (domain_id, {', '.join(ArrivalRow._fields)})"
_PATIENCE_AS_BEFORE = "(SELECT set_config('lock_timeout', before, true) FROM waits)"
# `had` is one row whatever was claimed, so that the caller's lock_timeout is restored even if nothing was.
_CLAIM = f"""{_HERE}, claimed AS (
    {_TO_CLAIMS}
    SELECT domain_id, key, long_id, false, true FROM here, unnest(%b::bytea[], %b::bytea[]) AS ids(key, long_id)
    {_CLAIMED_BEFORE} RETURNING unique_message_id, is_repeated
), had AS MATERIALIZED (
    SELECT array_agg(unique_message_id) FILTER (WHERE is_repeated) AS repeated FROM claimed
), arrived AS (
    {_TO_ARRIVALS} SELECT domain_id, nextval('{arrival_numbers.name}'), %s, %s, %s FROM here, had RETURNING arrival
)
SELECT arrival, repeated, {_PATIENCE_AS_BEFORE} FROM had LEFT JOIN arrived ON true
"""
"""Returns the number of the receipts' row, and which ids had been claimed before."""
_CLAIM_ONE = f"""{_HERE}, claimed AS (
    {_TO_CLAIMS} SELECT domain_id, %s, %s, false, true FROM here
    {_CLAIMED_BEFORE} RETURNING domain_id, is_repeated
), arrived AS (
    {_TO_ARRIVALS} SELECT domain_id, nextval('{arrival_numbers.name}'), %s, %s, %s FROM claimed RETURNING arrival
)
SELECT arrival, is_repeated, {_PATIENCE_AS_BEFORE} FROM (SELECT) AS always LEFT JOIN (arrived CROSS JOIN claimed) ON true
"""
"""`_CLAIM` for a single receipt with an id, as most transactions have: it makes them a tenth cheaper."""
_TAKE = f"""
DELETE FROM {arrivals.name} WHERE domain_id = %s AND arrival = ANY(ARRAY(
    SELECT arrival FROM (
        SELECT arrival, sum(receipts) OVER (ORDER BY arrival) - receipts AS before
        FROM (SELECT arrival, receipts FROM {arrivals.name} WHERE domain_id = %s ORDER BY arrival LIMIT %s) AS first
    ) AS counted WHERE before < %s
)) RETURNING arrival, packed
"""
"""Takes whole rows. Each row has at least one receipt, so the LIMIT on rows is the number of receipts wanted."""
_FREE = f"SELECT unique_message_id FROM {claims.name} WHERE domain_id = %s AND unique_message_id = ANY(%b) FOR UPDATE SKIP LOCKED"
_RELEASE_SINGLE = f"""
WITH free AS MATERIALIZED ({_FREE}), released AS (
    DELETE FROM {claims.name} USING free
    WHERE domain_id = %s AND {claims.name}.unique_message_id = free.unique_message_id AND is_single
    RETURNING {claims.name}.unique_message_id
)
SELECT {_ID} FROM {claims.name} WHERE domain_id = %s AND unique_message_id = ANY(%b) AND NOT EXISTS (
    SELECT FROM released WHERE released.unique_message_id = {claims.name}.unique_message_id
)
"""
_RELEASE = f"DELETE FROM {claims.name} WHERE domain_id = %s AND unique_message_id = ANY(%b) RETURNING {_ID}"
_IDS_AT_ONCE = 10_000
_IS_READ_ONLY = "current_setting('transaction_read_only')::bool"


class Waiting(NamedTuple):
    """The receipts that wait to be folded in."""

    receipts: int
    oldest_us: int | None


class Claims:
    """The claims and arrivals of one domain, by one connection, in any transaction."""

    def __init__(self, connection: Connection, domain_id: int) -> None:
        self._driver: Any = AwaitedDriver(connection) if connection.dialect.is_async else driver_of(connection)
        self._domain_id = domain_id

    def check_whole(self) -> None:
        """Raise the database's error if a statement of the transaction has failed: its COMMIT would silently roll back."""
        if not hasattr(self._driver, "info") or has_failed(self._driver):
            self._driver.execute("SELECT 1")

    def claim(self, receipts: Sequence[Receipt], store_id: int, patience_secs: float) -> list[tuple[int, bool]]:
        """Claim the ids of receipts, and store the receipts as arrivals. Returns for each receipt its number, and whether its
        id was claimed before.

        If an id comes twice among them, the first receipt claims it. Each receipt has its `received_at_us`. `StoreError` if
        the domain isn't concurrent any more.
        """
        where = (lock_timeout_ms(patience_secs), self._domain_id, self._domain_id, store_id)
        return [claimed for part in parts_of(receipts, 1 << _INDEX_BITS) for claimed in self._claim(part, where)]

    def _claim(self, receipts: Sequence[Receipt], where: tuple[Any, ...]) -> Iterable[tuple[int, bool]]:
        id_ = receipts[0].unique_message_id
        if len(receipts) == 1 and id_ is not None:
            stored = to_bytes(id_)
            key = _key_of(stored)
            row = self._driver.execute(
                _CLAIM_ONE, (*where, key, None if key == stored else stored, *_packed(receipts))
            ).fetchone()
            return [(_first_of(row[0]), row[1])]
        ids = [receipt.unique_message_id for receipt in receipts]
        by_key = {_key_of(stored): stored for stored in map(to_bytes, {id_ for id_ in ids if id_ is not None})}
        keys = sorted(by_key)
        long_ids = [None if key == by_key[key] else by_key[key] for key in keys]
        given = (keys, long_ids if any(long_ids) else None)  # `unnest` pads None with NULLs
        row = self._driver.execute(_CLAIM, (*where, *given, *_packed(receipts))).fetchone()
        first = _first_of(row[0])
        claimed_before = {text_of(by_key[bytes(key)]) for key in row[1] or ()}
        return zip(range(first, first + len(ids)), _repeated(ids, claimed_before), strict=True)

    def take_back(self, numbers: Iterable[int], new: Iterable[tuple[int, str]]) -> None:
        """Undo arrivals of the transaction under way and their claims. `new`: number and id of each receipt that made a claim.

        An arrival that is gone already, such as with a savepoint, took its claims with it. Others may have claimed those ids
        since.
        """
        undo = f"DELETE FROM {arrivals.name} WHERE domain_id = %s AND arrival = ANY(%s::int8[]) RETURNING arrival"
        rows = sorted({number >> _INDEX_BITS for number in numbers})
        undone = {row[0] for row in self._driver.execute(undo, (self._domain_id, rows)).fetchall()}
        keys = list(_keys_of(id_ for number, id_ in new if number >> _INDEX_BITS in undone))
        self._driver.execute(_RELEASE, (self._domain_id, keys))

    def take(self, at_most: int) -> list[Receipt]:
        """Remove committed arrivals, in order, and return their receipts, for the transaction under way to fold in.

        They may exceed `at_most`, because the receipts of a statement are taken together.
        """
        rows = self._driver.execute(_TAKE, (self._domain_id, self._domain_id, at_most, at_most)).fetchall()
        return [receipt for row in sorted(rows) for receipt in _receipts_of(*row)]

    def waiting_receipts(self) -> Iterator[Receipt]:
        """The committed receipts that wait to be folded in, in order."""
        page = f"SELECT arrival, packed FROM {arrivals.name} WHERE domain_id = %s AND arrival > %s ORDER BY arrival LIMIT %s"
        last = 0
        while rows := self._driver.execute(page, (self._domain_id, last, _ROWS_AT_ONCE)).fetchall():
            for row in rows:
                yield from _receipts_of(*row)
            last = rows[-1][0]

    def release_single(self, ids: Iterable[str]) -> set[str]:
        """Release those claims of forgotten ids that a single statement has touched. Returns the ids whose claims are left.

        Ids without a claim count as released.
        """
        left: set[str] = set()
        for part in parts_of(list(_keys_of(ids)), _IDS_AT_ONCE):
            values = (self._domain_id, part, self._domain_id, self._domain_id, part)
            left.update(text_of(row[0]) for row in self._driver.execute(_RELEASE_SINGLE, values).fetchall())
        return left

    def release(self, ids: Iterable[str]) -> set[str]:
        """Release the claims of forgotten ids. Returns the ids whose claims are left, because an open transaction or a waiting
        receipt has them.

        Reads all waiting receipts.
        """
        parts = list(parts_of(list(_keys_of(ids)), _IDS_AT_ONCE))
        there = set().union(*(self._ids("AND unique_message_id = ANY(%b)", part) for part in parts))
        free = {
            bytes(row[0]) for part in parts for row in self._driver.execute(_FREE, (self._domain_id, part)).fetchall()
        }
        if free:  # these claims are locked now, so no further receipt of their ids can come
            free.difference_update(
                _keys_of(filter(None, (receipt.unique_message_id for receipt in self.waiting_receipts())))
            )
        for part in parts_of(list(free), _IDS_AT_ONCE):
            released = self._driver.execute(_RELEASE, (self._domain_id, part)).fetchall()
            there.difference_update(bytes(row[0]) for row in released)
        return set(map(text_of, there))

    def folded_in(self) -> set[str]:
        """The claimed ids of which no committed receipt waits."""
        claimed = set(map(text_of, self._ids()))  # read first: a claim is committed together with its arrival
        return claimed.difference(receipt.unique_message_id for receipt in self.waiting_receipts())

    def has(self, id_: str) -> bool:
        """Whether the id is claimed."""
        return bool(self._ids("AND unique_message_id = %b", _key_of(to_bytes(id_))))

    def _ids(self, and_where: str = "", *values: Any) -> set[bytes]:
        rows = self._driver.execute(
            f"SELECT {_ID} FROM {claims.name} WHERE domain_id = %s {and_where}", (self._domain_id, *values)
        )
        return {bytes(row[0]) for row in rows.fetchall()}

    def add(self, ids: Collection[str]) -> None:
        """Claim ids that the rule remembers."""
        stored = sorted(map(to_bytes, ids))
        keys = list(map(_key_of, stored))
        long_ids = [id_ if id_ != key else None for id_, key in zip(stored, keys, strict=True)]
        self._driver.execute(
            f"{_TO_CLAIMS} SELECT %s, *, true, true FROM unnest(%b::bytea[], %b::bytea[])",
            (self._domain_id, keys, long_ids),
        )

    def drop(self) -> None:
        """Release all claims."""
        self._driver.execute(f"DELETE FROM {claims.name} WHERE domain_id = %s", (self._domain_id,))

    def try_to_lock_folding(self, store_id: int) -> bool:
        """Try to make this connection's session the one that folds, until it ends. Returns whether it is.

        `StoreError` if the server takes no writes.
        """
        lock = f"SELECT pg_try_advisory_lock(%s), {_IS_READ_ONLY}"
        is_it, is_read_only = self._driver.execute(lock, (store_id,)).fetchone()
        _check_writable(is_read_only=is_read_only)
        return bool(is_it)

    def keep_others_out(self) -> None:
        """Wait for transactions with claims, and let no other transaction claim until the one under way ends."""
        self._driver.execute(f"SELECT pg_advisory_xact_lock({_GATE}, %s)", (self._domain_id,))
        lock = f"SELECT domain_id FROM {domains.name} WHERE domain_id = %s FOR UPDATE"
        self._driver.execute(lock, (self._domain_id,)).fetchone()

    def look(self) -> tuple[int, Waiting] | None:
        """The last writer of the domain's row, and figures of the waiting receipts; None if the domain is gone.

        `StoreError` if the server takes no writes.
        """
        writer = f"SELECT last_writer, {_IS_READ_ONLY} FROM {domains.name} WHERE domain_id = %s"
        row = self._driver.execute(writer, (self._domain_id,)).fetchone()
        if row is None:
            return None
        last_writer, is_read_only = row
        _check_writable(is_read_only=is_read_only)
        return last_writer, self.waiting()

    def waiting(self) -> Waiting:
        """Figures of the committed receipts that wait to be folded in."""
        counted = (
            f"SELECT coalesce(sum(receipts), 0)::int8, min(received_at_us) FROM {arrivals.name} WHERE domain_id = %s"
        )
        return Waiting(*self._driver.execute(counted, (self._domain_id,)).fetchone())


def _check_writable(*, is_read_only: bool) -> None:
    """Raise `StoreError` for a server that takes no writes: looking there would go on after the others have moved to another."""
    if is_read_only:
        raise StoreError(READ_ONLY.problem, hint=READ_ONLY.hint)


def _keys_of(ids: Iterable[str]) -> Iterator[bytes]:
    return map(_key_of, map(to_bytes, ids))


def _repeated(ids: Iterable[str | None], claimed_before: Collection[str]) -> Iterator[bool]:
    """For each id in turn, whether it was claimed before, or by an earlier receipt here."""
    seen: set[str | None] = set(claimed_before)
    for id_ in ids:
        yield id_ is not None and id_ in seen
        seen.add(id_)


def _first_of(arrival: int | None) -> int:
    """The number of a row's first receipt; `StoreError` if there is no row, because nothing was claimed."""
    if arrival is None:
        raise StoreError(
            "the domain isn't one of concurrent receivers any more, or was dropped, or the connection leads to another"
            " database",
            hint="open it again, and give batch() a connection to its database",
        )
    return arrival << _INDEX_BITS


def _packed(receipts: Sequence[Receipt]) -> tuple[int, int, bytes]:
    """The values of an `ArrivalRow` behind its number."""
    return len(receipts), min(receipt.received_at_us or 0 for receipt in receipts), json_bytes(receipts)


_TYPES = (str | None, str | None, int, bool, int | None, str | None)
"""The types of the fields of a stored `Receipt`."""


def sound_receipts(row: ArrivalRow) -> list[Receipt] | None:
    """The receipts of a row; None if they are broken, or contradict the row's other columns."""
    try:
        receipts = _unpacked(row.packed)
        are_typed = all(all(map(isinstance, receipt, _TYPES)) for receipt in receipts)
        return receipts if are_typed and row[1:] == _packed(receipts) else None
    except NONSENSE:
        return None


def _unpacked(packed: bytes) -> list[Receipt]:
    return [Receipt(*values) for values in json.loads(text_of(packed))]


def _receipts_of(arrival: int, packed: bytes) -> list[Receipt]:
    try:
        return _unpacked(packed)
    except NONSENSE as error:
        problem = f"the receipts with the number {arrival} in {arrivals.name}, to be folded in, make no sense"
        raise nonsense_error(problem, error) from error
