"""Links between the receipts of an id, however receipts are dealt to chunks and partitions, compared with
dictionaries."""

from collections import Counter, defaultdict
from typing import NamedTuple
from zlib import crc32

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from receiver.domains import Channel, destination_name
from receiver.simulate.shares import IdCounts
from receiver.steps.arrow_rows import Row
from receiver.steps.digests import digests_of
from receiver.steps.link import link_partition
from receiver.steps.plan import CutPlan
from receiver.steps.schemas import NEVER, Ids, Latest, Links, parts_of
from tests.choosing import cases

IDS = ["a", "b", "c", "A", "a\0", " a", "é", "e\u0301", "x" * 300]
SOURCES = ["", "s", "t", "S"]
DESTINATIONS = ["queue://q", "q", "Queue<q>", "queue://r", "topic://q", ""]
UNUSED = "sent nothing"
LATEST = Latest(np.zeros(1, np.int32), np.ones(1, np.int64))


class Receipt(NamedTuple):
    position: tuple[int, int, int]
    """Key, unit and row in the unit: ascending through the log."""
    domain: int
    id: str
    source: str
    digest: int
    connection: str
    destination: str


class Placed(NamedTuple):
    receipt: Receipt
    chunk: int
    row: int


class Log(NamedTuple):
    receipts: list[Placed]
    """In the order of the log."""
    chunk_domain: list[int]
    chunk_task: list[int]


class Linked(NamedTuple):
    repeats: dict[tuple[int, int, int], tuple[bool, bool, int]]
    """(chunk, unit, row in the unit) -> (is_duplicate, replaces, next_in)."""
    ids: list[list[tuple[int, int, int]]]
    """The receipts with one label, ascending."""
    refs: list[tuple[int, int, int, int]]
    """(chunk, unit, row in the unit, the chunk that refers to it), ascending."""
    reused: int
    from_other_sources: int
    most_repeats: int
    ways: dict[tuple[str, str], int]


@st.composite
def logs(draw, most=40):
    positions = draw(
        st.lists(
            st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(0, 5)),
            max_size=most,
            unique_by=lambda position: position[1:],
        )
    )
    what = st.tuples(
        st.integers(0, draw(st.integers(0, 2))),
        st.sampled_from(IDS[: draw(st.integers(1, len(IDS)))]),
        st.sampled_from(SOURCES),
        st.integers(0, 2),
        st.sampled_from(["c", "d"]),
        st.sampled_from(DESTINATIONS),
    )
    receipts = [Receipt(position, *draw(what)) for position in sorted(positions)]
    chunk_domain: list[int] = []
    placed: list[Placed] = []
    for domain in range(3):
        mine = [receipt for receipt in receipts if receipt.domain == domain]
        cuts = sorted(draw(st.lists(st.integers(0, len(mine)), max_size=5)))
        for start, end in zip([0, *cuts], [*cuts, len(mine)], strict=True):
            placed += [Placed(receipt, len(chunk_domain), row) for row, receipt in enumerate(mine[start:end])]
            chunk_domain.append(domain)
    tasks = draw(st.lists(st.integers(0, 3), min_size=len(chunk_domain), max_size=len(chunk_domain)))
    return Log(sorted(placed), chunk_domain, tasks)


def plan_of(log: Log, *, looks_across_domains: bool, partitions: int = 1) -> CutPlan:
    nothing = np.zeros(len(log.chunk_domain), np.int64)
    return CutPlan(
        key="default",
        domains=["x", "y", "z"],
        carry_us=nothing[:0],
        chunk_domain=np.array(log.chunk_domain, np.int32),
        chunk_task=np.array(log.chunk_task, np.int32),
        cut_key_us=nothing,
        cut_unit=nothing.astype(np.int32),
        cut_row=nothing,
        partitions=partitions,
        unit_number=nothing[:0],
        keeps_rows=False,
        is_whole=np.zeros(3, np.bool_),
        looks_across_domains=looks_across_domains,
    )


