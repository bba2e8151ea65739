"""Logs that aren't at a path: URLs of Spark's filesystems, folders of partitions, tables. Their figures are the
local engine's."""

import gzip
import json
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from receiver.cli import app
from receiver.errors import LogFormatError, SettingsError
from receiver.logs import ReadOptions
from receiver.report.json_object import analysis_object
from receiver.simulate.analysis import analyse
from receiver.simulate.question import Question
from receiver.spark import sources
from receiver.spark.sources import read_frame, read_table_or_urls, spark_url
from receiver.steps.log import chunked_log
from receiver.steps.read import Reading
from receiver.steps.schemas import UnitReport
from tests.docs.markdown import ROOT
from tests.logs.reading import FORMATS, csv_bytes, jsonl_bytes, parquet_bytes
from tests.spark.test_spark_frames import receipts, said_here

EXAMPLE = (ROOT / "examples" / "artemis-receipts.csv.gz").as_uri()
QUESTION = Question("destination", [0, 5], [0, 1_000_000])
pytestmark = pytest.mark.usefixtures("spark")


def said_there(spark, *logs: str) -> dict:
    read = read_table_or_urls(spark, logs, ReadOptions())
    return analysis_object(analyse(chunked_log(*read, QUESTION, cores=2), QUESTION))


def expected(*paths) -> dict:
    return said_here(paths, windows=QUESTION.windows, expiries_us=QUESTION.expiries_us)


@pytest.mark.slow
def test_folders_of_partitions(spark, tmp_path):
    days = [tmp_path / f"day=2026-11-2{day}" / "part 1.parquet" for day in range(3)]
    for seed, path in enumerate(days):
        path.parent.mkdir()
        path.write_bytes(parquet_bytes(receipts(seed, 500)))
    (tmp_path / "_SUCCESS").write_bytes(b"")
    assert said_there(spark, tmp_path.as_uri()) == expected(*days)


@pytest.mark.thinned(3)
@pytest.mark.parametrize(
    "names",
    [
        ("a", "day=1/b"),
        ("a", "2026/b"),
        ("day=1/b", "2026/c"),
        ("day=1/b", "day=2/hour=3/c"),
        ("x/day=1/b", "y/day=1/c"),
        ("destination=x/a",),
    ],
)
def test_files_at_several_depths_are_all_read(spark, tmp_path, names):
    """Spark's own reader would leave out those in no partition, refuse them all, or take a folder's name for a file's column."""
    logs = [tmp_path / f"{name}.parquet" for name in names]
    for seed, path in enumerate([*logs, tmp_path / "_temporary" / "d.parquet"]):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(parquet_bytes(receipts(seed, 200)))
    assert said_there(spark, tmp_path.as_uri()) == expected(*sorted(logs))


def test_names_of_partitions_are_exact_text(spark, tmp_path):
    for name in ("message_source_id=007", "message_source_id=7"):
        (tmp_path / name).mkdir()
        rows = {"received_at": [1, 2], "unique_message_id": ["a", "b"], "destination": ["q", "q"]}
        pq.write_table(pa.table(rows), tmp_path / name / "a.parquet")
    log = said_there(spark, tmp_path.as_uri())["log"]
    assert (log["receipts"], log["sources"]) == (4, 2)


def test_a_compacted_log_is_not_read_file_by_file(spark, tmp_path):
    """Its files follow each other. If they were merged by times, as logs are, their order would change."""
    part = tmp_path / "log" / "domain=q" / "day=2026-11-21" / "part-00000.parquet"
    part.parent.mkdir(parents=True)
    part.write_bytes(parquet_bytes(receipts(1, 10)))
    with pytest.raises(SettingsError, match="a compacted log at a URL is read by fsspec"):
        said_there(spark, tmp_path.as_uri())


