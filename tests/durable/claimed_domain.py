"""A concurrent domain and a naive model of it side by side, whatever its transactions do and whichever receiver folds.

One thread does every step, so the steps have an order. Receipts are folded in only by explicit steps. If a transaction
has to wait for another, it gives up after a moment, or waits in a thread of its own (`overtake`).
"""

import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count, takewhile
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest
from sqlalchemy import Connection, NullPool, create_engine, text

from receiver import Receipt, Receiver
from receiver.detector import ForgottenId
from receiver.durable import concurrent
from receiver.durable.batch import Batch
from receiver.durable.forgetting import forget, retire_sources
from receiver.durable.session import DomainSession
from receiver.errors import StoreBusyError, StoreError
from receiver.message import Decision, Verdict
from receiver.store.sql_rows import driver_of
from tests.durable.opened import DUPLICATE, LONG_SECS, NEW, UNCHECKED, UndoError, opened, sizes
from tests.model import Model

Received = tuple[str | None, str | None, int]
MOMENT_SECS = 0.03


class HandFolder:
    """Replaces a `FoldingThread`: it has no thread, and folds only when asked to."""

    is_folding = False
    waiting = None

    def __init__(self, session: DomainSession, _engine: object) -> None:
        self._session = session
        self.known: concurrent.FoldedUpTo | None = None

    def fold(self, at_most: int, *, undo: bool) -> int:
        known, self.known, folded = self.known, None, 0
        with suppress(UndoError), Batch(self._session) as batch:
            folded, known = concurrent.fold(batch, self._session.claims_of(batch.connection), known, at_most)
            if undo:
                raise UndoError
            self.known = known
        return folded

    @property
    def has_left(self) -> bool:
        """Whether ids were forgotten since the last folding, for example because a batch retired sources at its end."""
        return self.known is None or bool(self.known.policy.forgotten_ids)

    def close(self) -> None:
        pass


class Came(NamedTuple):
    """A receipt and the verdict on it."""

    number: int
    statement: int
    """The number of its statement. Receipts of one statement are folded in together."""
    id_: str | None
    source: str | None
    received_at_us: int
    verdict: Verdict


@dataclass(eq=False)
class UnderWay:
    """An open transaction."""

    receiver: Callable[[], Receiver]
    """Gives its receiver, which may have been opened anew meanwhile."""
    connection: Connection
    batch: Any = None
    """The batch, if the transaction is the receiver's own. None if it is the caller's: then each receiving is a
    batch."""
    came: list[Came] = field(default_factory=list)
    touched: set[str] = field(default_factory=set)
    """The ids for which others have to wait."""
    before_savepoint: tuple[int, set[str]] = (0, set())
    """How many had `came`, and what was `touched`, before the savepoint that was last rolled back to. PostgreSQL
    keeps that savepoint. So a failure ends what came after it, and the ids touched before it stay locked until the
    caller rolls back."""
    has_failed: bool = False

    def known(self) -> set[str | None]:
        return {came.id_ for came in self.came}


