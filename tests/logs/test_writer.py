"""Tables are read back as they were written, and appear whole or not at all."""

import csv
import gzip
import io
import json
import os
import stat
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from receiver.errors import OutputError, SettingsError
from receiver.logs import writer
from receiver.logs.writer import open_table
from tests.choosing import cases

SCHEMA = pa.schema(
    {
        "id": pa.string(),
        'source, "quoted"\n': pa.dictionary(pa.int32(), pa.string()),
        "number": pa.int64(),
        "flag": pa.bool_(),
        "time": pa.timestamp("us", "UTC"),
    }
)
TEXT_ENDINGS = [table + more for table in (".csv", ".jsonl", ".ndjson") for more in ("", ".gz", ".zst")]
ENDINGS = [*TEXT_ENDINGS, ".parquet"]
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

hostile = st.sampled_from(
    ["", " ", "\n", "\r\n", '"', '""', "\x00", "NaN", "null", "007", "=1+1", "\\", "\\n", ",", "a\tb", "\u2028", "é", "e\u0301",
     "<b>", "\ufeff", "\x1a", "\x7f", "\U0001f980"]
)  # fmt: skip
texts = hostile | st.text(st.characters(exclude_categories=["Cs"])) | st.lists(hostile).map("".join)
times = st.datetimes(datetime(1970, 1, 1), datetime(9999, 12, 31), timezones=st.just(UTC))  # noqa: DTZ001
rows = st.lists(
    st.tuples(texts, texts, st.none() | st.integers(-(2**63), 2**63 - 1), st.none() | st.booleans(), times), max_size=8
)


def batch(table_rows):
    columns = zip(*table_rows, strict=True) if table_rows else [[]] * len(SCHEMA)
    arrays = [pa.array(list(column), field.type) for column, field in zip(columns, SCHEMA, strict=True)]
    return pa.record_batch(arrays, schema=SCHEMA)


def write(path, *batches, schema=SCHEMA):
    with open_table(path, schema) as write:
        for one in batches:
            write(one)


def content(path):
    data = path.read_bytes()
    if path.suffix == ".gz":
        data = gzip.decompress(data)
    elif path.suffix == ".zst":
        data = zstandard.ZstdDecompressor().decompressobj().decompress(data)
    return data.decode()


def iso(time):
    return (time.astimezone(UTC).isoformat(timespec="microseconds")).replace("+00:00", "Z")


def read_csv(path):
    return list(csv.reader(io.StringIO(content(path), newline=""), strict=True))