def ids_of(unit: int, placed: list[Placed], *, has_digest: bool, has_places: bool) -> Ids:
    """The ids of one unit. Those of one chunk stand together."""
    receipts = [each.receipt for each in placed]
    chunks = [each.chunk for each in placed]
    sources = [UNUSED, *sorted({receipt.source for receipt in receipts}, reverse=True)]
    channels = sorted({(receipt.connection, receipt.destination) for receipt in receipts}, reverse=True)
    known = receipts if has_places else []
    id_high, id_low = digests_of(pa.array([receipt.id for receipt in receipts], pa.string()), bytes(16))
    return Ids(
        unit=unit,
        chunk=np.array(list(dict.fromkeys(chunks)), np.int32),
        chunk_end=np.array([at for at in range(1, len(chunks) + 1) if chunks[at - 1 : at] != chunks[at : at + 1]]),
        unit_row=np.array([receipt.position[2] for receipt in receipts], np.int32),
        key_us=np.array([receipt.position[0] for receipt in receipts], np.int64),
        id_high=id_high,
        id_low=id_low,
        source=np.array([sources.index(receipt.source) for receipt in receipts], np.int32),
        sources=sources,
        digest_hash=np.array([receipt.digest for receipt in receipts if has_digest], np.uint64),
        channel=np.array([channels.index((receipt.connection, receipt.destination)) for receipt in known], np.int32),
        channels=parts_of(Channel(*channel) for channel in channels if has_places),
    )


