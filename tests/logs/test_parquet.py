"""Parquet: every type that a column may have, and checks that Arrow's reader leaves out."""

import io
import os
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from reading import Row, opened, parquet_bytes, read, read_skipping, refusal
from test_csv import HOSTILE

from receiver.errors import LogFormatError
from receiver.message import LATEST_US
from receiver.simulate.numbering import Texts


def written(path, **columns):
    pq.write_table(pa.table(columns), path)
    return path


@pytest.fixture
def log(tmp_path):
    return tmp_path / "log.parquet"


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary(), pa.large_binary(), pa.string_view()])
def test_text_of_every_type(log, kind):
    ids = ["a", "", "caf\u00e9", None]
    values = pa.array([text if text is None else text.encode() for text in ids], pa.binary())
    typed = (
        values.cast(kind) if pa.types.is_binary(kind) or "binary" in str(kind) else values.cast(pa.string()).cast(kind)
    )
    try:
        written(log, received_at=[1, 2, 3, 4], unique_message_id=typed, message_source_id=typed)
    except pa.ArrowNotImplementedError as error:
        pytest.skip(f"this version of Arrow can't write it: {error}")
    assert [row.unique_message_id for row in read(log)] == ["a", "", "caf\u00e9", ""]
    assert [row.message_source_id for row in read(log)] == ["a", "", "caf\u00e9", ""]


def test_dictionaries_and_their_nulls(log):
    for few in (["x", None, "", "x"], [None] * 4, ["x", "y", "x", "y"]):
        words = few * 50
        written(
            log,
            received_at=range(200),
            unique_message_id=pa.array(words, pa.string()).dictionary_encode(),
            receiver_id=pa.array(words, pa.string()),
        )
        assert [row.unique_message_id for row in read(log)] == [word or "" for word in words]
        assert [row.receiver_id for row in read(log)] == [word or "" for word in words]
        for batch in filter(len, opened(log)):
            dictionary = batch.receiver_id.dictionary.to_pylist()
            assert len(set(dictionary)) == len(dictionary)


def test_whole_numbers_are_their_digits(log):
    ids = pa.array([7, -1, None], pa.int64())
    written(log, received_at=[1, 2, 3], unique_message_id=ids, connection_id=pa.array([2**64 - 1, 0, 1], pa.uint64()))
    assert [row.unique_message_id for row in read(log)] == ["7", "-1", ""]
    assert [row.connection_id for row in read(log)] == [str(2**64 - 1), "0", "1"]


@pytest.mark.parametrize(
    ("column", "values", "expected"),
    [
        ("unique_message_id", [1.5], "text or whole numbers"),
        ("unique_message_id", [True], "text or whole numbers"),
        ("destination", [["a"]], "text or whole numbers"),
        ("body_digest", pa.array([b"1234567890123456"], pa.binary(16)), "text or whole numbers"),
        ("received_at", [True], "a time"),
        ("received_at", [[1]], "a time"),
        ("received_at", pa.array([1795225068.0], pa.float32()), "a time in 64 bits"),
        ("jms_redelivered", [1.5], "true or false"),
        ("jms_timestamp", [[1]], "whole milliseconds"),
        ("jms_timestamp", pa.array([1795225068000.0], pa.float32()), "in 64 bits"),
    ],
)
def test_other_types_are_an_error_of_the_file(log, column, values, expected):
    columns = {"received_at": [1], "unique_message_id": ["a"]} | {column: values}
    error = refusal(written(log, **columns), on_error="skip")
    assert error.location == str(log)
    assert f"the column {column} is of type" in error.problem
    assert expected in error.problem


def test_bytes_that_are_not_utf8(log):
    ids = pa.array([b"a", b"\xff", b"caf\xc3\xa9", b"\xed\xa0\x80"], pa.binary())
    written(log, received_at=[1, 2, 3, 4], unique_message_id=ids, message_source_id=["s"] * 4)
    assert refusal(log).location == f"{log}:2"
    assert "unique_message_id is not UTF-8" in refusal(log).problem
    rows, skipped = read_skipping(log)
    assert [row.unique_message_id for row in rows] == ["a", "caf\u00e9"]
    assert skipped == 2
    for column in ("received_at", "message_source_id", "jms_redelivered", "jms_timestamp"):
        values = pa.array([b"1", b"\xff"], pa.binary())
        for typed in (values, values.view(pa.string())):
            written(log, **{"received_at": [1, 2], "unique_message_id": ["a", "b"], column: typed})
            assert refusal(log).location == f"{log}:2"


def test_text_that_claims_to_be_utf8_is_checked(log):
    """Writers may mark bytes as text without ever looking at them."""
    forged = pa.array([b"a", b"\xff\xfe"], pa.binary()).view(pa.string())
    written(log, received_at=[1, 2], unique_message_id=forged, receiver_id=forged)
    assert refusal(log).location == f"{log}:2"


