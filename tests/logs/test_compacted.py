"""Compacted logs as folders: their names, their order, and errors of a folder that was touched."""

import json
import unicodedata
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from receiver.cli import app
from receiver.errors import LogFormatError, OutputError
from receiver.logs import StatusLine
from receiver.logs.compacted import (
    BAD_ROWS,
    MANIFEST,
    manifest_of,
    part_path,
    status_lines_text,
)
from receiver.logs.files import find_files
from receiver.logs.writer import UNFINISHED
from tests.logs.reading import DAY, Row, compacted_log, opened, parquet_bytes, read, refusal

HOSTILE = [
    "",
    ".",
    "..",
    "a/b",
    "../../etc",
    "a\0b",
    "\n",
    "a b",
    "A",
    "a",
    "caf\u00e9",
    "cafe\u0301",
    "%2F",
    "/",
    "x" * 65_536,
    "x" * 65_537,
    "+",
    "=",
    "domain=x",
]
STEPPED_BACK = [[Row(5, "a"), Row(9, "b")], [Row(2, "c"), Row(3, "d")], [Row(9, "e")]]
"""The rows of one domain's three files. The clock stepped back between the first two."""


def ids(rows) -> list[str]:
    return [row.unique_message_id for row in rows]


def test_names_of_folders_are_short_plain_and_different():
    paths = [part_path(domain, DAY, 0) for domain in HOSTILE]
    assert len(set(paths)) == len(paths)
    for path in paths:
        domain, day, _ = path.parts
        assert domain.startswith("domain=")
        assert day == "day=2026-11-21"
        assert len(domain) < 255
        assert domain.isascii()
        assert domain.isprintable()


@given(st.sets(st.text(max_size=300), min_size=2))
def test_no_two_domains_share_a_folder(domains):
    assert len({part_path(domain, DAY, 0).parent for domain in domains}) == len(domains)
    assert all(
        unicodedata.normalize("NFKC", str(path)) == str(path) for path in (part_path(each, DAY, 0) for each in domains)
    )


def test_files_of_a_domain_are_one_log(tmp_path):
    folder = compacted_log(tmp_path, STEPPED_BACK, [[Row(4, "x"), Row(7, "y")]])
    assert [file.follows for file in find_files([str(folder)])] == [False, True, True, False]
    assert ids(read(folder, time_unit="us")) == ["x", "a", "y", "b", "c", "d", "e"]


def test_a_manifest_of_an_earlier_version_may_say_more(tmp_path):
    folder = compacted_log(tmp_path, STEPPED_BACK)
    index = folder / MANIFEST
    index.write_text(json.dumps(json.loads(index.read_text()) | {"splits_a_queue": False}))
    assert ids(read(folder, time_unit="us")) == ["a", "b", "c", "d", "e"]


@pytest.mark.parametrize("command", ["simulate", "compare"])
@pytest.mark.parametrize(
    ("key", "domains", "noted"), [("name:x", 2, True), ("name:x", 1, False), ("default", 2, False)]
)
def test_another_key_is_noted(tmp_path, command, key, domains, noted):
    log = str(compacted_log(tmp_path / "log", *[STEPPED_BACK] * domains))
    (tmp_path / "other.csv").write_text("received_at,unique_message_id,connection_id,destination\n1,a,c,d\n")
    ran = CliRunner().invoke(app, [command, log, str(tmp_path / "other.csv"), "--domain", key])
    assert ran.exit_code == 0
    assert ("note: a log was compacted by --domain default: " in ran.stderr) is noted


def test_one_domain_alone(tmp_path):
    assert ids(read(compacted_log(tmp_path, STEPPED_BACK), time_unit="us")) == ["a", "b", "c", "d", "e"]


def test_files_taken_one_by_one_are_logs_of_their_own(tmp_path):
    """So the manifest is needed: times alone would put rows of the second file first."""
    folder = compacted_log(tmp_path, STEPPED_BACK)
    assert ids(read(*sorted(folder.glob("*/*/*.parquet")), time_unit="us")) == ["c", "d", "a", "b", "e"]


def test_beside_other_logs(tmp_path):
    other = tmp_path / "other.parquet"
    other.write_bytes(parquet_bytes([Row(1, "first"), Row(9, "last")]))
    folder = compacted_log(tmp_path / "log", STEPPED_BACK)
    assert ids(read(folder, other, time_unit="us")) == ["first", "a", "b", "c", "d", "e", "last"]


def test_status_lines_come_along(tmp_path):
    lines = [
        StatusLine(1_000_000, {"rDupIds": 6182.0}),
        StatusLine(0, {"rMaxDeliverySecs": 0.1, "far": float("inf")}),
        StatusLine(5, {}),
    ]
    folder = compacted_log(tmp_path, STEPPED_BACK, status_lines=3)
    (folder / "_status_lines.jsonl").write_bytes(status_lines_text(lines))
    batches = list(opened(folder, time_unit="us"))
    assert [line for batch in batches for line in batch.status_lines] == [
        lines[0],
        StatusLine(0, {"rMaxDeliverySecs": 0.1}),
        lines[2],
    ]
    assert sum(len(batch) for batch in batches) == 5


