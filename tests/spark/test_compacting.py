"""A compacted log reads back as the log that it was made of, however that was cut on the way."""

import json
import os
import signal
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from programs import run_program
from pyspark.sql import DataFrameWriter, SparkSession
from typer.testing import CliRunner

from receiver.cli import app
from receiver.domains import Channel, domain_key
from receiver.errors import LogFormatError, OutputError, SettingsError
from receiver.logs import ReadOptions, read_logs
from receiver.logs.compacted import Manifest, manifest_of
from receiver.logs.files import find_files
from receiver.spark.compacting import compact
from receiver.steps.log import reports_of
from receiver.steps.read import units_of
from receiver.steps.schemas import UnitReport
from tests.choosing import cases
from tests.logs.reading import Row, csv_bytes, read
from tests.steps.cut_logs import US, File, cuttings, files, in_order, read_units, write, written

KEYS = ["default", "destination", "connection", "receiver", "name:all"]
DAY_US = 86_400_000_000


pytestmark = pytest.mark.usefixtures("spark")


def compacted(
    paths,
    folder,
    rows_per_file: int = 100,
    key: str = "name:x",
    options: ReadOptions = US,
    *,
    before: Manifest | None = None,
) -> Manifest:
    spark = SparkSession.getActiveSession()
    assert spark is not None
    logs = find_files([str(path) for path in paths])
    return compact(spark, logs, options, domain_key(key), folder, before=before, rows_per_file=rows_per_file)


@contextmanager
def new_folder():
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def by_domain(rows, key: str) -> dict[str, list[Row]]:
    by_name: dict[str, list[Row]] = {}
    for row in rows:
        channel = Channel(row.connection_id, row.destination, row.receiver_id)
        by_name.setdefault(domain_key(key).name(channel), []).append(row)
    return by_name


def on_days(log: list[File], day_us: int) -> list[File]:
    """The same log with days between its times."""
    return [
        file._replace(rows=[row._replace(received_at=row.received_at * day_us) for row in file.rows]) for file in log
    ]


