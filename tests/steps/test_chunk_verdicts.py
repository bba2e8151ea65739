"""The verdicts on a log in chunks are those on the log read whole, row for row, however either is cut."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cut_logs import US, Cutting, File, assemble, cuttings, files, read_units, written
from hypothesis import given, settings
from hypothesis import strategies as st
from test_chunked import KEYS, hot_domains

from receiver.domains import domain_key
from receiver.errors import OutputError
from receiver.logs import read_logs
from receiver.simulate.ingest import ingest
from receiver.simulate.verdicts import SCHEMA
from receiver.simulate.verdicts import verdict_batches as verdict_batches_of_whole
from receiver.steps.log import ChunkedLog
from receiver.steps.slices import sliced
from receiver.steps.verdicts import verdict_batches, write_parts
from tests.logs.reading import Row

SETTINGS = st.tuples(st.integers(0, 6), st.sampled_from([0, 1, 3, 10, 40, 1000])).filter(any)
SLICE_ROWS = st.sampled_from([1, 2, 5, 1000])


def judged_whole(paths, key, setting):
    receipts = ingest(read_logs(paths, US), domain_key(key))
    return pa.Table.from_batches(verdict_batches_of_whole(receipts, *setting), SCHEMA).to_pylist()


def cut_log(paths, key, cutting, slice_rows) -> ChunkedLog:
    made = assemble(paths, cutting, key)
    _, pieces = read_units(paths, cutting)
    slices = sliced(pieces, made.plan, made.reports, made.units, slice_rows)
    return ChunkedLog(made.plan, made.reports, made.chunks, slices=slices)


def judged_in_chunks(log, setting):
    return pa.Table.from_batches(verdict_batches(log, *setting), SCHEMA).to_pylist()


@given(files(), cuttings, KEYS, SETTINGS, SLICE_ROWS)
@settings(max_examples=30)
def test_no_cut_changes_a_row(log, cutting, key, setting, slice_rows):
    with written(log) as paths:
        found = judged_in_chunks(cut_log(paths, key, cutting, slice_rows), setting)
        assert found == judged_whole(paths, key, setting)


@given(hot_domains(), st.sampled_from([1, 2, 7, 64]), SETTINGS, SLICE_ROWS, st.integers(0, 2**32))
@settings(max_examples=30)
def test_a_hot_domain_may_be_cut_into_any_number_of_chunks(rows, chunks, setting, slice_rows, seed):
    cutting = Cutting(rows_per_unit=1000, piece_rows=50, chunks_per_domain=chunks, seed=seed)
    with written([File("csv", rows)]) as paths:
        found = judged_in_chunks(cut_log(paths, "default", cutting, slice_rows), setting)
        assert found == judged_whole(paths, "default", setting)


LOG = [
    File("csv", [Row(time, f"id{time % 7}", "", "c", f"q{time % 3}") for time in range(0, 60, 2)]),
    File("parquet", [Row(time, f"id{time % 5}", "s", "c", "q1") for time in range(1, 60, 2)]),
]


@pytest.fixture
def paths():
    with written(LOG) as paths:
        yield paths


def test_a_slice_of_long_ids_is_given_in_several_batches(paths, monkeypatch):
    monkeypatch.setattr("receiver.simulate.verdicts._BATCH_BYTES", 10)
    batches = list(verdict_batches(cut_log(paths, "default", Cutting(), 1000), 2, 3))
    assert {batch.num_rows for batch in batches} == {3}
    assert pa.Table.from_batches(batches).to_pylist() == judged_whole(paths, "default", (2, 3))


@pytest.mark.parametrize("slice_rows", [7, 1000])
def test_parts_are_ordered_by_name_as_their_rows_are(paths, tmp_path, slice_rows):
    write_parts(cut_log(paths, "default", Cutting(), slice_rows), 2, 3, tmp_path)
    parts = sorted(tmp_path.iterdir())
    assert [part.name for part in parts] == [f"part-{number:05}.parquet" for number in range(-(-60 // slice_rows))]
    rows = [row for part in parts for row in pq.ParquetFile(part).read(use_threads=False).to_pylist()]
    assert rows == judged_whole(paths, "default", (2, 3))


def test_what_a_killed_task_left_is_cleared_away(paths, tmp_path):
    (tmp_path / ".receiver-0123456789abcdef.part").write_bytes(b"half")
    write_parts(cut_log(paths, "default", Cutting(), 1000), 2, 3, tmp_path)
    assert [part.name for part in tmp_path.iterdir()] == ["part-00000.parquet"]


def test_a_folder_that_tasks_can_not_see_is_told_of(paths, tmp_path):
    with pytest.raises(OutputError, match="share"):
        write_parts(cut_log(paths, "default", Cutting(), 1000), 2, 3, tmp_path / "elsewhere")
