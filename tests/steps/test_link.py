"""Links between the receipts of an id, however these are dealt to chunks and parts, against dictionaries."""

from collections import Counter, defaultdict
from typing import NamedTuple
from zlib import crc32

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from receiver.domains import destination_name
from receiver.steps.digests import digests_of
from receiver.steps.link import linked
from receiver.steps.rows import Row
from receiver.steps.schemas import NEVER, Ids, Labels, LinkCounts, Plan

IDS = ["a", "b", "c", "A", "a\0", " a", "é", "e\u0301", "x" * 300]
SOURCES = ["", "s", "t", "S"]
DESTINATIONS = ["queue://q", "q", "Queue<q>", "queue://r", "topic://q", ""]
UNUSED = "sent nothing"


class Receipt(NamedTuple):
    place: tuple[int, int, int]
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
    """In order."""
    chunk_domain: list[int]
    chunk_bundle: list[int]


class Links(NamedTuple):
    labels: dict[tuple[int, int], tuple[int, bool]]
    """(chunk, row) -> (label, replaces)."""
    departures: list[tuple[int, int, int, int]]
    """(chunk, row, to_chunk, replaced_in), ascending."""
    reused: int
    ways: dict[tuple[str, str], int]


@st.composite
def logs(draw, most=40):
    places = draw(
        st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(0, 5)), max_size=most, unique=True)
    )
    what = st.tuples(
        st.integers(0, draw(st.integers(0, 2))),
        st.sampled_from(IDS[: draw(st.integers(1, len(IDS)))]),
        st.sampled_from(SOURCES),
        st.integers(0, 2),
        st.sampled_from(["c", "d"]),
        st.sampled_from(DESTINATIONS),
    )
    receipts = [Receipt(place, *draw(what)) for place in sorted(places)]
    chunk_domain: list[int] = []
    placed: list[Placed] = []
    for domain in range(3):
        mine = [receipt for receipt in receipts if receipt.domain == domain]
        cuts = sorted(draw(st.lists(st.integers(0, len(mine)), max_size=5)))
        for start, end in zip([0, *cuts], [*cuts, len(mine)], strict=True):
            placed += [Placed(receipt, len(chunk_domain), row) for row, receipt in enumerate(mine[start:end])]
            chunk_domain.append(domain)
    bundles = draw(st.lists(st.integers(0, 3), min_size=len(chunk_domain), max_size=len(chunk_domain)))
    return Log(sorted(placed), chunk_domain, bundles)


def plan_of(log: Log, *, looks_for_crossing: bool) -> Plan:
    nothing = np.zeros(len(log.chunk_domain), np.int64)
    return Plan(
        key="default",
        domains=["x", "y", "z"],
        carry_us=nothing[:0],
        chunk_domain=np.array(log.chunk_domain, np.int32),
        chunk_receipts=nothing.astype(np.float64),
        chunk_bundle=np.array(log.chunk_bundle, np.int32),
        cut_key_us=nothing,
        cut_unit=nothing.astype(np.int32),
        cut_row=nothing,
        partitions=1,
        unit_number=nothing[:0],
        keeps_rows=False,
        is_whole=np.zeros(3, np.bool_),
        start_us=0,
        slice_us=1,
        slices=1,
        looks_for_crossing=looks_for_crossing,
    )


def ids_of(chunk: int, placed: list[Placed], *, has_digest: bool, has_places: bool) -> Ids:
    receipts = [each.receipt for each in placed]
    sources = [UNUSED, *sorted({receipt.source for receipt in receipts}, reverse=True)]
    channels = sorted({(receipt.connection, receipt.destination) for receipt in receipts}, reverse=True)
    known = receipts if has_places else []
    id_high, id_low = digests_of(pa.array([receipt.id for receipt in receipts], pa.string()), bytes(16))
    return Ids(
        chunk=chunk,
        row=np.array([each.row for each in placed], np.int32),
        id_high=id_high,
        id_low=id_low,
        source=np.array([sources.index(receipt.source) for receipt in receipts], np.int32),
        sources=sources,
        digest_hash=np.array([receipt.digest for receipt in receipts if has_digest], np.uint64),
        key_us=np.array([receipt.place[0] for receipt in known], np.int64),
        unit=np.array([receipt.place[1] for receipt in known], np.int32),
        unit_row=np.array([receipt.place[2] for receipt in known], np.int64),
        channel=np.array([channels.index((receipt.connection, receipt.destination)) for receipt in known], np.int32),
        connections=[connection for connection, _ in channels] if has_places else [],
        destinations=[destination for _, destination in channels] if has_places else [],
    )


