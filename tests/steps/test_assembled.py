"""Whatever the cuts, the chunks of a domain have each of its receipts once, in the order of the whole log."""

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from cut_logs import DIGEST_KEY, US, Cutting, File, assemble, cuttings, files, in_order, written
from hypothesis import given
from hypothesis import strategies as st

from receiver.domains import Channel, destination_name, domain_key
from receiver.logs import read_logs
from receiver.simulate.ingest import ingest
from receiver.simulate.whole import split_domains
from receiver.steps.digests import digests_of
from receiver.steps.schemas import ChunkReceipts, Ids, Latest, channels_of
from tests.choosing import cases
from tests.logs.reading import Row

KEYS = st.sampled_from(["default", "destination", "connection", "receiver", "name:all"])


def domain_of(row: Row, key: str) -> str:
    return domain_key(key).name(Channel(row.connection_id, row.destination, row.receiver_id))


def chunks_of(made, domain: int) -> list[ChunkReceipts]:
    chunks = {state.chunk: state for state in made.chunks()}
    return [chunks[chunk] for chunk in made.plan.of_domain(domain) if chunk in chunks]


def places_in(made, body: ChunkReceipts) -> list[tuple[int, int]]:
    """The (file, row of the file) of each receipt."""
    numbered = [(file, row) for file, rows in sorted(rows_of_files(made).items()) for row in range(rows)]
    return [numbered[number] for number in body.number.tolist()]


def rows_of_files(made) -> Counter:
    counts = Counter()
    for report in made.reports:
        counts[made.units[report.unit].file] += report.receipts
    return counts


@pytest.mark.costly
@pytest.mark.slow
@given(files(), cuttings, KEYS)
@cases(150)
def test_bodies_follow_each_other_as_the_receipts_of_a_domain_do(log, cutting, key):
    with written(log) as paths:
        made = assemble(paths, cutting, key)
        whole = ingest(read_logs(paths, US), domain_key(key))
    assert made.plan.domains == sorted(whole.domains)
    order = [index for index in in_order(log) if log[index[0]].rows[index[1]].unique_message_id]
    for number, domain in enumerate(split_domains(whole)):
        bodies = chunks_of(made, number)
        here = [index for index in order if domain_of(log[index[0]].rows[index[1]], key) == domain.name]
        assert [index for body in bodies for index in places_in(made, body)] == here
        for body in bodies:
            times = [log[file].rows[row].received_at for file, row in places_in(made, body)]
            assert body.received_at_us.tolist() == np.maximum.accumulate(times or [0])[: len(times)].tolist()
        sources = [body.sources[source] for body in bodies for source in body.source.tolist()]
        assert sources == [whole.sources[number] for number in whole.source_number[domain.log_rows].tolist()]
        assert all(len(set(body.sources)) == len(body.sources) == len(np.unique(body.source)) for body in bodies)


@given(files(), cuttings, KEYS)
@cases(100)
def test_each_id_goes_to_one_part(log, cutting, key):
    with written(log) as paths:
        made = assemble(paths, cutting, key)
    chunk_of = {int(number): state.chunk for state in made.chunks() for number in state.number}
    numbered = [(file, row) for file, rows in sorted(rows_of_files(made).items()) for row in range(rows)]
    part_of, numbers = {}, []
    for part, ids in made.ids().only(Ids).rows:
        chunks = np.repeat(ids.chunk, np.diff(ids.chunk_end, prepend=0)).tolist()
        assert len(chunks) == len(ids.unit_row)
        for at, (unit_row, *digest) in enumerate(
            zip(ids.unit_row.tolist(), ids.id_high.tolist(), ids.id_low.tolist(), strict=True)
        ):
            number = int(made.plan.unit_number[ids.unit]) + unit_row
            numbers.append(number)
            assert chunk_of[number] == chunks[at]
            domain = "" if made.plan.looks_across_domains else made.plan.chunk_domain[chunks[at]]
            assert part_of.setdefault((domain, *digest), part) == part < made.plan.partitions
            file, line = numbered[number]
            receipt = log[file].rows[line]
            halves = digests_of(pa.array([receipt.unique_message_id]), DIGEST_KEY)
            assert digest == [int(half[0]) for half in halves]
            assert ids.sources[ids.source[at]] == receipt.message_source_id
            assert (ids.digest_hash[at] != 0) == bool(receipt.body_digest)
            assert ids.key_us[at] == max(row.received_at for row in log[file].rows[: line + 1])
            if made.plan.looks_across_domains:
                channel = channels_of(ids)[ids.channel[at]]
                assert channel == (receipt.connection_id, receipt.destination, receipt.receiver_id)
            else:
                assert not len(ids.channel)
    assert sorted(numbers) == sorted(chunk_of)


@given(files(), cuttings, KEYS)
@cases(100)
def test_the_latest_time_of_each_chunk_is_known_before_it_is_put_in_order(log, cutting, key):
    with written(log) as paths:
        made = assemble(paths, cutting, key)
    latest_us = {}
    for _, latest in made.ids().only(Latest).rows:
        for chunk, time_us in zip(latest.chunk.tolist(), latest.latest_us.tolist(), strict=True):
            latest_us[chunk] = max(time_us, latest_us.get(chunk, -1))
    states = {state.chunk: state for state in made.chunks()}
    assert latest_us == {
        chunk: state.received_at_us[-1] for chunk, state in states.items() if len(state.received_at_us)
    }


@given(files(), cuttings, KEYS)
@cases(100)
def test_reports_name_the_sources_of_each_domain(log, cutting, key):
    with written(log) as paths:
        made = assemble(paths, cutting, key)
    named = set()
    for report in made.reports:
        channels = channels_of(report)
        for source, channel in zip(report.sources, report.sources_channel.tolist(), strict=True):
            named.add((domain_key(key).name(channels[channel]), source))
    assert named == {(domain_of(row, key), row.message_source_id) for file in log for row in file.rows}


@given(files())
@cases(50)
def test_crossings_are_looked_for_where_a_queue_has_several_domains(log):
    with written(log) as paths:
        made = assemble(paths, Cutting())
    queues = {
        (destination_name(row.destination), domain_of(row, "default"))
        for file in log
        for row in file.rows
        if not row.destination.startswith("topic://")
    }
    assert made.plan.looks_across_domains == (len(queues) > len({queue for queue, _ in queues}))


@pytest.mark.parametrize("chunks", [1, 2, 7, 64])
def test_so_many_chunks_as_wanted(chunks):
    log = [File("parquet", [Row(number, f"{number}", connection_id="c", destination="q") for number in range(200)])]
    with written(log) as paths:
        made = assemble(paths, Cutting(rows_per_unit=50, chunk_rows=1000, chunks_per_domain=chunks))
    sizes = [len(state.source) for state in made.chunks()]
    assert len(sizes) == chunks
    assert max(sizes) - min(sizes) <= 1
