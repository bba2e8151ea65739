"""`Receiver`: durable duplicate detection in one domain, which any number of processes may share."""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from sqlalchemy import Connection

from receiver.closing import Closing
from receiver.domains import Channel, domain_key
from receiver.durable.batch import Batch
from receiver.durable.concurrent import ConcurrentBatch, FoldingThread, convert
from receiver.durable.duplicates import OnDuplicate
from receiver.durable.opening import check_concurrent, open_log, policy_wanted
from receiver.durable.session import BatchOptions, DomainSession
from receiver.durable.status import Status
from receiver.errors import SettingsError, needs_open
from receiver.message import not_text_error
from receiver.quantities import SECOND_US
from receiver.settings import IdReuse, ReceiverSettings, Recording, StoreSettings, checked_id_reuse, checked_settings
from receiver.store.databases import database_of, translated
from receiver.store.tables import DomainState

if TYPE_CHECKING:
    from _typeshed import StrPath

_LOGGER = logging.getLogger("receiver")
OPENED_WITH = "connection_id=..., destination=..."
"""What opening a receiver needs, as a hint."""


class Receiver(Closing):
    """A durable receiver of one domain. `Receiver.open` makes it. Close it with `close`, or use it in a `with` block.

    Threads may share it. Their batches wait for each other. A forked process must open its own.
    """

    def __init__(self, session: DomainSession | None = None, **_options: object) -> None:
        if not isinstance(session, DomainSession):
            raise needs_open("Receiver", OPENED_WITH)
        self.is_closed = False
        self.session = session

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.domain!r}{' (closed)' * self.is_closed}>"

    @classmethod
    def open(
        cls,
        url: str,
        *,
        connection_id: str,
        destination: str,
        receiver_id: str | None = None,
        domain: str = "default",
        settings: ReceiverSettings | None = None,
        policy: str | None = None,
        observe_only: bool = False,
        reject_batches: bool = False,
        id_reuse: str | None = None,
        on_duplicate: OnDuplicate | None = None,
        store_settings: StoreSettings | None = None,
        record: Recording | StrPath | None = None,
        concurrent: bool = False,
    ) -> Receiver:
        """Open the domain of a channel in a store. Makes the tables and the domain if need be.

        Args:
            url: The store: `sqlite:///file`, `postgresql+psycopg://…`, or `memory://`, which keeps nothing.
            connection_id: The connection that receipts come over, such as a broker's name.
            destination: The queue or topic: `queue://NAME`, `topic://NAME` or `NAME`.
            receiver_id: Which of the connection's receivers this is. Only some domains need it.
            domain: The KEY that makes the domain's name from these three: `default`, `destination`, `connection`,
                `receiver` or `name:TEXT`.
            settings: W and E of the domain, and when sources are retired. Other sizes than the domain has resize it
                for all processes. None takes the domain's sizes, or the defaults for a new domain.
            policy: Another system's rule, such as `artemis:id_cache_size=20000`. A bare name takes the sizes that the
                domain has. None takes the domain's policy.
            observe_only: Deliver every message, and only report duplicates.
            reject_batches: Reject a batch as a whole if one of its ids came in an earlier batch. Only for the policy
                `artemis`.
            id_reuse: What to do with a message whose known id comes with another body: `duplicate` drops it, `deliver`
                delivers it. It is reported either way. None takes the default.
            on_duplicate: Called with a `Duplicate` for each duplicate of a committed batch. Its exceptions are logged, but
                SystemExit and KeyboardInterrupt leave the `with` block, though its batch is committed.
            store_settings: How this process uses the store, such as how long it waits for a lock.
            record: A folder, or a `Recording`. The receipts of committed batches are written there as a log, which
                `receiver simulate` reads.
            concurrent: Let transactions with different ids go on at once, on PostgreSQL. A domain of the other kind is
                converted; its open receivers must be opened again.

        Raises:
            SettingsError: An argument is invalid, or contradicts what the domain has.
            StoreError: The store can't be reached, is damaged, or belongs to a newer version.
            MissingExtraError: The database's driver, or what `record` needs, isn't installed.
        """
        channel = Channel(
            _text("connection_id", connection_id),
            _text("destination", destination),
            _text("receiver_id", "" if receiver_id is None else receiver_id),
        )
        key = domain_key(_text("domain", domain))
        key.check(channel)
        process_settings = checked_settings("settings", settings, ReceiverSettings)
        store_settings = checked_settings("store_settings", store_settings, StoreSettings)
        if on_duplicate is not None and not callable(on_duplicate):
            raise SettingsError(f"on_duplicate must be callable, not {on_duplicate!r:.80}")
        _check_flags(observe_only=observe_only, reject_batches=reject_batches, concurrent=concurrent)
        if observe_only and reject_batches:
            raise SettingsError(
                "observe_only and reject_batches contradict each other", hint="one delivers what the other rejects"
            )
        reuse = checked_id_reuse(id_reuse)
        if concurrent:
            if reuse is IdReuse.DELIVER:
                raise SettingsError(
                    "concurrent receivers compare no bodies before they decide", hint="give id_reuse='duplicate'"
                )
            check_concurrent(url)
        wanted = policy_wanted(settings, policy, reject_batches=reject_batches)
        opened = open_log(url, key, channel, wanted, store_settings)
        options = BatchOptions(key.name(channel), observe_only, reject_batches, reuse is IdReuse.DELIVER)
        session = DomainSession(opened, options, process_settings, store_settings, on_duplicate)
        try:
            state = session.load()
            if record is not None:
                session.record_to(record, channel)
            if concurrent:
                _check_sessions(session)
            if state.is_concurrent != concurrent:
                _convert_and_warn(session, state, to_concurrent=concurrent)
            session.is_concurrent = concurrent
            return ConcurrentReceiver(session) if concurrent else cls(session)
        except BaseException:
            session.close()
            raise

    def close(self) -> None:
        """Close the connection to the store, and finish the log of `record`. Closing again does nothing."""
        self.session.close()
        self.is_closed = True

    @property
    def domain(self) -> str:
        """The domain's name."""
        return self.session.options.domain

    @property
    def observe_only(self) -> bool:
        """Whether every message is delivered, and duplicates are only reported."""
        return self.session.options.observe_only

    @property
    def domain_id(self) -> int:
        """The domain's number in the store's tables; 0 for `memory://`."""
        return self.session.domain_id

    @property
    def store_id(self) -> int:
        """The domain's random number, unique among the domains of all stores."""
        return self.session.store_id

    @property
    def window(self) -> int:
        """The policy's window in ids, as of the last batch; 0 if it has none."""
        return self.session.cache.state.window_size

    def batch(self, connection: Connection | None = None) -> Batch:
        """A batch of receipts: one database transaction, which ends with the `with` block.

        Args:
            connection: A SQLAlchemy connection of yours to the same database. The batch joins its transaction, and is
                recorded when you commit. Of a session, take it inside `begin_nested`, which makes no savepoint before that. None:
                the batch has a transaction of its own.

        Raises:
            StoreBusyError: When the block begins: others held the domain for longer than `lock_timeout_secs`, or this
                thread has a batch open already.
            StoreError: When the block begins or ends: the batch isn't known to be committed.
            ClosedError: The receiver is closed, or was opened by another process.
            BatchRejectedError: When the block ends, with `reject_batches`: one of the ids came in an earlier batch.
        """
        return Batch(self.session, connection)

    def status(self) -> Status:
        """The receiver's figures, over the batches that are known to be committed.

        Asks the database for the outcome of batches if it isn't known yet.
        """
        session = self.session
        session.look_up()
        session.count_silent_sources()
        session.notify()
        return self.figures(session.counters.rate())

    def figures(self, rate: float = 0.0) -> Status:
        """The receiver's figures, with `rate` as rRate, without asking the database. This costs little and never waits."""
        session = self.session
        return session.counters.status(self.domain, session.cache, session.recorder, rate)


