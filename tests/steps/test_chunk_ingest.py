"""Pieces have the same values as the log's readers give, and errors have the same words."""

import os
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cut_logs import US, Cutting, File, cuttings, files, read_units, written
from hypothesis import given
from hypothesis import strategies as st

from receiver.domains import Channel, domain_key
from receiver.errors import LogFormatError
from receiver.logs import ReadOptions, read_logs
from receiver.logs.files import find_files
from receiver.simulate.ingest import ingest as ingest_whole
from receiver.steps.log import reports_of
from receiver.steps.read import status_lines_of, units_of
from receiver.steps.schemas import Piece, UnitReport, channel_column, channels_of
from tests.choosing import cases
from tests.logs.reading import Row, csv_bytes, parquet_bytes, read


def pieces_of(flow) -> list[Piece]:
    pieces = [row.value for row in flow.only(Piece).rows]
    return sorted(pieces, key=lambda piece: (piece.unit, piece.first_row))


def reports_by_unit(flow) -> list[UnitReport]:
    reports = [row.value for row in flow.only(UnitReport).rows]
    return sorted(reports, key=lambda report: report.unit)


def rows_of(piece: Piece) -> list[Row]:
    columns = zip(
        piece.received_at_us.tolist(),
        piece.unique_message_id.to_pylist(),
        piece.source.tolist(),
        channel_column(piece).tolist(),
        np.isin(np.arange(len(piece.source)), piece.redelivered_row).tolist(),
        strict=True,
    )
    channels = channels_of(piece)
    return [Row(time, id_, piece.sources[source], *channels[way], flag) for time, id_, source, way, flag in columns]


@given(files(), cuttings)
@cases(100)
def test_pieces_hold_the_rows_of_the_files(log, cutting):
    with written(log) as paths:
        units, flow = read_units(paths, cutting)
    pieces = pieces_of(flow)
    for at, file in enumerate(log):
        here = [piece for piece in pieces if units[piece.unit].file == at]
        expected = [row._replace(jms_timestamp=0, body_digest="") for row in file.rows]
        assert [row for piece in here for row in rows_of(piece)] == expected
        digests = [bool(digest) for piece in here for digest in piece.digest_hash.tolist()]
        assert digests == [bool(row.body_digest) for row in file.rows]
    for unit in units:
        count, latest_us = 0, -1
        for piece in (piece for piece in pieces if piece.unit == unit.number):
            assert (piece.first_row, piece.latest_us) == (count, latest_us)
            count += len(piece.received_at_us)
            latest_us = max(latest_us, piece.received_at_us.max())


@given(files(), cuttings)
@cases(100)
def test_reports_count_what_the_whole_log_counts(log, cutting):
    with written(log) as paths:
        units, flow = read_units(paths, cutting)
        reports = reports_of(flow.only(UnitReport).collect("reports"), units, domain_key("default"))
        whole = ingest_whole(read_logs(paths, US), domain_key("default"))
    rows = [row for file in log for row in file.rows]
    assert sum(report.receipts for report in reports) == len(rows)
    assert sum(report.unchecked for report in reports) == sum(not row.unique_message_id for row in rows)
    assert sum(report.redelivered for report in reports) == sum(row.jms_redelivered for row in rows)
    assert max(report.max_delivery_us for report in reports) == whole.max_delivery_us
    assert min(report.first_us for report in reports if report.receipts) == min(row.received_at for row in rows)
    assert max(report.last_us for report in reports) == max(row.received_at for row in rows)
    channels = Counter()
    for report in reports:
        channels.update(dict(zip(channels_of(report), report.receipts_by_channel.tolist(), strict=True)))
    assert channels == Counter((row.connection_id, row.destination, row.receiver_id) for row in rows)


