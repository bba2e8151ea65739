"""A domain in memory: a cache of its log. The cache is ahead of the log only inside a batch.

The policy here has recorded exactly the rows of the log up to its serial number. Whenever that may no longer hold, the
cache is dropped: a batch failed, a commit wasn't confirmed, a caller may have rolled back its transaction. The next batch
then reads the log again, which alone is the truth.

A log may also lose its last commits, and then go on with other rows under the same numbers: after a failover to a standby
that lacked them, or after the restore of an older copy. So the cache is kept only if the log proves that it goes on from it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from operator import attrgetter
from typing import Any, NamedTuple, cast

from receiver.detector import RETIRED, TwoTierDetector
from receiver.durable.duplicates import Duplicate, NeedsByHour, needs_read, needs_stored, with_needs
from receiver.durable.retirement import Retirement, longer_silent_than
from receiver.message import ReceiptColumns, ReceiptRow, ReceiptValues
from receiver.policies.interface import Policy
from receiver.policies.names import policy_of_kind
from receiver.settings import ReceiverSettings
from receiver.store.databases import NONSENSE, nonsense_error
from receiver.store.log import DomainLog
from receiver.store.sql_rows import Changes, PolicyStates
from receiver.store.tables import DomainState

_LOGGER = logging.getLogger("receiver")
_MOST_DIGESTS = 16
"""How many digests an id keeps: the row of an id that comes with ever new bodies must not grow for ever."""
_FEW_HISTORIES = 1_000
"""So few histories of forgotten ids aren't worth a search."""
_MOST_DELETABLE = 10_000
"""The most rows that may wait to be deleted, however many ids are remembered."""
_SILENT_LAG_US = 15 * 60 * 1_000_000
"""How old the count of silent sources may get, by the domain's time: counting looks at all sources."""


class History(NamedTuple):
    """When an id first came, and with which bodies, if its newest receipt alone doesn't show that."""

    first_received_at_us: int | None
    """None: the time of its newest receipt."""
    body_digests: tuple[str, ...]
    """Each digest once, oldest first."""

    def extended(self, first_received_at_us: int, body_digest: str | None) -> History:
        known = self.body_digests
        if body_digest and body_digest not in known:
            known = (*known, body_digest)[-_MOST_DIGESTS:]
        return History(first_received_at_us, known)

    def digests_stored(self) -> str | None:
        """The digests as a row has them."""
        return _stored(self.body_digests) if self.body_digests else None


_UNKNOWN = History(None, ())


def _stored(body_digests: Sequence[str]) -> str:
    if len(body_digests) == 1 and body_digests[0].isalnum() and body_digests[0].isascii():
        return f'["{body_digests[0]}"]'  # as json.dumps gives, in a seventh of the time; fits nearly every digest
    # Escaped first: JSON spells a character like the two surrogates of its UTF-16 form.
    return json.dumps([digest.encode("unicode_escape").decode() for digest in body_digests])


def _digests_of(stored: str) -> tuple[str, ...]:
    if stored.isascii() and stored[2:-2].isalnum() and stored == f'["{stored[2:-2]}"]':
        return (stored[2:-2],)
    return tuple(digest.encode().decode("unicode_escape") for digest in json.loads(stored))


def policy_of(state: DomainState) -> Policy:
    """The domain's policy, still empty; `SettingsError` if no policy has this name and these sizes."""
    return policy_of_kind(state.rule, state.window_size, state.expiry_us)


def receipt_rows(log: DomainLog, state: DomainState) -> Iterator[ReceiptRow]:
    """All rows of a log that is in this state."""
    for columns in log.rows.rows_after(0, state.last_seq):
        yield from map(ReceiptRow._make, zip(*columns, strict=True))


_unchanged_by_appending = attrgetter("store_id", "generation", "window_size", "expiry_us", "retired_sources")
"""Appending changes none of these. Resizing, and retiring a source, do: both change or delete rows that may be recorded here."""

_never_falling = attrgetter("last_seq", "unchecked", "generation", "retired_sources")
"""No commit lowers one of these."""


def _may_continue(known: DomainState, state: DomainState) -> bool:
    """Whether a log may have come from one state to another by appending alone, judged by the domain's own row."""
    same = _unchanged_by_appending(known) == _unchanged_by_appending(state)
    return same and (known.clock_us or 0) <= (state.clock_us or 0)


def _receipt_of(row: Sequence[Any]) -> tuple[Any, ...]:
    """The receipt that a row holds: another log may have another receipt under the same number."""
    named = ReceiptRow._make(row)
    return named.seq, named.received_at_us, named.message_source_id, named.unique_message_id


