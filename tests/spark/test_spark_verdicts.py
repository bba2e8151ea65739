"""Verdicts from Spark are the local engine's, row for row, in one stream as in parts."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from receiver.domains import domain_key
from receiver.errors import OutputError
from receiver.logs import ReadOptions, checked_options, read_logs
from receiver.logs.files import find_files
from receiver.simulate.ingest import ingest
from receiver.simulate.verdicts import SCHEMA
from receiver.simulate.verdicts import verdict_batches as verdict_batches_of_whole
from receiver.spark.sources import read_files
from receiver.steps.log import ChunkedLog, Sizes, chunked_log
from receiver.steps.verdicts import verdict_batches, write_parts

SAMPLE = [str(Path(__file__).parents[2] / "examples" / "artemis-receipts.csv.gz")]
SETTING = (100, 5_000_000)
KEY = domain_key("destination")
PLAIN = pa.schema([(field.name, pa.int64() if field.name == "row" else pa.string()) for field in SCHEMA])


@pytest.fixture(scope="module")
def log(spark) -> ChunkedLog:
    read = read_files(spark, find_files(SAMPLE), checked_options(ReadOptions()), KEY, with_ids=True)
    return chunked_log(*read, KEY, cores=2, sizes=Sizes(slice_rows=100_000), with_verdicts=True)


@pytest.fixture(scope="module")
def expected() -> pa.Table:
    receipts = ingest(read_logs(SAMPLE, ReadOptions()), KEY)
    return pa.Table.from_batches(verdict_batches_of_whole(receipts, *SETTING), SCHEMA).cast(PLAIN)


def test_one_stream(log, expected):
    assert pa.Table.from_batches(verdict_batches(log, *SETTING), SCHEMA).cast(PLAIN).equals(expected)


def test_parts_written_by_tasks(log, expected, tmp_path):
    write_parts(log, *SETTING, tmp_path)
    parts = sorted(tmp_path.iterdir())
    assert [part.name for part in parts] == ["part-00000.parquet", "part-00001.parquet", "part-00002.parquet"]
    found = pa.concat_tables(pq.ParquetFile(part).read(use_threads=False) for part in parts)
    assert found.cast(PLAIN).equals(expected)


def test_a_place_that_tasks_can_not_write_to(log, tmp_path):
    with pytest.raises(OutputError, match="share"):
        write_parts(log, *SETTING, tmp_path / "elsewhere")
