"""`Receiver`: duplicate detection of one domain that outlives its process, and that any number of processes share."""

from __future__ import annotations

from collections import deque
from types import TracebackType
from typing import Self

from sqlalchemy import Connection

from receiver.domains import Channel, domain_key
from receiver.durable.batch import Batch
from receiver.durable.events import OnDuplicate, tell
from receiver.durable.opening import open_log
from receiver.durable.session import DomainSession, Transaction
from receiver.durable.status import Status
from receiver.durable.tally import Tally
from receiver.errors import SettingsError
from receiver.settings import ReceiverSettings, StoreSettings, checked_id_reuse

__all__ = ["Receiver"]


class Receiver:
    """The durable receiver of one domain; made by `Receiver.open`, and closed when it is no longer needed.

    Threads may share it: their batches take turns. A process forked off must open its own.
    """

    def __init__(
        self,
        session: DomainSession,
        domain: str,
        *,
        observe_only: bool,
        id_reuse: str,
        on_duplicate: OnDuplicate | None,
    ) -> None:
        self.domain = domain
        self.observe_only = observe_only
        self.id_reuse = id_reuse
        self.records = False
        self._on_duplicate = on_duplicate
        self._session = session
        session.committed = self._count
        self._total = Tally()
        self._untold: deque[Tally] = deque()

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
        observe_only: bool = False,
        id_reuse: str | None = None,
        on_duplicate: OnDuplicate | None = None,
        store_settings: StoreSettings | None = None,
    ) -> Self:
        """Open the domain of a channel in a store, and make either if it is new.

        `url` is `sqlite:///file`, `postgresql+psycopg://…`, or `memory://` for a receiver that keeps nothing.
        `connection_id`, `destination` and `receiver_id` name the channel that receipts come through, and `domain` is
        the KEY that makes the domain of it. `settings` are the domain's two windows, None for those it has; others
        resize it, for all processes. With `observe_only` every message is delivered, and duplicates are only marked.
        `id_reuse` says what becomes of a known id that comes with another body: `duplicate` or `deliver`; it is
        reported either way. `on_duplicate` is called with each duplicate of a committed batch.
        """
        channel = Channel(
            _text("connection_id", connection_id),
            _text("destination", destination),
            _text("receiver_id", receiver_id or ""),
        )
        key = domain_key(_text("domain", domain))
        id_reuse = checked_id_reuse(id_reuse)
        store_settings = store_settings or StoreSettings()
        opened = open_log(_text("url", url), key, channel, settings, store_settings)
        session = DomainSession(opened, store_settings.lock_timeout_secs)
        try:
            session.load()
        except BaseException:
            session.log.close()
            raise
        name = key.name(channel)
        return cls(session, name, observe_only=observe_only, id_reuse=id_reuse, on_duplicate=on_duplicate)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the connection to the store. Closing again does nothing."""
        self._session.close()
        self._tell()

    def batch(self, connection: Connection | None = None) -> Batch:
        """A batch of receipts: one database transaction, ended with the `with` block.

        With the caller's own SQLAlchemy connection the batch joins the transaction under way there, and is recorded if
        and when the caller commits it. `StoreBusyError` if the domain can't be had in time.
        """
        return Batch(self, connection)

    def _begin(self, connection: Connection | None) -> Transaction:
        return self._session.begin(connection)

    def _count(self, tally: Tally) -> None:
        self._total.add(tally)
        self._untold.append(tally)

    def _tell(self) -> None:
        """Tell of what was committed; not before the domain is free, for callbacks may take their time."""
        while self._untold:
            for event in self._untold.popleft().events:
                tell(event, self._on_duplicate)

    def status(self) -> Status:
        """The figures of the JMS status line, of the batches that are known to be committed."""
        self._session.look_up()
        self._tell()
        total, cache = self._total, self._session.cache
        window, expiry_us = cache.sizes
        return Status(
            domain=self.domain,
            window=window,
            expiry_secs=expiry_us / 1_000_000,
            rx=total.receipts,
            unchecked=total.unchecked,
            rRedel=total.redelivered,
            rMaxDeliverySecs=total.max_delivery_us / 1_000_000,
            rDupsDet=total.duplicates,
            rDupIds=cache.remembered_ids,
            reused_ids=total.reused_ids,
            clock_clamped=total.clock_clamped,
        )


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise SettingsError(f"{name} must be text, not {value!r:.80}")
    return value
