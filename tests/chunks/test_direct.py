"""A compacted log gives the figures of the log it was made of, straight from its files or in the usual way."""

import json
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cut_logs import US, Cutting, File, cuttings, files, small_pieces, write, written
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_flow import PlainFlow
from test_chunked import QUESTIONS, analysed_whole, assert_same, hot_domains
from test_compacting import DAY_US, MESSAGE, STATUS, compacted, new_folder, on_days

from receiver.chunks.sizing import Sizes, chunked_log
from receiver.chunks.state import StateFolder
from receiver.chunks.verdicts import verdict_batches
from receiver.domains import domain_key
from receiver.errors import LogFormatError
from receiver.logs import ReadOptions, checked_options, read_logs
from receiver.logs.files import find_files
from receiver.simulate.analysis import Question, analyse
from receiver.simulate.ingest import ingest
from receiver.simulate.whole import WholeLog
from tests.logs.reading import Row

LARGE = Sizes(chunk_rows=1000, partition_rows=7)


class Run:
    """Of a log on a plain flow."""

    def __init__(self, *paths, key="default", sizes=LARGE, options=US, seed=0, **how) -> None:
        self.steps: list[str] = []
        self.log = chunked_log(
            find_files([str(path) for path in paths]),
            checked_options(options),
            domain_key(key),
            start=lambda parcels, _tasks: PlainFlow(parcels, seed=seed, steps=self.steps),
            cores=2,
            sizes=sizes,
            **how,
        )

    @property
    def is_direct(self) -> bool:
        """Whether chunks were made by the step that read."""
        reading, told, cutting, *_ = self.steps
        assert (reading, told, cutting) == ("Reading receipts", "Reading receipts", "Cutting into chunks")
        return self.steps.count("Cutting into chunks") == 1


