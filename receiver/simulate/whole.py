"""A log that one process holds whole, counted and replayed domain by domain."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import numpy as np

from receiver.simulate.distances import reuse_distances
from receiver.simulate.domain_rows import split_domains, taken
from receiver.simulate.figures import LogFigures
from receiver.simulate.headroom import Replays, ReplayShare, Section
from receiver.simulate.numbering import lacking_parts
from receiver.simulate.replays import cross_domain_counts, parted_queues
from receiver.simulate.shares import (
    Counted,
    DomainSeen,
    IdCounts,
    LogSeen,
    Measures,
    facts_of,
    first_receipt_needs,
    share_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from receiver.simulate.domain_rows import Domain
    from receiver.simulate.ingest import Receipts
    from receiver.simulate.replays import Facts

_Counts = TypeVar("_Counts")


class WholeLog(Replays):
    """Receipts in memory, as a log that can be replayed. `advance` is called with 1 for each domain whose grid is done.

    `max_missed` is how many duplicates a recommended setting may miss. `domains` are those of the log, ordered by name.
    """

    def __init__(
        self, receipts: Receipts, *, max_missed: int = 0, advance: Callable[[int], None] | None = None
    ) -> None:
        self._advance = advance
        self.domains = list(split_domains(receipts))
        seen = _seen(receipts, self.domains)
        measures = Measures.of(seen.log, max_missed)
        self._sections: list[Section] = []
        shares = []
        for number, domain in enumerate(self.domains):
            needs, counted = reuse_distances(domain.rows), _counted(receipts, domain)
            shares.append(share_of(number, counted, needs, measures))
            in_first_half = measures.in_first_half(domain.rows.received_at_us[needs.row])
            self._sections.append(Section(number, domain.rows, 0, counted.sources, needs.window, in_first_half))
        self._facts = facts_of(
            seen,
            measures,
            range(len(self.domains)),
            shares,
            ids=[_id_counts(receipts, self.domains)],
            firsts=[first_receipt_needs(domain.rows) for domain in self.domains],
        )

    def facts(self) -> Facts:
        return self._facts

    def in_sections(
        self,
        _what: str,
        work: Callable[[Section], Iterable[_Counts]],
        kind: type[_Counts],
        _largest: tuple[int, int],
        /,
    ) -> Iterator[_Counts]:
        for section in self._sections:
            yield from work(section)
            if self._advance and kind is ReplayShare:
                self._advance(1)


def _seen(receipts: Receipts, domains: Sequence[Domain]) -> LogSeen:
    by_channel = np.bincount(receipts.channel_number, minlength=len(receipts.channels)).tolist()
    return LogSeen(
        log=log_figures(receipts, domains),
        domains=[DomainSeen(domain.name, domain.receipts, domain.sources) for domain in domains],
        lacking=lacking_parts(receipts.channels, by_channel),
        has_digest=receipts.digest_hash is not None,
        has_redelivered=receipts.redelivered is not None,
        status_lines=receipts.status_lines,
    )


def _counted(receipts: Receipts, domain: Domain) -> Counted:
    flags = receipts.redelivered
    return Counted(
        as_read_us=taken(receipts.received_at_us, domain.log_rows),
        received_at_us=domain.rows.received_at_us,
        source=domain.rows.source,
        sources=[receipts.sources[number] for number in domain.source_numbers.tolist()],
        redelivered_row=np.flatnonzero(() if flags is None else taken(flags, domain.log_rows)),
        unchecked_us=receipts.received_at_us[domain.unchecked_rows],
    )


def _clamped(receipts: Receipts, domain: Domain) -> int:
    """How many times stepped back."""
    return int(np.count_nonzero(domain.rows.received_at_us != taken(receipts.received_at_us, domain.log_rows)))


def log_figures(receipts: Receipts, domains: Sequence[Domain]) -> LogFigures:
    """The figures of a log; `domains` are all of its domains."""
    times = receipts.received_at_us
    return LogFigures(
        receipts=len(times),
        unchecked=int(np.count_nonzero(receipts.id_number == 0)),
        skipped=receipts.skipped,
        duplicates=sum(domain.rows.duplicates for domain in domains),
        domains=len(domains),
        sources=sum(domain.sources for domain in domains),
        first_received_at_us=int(times.min()) if len(times) else None,
        last_received_at_us=int(times.max()) if len(times) else None,
        clock_clamped=sum(_clamped(receipts, domain) for domain in domains),
        redelivered=0 if receipts.redelivered is None else int(np.count_nonzero(receipts.redelivered)),
        max_delivery_secs=receipts.max_delivery_us / 1_000_000,
    )


def _id_counts(receipts: Receipts, domains: Sequence[Domain]) -> IdCounts:
    reused, from_other_sources, digests = 0, 0, receipts.digest_hash
    for domain in domains:
        again = np.flatnonzero(domain.rows.earlier >= 0)
        before = domain.rows.earlier[again]
        from_other_sources += int(np.count_nonzero(domain.rows.source[again] != domain.rows.source[before]))
        if digests is not None:
            now, then = digests[domain.log_rows[again]], digests[domain.log_rows[before]]
            reused += int(np.count_nonzero((now != then) & (now != 0) & (then != 0)))
    return IdCounts.of(reused, from_other_sources, _cross_domain(receipts, domains))


def _cross_domain(receipts: Receipts, domains: Sequence[Domain]) -> dict[tuple[str, str], int]:
    """`CrossDomainDuplicates.by_connections`."""
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
