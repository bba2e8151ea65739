"""JSON Lines are read exactly, compared with a naive reader. Each refusal names its line."""

import json
from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from reading import Row, jsonl_bytes, read, read_skipping, refusal, rows_of
from test_csv import HOSTILE, source_of

from receiver.errors import LogFormatError, SettingsError
from receiver.logs import LogSource, ReadOptions
from receiver.logs.jsonl import read_jsonl


def naive(data: bytes):
    """The readable rows, one by one by the rules; and the numbers of the unreadable lines."""
    rows, bad = [], []
    for number, line in enumerate(data.split(b"\n"), 1):
        if not line.strip(b" \t\r"):
            continue
        try:
            rows.append(naive_row(json.loads(line.decode(), parse_constant=lambda _name: 1 / 0)))
        except (ValueError, KeyError, TypeError, AttributeError, ZeroDivisionError, RecursionError):
            bad.append(number)
    return rows, bad


def naive_row(members):
    json.dumps(members, ensure_ascii=False).encode()

    def text(name):
        value = members.get(name)
        if value is None:
            return ""
        if type(value) not in (str, int):
            raise TypeError
        return str(value)

    secs = members["received_at"]
    if type(secs) not in (str, int, float):
        raise TypeError
    us = int(Fraction(str(secs)) * 1_000_000)
    if not 0 <= Fraction(str(secs)) < 253_402_300_800:  # the year 10000
        raise ValueError
    redelivered = members.get("jms_redelivered")
    if redelivered is not None and type(redelivered) not in (str, int, bool):
        raise TypeError
    flag = {"true": True, "1": True, "false": False, "0": False, "": False, "none": False}[str(redelivered).lower()]
    if redelivered == "None":
        raise ValueError
    return Row(us, text("unique_message_id"), text("message_source_id"), jms_redelivered=flag)


scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-(10**30), 10**30),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=4),
    st.sampled_from(["true", "FALSE", "1", "007", "NaN", "null", "caf\u00e9", "cafe\u0301", "\0", "\ud800", "\\", '"']),
    st.lists(st.integers(), max_size=2),
)
secs = st.one_of(st.integers(0, 10**10), st.floats(0, 10**10), st.integers(0, 10**10).map(str), scalars)
objects = st.fixed_dictionaries(
    {},
    optional={
        "received_at": secs,
        "unique_message_id": st.one_of(st.text(max_size=5), scalars),
        "message_source_id": st.one_of(st.just("s"), scalars),
        "jms_redelivered": scalars,
        "extra": st.one_of(scalars, st.just({"received_at": 1})),
    },
)
texts = st.one_of(
    st.builds(lambda members, ascii_only: json.dumps(members, ensure_ascii=ascii_only), objects, st.booleans()),
    st.builds(
        lambda secs, text: json.dumps({"received_at": secs, "unique_message_id": text}), st.integers(0, 99), st.text()
    ),
    st.sampled_from(
        [
            "", " \t", "\r", "[]", "null", "1", '"x"', "{}", "{", '{"a":1} {"a":2}', '{"received_at":1}{}', "\x0b",
            '{"received_at":NaN}', '{"received_at":1,"received_at":2}', '{"received_at":01}', '{"received_at":1,}',
            '{"received_at":', "1}", '{"received_at":1,"unique_message_id":-0}', '{"unique_message_\\u0069d":"e"}',
            '{"received_at":1,"extra":"\\ud800"}', '{"received_at":1e400}', "\ufeff{}",
        ]
    ),
)  # fmt: skip
lines = st.one_of(
    texts.map(lambda text: text.encode(errors="surrogatepass")),
    st.binary(max_size=6).map(lambda b: b.replace(b"\n", b"")),
)