def test_text_is_read_by_our_readers(spark, tmp_path):
    paths = [tmp_path / name for name in ("a.csv.gz", "b.jsonl", "c.parquet")]
    for seed, (path, encoded) in enumerate(zip(paths, (csv_bytes, jsonl_bytes, parquet_bytes), strict=True)):
        content = encoded(receipts(seed, 500))
        path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    assert said_there(spark, tmp_path.as_uri()) == expected(*paths)
    paths[0].write_bytes(b"received_at,unique_message_id\n1,a\nsoon,b\n")
    with pytest.raises(LogFormatError, match=r"a\.csv\.gz:3: received_at: not a time"):
        said_there(spark, *(path.as_uri() for path in paths))


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_several_logs_stand_in_the_order_in_which_they_were_named(spark, tmp_path, ending):
    logs = [tmp_path / f"{name}.{ending}" for name in ("z caf\u00e9", "a 100%25", "m")]
    for seed, path in enumerate(logs):
        path.write_bytes(FORMATS[ending](receipts(seed, 200)))
    # The times of the logs tie, so another order gives other figures.
    assert said_there(spark, *map(spark_url, logs)) == expected(*logs) != expected(*sorted(logs))


@pytest.mark.usefixtures("spark")
def test_folders_by_date_are_read_alike_by_both_engines(tmp_path):
    days = [tmp_path / f"day=2026-11-2{day}" / "hour=1" / f"{day}.csv" for day in range(3)]
    for seed, path in enumerate(days):
        path.parent.mkdir(parents=True)
        path.write_bytes(csv_bytes(receipts(seed, 200)))
    asked = ["simulate", "--json", "--domain", "destination"]
    for log in (str(tmp_path), tmp_path.as_uri()):
        here, there = (CliRunner().invoke(app, [*asked, log, *engine]) for engine in ([], ["--engine", "spark"]))
        assert (here.exit_code, here.stdout) == (0, there.stdout)
        assert json.loads(here.stdout)["log"]["receipts"] == 600


@pytest.mark.parametrize("named", [str, Path.as_uri])
def test_a_path_with_a_blank_and_its_order(tmp_path, named):
    log = tmp_path / "a blank, caf\u00e9.parquet"
    log.write_bytes(parquet_bytes(receipts(3, 80, step_back=False)))
    asked = ["simulate", named(log), "--json", "--domain", "destination"]
    ran = CliRunner().invoke(app, [*asked, "--engine", "spark", "--order-by", "received_at"], catch_exceptions=False)
    assert json.loads(ran.stdout)["log"] == said_here([log])["log"]


@pytest.mark.parametrize("named", ["log.parquet", "", "*.parquet"])
def test_an_output_never_replaces_a_log_that_spark_finds(tmp_path, named):
    log = tmp_path / "log.parquet"
    log.write_bytes(parquet_bytes(receipts(3, 80, step_back=False)))
    asked = ["simulate", str(tmp_path / named), "--window", "1", "--expiry", "1", "--engine", "spark"]
    with pytest.raises(SettingsError, match="would be overwritten"):
        CliRunner().invoke(app, [*asked, "--order-by", "received_at", "--verdicts", str(log)], catch_exceptions=False)


def test_a_table_and_its_order(spark, tmp_path):
    log = tmp_path / "log.parquet"
    log.write_bytes(parquet_bytes(receipts(3, 800)))
    frame = spark.read.parquet(str(log)).selectExpr("*", "_metadata.row_index as n").repartition(3)
    frame.write.option("path", str(tmp_path / "table")).saveAsTable("kept_receipts")
    asked = ["simulate", "table:kept_receipts", "--engine", "spark", "--json", "--domain", "destination"]
    try:
        ran = CliRunner().invoke(app, [*asked, "--order-by", "n"], catch_exceptions=False)
        assert json.loads(ran.stdout) == said_here([log])
    finally:
        spark.sql("drop table kept_receipts")