@given(files(), cuttings, QUESTIONS, st.integers(1, 60), st.sampled_from([1, DAY_US // 5]))
@settings(max_examples=40)
def test_no_cut_changes_a_figure(log, cutting, question, chunk_rows, day_us):
    log = on_days(log, day_us)
    sizes = Sizes(chunk_rows=chunk_rows, partition_rows=cutting.partition_rows)
    with written(log) as paths, new_folder() as folder:
        manifest = compacted(paths, folder, cutting, question.key)
        with small_pieces(cutting.piece_rows):
            run = Run(folder, key=question.key, sizes=sizes, seed=cutting.seed)
            found = analyse(run.log, question)
        most = max(part.rows for each in manifest.domains for part in each.files)
        assert run.is_direct == (most <= 1.5 * chunk_rows)
        assert_same(found, analysed_whole([str(folder)], question))
        of_log = analysed_whole(paths, question)
        # Which domain was first, where two have a receipt at the same time, isn't kept: a finding may tell of it.
        assert_same(replace(found, findings=of_log.findings), of_log)


@given(hot_domains(), st.integers(1, 30), st.sampled_from([3, 10, 30]), QUESTIONS, st.integers(0, 2**32))
@settings(max_examples=30)
def test_a_hot_domain_may_be_in_any_number_of_files(rows, rows_per_file, chunk_rows, question, seed):
    with written([File("csv", rows)]) as paths, new_folder() as folder:
        compacted(paths, folder, Cutting(chunk_rows=rows_per_file, sample_rows=1), question.key)
        sizes = Sizes(chunk_rows=max(chunk_rows, rows_per_file), partition_rows=7)
        run = Run(folder, key=question.key, sizes=sizes, seed=seed)
        assert run.is_direct
        assert_same(analyse(run.log, question), analysed_whole(paths, question))


LOG = [
    File("csv", [Row(time * DAY_US // 9, f"id{time % 7}", "s", "c", f"q{time % 3}") for time in range(40)]),
    File("csv", [Row(time * DAY_US // 7, f"id{time % 5}", "s", "d", "q1") for time in range(20)]),
]


@pytest.fixture
def log(tmp_path):
    """-> the log's paths, and the folder that it was compacted to."""
    paths = write(tmp_path, LOG)
    folder = tmp_path / "compacted"
    folder.mkdir()
    compacted(paths, folder, Cutting(chunk_rows=4))
    return paths, folder


def test_small_files_are_one_chunk(log):
    """And no receipts are cut anew, nor do they move before they are linked."""
    paths, folder = log
    run = Run(folder, sizes=replace(LARGE, chunk_rows=12))
    assert run.is_direct
    assert len(find_files([str(folder)])) > 15
    assert run.log._plan.chunks < 10
    assert_same(analyse(run.log, Question("default")), analysed_whole(paths, Question("default")))


def beside_another_log(paths, folder):
    return [folder, paths[0]], {}


def twice(_paths, folder):
    return [folder, folder], {}


def one_file_of_it(_paths, folder):
    return [min(folder.glob("*/*/*.parquet"))], {}


def by_another_key(_paths, folder):
    return [folder], {"key": "destination"}


def with_mapped_columns(_paths, folder):
    return [folder], {"options": replace(US, column_map={"message_source_id": "destination"})}


def with_files_too_large(_paths, folder):
    return [folder], {"sizes": replace(LARGE, chunk_rows=2)}


USUAL = [beside_another_log, twice, one_file_of_it, by_another_key, with_mapped_columns, with_files_too_large]


@pytest.mark.parametrize("named", USUAL, ids=lambda named: named.__name__)
def test_the_usual_way_of_other_logs(log, named):
    paths, how = named(*log)
    run = Run(*paths, **how)
    assert not run.is_direct
    question, options = Question(how.get("key", "default")), how.get("options", US)
    receipts = ingest(read_logs([str(path) for path in paths], options), domain_key(question.key))
    assert_same(analyse(run.log, question), analyse(WholeLog(receipts), question))


def test_verdicts_take_the_usual_way(log):
    _, folder = log
    run = Run(folder, with_verdicts=True)
    assert not run.is_direct
    assert sum(batch.num_rows for batch in verdict_batches(run.log, 2, 3)) == 60


def test_a_state_takes_the_usual_way(log, tmp_path):
    paths, folder = log
    for _ in range(2):
        run = Run(folder, state=StateFolder(tmp_path / "state"))
        assert_same(analyse(run.log, Question("default")), analysed_whole(paths, Question("default")))


def test_status_lines_and_unchecked_receipts(tmp_path):
    log = tmp_path / "correlator.log"
    log.write_text("".join(STATUS.format(number, number) for number in range(3)) + MESSAGE)
    folder = tmp_path / "compacted"
    folder.mkdir()
    compacted([log], folder, Cutting(chunk_rows=4), "destination", ReadOptions())
    run = Run(folder, key="destination")
    assert run.is_direct
    assert len(run.log.facts().status_lines) == 3
    assert_same(analyse(run.log, Question("destination")), analysed_whole([str(log)], Question("destination")))


def change(path: Path, columns) -> None:
    """Write some of the columns of a file anew."""
    table = pq.read_table(path, use_threads=False, partitioning=None)
    for name, values in columns(table).items():
        place = table.schema.get_field_index(name)
        table = table.set_column(place, name, pa.chunked_array([pa.array(values).cast(table.schema.field(name).type)]))
    pq.write_table(table, path)


def rows_lost(path):
    pq.write_table(pq.read_table(path, use_threads=False, partitioning=None).slice(1), path)


def rows_all_lost(path):
    pq.write_table(pq.read_table(path, use_threads=False, partitioning=None).slice(0, 0), path)


def rows_of_another_domain(path):
    change(path, lambda table: {"connection_id": ["c"] * (len(table) - 1) + ["elsewhere"]})


def rows_of_a_domain_that_is_there(path):
    change(path, lambda table: {"destination": ["q2"] * len(table)})


def later_rows(path):
    change(path, lambda table: {"received_at": table["received_at"].cast(pa.int64()).to_numpy() + 9 * DAY_US})


def files_exchanged(path):
    other = path.parents[1] / "other.parquet"
    last = max(path.parents[1].glob("*/*.parquet"))
    path.rename(other)
    last.rename(path)
    other.rename(last)


TOUCHED = [
    (rows_lost, "receipts, not"),
    (rows_all_lost, "0 receipts, not"),
    (rows_of_another_domain, "another domain"),
    (rows_of_a_domain_that_is_there, "another domain"),
    (later_rows, "other times"),
    (files_exchanged, "it isn't what"),
]


@pytest.mark.parametrize(("touch", "problem"), TOUCHED, ids=[touch.__name__ for touch, _ in TOUCHED])
def test_a_file_that_was_touched_is_named(log, touch, problem):
    _, folder = log
    path = sorted(folder.glob("domain=c*q1/*/*.parquet"))[1]
    touch(path)
    with pytest.raises(LogFormatError, match="manifest") as refused:
        Run(folder, options=ReadOptions())
    assert refused.value.place == str(path)
    assert problem in refused.value.problem
    assert "compact the log again" in refused.value.hint


def test_queues_that_the_manifest_holds_apart(log):
    """By a change that no file tells of: whether repeats may hide in other domains decides how ids are dealt."""
    _, folder = log
    place = folder / "_receiver_log.json"
    manifest = json.loads(place.read_text())
    assert manifest["splits_a_queue"]
    place.write_text(json.dumps(manifest | {"splits_a_queue": False}))
    with pytest.raises(LogFormatError, match="other domains") as refused:
        Run(folder)
    assert refused.value.place == str(folder)


def without_files(domains):
    domains[0]["files"] = []


@pytest.mark.parametrize("touch", [list.reverse, without_files])
def test_a_manifest_that_allows_no_plan_is_not_leant_on(log, touch):
    _, folder = log
    place = folder / "_receiver_log.json"
    manifest = json.loads(place.read_text())
    touch(manifest["domains"])
    place.write_text(json.dumps(manifest))
    run = Run(folder)
    assert not run.is_direct
    assert_same(analyse(run.log, Question("default")), analysed_whole([str(folder)], Question("default")))


def test_an_unreadable_file_is_told_as_ever(log):
    _, folder = log
    path = sorted(folder.glob("*/*/*.parquet"))[3]
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(LogFormatError, match="Parquet") as refused:
        Run(folder)
    assert refused.value.place == str(path)
