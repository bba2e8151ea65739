"""A log that one process holds whole: its domains, facts and replay; and the verdict on each receipt, as rows of a table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import pyarrow as pa

from receiver.message import Verdict
from receiver.simulate.compiled import Flags, Int32s, Int64s, compiled
from receiver.simulate.domain_rows import DomainRows, link_rows, needed_elsewhere, reuse_distances
from receiver.simulate.facts import LogSeen, facts_of
from receiver.simulate.figures import DomainFigures, LogFigures, Pair
from receiver.simulate.numbering import lacking_parts
from receiver.simulate.replays import Replays, ReplayShare, Section
from receiver.simulate.shares import IdCounts, Measures, SectionReceipts, cross_domain_counts, parted_queues, share_of

if TYPE_CHECKING:
    import numpy.typing as npt

    from receiver.simulate.ingest import Receipts

_NOTHING = -1
_Value = TypeVar("_Value", np.int32, np.int64)
_Counts = TypeVar("_Counts")


@dataclass(frozen=True, slots=True)
class Domain:
    name: str
    receipts: int
    """The number of receipts, unchecked ones included."""
    rows: DomainRows
    log_rows: Int64s
    """Row of the domain -> row of the log."""
    unchecked_rows: Int64s
    """The rows of the log that are of this domain and have no id."""
    source_numbers: Int32s
    """Number of a source in the domain -> its number in the log; only sources of checked receipts."""
    sources: int
    """The number of distinct sources, including those of unchecked receipts."""


@compiled()
def _number_densely(numbers: Int32s, seen: Int32s) -> tuple[Int32s, Int32s]:
    """Renumber from 0 in order of first occurrence. Also returns new -> old. `seen` must be all -1, and is left so."""
    dense = np.empty_like(numbers)
    count = 0
    for row in range(len(numbers)):
        if seen[numbers[row]] == _NOTHING:
            seen[numbers[row]] = count
            count += 1
        dense[row] = seen[numbers[row]]
    old = np.empty(count, np.int32)
    for row in range(len(numbers)):
        old[dense[row]] = numbers[row]
    for number in old:
        seen[number] = _NOTHING
    return dense, old


def split_domains(receipts: Receipts) -> Iterator[Domain]:
    """The domains of a log, ordered by name."""
    domain = receipts.domain_of_channel[receipts.channel_number]
    few = len(receipts.domains) <= 1 << 16  # 16-bit numbers are sorted many times faster
    order = np.argsort(domain.astype(np.uint16) if few else domain, kind="stable")
    log_rows = np.split(order, np.cumsum(np.bincount(domain, minlength=len(receipts.domains))))
    ids_seen = np.full(receipts.ids.count, _NOTHING, np.int32)
    sources_seen = np.full(len(receipts.sources), _NOTHING, np.int32)
    for number in sorted(range(len(receipts.domains)), key=receipts.domains.__getitem__):
        yield _domain(receipts, receipts.domains[number], log_rows[number], ids_seen, sources_seen)


def taken(column: npt.NDArray[_Value], log_rows: Int64s) -> npt.NDArray[_Value]:
    """The column's values at these ascending rows; no copy if these are all rows."""
    return column if len(log_rows) == len(column) else column[log_rows]


def _domain(receipts: Receipts, name: str, log_rows: Int64s, ids_seen: Int32s, sources_seen: Int32s) -> Domain:
    has_id = taken(receipts.id_number, log_rows) != 0
    checked, unchecked = (log_rows, log_rows[:0]) if has_id.all() else (log_rows[has_id], log_rows[~has_id])
    ids, distinct_ids = taken(receipts.id_number, checked), receipts.ids.count
    if 2 * len(ids) < distinct_ids:  # otherwise the log's own numbers will do: tables by them are hardly larger
        ids, numbers = _number_densely(ids, ids_seen)
        distinct_ids = len(numbers)
    source, source_numbers = _number_densely(taken(receipts.source_number, checked), sources_seen)
    sources = len(source_numbers)
    if len(unchecked):
        sources = len(_number_densely(taken(receipts.source_number, log_rows), sources_seen)[1])
    received_at_us = np.maximum.accumulate(taken(receipts.received_at_us, checked))
    return Domain(
        name=name,
        receipts=len(log_rows),
        rows=link_rows(received_at_us, source, ids, sources=len(source_numbers), distinct_ids=distinct_ids),
        log_rows=checked,
        unchecked_rows=unchecked,
        source_numbers=source_numbers,
        sources=sources,
    )


