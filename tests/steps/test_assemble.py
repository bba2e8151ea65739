"""Whatever the cuts, the chunks of a domain hold its receipts once each, in the order of the whole log."""

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from cut_logs import DIGEST_KEY, US, Cutting, File, assemble, cuttings, files, in_order, written
from hypothesis import given, settings
from hypothesis import strategies as st

from receiver.domains import Channel, destination_name, domain_key
from receiver.logs import read_logs
from receiver.simulate.ingest import ingest
from receiver.simulate.replay import split_domains
from receiver.steps.digests import digests_of
from receiver.steps.schemas import Body, Ids, Opening
from tests.logs.reading import Row

KEYS = st.sampled_from(["default", "destination", "connection", "receiver", "name:all"])


def domain_of(row: Row, key: str) -> str:
    return domain_key(key).name(Channel(row.connection_id, row.destination, row.receiver_id))


def bodies_of(made, domain: int) -> list[Body]:
    bodies = {body.chunk: body for body in made.values(Body)}
    return [bodies[chunk] for chunk in made.plan.of_domain(domain)]


def places_in(made, body: Body) -> list[tuple[int, int]]:
    """(file, row of the file) of receipts."""
    numbered = [(file, row) for file, rows in sorted(rows_of_files(made).items()) for row in range(rows)]
    return [numbered[number] for number in body.number.tolist()]


def rows_of_files(made) -> Counter:
    counts = Counter()
    for report in made.reports:
        counts[made.units[report.unit].file] += report.receipts
    return counts


@given(files(), cuttings, KEYS)
@settings(max_examples=150)
def test_bodies_follow_each_other_as_the_receipts_of_a_domain_do(log, cutting, key):
    with written(log) as paths:
        made = assemble(paths, cutting, key)
        whole = ingest(read_logs(paths, US), domain_key(key))
    assert made.plan.domains == sorted(whole.domains)
    order = [place for place in in_order(log) if log[place[0]].rows[place[1]].unique_message_id]
    for number, domain in enumerate(split_domains(whole)):
        bodies = bodies_of(made, number)
        here = [place for place in order if domain_of(log[place[0]].rows[place[1]], key) == domain.name]
        assert [place for body in bodies for place in places_in(made, body)] == here
        assert np.concatenate([body.received_at_us for body in bodies]).tolist() == (
            whole.received_at_us[domain.log_rows].tolist()
        )
        sources = [body.sources[source] for body in bodies for source in body.source.tolist()]
        assert sources == [whole.sources[number] for number in whole.source_number[domain.log_rows].tolist()]
        assert np.concatenate([body.redelivered for body in bodies]).tolist() == (
            whole.redelivered[domain.log_rows].tolist()
        )
        assert all(len(set(body.sources)) == len(body.sources) == len(np.unique(body.source)) for body in bodies)


@given(files(), cuttings, KEYS)
@settings(max_examples=100)
def test_each_id_goes_to_one_part(log, cutting, key):
    with written(log) as paths:
        made = assemble(paths, cutting, key)
    bodies = {body.chunk: body for body in made.values(Body)}
    part_of = {}
    rows = {chunk: [] for chunk in bodies}
    for part, ids in made.chunks.only(Ids).rows:
        body = bodies[ids.chunk]
        assert (np.diff(ids.row) > 0).all()
        rows[ids.chunk] += ids.row.tolist()
        for at, (row, *digest) in enumerate(
            zip(ids.row.tolist(), ids.id_high.tolist(), ids.id_low.tolist(), strict=True)
        ):
            domain = "" if made.plan.looks_for_crossing else made.plan.chunk_domain[ids.chunk]
            assert part_of.setdefault((domain, *digest), part) == part < made.plan.partitions
            file, line = places_in(made, body)[row]
            receipt = log[file].rows[line]
            halves = digests_of(pa.array([receipt.unique_message_id]), DIGEST_KEY)
            assert digest == [int(half[0]) for half in halves]
            assert ids.sources[ids.source[at]] == receipt.message_source_id
            assert (ids.digest_hash[at] != 0) == bool(receipt.body_digest)
            if made.plan.looks_for_crossing:
                number = made.plan.unit_number[ids.unit[at]] + ids.unit_row[at]
                assert number == body.number[row]
                assert ids.key_us[at] == max(row.received_at for row in log[file].rows[: line + 1])
                channel = ids.connections[ids.channel[at]], ids.destinations[ids.channel[at]]
                assert channel == (receipt.connection_id, receipt.destination)
            else:
                assert not len(ids.key_us)
                assert not len(ids.channel)
    assert {chunk: sorted(found) for chunk, found in rows.items()} == {
        chunk: list(range(len(body.number))) for chunk, body in bodies.items()
    }


@given(files(), cuttings, KEYS)
@settings(max_examples=100)
def test_openings_count_all_receipts(log, cutting, key):
    with written(log) as paths:
        made = assemble(paths, cutting, key)
    receipts = [row for file in log for row in file.rows]
    openings = {opening.chunk: opening for opening in made.values(Opening)}
    assert sorted(openings) == list(range(made.plan.chunks))
    for number, name in enumerate(made.plan.domains):
        here = [row for row in receipts if domain_of(row, key) == name]
        chunks = [openings[chunk] for chunk in made.plan.of_domain(number)]
        assert sum(chunk.receipts for chunk in chunks) == len(here)
        assert {source for chunk in chunks for source in chunk.sources} == {row.message_source_id for row in here}
        assert max(chunk.latest_us for chunk in chunks) == max(
            (row.received_at for row in here if row.unique_message_id), default=-1
        )
        bodies = bodies_of(made, number)
        unchecked = Counter(time for body in bodies for time in body.unchecked_at_us.tolist())
        assert unchecked == Counter(row.received_at for row in here if not row.unique_message_id)


@given(files())
@settings(max_examples=50)
def test_crossings_are_looked_for_where_a_queue_has_several_domains(log):
    with written(log) as paths:
        made = assemble(paths, Cutting())
    queues = {
        (destination_name(row.destination), domain_of(row, "default"))
        for file in log
        for row in file.rows
        if not row.destination.startswith("topic://")
    }
    assert made.plan.looks_for_crossing == (len(queues) > len({queue for queue, _ in queues}))


@pytest.mark.parametrize("chunks", [1, 2, 7, 64])
def test_so_many_chunks_as_wanted(chunks):
    log = [File("parquet", [Row(number, f"{number}", connection_id="c", destination="q") for number in range(200)])]
    with written(log) as paths:
        made = assemble(paths, Cutting(rows_per_unit=50, chunk_rows=1000, chunks_per_domain=chunks))
    sizes = [opening.receipts for opening in made.values(Opening)]
    assert len(sizes) == chunks
    assert max(sizes) - min(sizes) <= 1