@given(st.lists(lines, max_size=12), st.sets(st.integers(0, 300)))
@example([b'{"received_at":1,"unique_message_id":18446744073709551616}'], set())
@example([b'{"received_at":1,"extra":"\xff"}'], set())
@example([b'{"received_at":1,"unique_message_id":1}', b'{"received_at":1,"unique_message_id":1.0}'], set())
def test_against_a_naive_reading(texts, cuts):
    data = b"\n".join([b'{"received_at":0,"unique_message_id":"first"}', *texts])
    expected, bad = naive(data)
    options = ReadOptions(on_error="skip", time_unit="s")
    try:
        batches = list(read_jsonl(source_of(data, cuts), options))
    except LogFormatError as error:
        pytest.fail(str(error))
    assert list(rows_of(batches)) == expected
    assert sum(batch.skipped for batch in batches) == len(bad)
    if bad:
        with pytest.raises(LogFormatError) as caught:
            list(read_jsonl(source_of(data, cuts), ReadOptions(time_unit="s")))
        assert caught.value.location == f"log:{bad[0]}"


def test_integers_of_any_size_are_their_digits(tmp_path):
    digits = ["0", "-5", str(2**63), str(2**64), "9" * 400, "9" * 4_300, "9" * 20_000]
    path = tmp_path / "log.jsonl"
    path.write_text("".join(f'{{"received_at":1,"unique_message_id":{value}}}\n' for value in digits))
    assert [row.unique_message_id for row in read(path)] == digits


def test_a_missing_column_beside_a_long_integer(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_text(f'{{"received_at":1,"number":{"9" * 5_000}}}\n')
    assert refusal(path).problem == "no column unique_message_id; there is: 'received_at', 'number'"


@pytest.mark.usefixtures("tiny_blocks")
def test_hostile_ids_stand_as_they_are(tmp_path):
    rows = [Row(number * 1_000_000, text, text, text) for number, text in enumerate(HOSTILE)]
    (tmp_path / "log.jsonl").write_bytes(
        jsonl_bytes(row._replace(received_at=row.received_at // 10**6) for row in rows)
    )
    assert read(tmp_path / "log.jsonl") == rows


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b"[1]", "not an object but an array"),
        (b'"text"', "not an object but text"),
        (b"{", "not JSON"),
        (b'{"received_at":2,"unique_message_id":"\\ud800"}', "a lone surrogate"),
        (b'{"received_at":2,"unique_message_id":"\xff"}', "not UTF-8: byte 0xff"),
        (b'{"received_at":2,"extra":"\xff"}', "not UTF-8: byte 0xff"),
        (b'{"received_at":2,"unique_message_id":1.5}', "unique_message_id is a number with a fraction"),
        (b'{"received_at":2,"unique_message_id":true}', "unique_message_id is true or false"),
        (b'{"received_at":2,"destination":{"a":1}}', "destination is an object"),
        (b'{"received_at":null,"unique_message_id":"b"}', "received_at: no time"),
        (b'{"unique_message_id":"b"}', "received_at: no time"),
        (b'{"received_at":true}', "received_at is true or false"),
        (b'{"received_at":NaN}', "NaN isn't a JSON value"),
        (b'{"received_at":1e400}', "not a time: 'inf'"),
        (b'{"received_at":-1.5}', "negative"),
        (b'{"received_at":2,"jms_redelivered":2}', "jms_redelivered is"),
        (b'{"received_at":2,"jms_timestamp":1.5}', "jms_timestamp is 1.5"),
        (b'{"received_at":2,"extra":' + b"[" * 1_000_000 + b"]" * 1_000_000 + b"}", "nested too deeply"),
    ],
)
def test_an_unreadable_row_stops_at_its_line_or_is_counted(tmp_path, line, problem):
    path = tmp_path / "log.jsonl"
    path.write_bytes(b'{"received_at":1,"unique_message_id":"a"}\n\n' + line + b'\n{"received_at":3}\n')
    error = refusal(path)
    assert error.location == f"{path}:3"
    assert problem in error.problem
    rows, skipped = read_skipping(path)
    assert [row.received_at for row in rows] == [1_000_000, 3_000_000]
    assert skipped == 1