def parts_of(log: Log, partitions: int, without_digest: set[int], has_places: bool) -> dict[int, list[Row]]:
    dealt = defaultdict(list)
    for each in log.receipts:
        dealt[crc32(each.receipt.id.encode()) % partitions, each.chunk].append(each)
    parts = defaultdict(list)
    for (part, chunk), placed in dealt.items():
        for some in (placed[: len(placed) // 3], placed[len(placed) // 3 :]):
            ids = ids_of(chunk, some, has_digest=chunk not in without_digest, has_places=has_places)
            parts[part].append(Row(part, ids))
    return parts


def links_of(log: Log, plan: Plan, parts: dict[int, list[Row]]) -> Links:
    """What the work on the parts yields, put together."""
    labels, departures, reused, ways = {}, [], 0, Counter()
    for part, rows_ in parts.items():
        came = list(linked(plan)(part, iter(rows_)))
        assert [type(row.value) for row in came].count(LinkCounts) == 1
        for key, value in came:
            if isinstance(value, LinkCounts):
                assert key == 0
                reused += value.reused
                ways.update(
                    dict(zip(zip(value.way_from, value.way_to, strict=True), value.way_count.tolist(), strict=True))
                )
                continue
            assert key == log.chunk_bundle[value.chunk]
            rows = value.row.tolist()
            assert rows == sorted(rows)
            if isinstance(value, Labels):
                cells = zip(value.label.tolist(), value.replaces.tolist(), strict=True)
                labels |= zip(((value.chunk, row) for row in rows), cells, strict=True)
                assert len(rows) == len(set(rows))
            else:
                cells = zip(rows, value.to_chunk.tolist(), value.replaced_in.tolist(), strict=True)
                departures += [(value.chunk, *cell) for cell in cells]
    return Links(labels, sorted(departures), reused, dict(ways))


def expected(log: Log, without_digest: set[int], looks_for_crossing: bool) -> Links:
    """By dictionaries, as the words of the values say."""
    labels, reused, ways = {}, 0, Counter()
    seen: dict[tuple[int, str], list[Placed]] = defaultdict(list)
    over: dict[tuple[str, str], str] = {}
    for placed in log.receipts:
        receipt, chunk, row = placed
        earlier = seen[receipt.domain, receipt.id]
        queue = destination_name(receipt.destination), receipt.id
        if earlier:
            label = earlier[0].chunk * 2**32 + earlier[0].row
            labels[chunk, row] = label, any(each.receipt.source == receipt.source for each in earlier)
            digests = [0 if each.chunk in without_digest else each.receipt.digest for each in (earlier[-1], placed)]
            reused += 0 not in digests and digests[0] != digests[1]
        elif queue in over and looks_for_crossing:
            ways[over[queue], receipt.connection] += 1
        if queue[0].startswith("queue://"):
            over[queue] = receipt.connection
        earlier.append(placed)
    departures = [departure for run in seen.values() for departure in departures_of(run)]
    return Links(labels, sorted(departures), reused, dict(ways))


def departures_of(run: list[Placed]):
    for to_chunk in sorted({each.chunk for each in run}):
        newest = {each.receipt.source: each for each in run if each.chunk < to_chunk}
        for source, each in newest.items():
            later = [other.chunk for other in run if other.receipt.source == source and other.chunk > each.chunk]
            yield each.chunk, each.row, to_chunk, min(later, default=NEVER)


@given(
    log=logs(),
    partitions=st.sampled_from([1, 2, 7]),
    without_digest=st.sets(st.integers(0, 17)),
    looks_for_crossing=st.booleans(),
    random=st.randoms(use_true_random=False),
)
@settings(max_examples=400)
def test_links_are_those_of_dictionaries(log, partitions, without_digest, looks_for_crossing, random):
    parts = parts_of(log, partitions, without_digest, looks_for_crossing)
    for rows_ in parts.values():
        random.shuffle(rows_)
    plan = plan_of(log, looks_for_crossing=looks_for_crossing)
    assert links_of(log, plan, parts) == expected(log, without_digest, looks_for_crossing)


@pytest.mark.parametrize("rows_", [[], [ids_of(0, [], has_digest=True, has_places=True)]])
def test_a_part_without_receipts_has_no_links(rows_):
    log = Log([], [0], [0])
    parts = {0: [Row(0, ids) for ids in rows_]}
    assert links_of(log, plan_of(log, looks_for_crossing=True), parts) == Links({}, [], 0, {})


def receipt(number: int, id_: str, source: str = "s") -> Receipt:
    return Receipt((number, 0, number), 0, id_, source, 0, "c", "q")


def test_a_receipt_is_looked_back_to_until_its_source_sends_again():
    chunks = ["s", "t", "s", "t"]
    log = Log([Placed(receipt(c, "a", source), c, 0) for c, source in enumerate(chunks)], [0] * 4, [0] * 4)
    links = links_of(log, plan_of(log, looks_for_crossing=False), parts_of(log, 1, set(), has_places=False))
    assert links.departures == [
        (0, 0, 1, 2),
        (0, 0, 2, 2),
        (1, 0, 2, 3),
        (1, 0, 3, 3),
        (2, 0, 3, NEVER),
    ]
    assert links.labels == {(1, 0): (0, False), (2, 0): (0, True), (3, 0): (0, True)}