@pytest.mark.parametrize("text", [pa.binary(), pa.string()])
def test_a_word_that_is_not_utf8_is_of_its_row_alone(log, monkeypatch, text):
    """All batches of a row group share the dictionary of all its rows."""
    monkeypatch.setattr("receiver.logs.parquet.BATCH_ROWS", 1)
    words = pa.array([*[b"a"] * 2_000, b"\xff", *[b"b"] * 2_000], pa.binary()).view(text)
    written(log, received_at=range(4_001), unique_message_id=["id"] * 4_001, message_source_id=words)

    def numbered(**options):
        sources = Texts()
        return [sources.column(batch.message_source_id, len(batch)) for batch in opened(log, **options)], sources.names

    with pytest.raises(LogFormatError, match="message_source_id is not UTF-8") as caught:
        numbered()
    assert caught.value.location == f"{log}:2001"
    numbers, names = numbered(on_error="skip")
    assert (sum(map(len, numbers)), names) == (4_000, ["a", "b"])


def test_a_footer_that_counts_other_rows_than_there_are(log):
    written(log, received_at=range(5), unique_message_id=list("abcde"))
    content = log.read_bytes()
    begin = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    complaints = set()
    for at in range(begin, len(content) - 8):
        if content[at - 1 : at + 1] == b"\x16\x0a":  # in Thrift, the 64-bit number 5
            log.write_bytes(content[:at] + b"\0" + content[at + 1 :])
            try:
                assert len(read(log)) == 5
            except LogFormatError as error:
                complaints.add(error.problem.rpartition(": ")[2])
    assert complaints == {"its footer says 0 rows, not 5", "its footer says 5 rows, not 0"}


def test_times_of_every_type(log):
    moment = datetime(2026, 11, 21, 1, 37, 48, 711509, tzinfo=UTC)
    us = 1795225068711509
    for values in (
        [moment],
        pa.array([us]).cast(pa.timestamp("us")),
        pa.array([us * 1000 + 999]).cast(pa.timestamp("ns", "Europe/Paris")),
        [us],
        [us / 1e6],
        pa.array(["1795225068.711509"]).cast(pa.decimal128(20, 9)),
        ["2026-11-21T01:37:48.711509Z"],
        pa.array(["2026-11-21T01:37:48.711509Z"], pa.large_string()),
        [b"2026-11-21T01:37:48.711509Z"],
        pa.array(["2026-11-21T01:37:48.711509Z"]).dictionary_encode(),
    ):
        written(log, received_at=values, unique_message_id=["a"])
        assert [row.received_at for row in read(log)] == [us]
    written(log, received_at=pa.array([us]).cast(pa.timestamp("us")), unique_message_id=["a"])
    assert [row.received_at for row in read(log, time_zone="Europe/Paris")] == [us - 3_600_000_000]


