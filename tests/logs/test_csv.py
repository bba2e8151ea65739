"""CSV: both ways of reading give the same rows, hostile text comes through, and each refusal names its physical
line."""

import csv
import io
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from reading import Row, csv_bytes, read, read_skipping, refusal

from receiver.errors import LogFormatError
from receiver.logs import LogSource, ReadOptions, csv_log
from receiver.logs.source import Block

HEADER = b"received_at,unique_message_id,note\n"
HOSTILE = [
    "NaN", "null", "None", "007", "1.0", " padded ", "\ttab\t", "line\nbreak", "return\r\nbreak", "lone\rreturn",
    "nul\0nul", "\0", "caf\u00e9", "cafe\u0301", "=1+1", "@SUM(A1)", "<script>alert(1)</script>", 'quo"te', '"', '""',
    "a,b", "\ufeff", "\u2028", "\U0001f600", "x" * 65_536, "\x1a", "\x85", "'", "\\", "\\n", "-", "true", "#",
]  # fmt: skip


def source_of(data, cuts=()):
    borders = [0, *sorted(cuts), len(data)]
    pieces = [data[start:stop] for start, stop in pairwise(borders) if start < stop]
    return LogSource("log", iter(pieces))


def outcome(data, on_error, *, exact=False, cuts=()):
    """The rows and how many were skipped; or the error."""
    plain = csv_log._is_plain
    if exact:
        csv_log._is_plain = lambda _data: False
    try:
        batches = list(csv_log.read_csv(source_of(data, cuts), ReadOptions(on_error=on_error)))
    except LogFormatError as error:
        return str(error)
    finally:
        csv_log._is_plain = plain
    rows = [
        pair
        for batch in batches
        for pair in zip(batch.received_at_us.tolist(), batch.unique_message_id.tolist(), strict=True)
    ]
    return rows, sum(batch.skipped for batch in batches)


scraps = st.sampled_from(
    [b"1", b"2", b",", b",", b"\n", b"\n", b"\r\n", b"\r", b'"', b'""', b'"a"', b"a", b" ", b"\0", b"\xff", b"\xc3\xa9"]
)
plain_rows = st.tuples(
    st.sampled_from([b"1", b"2", b'"3"', b"x", b""]),
    st.sampled_from([b"a", b'"b"', b'""', b"", b'"c,d"', b'"e""f"', b'g"h', b'"i\nj"', b'"k"l', b"\xe9", b" m "]),
    st.sampled_from([b"", b"n", b'"o"', b"\xe9", b'"p']),
    st.sampled_from([b"\n", b"\n", b"\r\n", b"\n\n", b"\r", b",extra\n"]),
).map(lambda parts: b",".join(parts[:3]) + parts[3])
logs = st.one_of(st.lists(scraps, max_size=40), st.lists(plain_rows, max_size=8)).map(b"".join)


@given(logs, st.sampled_from(["stop", "skip"]), st.sets(st.integers(0, 60)))
@example(b'1,"a\nb",c\n1,b,c\n', "stop", set())
@example(b'1,"a,b\n1,b,c\n1,c,d\n', "skip", set())
@example(b'1,a,b\n1,"b"x,c\n\n1,c\n', "skip", {3})
def test_both_ways_and_all_cuts_give_the_same(log, on_error, cuts):
    data = HEADER + log
    assert outcome(data, on_error, cuts=cuts) == outcome(data, on_error, exact=True)


@given(st.lists(st.tuples(st.integers(0, 10**6), st.text(), st.text()), min_size=1), st.sets(st.integers(0, 200)))
def test_what_a_csv_writer_wrote_is_read_as_it_was(rows, cuts):
    out = io.StringIO(newline="")
    writer = csv.writer(out)
    writer.writerow(["received_at", "unique_message_id", "note"])
    writer.writerows(rows)
    data = out.getvalue().encode()
    for exact in (False, True):
        read_back, skipped = outcome(data, "stop", exact=exact, cuts=cuts)
        assert read_back == [(secs * 1_000_000, text) for secs, text, _note in rows]
        assert skipped == 0