@given(files(), cuttings)
@cases(50)
def test_samples_are_every_so_many_receipts_of_a_channel(log, cutting):
    with written(log) as paths:
        _, flow = read_units(paths, cutting)
    for report in reports_by_unit(flow):
        seen, latest_us, expected = Counter(), -1, set()
        rows = [row for piece in pieces_of(flow) if piece.unit == report.unit for row in rows_of(piece)]
        ways = channels_of(report)
        for at, row in enumerate(rows):
            channel = ways.index((row.connection_id, row.destination, row.receiver_id))
            latest_us = max(latest_us, row.received_at)
            if seen[channel] % cutting.sample_rows == 0:
                expected.add((channel, latest_us, at))
            seen[channel] += 1
        samples = zip(
            report.samples_channel.tolist(), report.samples_latest_us.tolist(), report.samples_row.tolist(), strict=True
        )
        assert set(samples) == expected


def told_apart(path, on_error="stop", key="default", **options) -> LogFormatError:
    """The error of a log that is read in pieces. It must be that of the log read whole."""
    how = ReadOptions(on_error=on_error, **options)
    with pytest.raises(LogFormatError) as whole:
        ingest_whole(read_logs([str(path)], how), domain_key(key))
    units, flow = read_units([str(path)], Cutting(), how)
    with pytest.raises(LogFormatError) as cut:
        reports_of(reports_by_unit(flow), units, domain_key(key))
    assert str(cut.value) == str(whole.value)
    assert (cut.value.location, cut.value.hint) == (whole.value.location, whole.value.hint)
    return cut.value


def write_groups(path: Path, rows_per_group: int = 2, **columns) -> Path:
    pq.write_table(pa.table(columns), path, row_group_size=rows_per_group)
    return path


def test_a_row_that_cannot_be_read_is_named_by_its_line_in_the_file(tmp_path):
    ids = pa.array([b"a", b"b", b"c", b"d", b"\xff"], pa.binary())
    log = write_groups(tmp_path / "log.parquet", received_at=[1, 2, 3, 4, 5], unique_message_id=ids)
    assert told_apart(log).location == f"{log}:5"


def test_times_in_two_units_are_seen_over_the_units_of_a_file(tmp_path):
    times = [1_700_000_000, 1_700_000_001, 1_700_000_002_000, 1_700_000_003_000]
    log = write_groups(tmp_path / "log.parquet", received_at=times, unique_message_id=["a", "b", "c", "d"])
    error = told_apart(log)
    assert error.location == str(log)
    assert "line 1 is in s, line 3 in ms" in error.problem


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "the file is empty"),
        (b"received_at,unique_message_id\n1,a\nsoon,b\n2,c\n", "not a time"),
        (b"received_at,id\n1,a\n", "no column unique_message_id"),
        (b"received_at,unique_message_id\n", "no receipt in the log"),
        (b"received_at,unique_message_id\n1,a\n", "no column connection_id"),
        (b"PAR1 and nothing more", "can't be read as Parquet"),
        (b"\x1f\x8b broken", "broken gzip data"),
    ],
)
def test_errors_are_those_of_a_log_read_whole(tmp_path, content, problem):
    log = tmp_path / "log"
    log.write_bytes(content)
    assert problem in told_apart(log).problem


def test_a_log_whose_rows_are_all_skipped(tmp_path):
    log = tmp_path / "log.csv"
    log.write_bytes(b"received_at,unique_message_id\nsoon,a\n")
    assert "none of its rows can be read" in told_apart(log, on_error="skip").hint


def test_a_unit_with_an_unreadable_row_gives_what_came_before_and_says_so(tmp_path):
    log = tmp_path / "log.csv"
    log.write_bytes(csv_bytes([Row(number, "a") for number in range(9)]) + b"soon,a\n")
    units, flow = read_units([str(log)], Cutting(piece_rows=1))
    (report,) = reports_by_unit(flow)
    with pytest.raises(LogFormatError, match=r"log\.csv:11: "):
        reports_of([report], units, domain_key("name:all"))
    assert report.receipts == sum(len(piece.received_at_us) for piece in pieces_of(flow)) > 0


def test_skipped_rows_are_counted_and_are_no_receipts(tmp_path):
    times = ["1", "soon", "2", "", "3"]
    log = write_groups(tmp_path / "log.parquet", received_at=times, unique_message_id=list("abcde"))
    units, flow = read_units([str(log)], Cutting(), ReadOptions(on_error="skip"))
    reports = reports_of(reports_by_unit(flow), units, domain_key("name:all"))
    assert sum(report.skipped for report in reports) == 2
    assert [piece.first_row for piece in pieces_of(flow)] == [0, 0, 0]
    assert [id_ for piece in pieces_of(flow) for id_ in piece.unique_message_id.to_pylist()] == ["a", "c", "e"]