@pytest.mark.parametrize(
    ("logs", "error", "complaint"),
    [
        (["table:nothing"], LogFormatError, "table:nothing: can't be read"),
        (["table:a", "table:b"], SettingsError, "read alone"),
        (["file:///nowhere/at/all"], LogFormatError, "can't be read"),
        (["file:///tmp", "plain.csv"], SettingsError, "together"),
        ([EXAMPLE, EXAMPLE], SettingsError, r"artemis-receipts\.csv\.gz is in two of the logs"),
    ],
)
def test_what_is_not_there(spark, logs, error, complaint):
    with pytest.raises(error, match=complaint):
        said_there(spark, *logs)


def contents(count: int) -> pa.RecordBatch:
    files = [
        {"file_path": f"{number}.csv", "content": b"received_at,unique_message_id\n1,a\n"} for number in range(count)
    ]
    return pa.RecordBatch.from_pylist(files)


def rows_of_files(count: int) -> pa.RecordBatch:
    columns = {"received_at": [1] * count, "unique_message_id": ["a"] * count}
    return pa.RecordBatch.from_pydict(
        columns | {"_receiver_file": [f"{number}.parquet" for number in range(count)], "_receiver_row": [0] * count}
    )


@pytest.mark.parametrize(
    ("read", "batch_of", "way_on"),
    [
        (sources._read_content, contents, "openCostInBytes"),
        (partial(sources._read_task, by_file=True), rows_of_files, "a column to order by"),
    ],
    ids=["text", "rows of files"],
)
def test_a_task_has_no_more_units_than_numbers(monkeypatch, read, batch_of, way_on):
    """The next number belongs to the next task. So two files would become one unit, and the figures would be wrong."""
    monkeypatch.setattr(sources, "_UNITS_PER_TASK", 4)
    how = Reading(ReadOptions(), bytes(16))
    rows = list(read(how, iter([batch_of(2), batch_of(2)])))
    assert [row.value.unit for row in rows if isinstance(row.value, UnitReport)] == [0, 1, 2, 3]
    with pytest.raises(SettingsError, match="more than 4 files") as caught:
        list(read(how, iter([batch_of(2), batch_of(3)])))
    assert way_on in caught.value.hint


def test_a_row_of_a_file_that_comes_again_begins_no_part(monkeypatch):
    """Messages in arrays of a row, which `explode` makes rows of their own, would be more parts than numbers."""
    monkeypatch.setattr(sources, "_UNITS_PER_TASK", 1)
    batch = rows_of_files(4)
    batch = batch.set_column(2, "_receiver_file", pa.array(["x.parquet"] * 4))
    batches = [batch.set_column(3, "_receiver_row", pa.array(rows)) for rows in ([0, 0, 1, 1], [1, 2, 2, 3])]
    rows = list(sources._read_task(Reading(ReadOptions(), bytes(16)), iter(batches), by_file=True))
    (report,) = [row.value for row in rows if isinstance(row.value, UnitReport)]
    assert (report.receipts, report.first_row, report.last_row) == (8, 0, 3)


@pytest.mark.parametrize("moves", [False, True])
def test_receipts_of_one_row_have_an_order(spark, tmp_path, moves):
    """It is that of the array which was exploded. A shuffle loses it, and may end in another order each time."""
    ids = [str(number * 7 % 50) for number in range(50)]
    pq.write_table(pa.table({"received_at": [1], "ids": [ids]}), tmp_path / "log.parquet")
    frame = spark.read.parquet(str(tmp_path)).selectExpr("received_at", "explode(ids) AS unique_message_id")
    read = read_frame(frame.repartition(3) if moves else frame, Reading(ReadOptions(), bytes(16), with_ids=True))
    pieces = sorted(read.pieces.collect("reading"), key=lambda piece: (piece.unit, piece.first_row))
    came = [id_.as_py() for piece in pieces for id_ in piece.unique_message_id]
    assert came == (sorted(ids) if moves else ids)
