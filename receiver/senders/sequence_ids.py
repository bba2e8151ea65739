"""Ids that number a source's messages one by one, through restarts of the sender."""

from __future__ import annotations

from typing import Self

from sqlalchemy import Connection, select

from receiver.errors import SettingsError
from receiver.senders.maker import Maker, name_bytes
from receiver.settings import StoreSettings
from receiver.store.engine import database_of
from receiver.store.tables import sequences

__all__ = ["SequenceIdMaker"]

_MOST_AT_ONCE = 1_000_000


class SequenceIdMaker(Maker):
    """Makes ids `seqNo:messageSourceId`, with seqNo 1, 2, 3 ... of each source; made by `SequenceIdMaker.open`.

    Source: the default uniqueMessageId of Apama's senders, such as `1:mymachinename1.domain:1234:567890:S01`
    (https://documentation.softwareag.com/apama/v10-15/apama10-15/webhelp/pam-webhelp/co-DepAndManApaApp_duplicate_detection.html).
    There the source is named anew with each process. Here the caller names it, so that numbers go on after a restart;
    since an id is split at its first colon, the name may have colons.

    No number is ever given twice, whoever dies when, and however many processes share the source. In the caller's own
    transaction numbers have no gap either: rolled back, they are given to the next who asks. Until it ends, others of
    the source wait. Without it a number is committed before it is returned: who dies before the send leaves a gap.

    Threads may share it. A process forked off must open its own.
    """

    @classmethod
    def open(cls, url: str, *, message_source_id: str, store_settings: StoreSettings | None = None) -> Self:
        """Open the numbers of a source in a store, `sqlite:///file` or `postgresql+psycopg://…`, made if it is new.

        Raises SettingsError and StoreError.
        """
        return cls(message_source_id, url, store_settings)

    def __init__(self, message_source_id: str, url: str, settings: StoreSettings | None) -> None:
        self._stored_source = name_bytes("message_source_id", message_source_id)
        self._source = message_source_id
        super().__init__(url, settings)

    def next(self, *, connection: Connection | None = None) -> str:
        """The id of the next message. After StoreError, ask again: at worst there is a gap."""
        return self.next_many(1, connection=connection)[0]

    def next_many(self, count: int, *, connection: Connection | None = None) -> list[str]:
        """The ids of the next messages, with consecutive numbers, in one transaction."""
        if count.__class__ is not int or not 0 <= count <= _MOST_AT_ONCE:
            raise SettingsError(f"count must be a whole number from 0 to {_MOST_AT_ONCE:,}, not {count!r:.80}")

        def take(connection: Connection) -> int:
            insert = database_of(connection).insert(sequences)
            first = insert.values(message_source_id=self._stored_source, last_seq_no=count)
            connection.execute(
                first.on_conflict_do_update(
                    index_elements=["message_source_id"], set_={"last_seq_no": sequences.c.last_seq_no + count}
                )
            )
            # The row is locked by now.
            ours = sequences.c.message_source_id == self._stored_source
            last: int = connection.execute(select(sequences.c.last_seq_no).where(ours)).scalar_one()
            return last

        last = self._run(take, connection)
        return [f"{number}:{self._source}" for number in range(last - count + 1, last + 1)]