class ConcurrentReceiver(Receiver):
    """A receiver whose batches don't wait for each other. Any number of threads may each have a batch.

    The process that folds a domain's receipts in has its figures, reports its duplicates and writes its recordings.
    """

    def __init__(self, session: DomainSession) -> None:
        super().__init__(session)
        self._engine = session.pooled_engine()
        self._folding = FoldingThread(session, self._engine)

    def batch(self, connection: Connection | None = None) -> Batch:
        return ConcurrentBatch(self.session, self._engine, connection)

    def figures(self, rate: float = 0.0) -> Status:
        """The receiver's figures. Receipts that wait to be folded in are as this process last counted them."""
        figures = super().figures(rate)
        waiting = self._folding.waiting
        if waiting is not None and waiting.oldest_us is not None:
            age_secs = time.time() - waiting.oldest_us / SECOND_US
            return replace(figures, unfolded_receipts=waiting.receipts, unfolded_secs=max(0.0, age_secs))
        return figures

    @property
    def is_folding(self) -> bool:
        """Whether this process folds the domain's receipts in now."""
        return self._folding.is_folding

    def close(self) -> None:
        if not self.session.is_forked_off:
            self._folding.close()
            self._engine.dispose()
        super().close()


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise not_text_error(name, value)
    return value


def _check_flags(**flags: object) -> None:
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise SettingsError(f"{name} must be True or False, not {value!r:.80}")


def _check_sessions(session: DomainSession) -> None:
    """Raise `SettingsError` if a lock of a database session can't say which process folds receipts in."""
    assert session.url is not None  # noqa: S101 - memory:// has no domain of this kind
    with translated(session.url):
        database_of(session.url).check_sessions(session.url, session.store_settings)


def _convert_and_warn(session: DomainSession, state: DomainState, *, to_concurrent: bool) -> None:
    """Convert the domain to the other kind, and warn that its other receivers fail. `state` is its state before."""
    with Batch(session) as batch, translated(session.address):
        convert(batch, session.claims_of(batch.connection), to_concurrent=to_concurrent)
    if state.is_concurrent or state.receipts:
        kind = "concurrent" if to_concurrent else "exclusive"
        _LOGGER.warning("%s becomes %s, for all who use it: others fail until opened so", session.options.domain, kind)