def test_a_time_of_96_bits_is_an_instant_in_utc(log):
    """Spark writes its timestamps so by default. In nanoseconds, years after 2262 would be others."""
    us = [1795225068711509, LATEST_US]
    times = pa.array(us).cast(pa.timestamp("us"))
    table = pa.table({"received_at": times, "unique_message_id": ["a", "b"], "JMSTimestamp": times})
    pq.write_table(table, log, use_deprecated_int96_timestamps=True, store_schema=False)
    rows = read(log, time_zone="Europe/Paris")
    assert [(row.received_at, row.jms_timestamp) for row in rows] == [(at, at // 1000) for at in us]


@pytest.mark.parametrize("value", [-1, None, float("nan"), float("inf"), -0.5, 1e300, 2**62])
def test_a_time_that_cannot_be_meant_names_its_row(log, value):
    written(log, received_at=[1, 2, value], unique_message_id=["a", "b", "c"])
    assert refusal(log).location == f"{log}:3"
    assert read_skipping(log)[1] == 1


@pytest.mark.parametrize(("names", "is_dictionary"), [(3, True), (5_000, False)])
def test_few_names_are_a_dictionary_and_many_are_not(log, names, is_dictionary):
    """Arrow copies the dictionary for every piece. With a million sources that took minutes."""
    sources = [f"source {number % names}" for number in range(5_000)]
    written(log, received_at=range(5_000), unique_message_id=sources, message_source_id=sources)
    (batch,) = filter(len, opened(log))
    assert pa.types.is_dictionary(batch.message_source_id.type) is is_dictionary
    assert batch.message_source_id.to_pylist() == sources


@pytest.mark.parametrize("zone", [None, "UTC", "Nowhere"])
@pytest.mark.parametrize("value", [-1, 2**62, -(2**62), None])
def test_a_timestamp_out_of_range_names_its_row(log, value, zone):
    written(log, received_at=pa.array([1, value], pa.timestamp("us", zone)), unique_message_id=["a", "b"])
    error = refusal(log)
    assert error.location == f"{log}:2"
    assert ("no time" in str(error)) is (value is None)


def test_jms_columns_of_every_type(log):
    for flags in ([True, False, None], ["TRUE", "0", None], [1, 0, None], [b"true", b"", None]):
        written(log, received_at=[1, 2, 3], unique_message_id=["a"] * 3, JMSRedelivered=flags)
        assert [row.jms_redelivered for row in read(log)] == [True, False, False]
    moments = pa.array([5, 0, None]).cast(pa.timestamp("ms", "UTC"))
    for stamps in ([5, 0, None], [5.0, 0.0, None], ["5", "", None], moments):
        written(log, received_at=[1, 2, 3], unique_message_id=["a"] * 3, JMSTimestamp=stamps)
        assert [row.jms_timestamp for row in read(log)] == [5, 0, 0]
    for column, bad in (("JMSRedelivered", [0, 2]), ("JMSTimestamp", [0.0, 0.5]), ("JMSTimestamp", [0, -1])):
        written(log, received_at=[1, 2], unique_message_id=["a"] * 2, **{column: bad})
        assert refusal(log).location == f"{log}:2"


def test_hostile_ids_stand_as_they_are(log):
    rows = [Row(number * 1_000_000, text, text, text) for number, text in enumerate(HOSTILE)]
    log.write_bytes(parquet_bytes(row._replace(received_at=row.received_at // 10**6) for row in rows))
    assert read(log) == rows


def test_rows_are_numbered_through_all_row_groups(log):
    pq.write_table(
        pa.table({"received_at": [1] * 199_999 + [-1], "unique_message_id": ["a"] * 200_000}),
        log,
        row_group_size=30_000,
    )
    assert refusal(log).location == f"{log}:200000"
    assert len(read_skipping(log)[0]) == 199_999


def test_batches_are_bounded_by_bytes_too(log):
    """Few ids of 64 KB make a file of a few KB. A batch of them must not take gigabytes."""
    ids = [f"{number % 5}{'x' * (1 << 16)}" for number in range(4_000)]
    written(log, received_at=list(range(4_000)), unique_message_id=ids, message_source_id=[id_[0] for id_ in ids])
    read_ids, sizes = [], []
    for batch in opened(log):
        read_ids += batch.unique_message_id.to_pylist()
        sizes.append(batch.unique_message_id.nbytes)
    assert read_ids == ids
    assert max(sizes) < 100 << 20


def test_a_path_that_is_not_utf8(tmp_path):
    log = tmp_path / os.fsdecode(b"Auftr\xe4ge.parquet")
    log.write_bytes(parquet_bytes([Row(1, "a")]))
    batches = opened(log)
    assert batches.known_receipts == sum(map(len, batches)) == 1


def test_a_broken_file_is_refused(log):
    whole = parquet_bytes([Row(1, "a")])
    for data in (whole[:-1], whole[: len(whole) // 2], b"PAR1", whole[:4] + b"\0" * 60 + whole[64:]):
        log.write_bytes(data)
        assert refusal(log).location == str(log)


def test_columns_missing_or_there_twice(log):
    assert "no column unique_message_id" in refusal(written(log, received_at=[1], id=["a"])).problem
    error = refusal(written(log, received_at=[1], unique_message_id=["a"], uniqueMessageId=["a"]))
    assert "there twice" in error.problem
    out = io.BytesIO()
    pq.write_table(pa.Table.from_arrays([pa.array([1]), pa.array(["a"]), pa.array(["b"])],
                                        ["received_at", "unique_message_id", "unique_message_id"]), out)  # fmt: skip
    log.write_bytes(out.getvalue())
    assert "there twice" in refusal(log).problem


def test_a_log_without_rows_still_tells_its_columns(log, tmp_path):
    written(log, received_at=pa.array([], pa.int64()), unique_message_id=pa.array([], pa.string()),
            destination=pa.array([], pa.string()))  # fmt: skip
    other = written(tmp_path / "other.parquet", received_at=[1], unique_message_id=["a"])
    batches = opened(log, other)
    assert sum(map(len, batches)) == 1
    assert batches.columns_present == {"destination"}
    assert "no receipt" in refusal(log).problem


def test_flags_of_whole_numbers_of_every_width(log):
    for kind in (pa.int8(), pa.uint8(), pa.int16(), pa.uint16(), pa.int32(), pa.uint32(), pa.int64(), pa.uint64()):
        written(log, received_at=[1, 2, 3], unique_message_id=["a"] * 3, jms_redelivered=pa.array([1, 0, None], kind))
        assert [row.jms_redelivered for row in read(log)] == [True, False, False]
        limits = np.iinfo(kind.to_pandas_dtype())
        for flag in {2, limits.min, limits.max} - {0}:
            written(log, received_at=[1, 2], unique_message_id=["a"] * 2, jms_redelivered=pa.array([1, flag], kind))
            assert refusal(log).location == f"{log}:2"
            assert f"jms_redelivered is {flag}, expected true, false, 1, 0" in refusal(log).problem
