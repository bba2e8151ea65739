"""A domain in a store and the naive model side by side, whichever receiver receives, whatever is rolled back or
resized."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from copy import deepcopy
from typing import Any, NamedTuple

from sqlalchemy import Connection, NullPool, create_engine, select

from receiver import Receipt, Receiver
from receiver.detector import GONE, RETIRED, ForgottenId, serial_of
from receiver.durable.forgetting import forget, forget_in, look_up, retire_sources
from receiver.durable.retirement import DAY_US
from receiver.message import Decision
from receiver.store.codec import text_of
from receiver.store.tables import domains, receipts
from tests.durable.opened import MEMORY, UndoError, opened, sizes
from tests.model import Model, forgotten_id

Received = tuple[str | None, str | None, int]
Housekeeping = tuple[int, int]
"""The most sources, and the microseconds after which a silent source is retired; 0 for no bound."""
KEEP_ALL = 0, 0


class Joining(NamedTuple):
    """A batch in a caller's transaction."""

    who: int
    received: Sequence[Received]
    fate: str = "kept"
    """`kept`; `undone` by an exception; `rolled back` or `released` with a savepoint around it."""


def _shown(id_: str, stamp: int) -> str:
    return forgotten_id(serial_of(stamp)) if isinstance(id_, ForgottenId) else id_