@pytest.mark.usefixtures("tiny_blocks")
def test_hostile_ids_stand_as_they_are(tmp_path):
    rows = [Row(number * 1_000_000, text, text, text) for number, text in enumerate(HOSTILE)]
    (tmp_path / "log.csv").write_bytes(csv_bytes([row._replace(received_at=row.received_at // 10**6) for row in rows]))
    assert read(tmp_path / "log.csv") == rows


@pytest.mark.parametrize(
    ("body", "line", "problem"),
    [
        (b"1,a,b\n2,b\n", 3, "2 fields, expected 3"),
        (b"1,a,b\n\n\r\n2,b,c,d\n", 5, "4 fields, expected 3"),
        (b'1,"a\n\n\nb",c\n2,b\n', 6, "2 fields, expected 3"),
        (b'1,"a\nb",c\nsoon,b,c\n', 4, "not a time: 'soon'"),
        (b"1,a,b\n2,b,c\n\nsoon,b,c\n", 5, "not a time: 'soon'"),
        (b'1,a,b\n2,"b"x,c\n', 3, "',' expected after '\"'"),
        (b'1,a,b\n2,"b,c\n3,c,d\n', 3, "unexpected end of data"),
        (b"1,a,b\n2,\xff,c\n", 3, "not UTF-8: byte 0xff"),
        (b"1,a,b\n2,b,\xff\n", 3, "not UTF-8: byte 0xff"),
        (b"1,a,b\n2,\xed\xa0\x80,c\n", 3, "not UTF-8"),
        (b"1,a,b\n,b,c\n", 3, "received_at: no time"),
        (b"1,a,b\n-1,b,c\n", 3, "negative"),
        (b"1,a,b\nNaN,b,c\n", 3, "not a time: 'NaN'"),
        (b"1,a,b\n1e30,b,c\n", 3, "beyond the year 9999"),
        (b"1,a,b\n2,b\r3,c\n", 3, "a carriage return outside quotes"),
    ],
)
def test_an_unreadable_row_stops_at_its_line_or_is_counted(tmp_path, body, line, problem):
    path = tmp_path / "log.csv"
    path.write_bytes(HEADER + body)
    error = refusal(path)
    assert error.location == f"{path}:{line}"
    assert problem in error.problem
    rows, skipped = read_skipping(path)
    assert rows[0].received_at == 1_000_000
    assert skipped == 1


def test_a_quote_left_open_takes_no_other_row_with_it(tmp_path, monkeypatch):
    monkeypatch.setattr(csv_log, "_MAX_ROW_BYTES", 100)
    path = tmp_path / "log.csv"
    path.write_bytes(HEADER + b'1,"a,b\n' + b"2,b,c\n" * 50)
    assert "never closed" in refusal(path).problem
    rows, skipped = read_skipping(path)
    assert len(rows) == 50
    assert skipped == 1


@pytest.mark.parametrize(
    ("value", "expected"),
    [(b"true", True), (b"TRUE", True), (b"False", False), (b"1", True), (b"0", False), (b"", False), (b"yes", None),
     (b" true", None), (b"\xff", None)],
)  # fmt: skip
def test_jms_redelivered(tmp_path, value, expected):
    path = tmp_path / "log.csv"
    path.write_bytes(b"received_at,unique_message_id,JMSRedelivered\n1,a,false\n2,b," + value + b"\n")
    if expected is None:
        assert refusal(path).location == f"{path}:3"
    else:
        assert read(path)[1].jms_redelivered is expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [("", 0), ("0", 0), ("1795225068711", 1795225068711), ("007", 7), ("-1", None), ("1.5", None), ("soon", None),
     ("9" * 30, None), ("1" * 19, None), ("253402300800000", None), ("٣", None)],
)  # fmt: skip
def test_jms_timestamp(tmp_path, value, expected):
    path = tmp_path / "log.csv"
    path.write_text(f"received_at,unique_message_id,JMSTimestamp\n1,a,5\n2,b,{value}\n", encoding="utf-8")
    if expected is None:
        assert refusal(path).location == f"{path}:3"
        assert "jms_timestamp" in refusal(path).problem
    else:
        assert read(path)[1].jms_timestamp == expected


@pytest.mark.usefixtures("tiny_blocks")
def test_a_bom_blank_lines_and_a_last_line_without_break(tmp_path):
    path = tmp_path / "log.csv"
    path.write_bytes(b"\xef\xbb\xbf\r\n\n" + HEADER + b"\n1,a,b\r\n\r\n2,b,c")
    assert [row.unique_message_id for row in read(path)] == ["a", "b"]


def test_a_field_may_begin_with_a_bom(tmp_path):
    """Also the first of a block, which Arrow's reader takes for a whole file."""
    path = tmp_path / "log.csv"
    path.write_text("uniqueMessageId,received_at\n\ufeffa,1\na,2\n")
    assert [row.unique_message_id for row in read(path)] == ["\ufeffa", "a"]


def test_plain_blocks_are_told_from_others():
    for plain in (b"a,b\n", b'"a","b"\r\n', b'"",""\n', b'"a,b",c', b'a,"b"'):
        assert csv_log._is_plain(plain)
    for other in (b'a"b\n', b'"a""b"\n', b'"a\nb"\n', b'"a"b\n', b'"a\n', b"a\rb\n", b'a, "b"\n', b'"a"\n"b\n'):
        assert not csv_log._is_plain(other)


def test_plain_blocks_do_take_the_fast_way():
    table = csv_log._Table(3, {"received_at": 0, "unique_message_id": 1})
    raw = table.from_plain(Block(b'1,a,b\n\n2,"x,y",c\r\n', 10))
    assert raw.columns["unique_message_id"].to_pylist() == ["a", "x,y"]
    assert [raw.line_of(0), raw.line_of(1)] == [10, 12]
    assert table.from_plain(Block(b"1,a\n", 1)) is None


def test_the_header_may_come_after_any_number_of_blank_lines(tmp_path):
    log = tmp_path / "log.csv"
    log.write_bytes(b"\n" * 100_000 + b"\r\nreceived_at,unique_message_id\n1,a\nx,b\n")
    assert refusal(log).location == f"{log}:100004"
    assert [row.unique_message_id for row in read_skipping(log)[0]] == ["a"]
