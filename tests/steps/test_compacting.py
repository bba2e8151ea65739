"""A compacted log reads back as the log it was made of, however it was cut on the way."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from cut_logs import US, Cutting, File, cuttings, files, in_order, read_units, small_pieces, write, written
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_flow import PlainFlow

from receiver.domains import Channel, domain_key
from receiver.errors import LogFormatError, OutputError, SettingsError
from receiver.logs import ReadOptions, checked_options, read_logs
from receiver.logs.compacted import Manifest, manifest_of
from receiver.logs.files import find_files
from receiver.steps.compacting import _cuts, compact
from receiver.steps.read import reports_of, units_of
from receiver.steps.schemas import UnitReport
from tests.logs.reading import Row, csv_bytes, read

KEYS = ["default", "destination", "connection", "receiver", "name:all"]
DAY_US = 86_400_000_000


def compacted(paths, folder: Path, cutting: Cutting, key: str = "default", options: ReadOptions = US) -> Manifest:
    with small_pieces(cutting.piece_rows):
        return compact(
            find_files([str(path) for path in paths]),
            checked_options(options),
            domain_key(key),
            folder,
            start=lambda rows, _tasks: PlainFlow(rows, seed=cutting.seed),
            rows_per_file=cutting.chunk_rows,
            sample_rows=cutting.sample_rows,
        )


@contextmanager
def new_folder():
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def by_domain(rows, key: str) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        channel = Channel(row.connection_id, row.destination, row.receiver_id)
        found.setdefault(domain_key(key).name(channel), []).append(row)
    return found


def on_days(log: list[File], day_us: int) -> list[File]:
    """The same log, with some days between its times."""
    return [
        file._replace(rows=[row._replace(received_at=row.received_at * day_us) for row in file.rows]) for file in log
    ]


@given(files(), cuttings, st.sampled_from(KEYS), st.sampled_from([1, DAY_US // 5]))
@settings(max_examples=60)
def test_each_domain_reads_back_in_order(log, cutting, key, day_us):
    log = on_days(log, day_us)
    with written(log) as paths, new_folder() as folder:
        manifest = compacted(paths, folder, cutting, key)
        again = read(folder)
        groups = [
            (part.rows, pq.read_metadata(folder / part.path).num_rows)
            for each in manifest.domains
            for part in each.files
        ]
        units = units_of(find_files([str(folder)]), rows_per_unit=1)
    whole = [log[place].rows[row] for place, row in in_order(log)]
    assert by_domain(again, key) == by_domain(whole, key)
    assert [each.domain for each in manifest.domains] == sorted(by_domain(whole, key))
    assert all(rows == found <= cutting.chunk_rows for rows, found in groups)
    assert manifest.receipts == sum(rows for rows, _ in groups) == len(whole)
    assert [unit.file for unit in units] == sorted(unit.file for unit in units)
    assert len({unit.file for unit in units}) == len(manifest.domains)


@given(files(), cuttings)
@settings(max_examples=20)
def test_tasks_see_the_order_that_one_process_sees(log, cutting):
    """The order of chunks is told by (key, unit, row): of files that follow each other, as of one file."""
    with written(log) as paths, new_folder() as folder:
        compacted(paths, folder, cutting, "connection")
        units, flow = read_units([str(folder)], cutting, ReadOptions())
        reports = reports_of([row.value for row in flow.only(UnitReport).rows], units, domain_key("connection"))
        once_more = folder / "again"
        once_more.mkdir()
        compacted([folder], once_more, cutting, "connection", ReadOptions())
        assert by_domain(read(once_more), "connection") == by_domain(read(folder), "connection")
    assert sum(report.receipts for report in reports) == sum(len(file.rows) for file in log)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=40), st.integers(1, 9))
def test_a_file_holds_rows_of_one_chunk_and_day(places, most):
    places.sort()
    chunk, day = (np.array(column) for column in zip(*places, strict=True))
    cuts = list(_cuts(chunk, day, most))
    assert [row for first, last in cuts for row in range(first, last)] == list(range(len(places)))
    for first, last in cuts:
        assert 1 <= last - first <= most
        assert len(set(places[first:last])) == 1
    per_place = [[last - first for first, last in cuts if places[first] == place] for place in set(places)]
    assert all(max(sizes) - min(sizes) <= 1 for sizes in per_place)


def test_the_day_is_that_of_the_running_maximum(tmp_path):
    """So days ascend with the order, even where the clock steps back over midnight."""
    times = [DAY_US - 1, DAY_US + 1, DAY_US - 1, DAY_US + 2]
    paths = write(tmp_path, [File("csv", [Row(time, str(place), destination="q") for place, time in enumerate(times)])])
    out = tmp_path / "out"
    out.mkdir()
    manifest = compacted(paths, out, Cutting(chunk_rows=100), "destination")
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
    manifest = compacted([tmp_path / "a.csv", tmp_path / "b.csv"], out, Cutting(chunk_rows=100), "name:x")
    assert manifest.columns == ["received_at", "unique_message_id", "message_source_id", "jms_timestamp"]
    (part,) = manifest.domains[0].files
    assert pq.read_schema(out / part.path).names == manifest.columns
    assert read(out) == [Row(1, "a"), Row(2, "b", "s")]


class Retried(PlainFlow):
    """Each task fails at its end, and is tried again."""

    def _with(self, rows, *kinds):
        return Retried(super()._with(rows, *kinds).rows)

    def map(self, work, *kinds):
        def twice(rows):
            rows = list(rows)
            list(work(iter(rows)))
            return work(iter(rows))

        return super().map(twice, *kinds)

    def each_key(self, work, *kinds):
        def twice(key, rows):
            rows = list(rows)
            list(work(key, iter(rows)))
            return work(key, iter(rows))

        return super().each_key(twice, *kinds)


def test_tasks_that_are_tried_again_leave_nothing_behind(tmp_path):
    rows = [Row(time, str(time), destination=f"q{time % 3}") for time in range(20)]
    (log,) = write(tmp_path, [File("csv", rows)])
    out = tmp_path / "out"
    out.mkdir()
    options = checked_options(ReadOptions(time_unit="us", on_error="skip"))
    manifest = compact(
        find_files([log]),
        options,
        domain_key("destination"),
        out,
        start=lambda rows, _: Retried(rows),
        rows_per_file=4,
    )
    parts = [part.path for domain in manifest.domains for part in domain.files]
    there = [str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()]
    assert sorted(there) == sorted([*parts, "_bad_rows.jsonl", "_receiver_log.json"])
    assert sorted(row.received_at for row in read(out)) == list(range(20))


KILLED = """
import os, signal, sys
from pathlib import Path
from plain_flow import PlainFlow
from receiver.steps.compacting import compact
from receiver.domains import domain_key
from receiver.logs import ReadOptions
from receiver.logs.files import find_files
from receiver.logs.output import appearing

