"""A domain's log that lasts as long as its receiver: `memory://`, for tests and for those who need no more."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NoReturn

from receiver.errors import SettingsError
from receiver.message import ReceiptRow
from receiver.store.log import Changes
from receiver.store.tables import DomainState

__all__ = ["MemoryLog"]


class MemoryLog:
    def __init__(self, state: DomainState) -> None:
        self._state = state
        self._rows: dict[int, ReceiptRow] = {}
        self._marked = 0

    def begin(self) -> DomainState:
        return self._state

    begin_reading = begin

    def rows_after(self, seq: int, last_seq: int) -> Iterator[Sequence[ReceiptRow]]:
        del last_seq
        yield [row for row in self._rows.values() if row.seq > seq]

    def record(self, state: DomainState, changes: Changes, *, since: int) -> None:
        del since
        for seq in changes.gone:
            self._rows.pop(seq, None)
        for policy_state, sources in changes.policy_states:
            for seq, row in self._rows.items():
                if sources is None or (row.message_source_id in sources and row.policy_state is None):
                    self._rows[seq] = row._replace(policy_state=policy_state)
        self._rows.update((row.seq, row) for row in changes.rows)
        self._state = state
        if changes.batch_mark is not None:
            self._marked = changes.batch_mark.batch

    def last_batch(self, writer: int) -> int:
        del writer  # nobody else is here
        return self._marked

    def _nothing(self) -> None:
        """A batch is recorded whole or not at all, so nothing is left to do."""

    commit = rollback = discard = give_back_space = close = _nothing

    holder = None

    @property
    def connection(self) -> NoReturn:
        raise SettingsError("memory:// has no database connection", hint="open a sqlite:/// or postgresql:// store")