def partitions_of(log: Log, partitions: int, without_digest: set[int], has_places: bool) -> dict[int, list[Row]]:
    dealt = defaultdict(list)
    for each in log.receipts:
        dealt[crc32(each.receipt.id.encode()) % partitions, each.receipt.position[1]].append(each)
    parts = defaultdict(list)
    for (part, unit), placed in dealt.items():
        for share in (placed[: len(placed) // 3], placed[len(placed) // 3 :]):
            share.sort(key=lambda each: each.chunk)
            ids = ids_of(unit, share, has_digest=unit not in without_digest, has_places=has_places)
            parts[part] += [Row(part, ids), Row(part, LATEST)]
    return parts


def links_of(log: Log, plan: CutPlan, parts: dict[int, list[Row]]) -> Linked:
    """The results of the work on the partitions, put together."""
    repeats, by_label, refs, reused, from_others, most, ways = {}, defaultdict(list), [], 0, 0, 0, Counter()
    for part, rows_ in parts.items():
        came = list(link_partition(plan, part, iter(rows_)))
        assert [type(row.value) for row in came].count(IdCounts) == 1
        passed_on = [type(row.value) for row in came].count(Latest)
        assert passed_on == sum(row.value is LATEST for row in rows_)
        for key, value in came:
            if isinstance(value, IdCounts):
                assert key == 0
                reused += value.reused
                from_others += value.from_other_sources
                most = max(most, value.most_repeats)
                ways.update(
                    dict(
                        zip(zip(value.cross_from, value.cross_to, strict=True), value.cross_count.tolist(), strict=True)
                    )
                )
            elif isinstance(value, Links):
                assert key == log.chunk_task[value.chunk]
                where = receipts_of(value)
                columns = value.is_duplicate, value.replaces, value.next_in
                cells = [column.tolist() for column in columns]
                assert len(set(where)) == len(where)
                repeats |= dict(zip(where, zip(*cells, strict=True), strict=True))
                for receipt_, label in zip(where, value.label.tolist(), strict=True):
                    by_label[label].append(receipt_)
                refs += [(*where[at], to) for at, to in zip(value.ref_at.tolist(), value.ref_to.tolist(), strict=True)]
    ids = sorted(map(sorted, by_label.values()))
    return Linked(repeats, ids, sorted(refs), reused, from_others, most, dict(ways))


def receipts_of(value: Links) -> list[tuple[int, int, int]]:
    return [(value.chunk, unit, row) for unit, row in zip(value.unit.tolist(), value.unit_row.tolist(), strict=True)]


def where(placed: Placed) -> tuple[int, int, int]:
    return placed.chunk, *placed.receipt.position[1:]


def expected(log: Log, without_digest: set[int], looks_across_domains: bool) -> Linked:
    """The same results by dictionaries, as their docstrings define them."""
    reused, from_others, ways = 0, 0, Counter()
    seen: dict[tuple[int, str], list[Placed]] = defaultdict(list)
    over: dict[tuple[str, str], str] = {}
    for placed in log.receipts:
        receipt = placed.receipt
        earlier = seen[receipt.domain, receipt.id]
        queue = destination_name(receipt.destination), receipt.id
        if earlier:
            digests = [
                0 if each.receipt.position[1] in without_digest else each.receipt.digest
                for each in (earlier[-1], placed)
            ]
            reused += 0 not in digests and digests[0] != digests[1]
            from_others += earlier[-1].receipt.source != receipt.source
        elif queue in over and looks_across_domains:
            ways[over[queue], receipt.connection] += 1
        if queue[0].startswith("queue://"):
            over[queue] = receipt.connection
        earlier.append(placed)
    runs = [run for run in seen.values() if len(run) > 1]
    repeats = {where(each): repeat_of(run, number) for run in runs for number, each in enumerate(run)}
    refs = [ref for run in runs for ref in refs_of(run)]
    ids = sorted(sorted(map(where, run)) for run in runs)
    most = max((len(run) - 1 for run in runs), default=0)
    return Linked(repeats, ids, sorted(refs), reused, from_others, most, dict(ways))


def repeat_of(run: list[Placed], number: int) -> tuple[bool, bool, int]:
    source = run[number].receipt.source
    later = [each.chunk for each in run[number + 1 :] if each.receipt.source == source]
    replaces = any(each.receipt.source == source for each in run[:number])
    return number > 0, replaces, min(later, default=NEVER)


def refs_of(run: list[Placed]):
    for to_chunk in sorted({each.chunk for each in run}):
        newest = {each.receipt.source: each for each in run if each.chunk < to_chunk}
        yield from ((*where(each), to_chunk) for each in newest.values())


@given(
    log=logs(),
    partitions=st.sampled_from([1, 2, 7]),
    without_digest=st.sets(st.integers(0, 17)),
    looks_across_domains=st.booleans(),
    random=st.randoms(use_true_random=False),
)
@cases(400)
def test_links_are_those_of_dictionaries(log, partitions, without_digest, looks_across_domains, random):
    parts = partitions_of(log, partitions, without_digest, looks_across_domains)
    for rows_ in parts.values():
        random.shuffle(rows_)
    plan = plan_of(log, looks_across_domains=looks_across_domains, partitions=partitions)
    assert links_of(log, plan, parts) == expected(log, without_digest, looks_across_domains)


@pytest.mark.parametrize("rows_", [[], [ids_of(0, [], has_digest=True, has_places=True)]])
def test_a_part_without_receipts_has_no_links(rows_):
    log = Log([], [0], [0])
    parts = {0: [Row(0, ids) for ids in rows_]}
    assert links_of(log, plan_of(log, looks_across_domains=True), parts) == Linked({}, [], [], 0, 0, 0, {})


def receipt(number: int, id_: str, source: str = "s") -> Receipt:
    return Receipt((number, 0, number), 0, id_, source, 0, "c", "q")


def test_a_receipt_is_referred_to_until_its_source_sends_again():
    chunks = ["s", "t", "s", "t"]
    log = Log([Placed(receipt(c, "a", source), c, 0) for c, source in enumerate(chunks)], [0] * 4, [0] * 4)
    links = links_of(log, plan_of(log, looks_across_domains=False), partitions_of(log, 1, set(), has_places=False))
    assert links.refs == [(0, 0, 0, 1), (0, 0, 0, 2), (1, 0, 1, 2), (1, 0, 1, 3), (2, 0, 2, 3)]
    assert links.repeats == {
        (0, 0, 0): (False, False, 2),
        (1, 0, 1): (True, False, 3),
        (2, 0, 2): (True, True, NEVER),
        (3, 0, 3): (True, True, NEVER),
    }