def test_an_append_that_fails_notes_no_bad_rows(tmp_path):
    """First no bad rows can be read any more. Then the manifest can't be written, because a folder has its name."""
    folder = compacted_log(tmp_path / "out", [[Row(1, "a")]], bad_rows=[b"first\n"])
    append = partial(compacted_log, folder, [[Row(2, "b")]], before=manifest_of(folder))
    files = sorted(folder.rglob("*"))
    with pytest.raises(ZeroDivisionError):
        append(bad_rows=(b"second\n" * (1 // number) for number in (1, 0)))
    in_the_way = folder / f"{UNFINISHED}{MANIFEST}"
    in_the_way.mkdir()
    with pytest.raises(OutputError, match="directory"):
        append(bad_rows=[b"second\n"])
    in_the_way.rmdir()
    assert sorted(folder.rglob("*")) == files
    append(bad_rows=[b"second\n"])
    assert (folder / BAD_ROWS).read_text() == "first\nsecond\n"
    assert ids(read(folder)) == ["a", "b"]


def test_a_missing_file(tmp_path):
    folder = compacted_log(tmp_path, STEPPED_BACK)
    gone = next(folder.glob("*/*/*1.parquet"))
    gone.unlink()
    error = refusal(folder)
    assert error.location == str(gone)
    assert "missing" in error.problem
    assert error.hint is not None


def naming(path: str, rows: int = 1, latest_us: int = 0) -> list:
    return [{"domain": "", "files": [{"path": path, "rows": rows, "latest_us": latest_us}]}]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"version": 2}, "version 2, expected 1"),
        ({"domains": {}}, "array"),
        ({"domains": [{"domain": 1, "files": []}]}, "str"),
        ({"domains": naming("../x")}, "elsewhere"),
        ({"domains": naming("/x")}, "elsewhere"),
        ({"domains": naming("a\0")}, "elsewhere"),
        ({"domains": naming("x", rows=0)}, ">= 1"),
        ({"domains": naming("x", rows=10**30)}, "int"),
        ({"domains": naming("x", latest_us=2**63)}, "int"),
        ({"domains": []}, "names no files"),
        ({"status_lines": 1}, "missing"),
    ],
)
def test_a_manifest_that_was_changed(tmp_path, change, problem):
    folder = compacted_log(tmp_path, STEPPED_BACK)
    index = folder / "_receiver_log.json"
    index.write_text(json.dumps(json.loads(index.read_text()) | change))
    error = refusal(folder)
    assert problem in error.problem
    assert error.hint is not None


@pytest.mark.parametrize(
    "content", [b"", b"{", b"{}", b"[]", b"\xff", b'{"version": 1}', b'{"version": 1, "domain_key": "\xff"}']
)
def test_a_manifest_that_is_none(tmp_path, content):
    folder = compacted_log(tmp_path, STEPPED_BACK)
    (folder / "_receiver_log.json").write_bytes(content)
    error = refusal(folder)
    assert error.location == str(folder / "_receiver_log.json")
    assert error.hint is not None


def test_broken_status_lines(tmp_path):
    folder = compacted_log(tmp_path, STEPPED_BACK, status_lines=1)
    (folder / "_status_lines.jsonl").write_bytes(b'{"jms_status_at_us":1}\n')
    with pytest.raises(LogFormatError, match="no status lines"):
        read(folder)


def test_a_part_cut_short(tmp_path):
    folder = compacted_log(tmp_path, STEPPED_BACK)
    part = next(folder.glob("*/*/*1.parquet"))
    part.write_bytes(part.read_bytes()[:-20])
    assert "can't be read as Parquet" in refusal(folder).problem


def test_folders_without_a_manifest_are_not_read_file_by_file(tmp_path):
    folder = compacted_log(tmp_path, STEPPED_BACK)
    (folder / "_receiver_log.json").unlink()
    assert "without its manifest" in refusal(folder).problem
    assert "name the folder of the whole log" in refusal(next(folder.glob("domain=*"))).hint


def test_skipped_rows_are_told_to_whoever_asks(tmp_path):
    log = tmp_path / "log.csv"
    log.write_bytes(
        b"received_at,unique_message_id,jms_redelivered\n1,a,\nnever,b,\n3,c,x,\n4,d,perhaps\n5,\xff,\n6,e,\n"
    )
    reported = []
    rows = read(log, on_error="skip", on_skipped=lambda *row: reported.append(row))
    assert ids(rows) == ["a", "e"]
    assert [(name, line) for name, line, _ in reported] == [(str(log), 3), (str(log), 4), (str(log), 5), (str(log), 6)]
    assert "never" in reported[0][2]
    assert "4 fields" in reported[1][2]
    assert "perhaps" in reported[2][2]
    assert "UTF-8" in reported[3][2]
