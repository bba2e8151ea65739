"""Spark's verdicts are the local engine's, row for row, in one file or in parts."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from receiver.domains import domain_key
from receiver.errors import OutputError, SettingsError
from receiver.logs import ReadOptions, read_logs
from receiver.logs.files import find_files
from receiver.simulate.ingest import ingest
from receiver.simulate.question import Question
from receiver.simulate.whole import VERDICT_SCHEMA, WholeLog
from receiver.spark import frames
from receiver.spark.frames import verdict_rows, verdicts_file
from receiver.spark.sources import read_files
from receiver.steps.log import chunked_log

SAMPLE = [str(Path(__file__).parents[2] / "examples" / "artemis-receipts.csv.gz")]
SETTING = (100, 5_000_000)
KEY = domain_key("destination")
PLAIN = pa.schema([(field.name, pa.int64() if field.name == "row" else pa.string()) for field in VERDICT_SCHEMA])


@pytest.fixture(scope="module")
def rows(spark):
    read = read_files(spark, find_files(SAMPLE), ReadOptions(), with_ids=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frames, "_ROWS_PER_PART", 100_000)
        yield verdict_rows(read, chunked_log(*read, Question(KEY.text), cores=2, keeps_rows=True), *SETTING)


@pytest.fixture(scope="module")
def expected() -> pa.Table:
    receipts = ingest(read_logs(SAMPLE, ReadOptions()), KEY)
    return pa.Table.from_batches(WholeLog(receipts).verdict_batches(*SETTING), VERDICT_SCHEMA).cast(PLAIN)


@pytest.mark.slow
def test_one_file(rows, expected, tmp_path):
    folder = tmp_path / "a blank, caf\u00e9"
    folder.mkdir()
    path = folder / f"{'v' * 247}.parquet"  # no name may be longer
    with verdicts_file(str(path)) as write:
        write(rows)
    assert pq.ParquetFile(path).read(use_threads=False).cast(PLAIN).equals(expected)
    assert (list(tmp_path.iterdir()), list(folder.iterdir())) == ([folder], [path])


@pytest.mark.slow
@pytest.mark.parametrize("to", ["{}/", "file://{}"])
def test_parts_written_by_tasks(rows, expected, tmp_path, to):
    with verdicts_file(to.format(tmp_path / "verdicts")) as write:
        write(rows)
    parts = sorted((tmp_path / "verdicts").glob("*.parquet"))
    assert len(parts) == 3
    judged = pa.concat_tables(pq.ParquetFile(part).read(use_threads=False) for part in parts)
    assert judged.cast(PLAIN).equals(expected)


def test_a_folder_that_tasks_can_not_see_is_told_of(rows, tmp_path, monkeypatch):
    """As if each machine wrote to a disk of its own: the driver sees no file."""
    monkeypatch.setattr(frames.Path, "glob", lambda *_: iter(()))
    with pytest.raises(OutputError, match="share"), verdicts_file(f"{tmp_path}/verdicts/") as write:
        write(rows)


@pytest.mark.slow
def test_nothing_is_half_written(rows, tmp_path):
    def fail():
        with verdicts_file(str(tmp_path / "verdicts.csv")) as write:
            write(rows)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert list(tmp_path.iterdir()) == []


def test_a_file_of_no_known_format(tmp_path):
    with pytest.raises(SettingsError, match="format"), verdicts_file(str(tmp_path / "verdicts.doc")):
        pass
    assert list(tmp_path.iterdir()) == []