with appearing(sys.argv[2]) as folder:
    Path.rename = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
    compact(
        find_files([sys.argv[1]]), ReadOptions(), domain_key("name:x"), folder, start=lambda rows, _: PlainFlow(rows)
    )
"""


def test_a_kill_leaves_no_half_log(tmp_path):
    (log,) = write(tmp_path, [File("csv", [Row(1, "a")])])
    out = tmp_path / "out"
    script = [sys.executable, "-c", KILLED, log, str(out)]
    here = str(Path(__file__).parent)
    killed = subprocess.run(script, env={**os.environ, "PYTHONPATH": here}, check=False, capture_output=True)
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
    manifest = compacted([log], out, Cutting(chunk_rows=100), "destination", ReadOptions(time_zone="Europe/Paris"))
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
    manifest = compacted([first, second], out, Cutting(chunk_rows=100), "name:x", options)
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


def test_an_unreadable_row_stops_it(tmp_path):
    log = tmp_path / "a.csv"
    log.write_bytes(csv_bytes([Row(1, "a")]) + b"soon,c,,,,,,,\n")
    with pytest.raises(LogFormatError, match=r"a\.csv:3: received_at"):
        compacted([log], tmp_path, Cutting(chunk_rows=100), "name:x")


@pytest.mark.parametrize(
    ("rows_per_file", "key", "path"),
    [(0, "name:x", "a.csv"), (1, "name:\udcff", "a.csv"), (1, "name:x", "-")],
    ids=["no rows", "no text", "standard input"],
)
def test_what_can_not_be_meant(tmp_path, monkeypatch, rows_per_file, key, path):
    monkeypatch.chdir(tmp_path)
    Path("a.csv").write_bytes(csv_bytes([Row(1, "a")]))
    with pytest.raises(SettingsError):
        compacted([path], tmp_path, Cutting(chunk_rows=rows_per_file), key)


def test_a_folder_that_tasks_can_not_see(tmp_path):
    log, out = tmp_path / "a.csv", tmp_path / "out"
    log.write_bytes(csv_bytes([Row(1, "a")]))
    out.mkdir()

    def start_elsewhere(rows, _tasks):
        next(out.glob(".attempts-*")).rmdir()
        return PlainFlow(rows)

    with pytest.raises(OutputError, match="that every task sees"):
        compact(find_files([str(log)]), US, domain_key("name:x"), out, start=start_elsewhere)


def added(paths, out: Path, cutting: Cutting, key: str, options: ReadOptions = US) -> Manifest:
    with small_pieces(cutting.piece_rows):
        return compact(
            find_files([str(path) for path in paths]),
            checked_options(options),
            domain_key(key),
            out,
            start=lambda rows, _tasks: PlainFlow(rows, seed=cutting.seed),
            before=manifest_of(out),
            rows_per_file=cutting.chunk_rows,
            sample_rows=cutting.sample_rows,
        )


@given(files(), files(), cuttings, st.sampled_from(KEYS))
@settings(max_examples=30)
def test_a_log_that_grew_reads_back_as_both_logs(old, new, cutting, key):
    latest = max(row.received_at for file in old for row in file.rows)
    new = [
        file._replace(rows=[row._replace(received_at=row.received_at + latest) for row in file.rows]) for file in new
    ]
    with written(old) as first, written(new) as second, new_folder() as folder:
        compacted(first, folder, cutting, key)
        manifest = added(second, folder, cutting, key)
        assert manifest_of(folder) == manifest
        assert by_domain(read(folder, time_unit="us"), key) == by_domain(read(*first, *second, time_unit="us"), key)


def test_receipts_that_come_before_old_ones_are_refused(tmp_path):
    old, new = write(tmp_path, [File("csv", [Row(5, "a"), Row(9, "b")]), File("csv", [Row(8, "c")])])
    out = tmp_path / "out"
    out.mkdir()
    compacted([old], out, Cutting(chunk_rows=100), "name:x")
    before = sorted(path.read_bytes() for path in out.rglob("*") if path.is_file())
    with pytest.raises(SettingsError, match="come before"):
        added([new], out, Cutting(chunk_rows=100), "name:x")
    with pytest.raises(SettingsError, match="was made by the domain key"):
        added([new], out, Cutting(chunk_rows=100), "name:y")
    assert sorted(path.read_bytes() for path in out.rglob("*") if path.is_file()) == before


def test_of_two_that_add_at_once_the_later_is_refused(tmp_path):
    logs = write(tmp_path, [File("csv", [Row(time, str(time))]) for time in (1, 2, 3)])
    out = tmp_path / "out"
    out.mkdir()
    compacted(logs[:1], out, Cutting(chunk_rows=100), "name:x")

    def start_late(rows, _tasks):
        added(logs[1:2], out, Cutting(chunk_rows=100), "name:x")
        return PlainFlow(rows)

    before = manifest_of(out)
    with pytest.raises(OutputError, match="another run"):
        compact(find_files(logs[2:]), US, domain_key("name:x"), out, start=start_late, before=before)
    assert [row.unique_message_id for row in read(out)] == ["1", "2"]


def test_status_lines_grow(tmp_path):
    log, later = tmp_path / "a.log", tmp_path / "b.log"
    log.write_text(STATUS.format(1, 1) + MESSAGE)
    later.write_text(STATUS.format(2, 2) + MESSAGE.replace("2017", "2018"))
    out = tmp_path / "out"
    out.mkdir()
    compacted([log], out, Cutting(chunk_rows=100), "destination")
    assert added([later], out, Cutting(chunk_rows=100), "destination").status_lines == 2
    found = [line.values["rDupsDet"] for batch in read_logs([str(out)], ReadOptions()) for line in batch.status_lines]
    assert found == [1, 2]