def test_mapped_fields_and_missing_columns(tmp_path):
    log = write_groups(tmp_path / "log.parquet", received_at=[1, 2, 3], order=["a", "b", "c"])
    options = ReadOptions(column_map={"uniqueMessageId": "order"})
    _, flow = read_units([str(log)], Cutting(), options)
    for piece in pieces_of(flow):
        assert piece.sources == [""]
        assert channels_of(piece) == [Channel()]
        assert not len(piece.redelivered_row)
        assert not len(piece.digest_hash)
    assert not any(report.columns_present for report in reports_by_unit(flow))


def test_status_lines_travel(tmp_path):
    log = tmp_path / "correlator.log"
    log.write_text(
        "2017-03-05 15:56:24.484 INFO  [19636:Status] - JMS Status: s=1 r=1 rx=6,182 rRedel=3 rDupsDet=0\n"
        "2017-03-05 15:56:25.000 INFO  [1:JMSReceiver:r] - 'r' has received JMS message: Property.uniqueMessageId=a\n"
    )
    _, flow = read_units([str(log)], Cutting())
    (report,) = reports_by_unit(flow)
    (line,) = status_lines_of([report])
    assert line.logged_at_us == 1488729384484000
    assert line.values["rRedel"] == 3


@given(st.lists(st.integers(1, 9), min_size=1, max_size=9), st.integers(1, 20))
@cases(50)
def test_units_are_runs_of_row_groups(sizes, rows_per_unit):
    rows = [Row(number, f"{number}") for number in range(sum(sizes))]
    with written([File("parquet", rows)]) as (path,):
        table = pq.read_table(path, use_threads=False)
        with pq.ParquetWriter(path, table.schema) as writer:
            for group, size in enumerate(sizes):
                writer.write_table(table.slice(sum(sizes[:group]), size))
        units, flow = read_units([path], Cutting(rows_per_unit=rows_per_unit))
    assert sum(report.receipts for report in reports_by_unit(flow)) == len(rows)
    assert [row.unique_message_id for piece in pieces_of(flow) for row in rows_of(piece)] == [
        row.unique_message_id for row in rows
    ]
    if len(units) > 1:
        assert sum(unit.groups for unit in units) == len(sizes)
        for unit in units:
            assert unit.first_row == sum(sizes[: unit.first_group])
            assert sum(sizes[unit.first_group : unit.first_group + unit.groups - 1]) < rows_per_unit


def test_what_is_no_plain_parquet_is_one_unit(tmp_path):
    rows = [Row(number, f"{number}") for number in range(20)]
    (tmp_path / "a.csv").write_bytes(csv_bytes(rows))
    pq.write_table(
        pq.read_table(pa.BufferReader(parquet_bytes(rows)), use_threads=False), tmp_path / "b", row_group_size=5
    )
    (tmp_path / "broken.parquet").write_bytes(b"PAR1")
    units = units_of(find_files([str(tmp_path)]), rows_per_unit=5)
    assert [(unit.number, unit.file, unit.first_group, unit.groups, unit.first_row) for unit in units] == [
        (0, 0, 0, 0, 0),
        *((1 + group, 1, group, 1, 5 * group) for group in range(4)),
        (5, 2, 0, 0, 0),
    ]


def test_paths_need_not_be_text(tmp_path, monkeypatch):
    """Tasks may run in another folder."""
    monkeypatch.chdir(tmp_path)
    log = os.fsdecode(b"caf\xe9.csv")
    Path(log).write_bytes(csv_bytes([Row(1, "a")]))
    units = units_of(find_files([log]), rows_per_unit=1)
    assert os.fsdecode(units[0].path) == str(tmp_path / log)
    _, flow = read_units([log], Cutting())
    assert sum(report.receipts for report in reports_by_unit(flow)) == len(read(log)) == 1