def test_jms_fields_of_every_type(tmp_path):
    path = tmp_path / "log.jsonl"
    values = [("true", "0"), (True, 5), (0, 5.0), ("", ""), (None, None), (1, "7")]
    path.write_text("".join(
        json.dumps({"received_at": 1, "unique_message_id": "a", "JMSRedelivered": flag, "JMSTimestamp": stamp}) + "\n"
        for flag, stamp in values
    ))  # fmt: skip
    assert [(row.jms_redelivered, row.jms_timestamp) for row in read(path)] == [
        (True, 0), (True, 5), (False, 5), (False, 0), (False, 0), (True, 7),
    ]  # fmt: skip


def test_a_row_without_the_id_is_unchecked_but_a_log_without_ids_is_an_error(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_text('{"received_at":1}\n{"received_at":2,"unique_message_id":null}\n')
    assert [row.unique_message_id for row in read(path)] == ["", ""]
    path.write_text('{"received_at":1,"uniqueMessageID":"a"}\n{"received_at":2,"uniqueMessageID":"b"}\n')
    error = refusal(path)
    assert error.location == str(path)
    assert "no column unique_message_id; there is: 'received_at', 'uniqueMessageID'" in error.problem
    assert "--map unique_message_id=uniqueMessageID" in error.hint


def test_a_log_without_times_names_what_is_there(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_text('{"receivedAt":1,"unique_message_id":"a"}\n')
    for options in ({}, {"on_error": "skip"}):
        error = refusal(path, **options)
        assert "no column received_at" in error.problem
        assert "receivedAt" in error.hint


@pytest.mark.usefixtures("tiny_blocks")
def test_a_column_under_both_spellings_is_an_error_even_in_different_rows(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_text('{"received_at":1,"unique_message_id":"a"}\n{"received_at":1,"uniqueMessageId":"a"}\n')
    assert "there twice, as 'unique_message_id' and 'uniqueMessageId'" in refusal(path, on_error="skip").problem


def test_mapped_fields(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_text('{"at":1,"unique_message_id":"other","id":"a"}\n{"at":2}\n')
    mapped = {"received_at": "at", "uniqueMessageId": "id"}
    assert [row.unique_message_id for row in read(path, column_map=mapped)] == ["a", ""]
    error = refusal(path, column_map=mapped | {"destination": "queue"})
    assert "no column destination (field 'queue')" in error.problem
    with pytest.raises(SettingsError):
        list(read_jsonl(LogSource("log", iter([b"{}"])), ReadOptions(column_map={"destination": 'a"b'})))


@pytest.mark.parametrize(
    ("row", "id_"),
    [
        ({"message": {"order": {"id": "a"}}}, "a"),
        ({"message": {"order": '{"id": "a"}'}}, "a"),
        ({"message": '{"order": {"id": 12345678901234567890123}}'}, "12345678901234567890123"),
        ({"message.order.id": "a", "message": {"order": {}}}, "a"),
        ({"message": {"order": {"id": None}}}, ""),
        ({"message": {"order": []}}, ""),
        ({"message": "no JSON"}, ""),
        ({}, ""),
    ],
)
def test_a_field_inside_others_is_reached_by_its_path(tmp_path, row, id_):
    """The path leads through objects, and through texts that are JSON. A field with the whole path as its name comes
    first."""
    log = tmp_path / "log.jsonl"
    there = {"received_at": 1, "message": {"order": {"id": "there"}}}
    log.write_text("\n".join(map(json.dumps, [{"received_at": 1, **row}, there])))
    rows = read(log, column_map={"unique_message_id": "message.order.id"})
    assert [row.unique_message_id for row in rows] == [id_, "there"]


def test_what_stands_there_is_checked_as_ever(tmp_path):
    log = tmp_path / "log.jsonl"
    log.write_text('{"received_at": 1, "message": {"id": "a"}}\n{"received_at": 1, "message": {"id": [1]}}\n')
    assert refusal(log, column_map={"unique_message_id": "message.id"}).location.endswith(":2")
    assert "no column unique_message_id (field 'message.key')" in str(
        refusal(log, column_map={"unique_message_id": "message.key"})
    )