def _page_from(log: DomainLog, seq: int) -> ReceiptColumns | None:
    """Some rows of the log, from this number on; None if there are none."""
    # By a page of its own: a stream of rows that isn't read to its end would end the transaction.
    return next(log.rows.rows_after(seq - 1, seq), None)


def _first_of(page: ReceiptColumns | None) -> tuple[Any, ...] | None:
    return None if page is None else _receipt_of([column[0] for column in page])


@contextmanager
def corrupt_if_nonsense(state: DomainState) -> Iterator[None]:
    """Within it, an error that broken rows cause becomes a `StoreCorruptError`."""
    try:
        yield
    except NONSENSE as error:
        raise nonsense_error(f"the rows of the domain {state.domain_name!r:.80} make no sense", error) from error


class DomainCache:
    """The policy of a domain, the histories of its ids, and which rows are still to be deleted."""

    def __init__(self, settings: ReceiverSettings) -> None:
        self.state: DomainState
        """The log's state as of the last batch."""
        self.is_dropped = True
        """Whether the log must be read anew: the policy may differ from it."""
        self._server_run: Hashable = None
        """The run of the server in which the log was last read or written."""
        self._newest: tuple[Any, ...] | None = None
        """The newest row that is recorded here; None before the first."""
        self._confirmed: tuple[DomainState, tuple[Any, ...] | None] | None = None
        """A state of the log that was committed, and its newest row. It outlasts `drop`."""
        self._is_doubtful = False
        """Whether the log was read anew or watched, and must be compared with that."""
        self._retirement = Retirement(settings)
        self.remembered_ids = 0
        """How many ids the policy remembers, as of the last batch."""
        self.sources = self.silent_sources = 0
        """As of the last batch: the domain's sources, and how many of them were silent for a day (a count up to a quarter of
        an hour old)."""
        self._silent_as_of_us = 0
        self.needs: NeedsByHour = {}
        """The needs of the domain's duplicates, as of the last batch."""
        self.policy: Policy
        self._histories: dict[str, History | str] = {}
        """By id. A text stands for the history of an id that came once, as most do: the digests as its row has them."""
        self._history_rows: dict[str, int] = {}
        """By id, the number of the duplicate's row that has its body digests. Only if duplicates refresh nothing: then nothing
        else needs that row, and it goes once a newer row has the digests."""
        self._outdated: list[int] = []
        """The numbers of rows that aren't needed any more."""
        self._deletable: list[int] = []

    def drop(self) -> None:
        self.is_dropped = True

    def confirm(self) -> None:
        """Note that what is recorded here is committed."""
        if not (self.is_dropped or self._is_doubtful):
            self._confirmed = self.state, self._newest

    def watch(self, state: DomainState) -> None:
        """Note a committed state of the log, whose rows aren't recorded here."""
        self._confirmed, self._is_doubtful = (state, None), True

    @property
    def has_deletable(self) -> bool:
        return bool(self._deletable)

    def follow(self, log: DomainLog, state: DomainState, *, may_lag: bool = False) -> bool:
        """Catch up with the log, which is in this state: read its new rows, or all of it.

        `may_lag`: the log isn't locked, so it may be a standby's. Returns whether the log had changed since the last batch.
        """
        known, known_run = None if self.is_dropped else self.state, self._server_run
        self._server_run = log.rows.server_run
        has_changed = known != state  # in another run of the server too: the last writer's random number proves it
        if not (has_changed or self._is_doubtful):
            return False
        with corrupt_if_nonsense(state):
            if has_changed:
                self.is_dropped = True  # until all has gone well
                is_same_run = known_run == self._server_run
                if known is None or not (is_same_run and self._read_on(log, known, state)):
                    self._load(log, known, state)
            if not may_lag:
                self._warn_of_loss(log, state)
            self.advance(state)
        return has_changed

    def _warn_of_loss(self, log: DomainLog, state: DomainState) -> None:
        """Warn if the log was read anew, and lacks commits that it had."""
        if self._is_doubtful and self._lacks_commits(log, state):
            self._confirmed = None  # said once, also if this batch is rolled back
            _LOGGER.warning(
                "%s: the store has lost commits, as by a failover to a standby that lacked them, or by an older copy that was put "
                "back: what they received is lost unless it is sent again",
                state.domain_name,
            )
        self._is_doubtful = False

    def _read_on(self, log: DomainLog, known: DomainState, state: DomainState) -> bool:
        """Read the rows behind the newest one that is recorded here. False, with nothing read, unless the log proves that it goes
        on from there by appending alone."""
        if not _may_continue(known, state):
            return False
        page = _page_from(log, self.policy.serial)
        # That row proves that the log goes on from here. If others have deleted it, nothing proves it: all is read again.
        if page is None or _first_of(page) != self._newest:
            return False
        rest = log.rows.rows_after(page[0][-1], state.last_seq)
        self._replay(chain([cast("ReceiptColumns", tuple(column[1:] for column in page))], rest), state)
        # The process that appended those rows, or moved the clock, deletes the rows that this made forgotten.
        self.policy.keep_forgotten()
        self._outdated.clear()
        return True

    def _lacks_commits(self, log: DomainLog, state: DomainState) -> bool:
        """Whether the log, now in this state, certainly lacks commits that it had."""
        if self._confirmed is None:
            return False
        before, newest = self._confirmed
        if any(now < then for now, then in zip(_never_falling(state), _never_falling(before), strict=True)):
            return True
        if newest is None or _unchanged_by_appending(before) != _unchanged_by_appending(state):
            return False  # no row shows it, or rows may have been changed since
        row = _first_of(_page_from(log, newest[0]))
        return row is not None and row[0] == newest[0] and row != newest

    def _load(self, log: DomainLog, known: DomainState | None, state: DomainState) -> None:
        """Read all rows. `known` is the state that was recorded here; None if nothing was."""
        self._is_doubtful = True
        self.policy = policy_of(state)
        self.policy.keep_forgotten()
        self._histories, self._history_rows = {}, {}
        self._outdated, self._deletable = [], []
        self._newest = None  # if there is no row, the one noted is of a transaction that was rolled back
        self._replay(log.rows.rows_after(0, state.last_seq), state)
        self._note_forgotten()  # rows that nobody has deleted yet
        self._silent_as_of_us = -_SILENT_LAG_US  # so that `advance` counts them
        if known is not None and known.retired_sources != state.retired_sources:
            # Others have just retired sources, so every process reads the log again. Don't cause that again soon.
            self._retirement.look_later(state.latest_us)
        else:
            self._retirement.look_soon()

    def _replay(self, pages: Iterable[ReceiptColumns], state: DomainState) -> None:
        replay = self.policy.replay
        for columns in pages:
            self._note_histories(columns)
            replay(zip(*columns, strict=True), None)
            if columns[0]:
                self._newest = _receipt_of([column[-1] for column in columns])
        replay((), state.clock_us)  # the rows that set the policy's clock may be gone
        if (self.policy.serial, self.policy.latest_us) != (state.last_seq, state.latest_us):
            raise ValueError(f"receipt {state.last_seq}, the newest, isn't there")

    def _note_histories(self, columns: ReceiptColumns) -> None:
        seqs, _, firsts_us, _, ids, digests_stored, _ = columns
        histories = self._histories
        for seq, first_us, id_, digests in zip(seqs, firsts_us, ids, digests_stored, strict=True):
            known = _digests_of(digests) if digests is not None else ()
            if first_us is not None:
                self.note(seq, id_, History(first_us, known))
                continue
            if id_ in histories:  # it was forgotten, and came again as new
                self._forget_history(id_)
            if digests is not None and self.policy.keeps_ids:
                histories[id_] = digests

    @property
    def has_histories(self) -> bool:
        return bool(self._histories)

    def history_of(self, id_: str) -> History:
        known = self._histories.get(id_, _UNKNOWN)
        return History(None, _digests_of(known)) if isinstance(known, str) else known

    def note_new(self, id_: str, body_digest: str | None) -> str | None:
        """Note the first body of a new id. Returns its digest as the row has it; None if later bodies aren't compared."""
        if id_ in self._histories:
            self._forget_history(id_)
        if not body_digest or not self.policy.keeps_ids:
            return None
        digests = self._histories[id_] = _stored((body_digest,))
        return digests

    def note(self, seq: int, id_: str, history: History) -> None:
        """Note the history of an id. This row has all of it, so no older row of the id is needed."""
        self._forget_history(id_)
        policy = self.policy
        if policy.keeps_ids:
            self._histories[id_] = history
        # If duplicates refresh nothing, a duplicate's row is needed only for the bodies of its id.
        if not policy.records_duplicates:
            if policy.keeps_ids and history.body_digests:
                self._history_rows[id_] = seq
            else:
                self._outdated.append(seq)

    def _forget_history(self, id_: str) -> None:
        self._histories.pop(id_, None)
        if id_ in self._history_rows:
            self._outdated.append(self._history_rows.pop(id_))

    def _note_forgotten(self) -> None:
        # A policy says which rows it has forgotten, not which ids. So the histories must be searched; do it seldom.
        if len(self._histories) > 2 * self.policy.remembered_ids + _FEW_HISTORIES:
            for id_ in [id_ for id_ in self._histories if id_ not in self.policy]:
                self._forget_history(id_)
        self._deletable += self.policy.take_forgotten()
        self._deletable += self._outdated
        self._outdated.clear()

    def end_batch(
        self, state: DomainState, rows: Sequence[ReceiptValues], duplicates: Iterable[Duplicate]
    ) -> tuple[dict[str, Any], Changes]:
        """Retire the sources that are due, and return what the batch changes in the domain's state and in the log.

        `state` is the state before the batch. The caller adds the counters.
        """
        policy, retired = self.policy, []
        if isinstance(policy, TwoTierDetector):
            retired = self._retirement.due(policy, state.domain_name)
            for source in retired:
                policy.retire(source)
        needs = with_needs(self.needs, duplicates, policy.latest_us)
        changed = {
            "last_seq": policy.serial,
            "latest_us": policy.latest_us,
            "clock_us": policy.clock_us,
            "retired_sources": state.retired_sources + len(retired),
            "needs_by_hour": state.needs_by_hour if needs is self.needs else needs_stored(needs),
        }
        return changed, self.changes(rows, retired)

    def changes(
        self,
        rows: Sequence[ReceiptValues] = (),
        retired: Collection[str | None] = (),
        *,
        deletes_all: bool = False,
    ) -> Changes:
        """The changes to the log by a batch of these rows, in which these sources were retired.

        `deletes_all`: delete all forgotten rows now.
        """
        rows, gone = self._take_deletable(rows, all_of_them=deletes_all)
        if not retired:
            return Changes(gone, rows=rows)
        # Mark all rows of a retired source, also those of the batch. Otherwise, once the source sends again, its rows
        # wouldn't show which belong to its new queue.
        sources = set(retired)
        named = map(ReceiptRow._make, rows)
        rows = [row._replace(policy_state=RETIRED) if row.message_source_id in sources else row for row in named]
        return Changes(gone, PolicyStates(RETIRED, list(sources)), rows=rows)

    def _take_deletable(
        self, rows: Sequence[ReceiptValues], *, all_of_them: bool
    ) -> tuple[Sequence[ReceiptValues], list[int]]:
        """The rows of a batch that are worth appending, and the numbers of earlier rows to delete now.

        Deleting waits until enough rows are forgotten, at most a quarter of the remembered ids: rows are forgotten roughly
        in order, so most of many are adjacent, and a range of rows is deleted as fast as one. The domain's newest row always
        stays, because it has the number and the time of the latest receipt.
        """
        self._note_forgotten()
        enough = 0 if all_of_them else min(_MOST_DELETABLE, self.policy.remembered_ids // 4)
        if len(self._deletable) <= enough:
            return rows, []
        seqs = sorted(self._deletable)
        staying = enough // 2  # the newest rows, whose neighbours aren't forgotten yet
        if seqs[-1] == self.policy.serial:
            staying = max(1, staying)
        due = len(seqs) - staying
        seqs, self._deletable = seqs[:due], seqs[due:]
        if rows and seqs and seqs[-1] >= ReceiptRow._make(rows[0]).seq:  # forgotten within the batch
            gone = set(seqs)
            rows = [row for row in map(ReceiptRow._make, rows) if row.seq not in gone]
        return rows, seqs

    def advance(self, state: DomainState, appended: Sequence[ReceiptValues] = ()) -> None:
        """Note that the log is in this state now, and that the policy has recorded exactly the log's rows.

        `appended`: the rows of our own batch.
        """
        if appended:
            self._newest = _receipt_of(appended[-1])
        self.needs = needs_read(state.needs_by_hour)
        self.state, self.is_dropped = state, False
        policy = self.policy
        self.remembered_ids = policy.remembered_ids
        if isinstance(policy, TwoTierDetector):
            self.sources = policy.sources
            if state.latest_us - self._silent_as_of_us >= _SILENT_LAG_US:
                self.count_silent_sources()

    def count_silent_sources(self) -> None:
        """Count the silent sources anew, between batches or at the end of one."""
        policy = self.policy
        if not self.is_dropped and isinstance(policy, TwoTierDetector):
            self.silent_sources = len(longer_silent_than(policy, 1))
            self._silent_as_of_us = policy.latest_us