class WholeLog(Replays):
    """A log of receipts in memory that can be replayed, with a section for each domain."""

    def __init__(
        self, receipts: Receipts, *, max_missed: int = 0, advance: Callable[[int], None] = lambda _done: None
    ) -> None:
        """`max_missed`: how many duplicates a recommended setting may miss. `advance` is called with 1 for each domain whose
        grid is done."""
        self.domains = list(split_domains(receipts))
        """The log's domains, ordered by name."""
        self._receipts = receipts
        seen = _seen(receipts, self.domains)
        measures = Measures.of(seen.log, max_missed)
        self._sections: list[Section] = []
        self._advance = advance
        shares, elsewhere = [], []
        for number, domain in enumerate(self.domains):
            rows, own, needs = domain.rows, _receipts_of(receipts, domain), reuse_distances(domain.rows)
            share = share_of(number, own, needs, measures)
            shares.append(share)
            elsewhere.append(needed_elsewhere(number, rows))
            in_first_half = share.duplicates_in_first_half
            self._sections.append(Section(number, rows, 0, own.sources, needs.window, in_first_half))
        ids = [_id_counts(receipts, self.domains)]
        self.facts = facts_of(seen, measures, range(len(self.domains)), shares, ids=ids, elsewhere=elsewhere)

    def in_sections(
        self, what: str, work: Callable[[Section], Iterable[_Counts]], kind: type[_Counts], largest: Pair
    ) -> Iterator[_Counts]:
        del what, largest  # a whole domain can be replayed under any setting
        for section in self._sections:
            yield from work(section)
            if kind is ReplayShare:
                self._advance(1)

    def duplicates_by(self, window: int, expiry_us: int) -> Flags:
        """For each receipt, whether it is a duplicate under one setting."""
        is_duplicate = np.zeros(len(self._receipts.received_at_us), np.bool_)
        for domain, section in zip(self.domains, self._sections, strict=True):
            rows, _ = section.caught(window, expiry_us)
            is_duplicate[domain.log_rows[rows]] = True
        return is_duplicate

    def verdict_batches(self, window: int, expiry_us: int) -> Iterator[pa.RecordBatch]:
        """Rows of `VERDICT_SCHEMA` under one setting, one per receipt."""
        return receipt_batches(self._receipts, [self.duplicates_by(window, expiry_us)], VERDICT_SCHEMA)


def _seen(receipts: Receipts, domains: Sequence[Domain]) -> LogSeen:
    by_channel = np.bincount(receipts.channel_number, minlength=len(receipts.channels)).tolist()
    return LogSeen(
        log=log_figures(receipts, domains),
        domains=[DomainFigures(each.name, each.receipts, sources=each.sources) for each in domains],
        lacking=lacking_parts(receipts.channels, by_channel),
        has_redelivered=receipts.redelivered is not None,
        status_lines=receipts.status_lines,
    )


def _receipts_of(receipts: Receipts, domain: Domain) -> SectionReceipts:
    flags = receipts.redelivered
    return SectionReceipts(
        received_at_us=domain.rows.received_at_us,
        as_read_us=taken(receipts.received_at_us, domain.log_rows),
        source=domain.rows.source,
        sources=[receipts.sources[number] for number in domain.source_numbers.tolist()],
        redelivered_row=np.flatnonzero(() if flags is None else taken(flags, domain.log_rows)).astype(np.int32),
        unchecked_us=receipts.received_at_us[domain.unchecked_rows],
    )


def log_figures(receipts: Receipts, domains: Sequence[Domain]) -> LogFigures:
    """The figures of a log; `domains` are all of its domains."""
    times = receipts.received_at_us
    clamped = (domain.rows.received_at_us != taken(times, domain.log_rows) for domain in domains)
    return LogFigures(
        receipts=len(times),
        unchecked=int(np.count_nonzero(receipts.id_number == 0)),
        skipped=receipts.skipped,
        duplicates=sum(domain.rows.duplicates for domain in domains),
        domains=len(domains),
        sources=sum(domain.sources for domain in domains),
        first_received_at_us=int(times.min()) if len(times) else None,
        last_received_at_us=int(times.max()) if len(times) else None,
        clock_clamped=sum(int(np.count_nonzero(stepped_back)) for stepped_back in clamped),
        redelivered=0 if receipts.redelivered is None else int(np.count_nonzero(receipts.redelivered)),
        max_delivery_secs=receipts.max_delivery_us / 1_000_000,
    )