@pytest.mark.slow
@given(files(), st.integers(1, 40), st.sampled_from(KEYS), st.sampled_from([1, DAY_US // 5]))
@cases(12)
def test_each_domain_reads_back_in_order(log, rows_per_file, key, day_us):
    log = on_days(log, day_us)
    with written(log) as paths, new_folder() as folder:
        manifest = compacted(paths, folder, rows_per_file, key)
        again = read(folder)
        groups = [
            (part.rows, pq.read_metadata(folder / part.path).num_rows)
            for each in manifest.domains
            for part in each.files
        ]
        units = units_of(find_files([str(folder)]), rows_per_unit=1)
    whole = [log[index].rows[row] for index, row in in_order(log)]
    assert by_domain(again, key) == by_domain(whole, key)
    assert [each.domain for each in manifest.domains] == sorted(by_domain(whole, key))
    assert all(rows == rows_there <= rows_per_file for rows, rows_there in groups)
    assert manifest.receipts == sum(rows for rows, _ in groups) == len(whole)
    assert [unit.file for unit in units] == sorted(unit.file for unit in units)
    assert len({unit.file for unit in units}) == len(manifest.domains)


@pytest.mark.slow
@given(files(), cuttings)
@cases(4)
def test_tasks_see_the_order_that_one_process_sees(log, cutting):
    """Chunks are in the order of (key, unit, row): of files that follow each other as of one file."""
    with written(log) as paths, new_folder() as folder:
        compacted(paths, folder, cutting.chunk_rows, "connection")
        units, flow = read_units([str(folder)], cutting, ReadOptions())
        reports = reports_of([row.value for row in flow.only(UnitReport).rows], units, domain_key("connection"))
        once_more = folder / "again"
        once_more.mkdir()
        compacted([folder], once_more, cutting.chunk_rows, "connection", ReadOptions())
        assert by_domain(read(once_more), "connection") == by_domain(read(folder), "connection")
    assert sum(report.receipts for report in reports) == sum(len(file.rows) for file in log)


def test_the_day_is_that_of_the_running_maximum(tmp_path):
    """So days ascend in the order of rows, even if the clock steps back over midnight."""
    times = [DAY_US - 1, DAY_US + 1, DAY_US - 1, DAY_US + 2]
    paths = write(tmp_path, [File("csv", [Row(time, str(index), destination="q") for index, time in enumerate(times)])])
    out = tmp_path / "out"
    out.mkdir()
    manifest = compacted(paths, out, 100, "destination")
    assert [(part.path.split("/")[1], part.rows) for part in manifest.domains[0].files] == [
        ("day=1970-01-01", 1),
        ("day=1970-01-02", 3),
    ]
    assert [row.unique_message_id for row in read(out)] == ["0", "1", "2", "3"]


def test_columns_that_the_log_lacks_are_lacking(tmp_path):
    (tmp_path / "a.csv").write_text("received_at,unique_message_id\n1,a\n")
    (tmp_path / "b.csv").write_text("received_at,unique_message_id,jms_timestamp,messageSourceId\n2,b,,s\n")
    out = tmp_path / "out"
    out.mkdir()
    manifest = compacted([tmp_path / "a.csv", tmp_path / "b.csv"], out, 100, "name:x")
    assert manifest.columns == ["received_at", "unique_message_id", "message_source_id", "jms_timestamp"]
    (part,) = manifest.domains[0].files
    assert pq.read_schema(out / part.path).names == manifest.columns
    assert read(out) == [Row(1, "a"), Row(2, "b", "s")]


RETRIED = """
import os
from pathlib import Path
from pyspark import TaskContext
from receiver.domains import domain_key
from receiver.logs import ReadOptions
from receiver.logs.files import find_files
from receiver.spark import compacting

read = compacting._read

def dying_once(*arguments):
    yield from read(*arguments)
    if TaskContext.get().attemptNumber() == 0:
        os._exit(1)

compacting._read = dying_once

def work(spark):
    options = ReadOptions(time_unit="us", on_error="skip")
    logs = find_files([{log!r}])
    compacting.compact(spark, logs, options, domain_key("destination"), Path({out!r}), rows_per_file=4)
"""


@pytest.mark.slow
def test_tasks_that_are_tried_again_leave_nothing_behind(tmp_path):
    rows = [Row(time, str(time), destination=f"q{time % 3}") for time in range(20)]
    log = tmp_path / "a.csv"
    log.write_bytes(csv_bytes(rows) + b"soon,c,,,,,,,\n")
    out = tmp_path / "out"
    out.mkdir()
    ran = run_program(RETRIED.format(log=str(log), out=str(out)), master="local[2,3]")
    assert ran.returncode == 0, ran.stderr
    manifest = manifest_of(out)
    parts = [part.path for domain in manifest.domains for part in domain.files]
    there = [str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()]
    assert sorted(there) == sorted([*parts, "_bad_rows.jsonl", "_receiver_log.json"])
    assert sorted(row.received_at for row in read(out)) == list(range(20))
    assert len((out / "_bad_rows.jsonl").read_text().splitlines()) == manifest.skipped == 1


KILLED = """
import os, signal
from pathlib import Path
from receiver.domains import domain_key
from receiver.logs import ReadOptions
from receiver.logs.compacted import new_folder
from receiver.logs.files import find_files
from receiver.spark.compacting import compact

def work(spark):
    with new_folder(Path({out!r})) as folder:
        Path.rename = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
        compact(spark, find_files([{log!r}]), ReadOptions(), domain_key("name:x"), folder)
"""


@pytest.mark.slow
def test_a_kill_leaves_no_half_log(tmp_path):
    (log,) = write(tmp_path, [File("csv", [Row(1, "a")])])
    out = tmp_path / "out"
    killed = run_program(KILLED.format(log=log, out=str(out)))
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert not out.exists()
    assert all(name.startswith((".", "00")) for name in os.listdir(tmp_path))  # noqa: PTH208 - names alone


STATUS = "2017-03-05 15:56:{:02}.484 INFO  [1:Status] - JMS Status: rRedel=1 rMaxDeliverySecs=0.5 rDupsDet={} rDupIds=6,182\n"
MESSAGE = """\
2017-03-05 18:17:36.091 INFO  [1:JMSReceiver:r] - 'r' has received JMS message: Property.uniqueMessageId=a
   JMSDestination=Topic<t>
   JMSMessageID=x
"""


def test_status_lines_stay(tmp_path):
    log = tmp_path / "correlator.log"
    log.write_text("".join(STATUS.format(number, number) for number in range(3)) + MESSAGE)
    out = tmp_path / "out"
    out.mkdir()
    manifest = compacted([log], out, 100, "destination", ReadOptions(time_zone="Europe/Paris"))
    before, after = (
        [line for batch in read_logs([str(path)], options) for line in batch.status_lines]
        for path, options in ((log, ReadOptions(time_zone="Europe/Paris")), (out, ReadOptions(time_zone="Asia/Tokyo")))
    )
    assert manifest.status_lines == 3
    assert after == before
    assert after[2].values == {"rRedel": 1, "rMaxDeliverySecs": 0.5, "rDupsDet": 2, "rDupIds": 6182}


def test_bad_rows_are_told_by_file_and_line(tmp_path):
    first, second = tmp_path / "a.csv", tmp_path / "b.jsonl"
    first.write_bytes(csv_bytes([Row(1, "a"), Row(2, "b")]) + b"soon,c,,,,,,,\n3,d\n")
    second.write_bytes(
        b'{"received_at": 1, "unique_message_id": "\xff"}\n{"received_at": 2, "unique_message_id": 1.5}\n'
    )
    out = tmp_path / "out"
    out.mkdir()
    options = ReadOptions(time_unit="us", on_error="skip")
    manifest = compacted([first, second], out, 100, "name:x", options)
    bad = [json.loads(line) for line in (out / "_bad_rows.jsonl").read_text().splitlines()]
    assert [(row["file"], row["line"]) for row in bad] == [
        (str(first), 4),
        (str(first), 5),
        (str(second), 1),
        (str(second), 2),
    ]
    assert [row["problem"].split(",")[0] for row in bad] == [
        "received_at: not a time: 'soon'; expected ISO 8601 such as 2026-11-21T01:37:48.711509Z",
        "2 fields",
        "not UTF-8: byte 0xff",
        "unique_message_id is a number with a fraction",
    ]
    assert manifest.skipped == 4
    assert [row.unique_message_id for row in read(out)] == ["a", "b"]
    for engine in ("local", "spark"):
        asked = "simulate", str(out), "--domain", "name:x", "--json", "--engine", engine
        answer = json.loads(CliRunner().invoke(app, asked, catch_exceptions=False).stdout)
        assert answer["log"]["skipped"] == 4
        assert "rows-skipped" in {finding["id"] for finding in answer["findings"]}


def test_an_unreadable_row_stops_it(tmp_path):
    log = tmp_path / "a.csv"
    log.write_bytes(csv_bytes([Row(1, "a")]) + b"soon,c,,,,,,,\n")
    with pytest.raises(LogFormatError, match=r"a\.csv:3: received_at"):
        compacted([log], tmp_path, 100, "name:x")


@pytest.mark.parametrize(("rows_per_file", "path"), [(0, "a.csv"), (1, "-")], ids=["no rows", "standard input"])
def test_what_can_not_be_meant(tmp_path, monkeypatch, rows_per_file, path):
    monkeypatch.chdir(tmp_path)
    Path("a.csv").write_bytes(csv_bytes([Row(1, "a")]))
    with pytest.raises(SettingsError):
        compacted([path], tmp_path, rows_per_file)


def test_a_folder_that_tasks_can_not_see(tmp_path, monkeypatch):
    log, out = tmp_path / "a.csv", tmp_path / "out"
    log.write_bytes(csv_bytes([Row(1, "a")]))
    out.mkdir()

    monkeypatch.setattr(DataFrameWriter, "parquet", lambda *_: None)  # as if tasks wrote to disks of their own
    with pytest.raises(OutputError, match="that every task sees"):
        compacted([log], out)
    assert not any(out.iterdir())


def added(paths, out: Path, rows_per_file: int = 100, key: str = "name:x") -> Manifest:
    return compacted(paths, out, rows_per_file, key, before=manifest_of(out))


@pytest.mark.slow
@given(files(), files(), st.integers(1, 40), st.sampled_from(KEYS))
@cases(6)
def test_a_log_that_grew_reads_back_as_both_logs(old, new, rows_per_file, key):
    latest = max(row.received_at for file in old for row in file.rows)
    new = [
        file._replace(rows=[row._replace(received_at=row.received_at + latest) for row in file.rows]) for file in new
    ]
    with written(old) as first, written(new) as second, new_folder() as folder:
        compacted(first, folder, rows_per_file, key)
        manifest = added(second, folder, rows_per_file, key)
        assert manifest_of(folder) == manifest
        assert by_domain(read(folder, time_unit="us"), key) == by_domain(read(*first, *second, time_unit="us"), key)


def test_receipts_that_come_before_old_ones_are_refused(tmp_path):
    old, new = write(tmp_path, [File("csv", [Row(5, "a"), Row(9, "b")]), File("csv", [Row(8, "c")])])
    out = tmp_path / "out"
    out.mkdir()
    compacted([old], out, 100, "name:x")
    before = sorted(path.read_bytes() for path in out.rglob("*") if path.is_file())
    with pytest.raises(SettingsError, match="come before"):
        added([new], out, 100, "name:x")
    with pytest.raises(SettingsError, match="was made by the domain key"):
        added([new], out, 100, "name:y")
    assert sorted(path.read_bytes() for path in out.rglob("*") if path.is_file()) == before


def test_receipts_that_come_before_those_of_an_earlier_file_are_refused(tmp_path):
    """The newest file of a domain has earlier times if the clock of that domain is behind another's."""
    first, second, third = write(
        tmp_path,
        [
            File("csv", [Row(100, "a", destination="y")]),
            File("csv", [Row(100, "b", destination="x"), Row(50, "c", destination="y")]),
            File("csv", [Row(60, "d", destination="y")]),
        ],
    )
    out = tmp_path / "out"
    out.mkdir()
    compacted([first], out, 100, "destination")
    added([second], out, 100, "destination")
    with pytest.raises(SettingsError, match="new receipts of 'queue://y' come before"):
        added([third], out, 100, "destination")


def test_of_two_that_add_at_once_the_later_is_refused(tmp_path):
    logs = write(tmp_path, [File("csv", [Row(time, str(time))]) for time in (1, 2, 3)])
    out = tmp_path / "out"
    out.mkdir()
    compacted(logs[:1], out, 100, "name:x")

    before = manifest_of(out)
    added(logs[1:2], out)
    there = sorted(out.rglob("*"))
    with pytest.raises(OutputError, match="another run"):
        compacted(logs[2:], out, before=before)
    assert sorted(out.rglob("*")) == there
    assert [row.unique_message_id for row in read(out)] == ["1", "2"]


def test_status_lines_grow(tmp_path):
    log, later = tmp_path / "a.log", tmp_path / "b.log"
    log.write_text(STATUS.format(1, 1) + MESSAGE)
    later.write_text(STATUS.format(2, 2) + MESSAGE.replace("2017", "2018"))
    out = tmp_path / "out"
    out.mkdir()
    compacted([log], out, 100, "destination")
    assert added([later], out, 100, "destination").status_lines == 2
    duplicates = [
        line.values["rDupsDet"] for batch in read_logs([str(out)], ReadOptions()) for line in batch.status_lines
    ]
    assert duplicates == [1, 2]


REMOTE = """
import sys
from fsspec import register_implementation
from fsspec.implementations.dirfs import DirFileSystem

class Viewed(DirFileSystem):
    protocol = "viewfs"

    def __init__(self, **_):
        super().__init__(path={folder!r}, target_protocol="file")

    @classmethod
    def _strip_protocol(cls, path):
        return path.removeprefix("viewfs://x/").rstrip("/")

    def unstrip_protocol(self, name):
        return f"viewfs://x/{{name}}"

register_implementation("viewfs", Viewed)
"""
"""A URL that Hadoop and fsspec both take for a local folder, in the driver and in the workers."""

AT_URL = """
import json, runpy
from spark_jobs import compact_logs
from receiver import cli

def printed(main, *arguments):
    sys.argv = ["command", *arguments]
    status = main()
    assert status == 0, (status, arguments)

def work(spark):
    settings = spark.sparkContext._jsc.hadoopConfiguration()
    settings.set("fs.viewfs.mounttable.x.link./logs", "file://{folder}/logs")
    printed(compact_logs.main, {old!r}, {out!r}, "--domain", "destination", "--time-unit", "us", "--rows-per-file", "3")
    printed(compact_logs.main, {new!r}, {out!r}, "--append", "--domain", "destination", "--time-unit", "us")
    for engine in ("local", "spark"):
        printed(cli.run, "simulate", {out!r}, "--domain", "destination", "--engine", engine, "--json")
"""


@pytest.mark.slow
def test_a_log_at_a_url_grows_and_is_read_in_its_order_on_both_engines(tmp_path):
    """The clock steps back from file to file. Their times alone would merge them wrongly."""
    times = [5, 9, 2, 3, 9, 1, 1, 8, 20]
    rows = [Row(time, f"{index % 4}", destination="q") for index, time in enumerate(times)]
    old, new = write(tmp_path, [File("csv", rows[:-1]), File("csv", rows[-1:])])
    (tmp_path / "logs").mkdir()
    (tmp_path / "sitecustomize.py").write_text(REMOTE.format(folder=str(tmp_path)))
    program = AT_URL.format(folder=tmp_path, old=old, new=new, out="viewfs://x/logs/out")
    ran = run_program(program, PYTHONPATH=f"{tmp_path}:{Path(__file__).parents[2]}")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    reported, grown, *figures = ran.stdout.splitlines(keepends=True)
    assert reported.startswith("8 receipts of 1 domain in ")
    assert reported.endswith(" files: viewfs://x/logs/out\n")
    assert grown.startswith("9 receipts of 1 domain in ")
    assert read(tmp_path / "logs" / "out") == rows
    half = len(figures) // 2
    assert figures[:half] == figures[half:]
