"""Deduplication keys that are persisted before a message is sent, and used again when it is sent again."""

from __future__ import annotations

import time
import uuid
from typing import NamedTuple, Self

from sqlalchemy import ColumnElement, Connection, delete, select

from receiver.senders.maker import Maker, name_bytes
from receiver.settings import StoreSettings
from receiver.store.engine import database_of
from receiver.store.tables import dedup_keys, text_of

__all__ = ["DedupKeyMaker", "Pending"]


class Pending(NamedTuple):
    """A message whose send isn't confirmed."""

    reference: str
    key: str
    made_at_us: int
    """When the key was made, by the clock of the process that made it; microseconds since 1970."""


class DedupKeyMaker(Maker):
    """Makes one key for each message of a sender, however often the message is sent; made by `DedupKeyMaker.open`.

    Source: "Message Deduplication" in the documentation of TDMQ for CMQ
    (https://www.tencentcloud.com/document/product/1111/43011): the producer persists a key before it sends, and uses it
    again to send again. There a key may be made of the producer's IP address, a thread's ID, the time and a number that
    counts up. Here it is a random UUID: addresses repeat behind NAT and in containers, thread IDs come again, clocks are
    set back and counts begin anew with the process, while 122 random bits repeat nowhere, and tell nothing about the
    sender's network.

    `reference` is the application's own name of one act of sending, exact text. The key never depends on the body: to
    send one body twice on purpose, give the two different references, or confirm the first before the second.

    Threads may share it, and processes may share a sender's name: who asks for the same reference gets the same key. A
    process forked off must open its own.
    """

    @classmethod
    def open(cls, url: str, *, sender: str, store_settings: StoreSettings | None = None) -> Self:
        """Open the keys of a sender in a store, `sqlite:///file` or `postgresql+psycopg://…`, made if it is new.

        References of different senders are different. Raises SettingsError and StoreError.
        """
        return cls(sender, url, store_settings)

    def __init__(self, sender: str, url: str, settings: StoreSettings | None) -> None:
        self._sender = name_bytes("sender", sender)
        super().__init__(url, settings)

    def key_for(self, reference: str, *, connection: Connection | None = None) -> str:
        """The key to send this message with: 32 characters, the same until its send is confirmed, then another.

        It is committed before this returns. With the caller's own connection it joins the transaction there: send once
        that is committed, for if it is rolled back, the key is gone. After StoreError, ask again.
        """
        stored = name_bytes("reference", reference)

        def make(connection: Connection) -> str:
            insert = database_of(connection).insert(dedup_keys)
            new = insert.values(
                sender=self._sender,
                reference=stored,
                made_at_us=time.time_ns() // 1_000,
                dedup_key=uuid.uuid4().hex,
            )
            # The key that is there stays. Written again as it is, it can't be confirmed by others before it is read,
            # and there is no violation of a constraint, which would abort a caller's transaction.
            kept = new.on_conflict_do_update(
                index_elements=["sender", "reference"], set_={"made_at_us": dedup_keys.c.made_at_us}
            )
            connection.execute(kept)
            key: str = connection.execute(select(dedup_keys.c.dedup_key).where(self._is(stored))).scalar_one()
            return key

        return self._run(make, connection)

    def confirm(self, reference: str, *, connection: Connection | None = None) -> None:
        """The broker has the message, so its key isn't needed any more. A reference that isn't pending is no error.

        With the caller's own connection it joins the transaction there. After StoreError, confirm again.
        """
        stored = name_bytes("reference", reference)
        self._run(lambda own: own.execute(delete(dedup_keys).where(self._is(stored))), connection)

    def pending(self) -> list[Pending]:
        """What was given a key and isn't confirmed, oldest first: what to send again after a crash.

        Of processes that share the sender's name, what any of them is about to send is pending too.
        """
        keys = dedup_keys.c
        query = (
            select(keys.reference, keys.dedup_key, keys.made_at_us)
            .where(keys.sender == self._sender)
            .order_by(keys.made_at_us, keys.reference)
        )
        found = self._run(lambda own: own.execute(query).all(), None)
        return [Pending(text_of(reference), *rest) for reference, *rest in found]

    def _is(self, reference: bytes) -> ColumnElement[bool]:
        return (dedup_keys.c.sender == self._sender) & (dedup_keys.c.reference == reference)