class ClaimedDomain:
    """Several receivers of one concurrent domain, its open transactions, and the naive rule's view of it."""

    def __init__(self, url: str, name: str, receivers: int, window: int, expiry_us: int) -> None:
        self.url = url
        self.name = name
        self.engine = create_engine(url, poolclass=NullPool)
        self.model = Model(window, expiry_us)
        self.came_before: set[str] = set()
        """The ids of all committed receipts."""
        self.waiting: list[Came] = []
        """Receipts that are committed and not folded in yet."""
        self.under_way: list[UnderWay] = []
        self._numbers = count()
        self._statements = count()
        self.receivers = [self._opened(settings=sizes(window, expiry_us)) for _ in range(receivers)]
        self.patient = self._opened()
        self._looking = self.engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        self.check()

    def _opened(self, patience_secs: float = MOMENT_SECS, **options: Any) -> Receiver:
        options = {"domain": f"name:{self.name}", "concurrent": True} | options
        with patch("receiver.durable.receiver.FoldingThread", HandFolder):
            return opened(self.url, patience_secs=patience_secs, **options)

    # The contents of the tables, read without the package.

    def _ids(self, statement: str) -> list[str | None]:
        rows = self._looking.execute(text(statement), {"domain": self.receivers[0].domain_id}).scalars()
        return [None if row is None else bytes(row).decode("utf-8", "surrogatepass") for row in rows]

    def claimed(self) -> set[str | None]:
        return set(
            self._ids("SELECT coalesce(long_id, unique_message_id) FROM receiver_claim WHERE domain_id = :domain")
        )

    def check(self) -> None:
        """Check what holds at any time."""
        rows = self._ids("SELECT packed FROM receiver_arrival WHERE domain_id = :domain ORDER BY arrival")
        assert [receipt[0] for row in rows for receipt in json.loads(row or "")] == [came.id_ for came in self.waiting]
        claimed = self.claimed()
        assert claimed >= self.model_remembers() | {came.id_ for came in self.waiting if came.id_}
        assert claimed <= self.came_before

    def model_remembers(self) -> set[str]:
        """The ids that the model remembers, without those that were forgotten by hand."""
        return {id_ for id_ in self.model.remembered() if not id_.startswith("\0forgotten")}

    # Transactions.

    def begin(self, who: int, *, joins: bool = False, is_patient: bool = False) -> UnderWay:
        def receiver() -> Receiver:
            return self.patient if is_patient else self.receivers[who % len(self.receivers)]

        if joins:
            going = UnderWay(receiver, self.engine.connect())
        else:
            batch = receiver().batch()
            batch.__enter__()
            going = UnderWay(receiver, batch._connection, batch)
        self.under_way.append(going)
        return going

    def touched_by_others(self, going: UnderWay | None = None) -> set[str]:
        return set().union(*(other.touched for other in self.under_way if other is not going))

    def receive(self, going: UnderWay, received: Sequence[Received], fate: str = "kept") -> None:
        """Receive in a transaction. `fate` is that of a batch in the caller's transaction: `kept`; `undone` by an
        exception; `rolled back` or `released` with a savepoint around it."""
        if going.has_failed:
            return
        ids = {id_ for id_, _, _ in received if id_}
        if ids & self.touched_by_others(going):
            with pytest.raises(StoreBusyError) as busy:
                self._decided(going, received)
            assert busy.value.hint
            going.has_failed = True
            known, going.touched = going.before_savepoint
            del going.came[known:]
            return
        before = self.claimed()
        if going.batch is not None:
            self._note(going, received, self._decided(going, received), before)
            return
        savepoint = going.connection.begin_nested() if fate in {"rolled back", "released"} else None
        known, touched = len(going.came), set(going.touched)
        with suppress(UndoError):
            decisions = self._decided(going, received, undo=fate == "undone")
        self._note(going, received, decisions, before)
        if fate == "undone":
            del going.came[known:]
        elif fate == "rolled back":
            assert savepoint is not None
            savepoint.rollback()
            del going.came[known:]
            going.touched = touched
            going.before_savepoint = known, set(touched)
        elif savepoint is not None:
            savepoint.commit()

    def _decided(self, going: UnderWay, received: Sequence[Received], *, undo: bool = False) -> list[Decision]:
        receipts = [Receipt(*row) for row in received]
        if going.batch is not None:
            return going.batch.receive_many(receipts)
        decisions: list[Decision] = []
        with suppress(UndoError), going.receiver().batch(going.connection) as batch:
            decisions += batch.receive_many(receipts)
            if undo:
                raise UndoError
        return decisions

    def _note(
        self,
        going: UnderWay,
        received: Sequence[Received],
        decisions: Sequence[Decision],
        claimed: Iterable[str | None],
    ) -> None:
        """Compare the verdicts with the ids that were claimed before."""
        known = {*claimed, *going.known()}
        statement = next(self._statements)
        for (id_, source, received_at_us), decision in zip(received, decisions, strict=True):
            id_ = id_ or None  # noqa: PLW2901
            verdict = UNCHECKED if id_ is None else DUPLICATE if id_ in known else NEW
            assert decision.verdict is verdict, (id_, decision)
            going.came.append(Came(next(self._numbers), statement, id_, source, received_at_us, verdict))
            if id_ is not None:
                known.add(id_)
                going.touched.add(id_)

    def end(self, going: UnderWay, how: str) -> None:
        """End a transaction; `how` is `commit`, `roll back` or `die`."""
        self.under_way.remove(going)
        if how == "die":
            self._cut(going.connection)
        if going.batch is None:
            self._end_callers(going, how)
        elif how == "commit" and not going.has_failed:
            going.batch.__exit__(None, None, None)
        elif how == "roll back":
            going.batch.__exit__(UndoError, UndoError(), None)
        else:
            with pytest.raises(StoreError):
                going.batch.__exit__(None, None, None)
        if how == "commit" and not going.has_failed:
            self.waiting = sorted([*self.waiting, *going.came])
            self.came_before |= {came.id_ for came in going.came if came.id_}

    def _end_callers(self, going: UnderWay, how: str) -> None:
        if how == "commit" and not going.has_failed:
            going.connection.commit()
        elif how != "die":
            going.connection.rollback()
        else:
            going.connection.invalidate()
        going.connection.close()

    def _cut(self, connection: Connection) -> None:
        pid = driver_of(connection).info.backend_pid
        self._looking.execute(text("SELECT pg_terminate_backend(:pid)"), {"pid": pid})
        self._until("SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid = :pid)", pid)

    def _until(self, statement: str, pid: int) -> None:
        give_up = time.monotonic() + LONG_SECS
        while not self._looking.execute(text(statement), {"pid": pid}).scalar():
            assert time.monotonic() < give_up, statement
            time.sleep(0.002)

    def overtake(self, holder: UnderWay, received: Sequence[Received], meanwhile: Sequence[Received], how: str) -> None:
        """One transaction waits for the holder's ids; a second one receives and commits; then the holder ends.

        The one that waited gets its verdicts and its number by what it reads after the wait.
        """
        waits_for = sorted(holder.touched & {id_ for id_, _, _ in received if id_}, key=_stored)
        taken = self.touched_by_others(holder)
        received = [row for row in received if row[0] not in taken]
        if not waits_for or holder.has_failed:
            return
        before = {id_ for id_, _, _ in received if id_ and _stored(id_) < _stored(waits_for[0])}
        meanwhile = [row for row in meanwhile if row[0] not in taken | holder.touched | before]
        going = self.begin(0, is_patient=True)
        decisions: list[Decision] = []
        waiter = threading.Thread(target=lambda: decisions.extend(self._decided(going, received)))
        with patch.object(self.patient.session, "patience_secs", LONG_SECS):  # unless an id is refused later
            waiter.start()
            pid = driver_of(going.connection).info.backend_pid
            self._until("SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = :pid", pid)
            overtaking = self.begin(0)
            self.receive(overtaking, meanwhile)
            self.end(overtaking, "commit")
            self.end(holder, how)
            waiter.join(LONG_SECS)
        self._note(going, received, decisions, self.claimed())

    # Folding.

    def fold(self, who: int, at_most: int, *, undo: bool = False) -> int:
        receiver = self.receivers[who % len(self.receivers)]
        folded = receiver._folding.fold(at_most, undo=undo)
        if undo:
            return 0
        came = self.waiting[:at_most]
        came += takewhile(lambda more: more.statement == came[-1].statement, self.waiting[at_most:])
        self.waiting = self.waiting[len(came) :]
        assert folded == len(came)
        for _, _, id_, source, received_at_us, verdict in came:
            by_rule = self.model.receive(id_, source, received_at_us)
            assert verdict is DUPLICATE or by_rule != DUPLICATE, f"{id_!r} is missed"
        self._check_memory(receiver)
        return folded

    def _check_memory(self, receiver: Receiver) -> None:
        remembered = receiver.session.cache.policy.remembered()
        assert {id_ for id_ in remembered if not isinstance(id_, ForgottenId)} == self.model_remembers()

    def fold_all(self, who: int) -> None:
        """Fold in all that waits. Afterwards only ids that the rule remembers, or that open transactions have
        touched, are claimed."""
        receiver = self.receivers[who % len(self.receivers)]
        while self.fold(who, 2_000) or receiver._folding.has_left:
            pass
        touched = self.touched_by_others()
        assert self.claimed() - touched == self.model_remembers() - touched

    # Changes to a domain by hand.

    def resize(self, who: int, window: int, expiry_us: int) -> None:
        if (window, expiry_us) != (self.model.window, self.model.expiry_us):
            self.model = self.model.resized(window, expiry_us)
        self._reopen(who, settings=sizes(window, expiry_us))

    def reopen(self, who: int) -> None:
        self._reopen(who)

    def _reopen(self, who: int, **options: Any) -> None:
        which = who % len(self.receivers)
        self.receivers[which].close()
        self.receivers[which] = self._opened(**options)

    def retire(self, sources: Sequence[str]) -> None:
        retire_sources(self.url, domain=self.name, sources=sources)
        for source in set(sources):
            self.model.retire(source)

    def forget(self, id_: str) -> None:
        """Forget an id, unless an open transaction has touched it or a receipt of it waits."""
        if id_ in self.touched_by_others() | {came.id_ for came in self.waiting}:
            return
        forget(self.url, id_, domain=self.name)
        self.model.forget(id_)

    def convert(self, received: Sequence[Received]) -> None:
        """Convert the domain to exclusive, receive, and convert it back. If a transaction is open, converting is
        refused."""
        if any(going.touched or going.came for going in self.under_way):
            with pytest.raises(StoreBusyError):
                self._opened(concurrent=False)
            return
        for going in list(self.under_way):
            self.end(going, "roll back")
        with self._opened(LONG_SECS, concurrent=False) as exclusive:
            for came in self.waiting:
                self.model.receive(*came[2:5])
            self.waiting = []
            assert self.claimed() == set()
            with pytest.raises(StoreError), self.receivers[0].batch() as batch:
                batch.receive("late", received_at_us=0)
            with exclusive.batch() as batch:
                for row in received:
                    verdict = batch.decide(*row).verdict
                    assert verdict == self.model.receive(*row)
                    self.came_before |= {row[0]} - {None, ""}
        for which, receiver in enumerate([self.patient, *self.receivers]):
            receiver.close()
            if which:
                self.receivers[which - 1] = self._opened()
            else:
                self.patient = self._opened()
        assert self.claimed() == self.model_remembers()

    def check_at_end(self) -> None:
        """Check that in the end exactly the remembered ids are claimed."""
        for going in list(self.under_way):
            self.end(going, "roll back")
        self.fold_all(0)
        self.check()
        assert self.claimed() == self.model_remembers()

    def close(self) -> None:
        for going in self.under_way:
            going.connection.invalidate()
        self._looking.close()
        for receiver in [self.patient, *self.receivers]:
            receiver.close()
        self.engine.dispose()


def _stored(id_: str) -> bytes:
    return id_.encode("utf-8", "surrogatepass")


@contextmanager
def claimed_domain(url: str, name: str, window: int = 2, expiry_us: int = 0) -> Iterator[ClaimedDomain]:
    """A concurrent domain with two receivers, which is checked at the end."""
    domain = ClaimedDomain(url, name, 2, window, expiry_us)
    try:
        yield domain
        domain.check_at_end()
    finally:
        domain.close()