def as_csv(row):
    text, source, number, flag, time = row
    return [
        text,
        source,
        "" if number is None else str(number),
        "" if flag is None else str(flag).lower(),
        iso(time),
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("tables")


@pytest.mark.thinned(2)
@pytest.mark.parametrize("ending", [".csv", ".csv.gz", ".jsonl", ".ndjson.zst", ".parquet"])
@cases()
@given(first=rows, second=rows)
def test_every_format_gives_back_the_exact_rows(folder, ending, first, second):
    path = folder / f"table{ending}"
    write(path, batch(first), batch(second))
    expected = [*first, *second]
    if ".csv" in ending:
        assert read_csv(path) == [SCHEMA.names, *map(as_csv, expected)]
    elif ending == ".parquet":
        with pq.ParquetFile(path) as file:
            table = file.read(use_threads=False)
        assert table.schema.field(1).type == pa.string()
        assert list(zip(*(column.to_pylist() for column in table.columns), strict=True)) == expected
    else:
        lines = content(path).split("\n")
        assert lines.pop() == ""
        objects = [list(json.loads(line).items()) for line in lines]
        assert objects == [list(zip(SCHEMA.names, [*row[:4], iso(row[4])], strict=True)) for row in expected]


@pytest.mark.parametrize("count", [0, 1, 3])
@pytest.mark.parametrize("text", [None, "", 'a"b\\\n', "{}"])
@pytest.mark.parametrize("kind", [pa.string(), pa.dictionary(pa.int32(), pa.string())])
@pytest.mark.parametrize("others", [[], ["x"], [None], ["x", None]])
def test_json_lines_of_columns_that_hold_one_value(tmp_path, kind, text, count, others):
    """They are written with and without other values beside it, and when no column has another value."""
    texts = [text] * count + others
    schema = pa.schema({"id": kind, "flag": pa.bool_(), "number": pa.int64()})
    columns = [texts, [False] * len(texts), [None] * len(texts)]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    write(tmp_path / "t.jsonl", pa.record_batch(arrays, schema=schema), schema=schema)
    rows_read = [json.loads(line) for line in content(tmp_path / "t.jsonl").splitlines()]
    assert rows_read == [{"id": text, "flag": False, "number": None} for text in texts]


@pytest.mark.parametrize("value", ["", None])
def test_a_csv_row_of_empty_fields_is_no_blank_line(tmp_path, value):
    schema = pa.schema({"id": pa.string()})
    write(tmp_path / "t.csv", pa.record_batch([pa.array([value, value], pa.string())], schema=schema), schema=schema)
    assert read_csv(tmp_path / "t.csv") == [["id"], [""], [""]]


def test_json_lines_hold_readable_text_and_null_where_something_is_missing(tmp_path):
    schema = pa.schema(
        {"id": pa.string(), "source": pa.dictionary(pa.int32(), pa.string()), "at": SCHEMA.field(4).type}
    )
    row = pa.RecordBatch.from_pylist([{"id": "é\u2028"}], schema)
    write(tmp_path / "t.jsonl", row, schema=schema)
    assert content(tmp_path / "t.jsonl") == '{"id":"é\u2028","source":null,"at":null}\n'


@pytest.mark.parametrize("ending", [".csv", ".jsonl"])
def test_text_too_long_for_one_arrow_column_is_written_in_pieces(tmp_path, monkeypatch, ending):
    moment = EPOCH + timedelta(microseconds=1)
    table = batch([("i" * 99, "s" * (1 + number % 2), number, True, moment) for number in range(50)])
    write(tmp_path / f"whole{ending}", table)
    monkeypatch.setattr(writer, "_PIECE_BYTES", 300)
    write(tmp_path / f"pieces{ending}", table)
    assert content(tmp_path / f"pieces{ending}") == content(tmp_path / f"whole{ending}")


@pytest.mark.parametrize("ending", ENDINGS)
def test_equal_tables_are_equal_bytes(tmp_path, ending):
    row = batch([("1:a", "a", 1, True, EPOCH)])
    write(tmp_path / f"one{ending}", row)
    write(tmp_path / f"two{ending}", row)
    assert (tmp_path / f"one{ending}").read_bytes() == (tmp_path / f"two{ending}").read_bytes()


@pytest.mark.parametrize("name", ["table", "table.txt", "table.parquet.gz", "csv", "table.csv.bz2"])
def test_an_unknown_ending_is_refused_by_naming_the_known_ones(tmp_path, name):
    with pytest.raises(SettingsError, match=r"\.csv, .*\.parquet"), open_table(tmp_path / name, SCHEMA):
        pytest.fail("the table was opened")
    assert not list(tmp_path.iterdir())


def test_the_ending_may_be_in_capitals(tmp_path):
    write(tmp_path / "T.CSV", batch([]))
    assert read_csv(tmp_path / "T.CSV") == [SCHEMA.names]


def test_a_place_that_cannot_be_written_is_an_error_before_any_work(tmp_path):
    (tmp_path / "folder.csv").mkdir()
    for path in (tmp_path / "missing" / "t.csv", tmp_path / "folder.csv"):
        with pytest.raises(OutputError, match=path.name), open_table(path, SCHEMA):
            pytest.fail("the table was opened")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_file_or_folder_is_an_error(tmp_path):
    old = tmp_path / "t.csv"
    old.touch(0o444)
    with pytest.raises(OutputError, match="read-only"), open_table(old, SCHEMA):
        pytest.fail("the table was opened")
    tmp_path.chmod(0o555)
    with pytest.raises(OutputError, match="Permission"), open_table(tmp_path / "new.csv", SCHEMA):
        pytest.fail("the table was opened")
    tmp_path.chmod(0o755)


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("error", [ValueError("of the caller"), KeyboardInterrupt(), FileNotFoundError("an input")])
def test_what_stood_there_survives_an_error_and_nothing_else_stays(tmp_path, ending, error):
    path = tmp_path / f"t{ending}"
    path.write_text("before")

    def interrupted():
        with open_table(path, SCHEMA) as write:
            write(batch([("1:a", "a", 1, True, EPOCH)]))
            raise error

    with pytest.raises(type(error)) as raised:
        interrupted()
    assert raised.value is error
    assert list(tmp_path.iterdir()) == [path]
    assert path.read_text() == "before"


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.usefixtures("small_disk")
def test_a_full_disk_is_an_output_error_and_leaves_everything_as_it_was(tmp_path, ending):
    path = tmp_path / f"t{ending}"
    path.write_text("before")
    noise = batch([(os.urandom(40).hex(), "a", 1, True, EPOCH) for _ in range(5_000)])
    with pytest.raises(OutputError, match=f"can't write .*t{ending}"):
        write(path, noise, noise)
    assert list(tmp_path.iterdir()) == [path]
    assert path.read_text() == "before"


def test_nothing_stands_at_the_path_until_the_table_is_complete(tmp_path):
    path = tmp_path / "t.csv"
    with open_table(path, SCHEMA) as write:
        write(batch([]))
        assert not path.exists()
    assert path.exists()


def test_a_link_keeps_pointing_and_a_file_keeps_its_permissions(tmp_path):
    real, link = tmp_path / "real.csv", tmp_path / "link.csv"
    real.touch(0o640)
    link.symlink_to(real)
    write(link, batch([]))
    assert link.is_symlink()
    assert read_csv(real) == [SCHEMA.names]
    assert stat.S_IMODE(real.stat().st_mode) == 0o640


def test_a_new_file_has_the_usual_permissions(tmp_path):
    (tmp_path / "usual").touch()
    write(tmp_path / "t.csv", batch([]))
    assert (tmp_path / "t.csv").stat().st_mode == (tmp_path / "usual").stat().st_mode


def test_a_name_of_the_greatest_length_is_no_problem(tmp_path):
    path = tmp_path / ("n" * 251 + ".csv")
    write(path, batch([]))
    assert path.exists()


def test_a_device_is_written_to_and_not_replaced(tmp_path):
    link = tmp_path / "null.csv"
    link.symlink_to("/dev/null")
    write(link, batch([]))
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)
    full = tmp_path / "full.csv"
    full.symlink_to("/dev/full")
    with pytest.raises(OutputError, match="No space"):
        write(full, batch([]))


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_pipe_gets_the_whole_table(tmp_path, ending):
    pipe, file = tmp_path / f"pipe{ending}", tmp_path / f"file{ending}"
    os.mkfifo(pipe)
    got = []
    reader = threading.Thread(target=lambda: got.append(pipe.read_bytes()))
    reader.start()
    write(pipe, batch([("1:a", "a", 1, True, EPOCH)]))
    reader.join()
    write(file, batch([("1:a", "a", 1, True, EPOCH)]))
    assert got == [file.read_bytes()]
    assert stat.S_ISFIFO(pipe.stat().st_mode)
