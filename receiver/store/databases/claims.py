"""Claims: how many transactions of one domain go on at once, on PostgreSQL.

An id is claimed by the first receipt that has it, in that receipt's transaction. Whoever meets an id that an open
transaction has touched waits for that transaction: afterwards the id is claimed, or free. Each receipt stands as an
*arrival* beside its claim, numbered once its id is had, and folded into the domain's log later, in the order of the
numbers. A claim is released once the log's rule has forgotten its id.

What makes it exact, statement by statement:

- The domain's row is locked FOR KEY SHARE. Folding, which updates other columns, doesn't conflict with that. Whoever
  makes the domain another kind locks the row FOR UPDATE, and so waits for open transactions. A locking SELECT looks at the
  row as it is once the lock is had, whatever the statement's snapshot was: so no claim is made in a domain that isn't
  concurrent any more.
- Ids are claimed in the order of their bytes, so that two statements never wait for each other.
- Numbers are drawn above a sort that has the whole result of claiming below it: after the last id is had, and in the order
  of the batch. A number drawn earlier would put the loser of a race for an id before its winner.
- Whoever releases claims first locks those that nobody is at. Until its transaction ends nobody can touch these. A claim that
  a single receipt has is released at once: what was folded in is that receipt. For any other one it looks in another
  statement, which has a later snapshot, for arrivals of the id.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from hashlib import sha256
from typing import Any, NamedTuple

from sqlalchemy import Connection

from receiver.errors import StoreError
from receiver.store.codec import text_of, to_bytes
from receiver.store.databases.postgres import has_failed, lock_timeout_ms, types_of
from receiver.store.sql_rows import AwaitedDriver, driver_of
from receiver.store.tables import (
    CONCURRENT_POLICY,
    ArrivalRow,
    arrival_numbers,
    arrival_rows,
    arrivals,
    claims,
    domains,
)

_GIVEN = [name for name in ArrivalRow._fields if name not in {"arrival", "is_repeated"}]
# An array of bytes costs a driver ten times as much as text.
_GIVEN_TYPES = ", ".join(f"{'%b' if type_ == 'bytea' else '%s'}::{type_}[]" for type_ in types_of(arrivals, _GIVEN))
_GIVEN_NAMES = ", ".join(_GIVEN)
_INCARNATION = domains.c.store_id.name
_LONGEST_KEY_BYTES = 1_000
"""No index takes ids of any length: a longer one is claimed by its beginning and its digest."""


def _key(id_: str) -> str:
    """By what an id is claimed; `_key_of` is the same."""
    longest = _LONGEST_KEY_BYTES
    return f"CASE WHEN length({id_}) > {longest} THEN substring({id_} FROM 1 FOR {longest}) || sha256({id_}) ELSE {id_} END"


def _key_of(stored: bytes) -> bytes:
    is_long = len(stored) > _LONGEST_KEY_BYTES
    return stored[:_LONGEST_KEY_BYTES] + sha256(stored).digest() if is_long else stored


_ID = "coalesce(long_id, unique_message_id)"
_HERE = f"""
WITH waits AS MATERIALIZED (
    SELECT current_setting('lock_timeout') AS before, set_config('lock_timeout', %s, true)
), here AS MATERIALIZED (
    SELECT domain_id FROM {domains.name}
    WHERE domain_id = %s AND {_INCARNATION} = %s AND policy = '{CONCURRENT_POLICY}' AND (SELECT before FROM waits) IS NOT NULL FOR KEY SHARE
)"""
_TO_CLAIMS = f"INSERT INTO {claims.name} (domain_id, unique_message_id, long_id, is_repeated, is_single)"
_CLAIMED_BEFORE = "ON CONFLICT (domain_id, unique_message_id) DO UPDATE SET is_repeated = true, is_single = false"
_TO_ARRIVALS = f"INSERT INTO {arrivals.name} (domain_id, arrival, is_repeated, {_GIVEN_NAMES})"
# Without any arrival it is one row of nothing: the caller's patience is put back all the same.
_ANSWER = """SELECT arrival, is_repeated, (SELECT set_config('lock_timeout', before, true) FROM waits)
FROM (SELECT) AS always LEFT JOIN arrived ON true ORDER BY arrival"""
_CLAIM = f"""{_HERE}, came AS (
    SELECT {", ".join(f"coalesce({name}, false) AS {name}" if name == "redelivered" else name for name in _GIVEN)},
        {_key("unique_message_id")} AS key, nth
    FROM unnest({_GIVEN_TYPES}) WITH ORDINALITY AS came({_GIVEN_NAMES}, nth)
), claimed AS (
    {_TO_CLAIMS}
    SELECT (SELECT domain_id FROM here), key, long_id, false, is_single
    FROM (
        SELECT key, CASE WHEN key <> unique_message_id THEN unique_message_id END AS long_id, count(*) = 1 AS is_single
        FROM came WHERE key IS NOT NULL GROUP BY key, unique_message_id ORDER BY key
    ) AS ids
    WHERE EXISTS (SELECT FROM here)
    {_CLAIMED_BEFORE}
    RETURNING unique_message_id AS key, is_repeated
), arrived AS (
    {_TO_ARRIVALS}
    SELECT (SELECT domain_id FROM here), nextval('{arrival_numbers.name}'), key IS NOT NULL AND is_repeated, {_GIVEN_NAMES}
    FROM (
        SELECT came.*, claimed.is_repeated OR row_number() OVER (PARTITION BY key ORDER BY nth) > 1 AS is_repeated
        FROM came LEFT JOIN claimed USING (key) ORDER BY nth
    ) AS in_order
    WHERE EXISTS (SELECT FROM here)
    RETURNING arrival, is_repeated
)
{_ANSWER}
"""
"""Gives the number of each receipt, in the order of the batch, and whether its id had been claimed before."""
_CLAIM_ONE = f"""{_HERE}, claimed AS (
    {_TO_CLAIMS} SELECT domain_id, %s, %s, false, true FROM here {_CLAIMED_BEFORE} RETURNING domain_id, is_repeated
), arrived AS (
    {_TO_ARRIVALS} SELECT domain_id, nextval('{arrival_numbers.name}'), is_repeated, {", ".join(["%s"] * len(_GIVEN))} FROM claimed
    RETURNING arrival, is_repeated
)
{_ANSWER}
"""
"""`_CLAIM` for a single receipt with an id, as most transactions have: at half of what claiming costs the server and the driver."""
_TAKE_BACK = f"""
WITH gone AS (
    DELETE FROM {arrivals.name} WHERE domain_id = %s AND arrival = ANY(%s::int8[]) RETURNING unique_message_id, is_repeated
)
DELETE FROM {claims.name} USING gone
WHERE domain_id = %s AND {claims.name}.unique_message_id = {_key("gone.unique_message_id")} AND NOT gone.is_repeated
"""
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
_WAITS = f"""EXISTS (
    SELECT FROM {arrivals.name}
    WHERE domain_id = %s AND {_key(f"{arrivals.name}.unique_message_id")} = {claims.name}.unique_message_id
)"""
_RELEASE = (
    f"DELETE FROM {claims.name} WHERE domain_id = %s AND unique_message_id = ANY(%b) AND NOT {_WAITS} RETURNING {_ID}"
)
_ARRIVAL = ", ".join(arrival_rows.columns)
_IDS_AT_ONCE = 10_000


class Waiting(NamedTuple):
    """The receipts that wait to be folded in."""

    receipts: int
    oldest_us: int | None


class Claims:
    """The claims and arrivals of one domain, through one connection, in whatever transaction that is."""

    def __init__(self, connection: Connection, domain_id: int) -> None:
        self._driver: Any = AwaitedDriver(connection) if connection.dialect.is_async else driver_of(connection)
        self._domain_id = domain_id

    def check_whole(self) -> None:
        """Raise what the database says if a statement has failed in the transaction under way: its COMMIT would roll it back."""
        if not hasattr(self._driver, "info") or has_failed(self._driver):
            self._driver.execute("SELECT 1")

    def claim(self, rows: Sequence[ArrivalRow], store_id: int, patience_secs: float) -> list[tuple[int, bool]]:
        """Claim the ids of receipts, and put these down as arrivals; for each in turn its number, and whether its id was
        claimed before.

        An id that comes twice among them is claimed by the first. `StoreError` if the domain isn't concurrent any more.
        """
        where = (lock_timeout_ms(patience_secs), self._domain_id, store_id)
        columns = dict(zip(ArrivalRow._fields, arrival_rows.stored_columns(rows), strict=True))
        given = [columns[name] for name in _GIVEN]
        if len(rows) == 1 and (id_ := columns["unique_message_id"][0]) is not None:
            key = _key_of(id_)
            values = [key, None if key == id_ else id_, *(column[0] for column in given)]
            cursor = self._driver.execute(_CLAIM_ONE, (*where, *values))
        else:
            # A column that is empty in all of them, as most are, is left out: `unnest` fills it up.
            values = [list(column) if any(column) or column is columns["received_at_us"] else None for column in given]
            cursor = self._driver.execute(_CLAIM, (*where, *values))
        claimed = [(arrival, is_repeated) for arrival, is_repeated, _ in cursor.fetchall() if arrival is not None]
        if len(claimed) != len(rows):
            raise StoreError(
                "the domain isn't one of concurrent receivers any more, or was dropped, or the connection leads to another"
                " database",
                hint="open it again, and give batch() a connection to its database",
            )
        return claimed

    def take_back(self, numbers: Sequence[int]) -> None:
        """Undo these arrivals of the transaction under way, and the claims that were new with them."""
        self._driver.execute(_TAKE_BACK, (self._domain_id, list(numbers), self._domain_id))

    def take(self, at_most: int) -> list[ArrivalRow]:
        """Take committed arrivals away, in order, to be folded in by the transaction under way."""
        first = f"SELECT arrival FROM {arrivals.name} WHERE domain_id = %s ORDER BY arrival LIMIT %s"
        taken = (
            f"DELETE FROM {arrivals.name} WHERE domain_id = %s AND arrival = ANY(ARRAY({first})) RETURNING {_ARRIVAL}"
        )
        rows = self._driver.execute(taken, (self._domain_id, self._domain_id, at_most)).fetchall()
        return sorted(arrival_rows.read_many(rows)) if rows else []

    def arrivals_of(self, id_: str) -> list[ArrivalRow]:
        """The receipts of an id that wait to be folded in, as far as they are committed."""
        of_id = f"SELECT {_ARRIVAL} FROM {arrivals.name} WHERE domain_id = %s AND unique_message_id = %s"
        rows = self._driver.execute(of_id, (self._domain_id, to_bytes(id_))).fetchall()
        return sorted(arrival_rows.read_many(rows)) if rows else []

    def release_single(self, ids: Iterable[str]) -> set[str]:
        """Release the claims of ids that are forgotten; those that are left, as others than the receipt that was folded in
        may have them.

        Ids without a claim are as good as released.
        """
        left: set[str] = set()
        for part in _parts(ids):
            values = (self._domain_id, part, self._domain_id, self._domain_id, part)
            left.update(text_of(row[0]) for row in self._driver.execute(_RELEASE_SINGLE, values).fetchall())
        return left

    def release(self, ids: Iterable[str]) -> set[str]:
        """Release the claims of ids that are forgotten; those that somebody is at, or whose receipts wait, are left.

        It reads all receipts that wait.
        """
        left: set[str] = set()
        for part in _parts(ids):
            there = self._ids("AND unique_message_id = ANY(%b)", part)
            free = [row[0] for row in self._driver.execute(_FREE, (self._domain_id, part)).fetchall()]
            released = self._driver.execute(_RELEASE, (self._domain_id, free, self._domain_id)).fetchall()
            left.update(map(text_of, there.difference(row[0] for row in released)))
        return left

    def folded_in(self) -> set[str]:
        """The claimed ids none of whose receipts wait, as far as they are committed."""
        return set(map(text_of, self._ids(f"AND NOT {_WAITS}", self._domain_id)))

    def _ids(self, and_where: str, *values: Any) -> set[bytes]:
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
            f"INSERT INTO {claims.name} (domain_id, unique_message_id, long_id, is_repeated, is_single)"
            " SELECT %s, *, true, true FROM unnest(%s::bytea[], %s::bytea[]) ON CONFLICT DO NOTHING",
            (self._domain_id, keys, long_ids),
        )

    def drop(self) -> None:
        """Release all claims."""
        self._driver.execute(f"DELETE FROM {claims.name} WHERE domain_id = %s", (self._domain_id,))

    def try_to_be_the_folder(self, store_id: int) -> bool:
        """Whether this connection's session is the one that folds the domain from now on, until it ends."""
        (is_it,) = self._driver.execute("SELECT pg_try_advisory_lock(%s)", (store_id,)).fetchone()
        return bool(is_it)

    def keep_others_out(self) -> None:
        """Wait for the transactions that claim, and keep others from it until the transaction under way ends."""
        lock = f"SELECT domain_id FROM {domains.name} WHERE domain_id = %s FOR UPDATE"
        self._driver.execute(lock, (self._domain_id,)).fetchone()

    def look(self) -> tuple[int, Waiting] | None:
        """Who last wrote the domain's row, and what waits to be folded in; None if the domain is gone."""
        writer = f"SELECT last_writer FROM {domains.name} WHERE domain_id = %s"
        row = self._driver.execute(writer, (self._domain_id,)).fetchone()
        return None if row is None else (row[0], self.waiting())

    def waiting(self) -> Waiting:
        """What waits to be folded in, as far as it is committed."""
        counted = f"SELECT count(*), min(received_at_us) FROM {arrivals.name} WHERE domain_id = %s"
        return Waiting(*self._driver.execute(counted, (self._domain_id,)).fetchone())


def _parts(ids: Iterable[str]) -> Iterator[list[bytes]]:
    keys = [_key_of(to_bytes(id_)) for id_ in ids]
    return (keys[first : first + _IDS_AT_ONCE] for first in range(0, len(keys), _IDS_AT_ONCE))