class Domain:
    """Several receivers of one domain. The model is compared with the verdicts of every batch, and with the table's
    rows."""

    def __init__(  # noqa: PLR0917
        self, url: str, name: str, receivers: int, window: int, expiry_us: int, housekeeping: Housekeeping = KEEP_ALL
    ) -> None:
        self.url = url
        self.options = {"domain": f"name:{name}"}
        self.name = name
        self.engine = None if url == MEMORY else create_engine(url, poolclass=NullPool)
        self.model = Model(window, expiry_us)
        self.housekeeping = housekeeping
        self.retired = 0
        self.need: tuple[int, bool, int] | None = None
        """The largest needs of the domain's duplicates."""
        self.last_us: dict[str, int] = {}
        """When each id last came. The only entry left of an id may be an older one, of another source."""
        self.receivers = [self._opened(window, expiry_us) for _ in range(receivers)]

    def _opened(self, *chosen: int) -> Receiver:
        """A receiver with these sizes, by default those that the domain has."""
        settings = None
        if chosen or self.housekeeping != KEEP_ALL:
            most, after_us = self.housekeeping
            chosen = chosen or (self.model.window, self.model.expiry_us)
            settings = sizes(*chosen, max_sources=most, retire_sources_after_days=after_us / DAY_US)
        return self._open(connection_id="broker", destination="queue://orders", settings=settings, **self.options)

    def _open(self, **options: Any) -> Receiver:
        return opened(self.url, **options)

    def _retire_due(self) -> None:
        """Retire what the receiver retires at the end of a batch, by the model's own queues."""
        most, after_us = self.housekeeping
        queues = self.model.queues if self.model.window else {}
        by_silence = sorted(queues, key=lambda source: queues[source][-1].number)
        silent = [s for s in by_silence if after_us and self.model.latest_us - queues[s][-1].received_at_us > after_us]
        surplus = len(queues) - most + most // 10 if most and len(queues) > most else 0
        self._retired(by_silence[: max(len(silent), surplus)])

    def _retired(self, sources: Iterable[str]) -> None:
        for source in sources:
            self.retired += bool(self.model.window) and source in self.model.queues
            self.model.retire(source)

    def retire(self, sources: Sequence[str]) -> None:
        """Retire sources by hand while the receivers are open. They notice at their next batch."""
        (done,) = retire_sources(self.url, domain=self.name, sources=sources)
        before, remembered = self.retired, len(self.model.remembered())
        self._retired(set(sources))
        assert done.sources == self.retired - before
        assert done.forgotten_ids == remembered - len(self.model.remembered())

    def forget(self, id_: str) -> None:
        """Forget an id by hand while the receivers are open. First compare what the store and the model know of it."""
        is_known = id_ in self.model.remembered()
        if self.url == MEMORY:
            session = self.receivers[0].session
            state = session.log.begin()
            session.cache.follow(session.log, state)
            assert forget_in(session.log, session.cache, state, id_) == is_known
        else:
            (known,) = look_up(self.url, id_, domain=self.name)
            tier = self.model.tier(id_) if is_known else None
            latest_us = self.model.newest_entry_us(id_) if is_known else None
            assert (known.is_remembered, known.tier) == (is_known, tier)
            assert latest_us is None or known.latest_received_at_us >= latest_us
            assert forget(self.url, id_, domain=self.name) == [self.name] * is_known
            assert not look_up(self.url, id_, domain=self.name)[0].is_remembered
        self.model.forget(id_)
        self.last_us.pop(id_, None)

    def judged(self, receive: Callable[[Iterable[Receipt]], list[Decision]], received: Sequence[Received]) -> None:
        """Give receipts to a batch and to the model, and compare the decisions."""
        decisions = receive(Receipt(*row) for row in received)
        for row, decision in zip(received, decisions, strict=True):
            id_, source, received_at_us = row
            is_known = id_ and id_ in self.model.remembered()
            headroom = (self.model.tier(id_), self.model.window_left(id_)) if is_known else (None, None)
            if is_known:
                self._note_need(id_, *headroom)
            verdict = self.model.receive(id_, source, received_at_us)
            assert (decision.verdict, (decision.tier, decision.window_left)) == (verdict, headroom), row
            if id_:
                self.last_us[id_] = self.model.latest_us

    def _note_need(self, id_: str, tier: str, window_left: int) -> None:
        """Note the needs of the next receipt, which is a duplicate. All of a domain's receipts are of one hour."""
        is_more = tier == "time"
        window = self.model.window + 1 if is_more else self.model.window - window_left
        expiry_us = max(1, self.model.latest_us - self.last_us[id_])
        known = self.need or (0, False, 0)
        self.need = max(known[0], window), known[1] or is_more, max(known[2], expiry_us)

    def _now(self) -> tuple[Any, ...]:
        return deepcopy(self.model), self.retired, self.need, self.last_us.copy()

    def _back_to(self, before: tuple[Any, ...]) -> None:
        self.model, self.retired, self.need, self.last_us = before

    def batch(
        self, who: int, received: Sequence[Received], *, undo: bool = False, connection: Connection | None = None
    ) -> None:
        before = self._now()
        receiver = self.receivers[who]
        half = len(received) // 2
        with suppress(UndoError), receiver.batch(connection) as batch:
            self.judged(
                lambda rows: [batch.receive(row[0], row[1], received_at_us=row[2]) for row in rows], received[:half]
            )
            self.judged(batch.receive_many, received[half:])
            if undo:
                raise UndoError
        if undo:
            self._back_to(before)
        elif received:
            self._retire_due()
            self.assert_remembered(receiver)

    def transaction(self, batches: Sequence[Joining], *, commit: bool) -> None:
        """Receive batches in one transaction of the caller's."""
        before = self._now()
        with self.connect() as connection:
            for who, received, fate in batches:
                savepoint = None
                if fate in {"rolled back", "released"}:
                    if not connection.in_transaction():
                        # Python's driver for SQLite would commit as it releases an outermost savepoint. So an empty
                        # batch begins a transaction.
                        self.batch(who, [], connection=connection)
                    savepoint = connection.begin_nested()
                until_here = self._now()
                self.batch(who, received, undo=fate == "undone", connection=connection)
                if fate == "rolled back":
                    savepoint.rollback()
                    self._back_to(until_here)
                elif savepoint is not None:
                    savepoint.commit()
            if commit:
                connection.commit()
            else:
                connection.rollback()
                self._back_to(before)

    def connect(self) -> Connection:
        """A connection of the caller's, for batches to join."""
        return self.engine.connect()

    def reopen(self, who: int) -> None:
        self.receivers[who].close()
        self.receivers[who] = self._opened()
        self.assert_remembered(self.receivers[who])

    def resize(self, who: int, window: int, expiry_us: int) -> None:
        """Open a receiver anew with other settings. The others follow at their next batch."""
        self.receivers[who].close()
        if (window, expiry_us) != (self.model.window, self.model.expiry_us):
            self.model = self.model.resized(window, expiry_us)
            self.last_us = {entry.id: entry.received_at_us for entry in self.model.entries()}
        self.receivers[who] = self._opened(window, expiry_us)
        self.assert_remembered(self.receivers[who])

    def assert_remembered(self, receiver: Receiver) -> None:
        policy = receiver.session.cache.policy
        remembered = {_shown(id_, stamp) for id_, stamp in policy._newest.items()}
        assert remembered == self.model.remembered()
        status = receiver.status()
        assert status.rDupIds == len(self.model.remembered())
        assert status.sources == (len(self.model.queues) if self.model.window else 0)
        assert status.retired_sources == self.retired
        assert status.need == self.need

    def rows(self) -> tuple[Model, int]:
        """A model made from the table's rows alone, read by plain SQL; and the number of the rows."""
        with self.engine.connect() as connection:
            row = connection.execute(select(domains).where(domains.c.domain_name == self.name.encode())).one()
            mine = select(receipts).where(receipts.c.domain_id == row.domain_id).order_by(receipts.c.seq)
            kept = connection.execute(mine).all()
        assert row.last_seq == (kept[-1].seq if kept else 0)
        assert row.latest_us == (kept[-1].received_at_us if kept else 0)
        model = Model(row.window_size, row.expiry_us)
        for receipt in kept:
            source = None if receipt.message_source_id is None else text_of(receipt.message_source_id)
            model.recorded = receipt.seq - 1
            if receipt.policy_mark == GONE:
                model.recorded, model.latest_us = receipt.seq, receipt.received_at_us
                continue
            id_ = text_of(receipt.unique_message_id) or forgotten_id(receipt.seq)
            model.receive(id_, source, receipt.received_at_us)
            if receipt.policy_mark == RETIRED:
                model.retire(source)
        if row.clock_us is not None and row.expiry_us:
            model.newest_us = max(row.clock_us, model.newest_us or 0)
            oldest_us = model.newest_us - model.expiry_us
            model.time_queue = [entry for entry in model.time_queue if entry.received_at_us >= oldest_us]
        return model, len(kept)

    def assert_table_tells_all(self) -> int:
        """Check that the table's rows rebuild what is remembered. Returns how many rows there are beyond one for
        each entry."""
        rebuilt, rows = self.rows()
        assert (rebuilt.window, rebuilt.expiry_us) == (self.model.window, self.model.expiry_us)
        assert rebuilt.entries() == self.model.entries()
        assert rebuilt.latest_us == self.model.latest_us
        if self.model.expiry_us:
            assert rebuilt.newest_us == self.model.newest_us
        return rows - len(self.model.entries())

    def close(self) -> None:
        """Close, and check that only the rows are left that matter."""
        for receiver in self.receivers:
            receiver.close()
        if self.engine is None:
            return
        self._opened().close()  # deletes the rows whose deletion was rolled back with its batch
        spare = self.assert_table_tells_all()
        self.engine.dispose()
        # An id's newest row stays, even if only an older entry, of another source, still holds the id. The newest row
        # of all stays too, even if its source is retired.
        assert spare <= len(self.model.remembered()) + bool(self.retired)