def _id_counts(receipts: Receipts, domains: Sequence[Domain]) -> IdCounts:
    reused, from_other_sources, most_repeats, digests = 0, 0, 0, receipts.digest_hash
    for domain in domains:
        again = np.flatnonzero(domain.rows.earlier >= 0)
        before = domain.rows.earlier[again]
        from_other_sources += int(np.count_nonzero(domain.rows.source[again] != domain.rows.source[before]))
        repeats = np.unique(receipts.id_number[domain.log_rows[again]], return_counts=True)[1]
        most_repeats = max(most_repeats, int(repeats.max(initial=0)))
        if digests is not None:
            now, then = digests[domain.log_rows[again]], digests[domain.log_rows[before]]
            reused += int(np.count_nonzero((now != then) & (now != 0) & (then != 0)))
    return IdCounts.of(reused, from_other_sources, most_repeats, _cross_domain(receipts, domains))


def _cross_domain(receipts: Receipts, domains: Sequence[Domain]) -> dict[tuple[str, str], int]:
    """`cross_domain_counts` of the whole log."""
    queue_of_channel = parted_queues(receipts.channels, receipts.domain_of_channel.tolist())
    if (queue_of_channel < 0).all():
        return {}
    ids = receipts.id_number
    new = np.zeros(len(ids), np.bool_)
    for domain in domains:
        new[domain.log_rows[domain.rows.earlier < 0]] = True
    shared = np.bincount(ids[new], minlength=receipts.ids.count) > 1
    rows = np.flatnonzero(shared[ids])
    rows = rows[queue_of_channel[receipts.channel_number[rows]] >= 0]
    channel = receipts.channel_number[rows]
    names = [channel.connection_id for channel in receipts.channels]
    return cross_domain_counts(queue_of_channel[channel], ids[rows], new[rows], channel, names)


_FEW = pa.dictionary(pa.int32(), pa.string())
_VERDICTS = (Verdict.NEW, Verdict.DUPLICATE, Verdict.UNCHECKED)
"""Columns of verdicts hold indexes of this tuple. Indexes 0 and 1 equal the flag of whether a receipt is a duplicate."""


def verdict_schema(columns: Sequence[str] = ("verdict",)) -> pa.Schema:
    """The schema of rows with verdicts in these columns."""
    receipt = {"row": pa.int64(), "domain": _FEW, "unique_message_id": pa.string(), "message_source_id": _FEW}
    return pa.schema(receipt | dict.fromkeys(columns, _FEW))


VERDICT_SCHEMA = verdict_schema()


def receipt_batches(receipts: Receipts, is_duplicate: Iterable[Flags], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Rows of `schema`, one for each receipt, in the order of the log; ids are exact text.

    `is_duplicate` has a column of flags, one for each receipt, for each column of verdicts.
    """
    domains, sources = pa.array(receipts.domains, pa.string()), pa.array(receipts.sources, pa.string())
    names, unchecked = pa.array(map(str, _VERDICTS), pa.string()), np.int32(_VERDICTS.index(Verdict.UNCHECKED))
    for rows in receipts.ids.slices(receipts.id_number):
        domain, ids = receipts.domain_of_channel[receipts.channel_number[rows]], receipts.id_number[rows]
        verdicts = (np.where(ids == 0, unchecked, flags[rows]) for flags in is_duplicate)
        columns = [
            pa.array(np.arange(rows.start, rows.stop)),
            pa.DictionaryArray.from_arrays(pa.array(domain), domains),
            receipts.ids.texts(ids),
            pa.DictionaryArray.from_arrays(pa.array(receipts.source_number[rows]), sources),
            *(pa.DictionaryArray.from_arrays(pa.array(column), names) for column in verdicts),
        ]
        yield pa.record_batch(columns, schema=schema)
