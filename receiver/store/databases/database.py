"""What each kind of database says of itself and does in its own way; the rest of the package asks here.

An object stands for a kind and keeps nothing: what it works on comes with each call.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, Table

from receiver.settings import StoreSettings
from receiver.store.databases.causes import Cause
from receiver.store.databases.space import Vacuum
from receiver.store.sql_log import SqlLog

__all__ = ["LONGEST_NAME_BYTES", "OTHER_PLACE", "Database"]

LONGEST_NAME_BYTES = 2_000
"""Of names in a key, one or more together: what all kinds can index. PostgreSQL can 2,700 bytes."""
OTHER_PLACE = "use another database or, on PostgreSQL, another schema"
"""The hint where tables of our names are somebody else's."""


class Database(ABC):
    name: str
    """SQLAlchemy's, of the dialect."""
    drivers: tuple[str, ...]
    """With which an address of this kind may begin."""
    log: type[SqlLog]
    insert: Callable[[Table], Any]
    """Makes an INSERT that can say ON CONFLICT."""

    @abstractmethod
    def checked(self, url: URL) -> URL:
        """The address, normalised; `SettingsError` where it is wrong, `MissingExtraError` where a library isn't installed."""

    @abstractmethod
    def writable(self, url: URL, settings: StoreSettings) -> Engine:
        """An engine to read and write; where there is nothing yet, what holds a store is made."""

    @abstractmethod
    def read_only(self, url: URL, settings: StoreSettings) -> Engine:
        """An engine that only reads, one state of the database per transaction; creates and changes nothing."""

    @abstractmethod
    def cause_of(self, raw: BaseException) -> Cause | None:
        """What an error of this kind's driver means; None for any other."""

    @abstractmethod
    def locked_file(self, url: URL) -> Path | None:
        """The file that a transaction locks as a whole, without links; None where it locks a domain only."""

    @abstractmethod
    def is_there(self, url: URL) -> bool:
        """Whether there is anything to look into; `StoreError` where there can't be a store."""

    @abstractmethod
    def keep_migrators_out(self, connection: Connection) -> None:
        """Have others who want to migrate wait until the transaction ends."""

    @abstractmethod
    def wait_briefly_for_tables(self, connection: Connection) -> None:
        """Let a migration give up soon where others use a table, for they queue behind it while it waits."""

    @abstractmethod
    def is_replaced(self, driver: Any) -> bool:
        """Whether the address leads to another database by now than this connection."""

    @abstractmethod
    def tell_idle(self, driver: Any, is_idle: Callable[[], bool]) -> None:
        """How to know, in a process forked off, whether the connection was between transactions."""

    @abstractmethod
    def autocommits(self, connection: Connection) -> bool:
        """Whether what is done on a connection of the caller's is committed at once."""

    @abstractmethod
    def vacuum_of(self, table: str, *, truncates: bool) -> Vacuum:
        """Of rows deleted from a table; `truncates`: also where others must be kept out for it."""

    @abstractmethod
    def vacuum_of_all(self) -> Vacuum | None:
        """Of rows deleted from any table; None where the database looks after that by itself."""

    @abstractmethod
    def add_waiting(self, driver: Any, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        """Put rows of these columns into the inbox."""

    @abstractmethod
    def waiting(
        self, driver: Any, columns: Sequence[str], target_id: int, numbers: Sequence[int]
    ) -> Iterator[Sequence[Any]]:
        """The columns of the rows of the inbox with these sequence numbers, which ascend; those that are there."""

    @abstractmethod
    def delete_waiting(self, driver: Any, target_id: int, numbers: Sequence[int]) -> int:
        """Delete the rows with these sequence numbers, which ascend; how many rows that left to vacuum."""

    @abstractmethod
    def accept_broken_text(self, driver: Any) -> None:
        """Have text that is none read as far as it goes: it must not end the reading."""

    @abstractmethod
    def damage(self, connection: Connection, advance: Callable[[int], None]) -> Iterator[str]:
        """What the database finds wrong with itself when asked; `advance(0)` is called now and then."""

    @abstractmethod
    def size_bytes(self, connection: Connection, url: URL) -> int:
        """What our tables take."""
