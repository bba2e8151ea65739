"""The files that a path stands for, their compression and their format."""

import bz2
import gzip
import io
import lzma
import os
import subprocess
import sys
import tarfile
import threading
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from reading import COMPRESSIONS, FORMATS, Row, csv_bytes, jsonl_bytes, opened, parquet_bytes, read, refusal
from test_correlator import BANNER, message

from receiver.errors import LogFormatError, OutputError, SettingsError
from receiver.logs import ReadOptions, read_logs

ROWS = [Row(number * 1_000_000, f"{number}:é", "s" if number % 2 else "", "c", "queue://q", "r", number == 2, number, "d")
        for number in range(5)]  # fmt: skip
WRITTEN = [row._replace(received_at=row.received_at // 1_000_000) for row in ROWS]
SAMPLE = Path(__file__).parents[2] / "examples" / "artemis-receipts.csv.gz"


def from_stdin(data, *arguments):
    """Read in another process, with a pipe as its standard input."""
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); from reading import read\n"
        "print([tuple(row) for row in read(*sys.argv[2:])])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(Path(__file__).parent), *arguments],
        input=data, capture_output=True, check=True, env=os.environ | {"PYTHONIOENCODING": "utf-8"},
    )  # fmt: skip
    return done.stdout.decode()


@pytest.mark.parametrize("ending", ["", ".log", ".csv", ".parquet", ".gz", ".csv.zst"])
@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("name", FORMATS)
def test_content_wins_over_the_ending(tmp_path, name, compression, ending):
    path = tmp_path / f"log{ending}"
    path.write_bytes(COMPRESSIONS[compression](FORMATS[name](WRITTEN)))
    assert read(path) == ROWS


@pytest.mark.usefixtures("tiny_blocks")
@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("name", FORMATS)
def test_whole_and_in_pieces(tmp_path, name, compression):
    path = tmp_path / f"log.{name}{compression}"
    path.write_bytes(COMPRESSIONS[compression](FORMATS[name](WRITTEN)))
    assert read(path) == ROWS


@pytest.mark.thinned(3)
@pytest.mark.parametrize("name", FORMATS)
def test_standard_input(name):
    data = FORMATS[name](WRITTEN)
    expected = str([tuple(row) for row in ROWS])
    assert from_stdin(data, "-").strip() == expected
    assert from_stdin(gzip.compress(data), "-").strip() == expected


def test_standard_input_merged_with_a_file(tmp_path):
    path = tmp_path / "log.csv"
    path.write_bytes(csv_bytes(WRITTEN[::2]))
    assert from_stdin(jsonl_bytes(WRITTEN[1::2]), str(path), "-").strip() == str([tuple(row) for row in ROWS])


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes on this system")
def test_a_named_pipe(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(parquet_bytes(WRITTEN),))
    writer.start()
    assert read(pipe) == ROWS
    writer.join()


@pytest.mark.usefixtures("tiny_blocks")
def test_gzip_of_many_members_and_zstd_of_many_frames(tmp_path):
    data = csv_bytes(WRITTEN)
    for compress, ending in ((gzip.compress, "gz"), (zstandard.compress, "zst")):
        path = tmp_path / f"log.csv.{ending}"
        parts = [compress(data[:50]), compress(b""), compress(data[50:60]), compress(data[60:])]
        path.write_bytes(b"".join(parts) + (b"\0" * 512 if ending == "gz" else b""))
        assert read(path) == ROWS


@pytest.mark.costly
def test_zstd_as_pzstd_writes_it(tmp_path):
    """With a frame before each frame that says how long that is, for readers in threads."""
    data = csv_bytes(WRITTEN)
    frames = map(zstandard.compress, (data[:20], data[20:]))
    said = (b"\x50\x2a\x4d\x18\x04\0\0\0" + len(frame).to_bytes(4, "little") + frame for frame in frames)
    (tmp_path / "log.csv.zst").write_bytes(b"".join(said))
    assert read(tmp_path / "log.csv.zst") == ROWS


@pytest.mark.parametrize("ending", ["gz", "zst"])
def test_broken_compression_is_refused(tmp_path, ending):
    path = tmp_path / f"log.csv.{ending}"
    data = csv_bytes(Row(number, str(number * 7919)) for number in range(20_000))
    if ending == "gz":
        compress = gzip.compress
        whole = compress(data)
        spoiled = whole[:-8] + b"12345678"
    else:
        compress = zstandard.ZstdCompressor(write_checksum=True).compress
        whole = compress(data)
        spoiled = whole[:-4] + b"1234"
    for broken, problem in (
        (whole[:-1], "truncated"),
        (whole[: len(whole) // 2], "truncated"),
        (whole + compress(b"20000,last" + b"," * 7 + b"\n" * 100)[:-1], "truncated"),
        (whole[:7], "truncated"),
        (whole + b"garbage", "broken"),
        (spoiled, "broken"),
        (whole[:1000] + b"\xff" * 1000 + whole[2000:], ""),
    ):
        path.write_bytes(broken)
        for on_error in ("stop", "skip"):
            error = refusal(path, on_error=on_error)
            assert problem in str(error)
            assert error.location.startswith(str(path))


def test_what_only_claims_to_be_compressed_is_refused(tmp_path):
    for ending in ("gz", "zst"):
        path = tmp_path / f"log.csv.{ending}"
        path.write_bytes(b"\x00\x01garbage")
        assert "not gzip data" in refusal(path).problem or "not zstd data" in refusal(path).problem


@pytest.mark.parametrize(
    ("content", "name", "problem"),
    [
        (b"", "log.csv", "the file is empty"),
        (b"", "log.parquet", "the file is empty"),
        (gzip.compress(b"", mtime=0), "log.csv.gz", "nothing in the compressed file"),
        (b"\n\n\n", "log.csv", "nothing but blank lines"),
        (b"a,b,c\n1,2,3\n", "log.csv", "no column received_at or unique_message_id; there is: 'a', 'b', 'c'"),
        (b"not a table", "log.parquet", "can't be read as Parquet"),
        (b"received_at,unique_message_id\n", "log.csv", "no receipt in the log"),
        (b"[1]\n", "log.csv", "not an object"),
        (b"\xff\xfer\0e\0", "log.csv", "not UTF-8"),
    ],
)
def test_files_that_are_no_logs(tmp_path, content, name, problem):
    path = tmp_path / name
    path.write_bytes(content)
    assert problem in refusal(path).problem


def archived(form: int) -> bytes:
    """A correlator's log in a tar archive, whose header would hide the receipt in the first line."""
    archive, member, content = io.BytesIO(), tarfile.TarInfo("correlator.log"), (message("a") + message("b")).encode()
    member.size = len(content)
    with tarfile.open(fileobj=archive, mode="w", format=form) as tar:
        tar.addfile(member, io.BytesIO(content))
    return archive.getvalue()


@pytest.mark.parametrize(
    ("content", "name", "remedy"),
    [
        (b"", "log.jsonl", "was this one written, and copied, to its end?"),
        (gzip.compress(b"", mtime=0), "log.csv.gz", "was this one written, and copied, to its end?"),
        (b"received_at,unique_message_id\n", "log.csv", "take a log of a time when messages came"),
        (b"2026-11-25 10:00:00.000 INFO  [1] - Starting\n", "correlator.log.1", "logJmsMessages=true"),
        (b"received_at,unique_message_id\r1,a\r", "log.csv", r"if all lines end so, tr '\r' '\n' mends"),
        (b"received_at,unique_message_id\n1,a\rb\n", "log.csv", "put the field in quotes"),
        (b"1,a\n2,b\n", "log.csv", "the first row must name the columns, such as received_at,unique_message_id"),
        (b"25/Nov/2026,a\n", "log.csv", "the first row must name the columns"),
        (b"2026-11-25T10:00:00Z,order-17-id\n", "log.csv", "the first row must name the columns"),
        (b"[\n", "log.json", "jq -c '.[]' of an array"),
        (b'{\n"received_at": 1', "log.jsonl", "jq -c . makes them of longer objects"),
        (b"PK\x03\x04", "log.xlsx", "save the sheet as CSV"),
        (b"SQLite format 3\0", "log.db", '--query "SELECT'),
        (bz2.compress(b"1,a"), "log.csv.bz2", "unpack it first"),
        (lzma.compress(b"1,a"), "log.csv.xz", "unpack it first"),
        (b"Obj\x01", "log.avro", "write it as Parquet"),
        ("received_at,unique_message_id\n1,a\n".encode("utf-16"), "log.csv", "iconv -f UTF-16"),
        ("\ufeffreceived_at,unique_message_id\n1,a\n".encode("utf-16-be"), "log.csv", "iconv -f UTF-16"),
        (archived(tarfile.GNU_FORMAT), "log.tar", "tar xf"),
        (gzip.compress(archived(tarfile.PAX_FORMAT), mtime=0), "log.tar.gz", "tar xf"),
    ],
)
def test_what_to_do_about_a_file_that_is_no_log(tmp_path, content, name, remedy):
    path = tmp_path / name
    path.write_bytes(content)
    assert remedy in refusal(path).hint


def test_a_log_whose_rows_are_all_skipped_is_not_said_to_have_none(tmp_path):
    path = tmp_path / "log.csv"
    path.write_bytes(b"received_at,unique_message_id\nsoon,a\n")
    error = refusal(path, on_error="skip")
    assert (error.problem, error.hint.split(":")[0]) == ("no receipt in the log", "none of its rows can be read")


@pytest.mark.usefixtures("small_disk")
def test_a_full_disk_is_not_the_fault_of_the_log_that_is_kept_there(tmp_path):
    path = tmp_path / "log.parquet.gz"
    large = io.BytesIO()
    columns = {"received_at": [1] * 9_999, "unique_message_id": ["x" * 20] * 9_999}
    pq.write_table(pa.table(columns), large, use_dictionary=False, compression="none")
    path.write_bytes(gzip.compress(large.getvalue()))
    with pytest.raises(OutputError, match=r"can't write a temporary file in /.* \(TMPDIR\): "):
        read(path)


def test_standard_input_that_is_closed(monkeypatch):
    monkeypatch.setattr("sys.stdin", None)
    assert refusal("-").problem == "standard input is closed"


def test_more_files_of_one_time_than_can_be_open_at_once(tmp_path, monkeypatch):
    resource = pytest.importorskip("resource")
    for number in range(60):
        (tmp_path / f"{number}.csv").write_text("received_at,unique_message_id\n1,a\n9,b\n")
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = os.open(tmp_path, os.O_RDONLY) + 30
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, limits[1]))
    try:
        assert len(read(tmp_path)) == 120  # small files are closed at once
        monkeypatch.setattr("receiver.logs.batches._FEW_ROWS", 0)
        assert "ulimit -n" in refusal(tmp_path).hint
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        os.close(most - 30)
    assert len(read(tmp_path)) == 120


def test_a_header_only_file_among_others_is_fine(tmp_path):
    (tmp_path / "a.csv").write_text("received_at,unique_message_id,destination\n")
    (tmp_path / "b.csv").write_text("received_at,unique_message_id\n1,a\n")
    batches = opened(tmp_path)
    assert sum(map(len, batches)) == 1
    assert batches.columns_present == {"destination"}


def test_missing_files_and_folders_without_logs_are_told_at_once(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "_SUCCESS").touch()
    (tmp_path / "empty" / ".hidden.csv").touch()
    (tmp_path / "empty" / "inner").mkdir()
    for path, problem in (("missing.csv", "No such file"), ("empty", "a folder without logs"), ("*.csv", "no file matches"),
                          ("a\0b", "null")):  # fmt: skip
        with pytest.raises(LogFormatError, match=problem):
            read_logs([str(tmp_path / path)], ReadOptions())


@pytest.mark.parametrize("kind", [str, Path])
def test_paths_are_a_list_whose_items_may_be_of_either_kind(tmp_path, kind):
    path = kind(tmp_path / "log.csv")
    Path(path).write_bytes(csv_bytes(WRITTEN))
    assert sum(map(len, read_logs([path], ReadOptions()))) == len(WRITTEN)
    with pytest.raises(SettingsError, match="by a list of paths"):
        read_logs(path, ReadOptions())


def test_options_that_cannot_be_meant_are_told_at_once(tmp_path):
    path = tmp_path / "log.csv"
    path.write_bytes(csv_bytes(WRITTEN))
    for options in (
        {"column_map": {"unique_id": "a"}},
        {"column_map": {"unique_message_id": ""}},
        {"time_zone": "Europe/Nowhere"},
        {"time_zone": "../etc/passwd"},
        {"time_zone": ""},
        {"time_unit": "ns"},
        {"on_error": "ignore"},
    ):
        with pytest.raises(SettingsError):
            read_logs([str(path)], ReadOptions(**options))
    for paths in ([], ["-", "-"], [""]):
        with pytest.raises(SettingsError):
            read_logs(paths, ReadOptions())


def test_a_folder_or_glob_is_ordered_by_name(tmp_path):
    for name in ("b.csv", "a.csv", "B.csv", "ä.csv", "_c.csv", ".d.csv", "10.csv", "9.csv"):
        (tmp_path / name).write_text(f"received_at,unique_message_id\n1,{name}\n", encoding="utf-8")
    (tmp_path / "folder.csv").mkdir()
    ordered = ["10.csv", "9.csv", "B.csv", "a.csv", "b.csv", "ä.csv"]
    assert [row.unique_message_id for row in read(tmp_path)] == ordered
    assert [row.unique_message_id for row in read(tmp_path / "[!_.]*.csv")] == ordered


def test_a_name_with_signs_of_a_glob_is_a_file_where_there_is_one(tmp_path):
    path = tmp_path / "log[1].csv"
    path.write_bytes(csv_bytes(WRITTEN))
    assert read(path) == ROWS


def test_a_correlator_log_is_told_by_its_lines(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text("starting\n" + BANNER + message("a"))
    assert [row.unique_message_id for row in read(path)] == ["a"]


def test_a_time_in_two_units_is_refused_whatever_becomes_of_unreadable_rows(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text("received_at,unique_message_id\n2026-11-21T01:37:48Z,a\n1795225068,b\n1795225068000,c\n")
    for on_error in ("stop", "skip"):
        error = refusal(path, on_error=on_error)
        assert error.location == str(path)
        assert "line 3 is in s, line 4 in ms" in error.problem
    assert len(read(path, time_unit="ms")) == 3
    path.write_text("received_at,unique_message_id\n1795225068,b\nsoon,c\n1795225068000,d\n")
    assert refusal(path).location == f"{path}:3"
    path.write_bytes(parquet_bytes([Row(1, "a"), Row(10**12, "b")]))
    assert "line 1 is in s, line 2 in ms" in refusal(path).problem


def test_the_header_of_another_separator_is_hinted_at(tmp_path):
    path = tmp_path / "log.csv"
    for separator, name in ((";", "semicolons"), ("\t", "tabs")):
        path.write_text(separator.join(["received_at", "unique_message_id"]) + "\n")
        assert name in refusal(path).hint


@pytest.mark.parametrize("name", ["log.csv", "log.parquet", "log.jsonl"])
def test_all_columns_that_lack_are_named_at_once_with_the_nearest_names(tmp_path, name):
    path = tmp_path / name
    if name.endswith("parquet"):
        pq.write_table(pa.table({"receivedAt": [1], "msg": ["a"]}), path)
    else:
        path.write_text("receivedAt,msg\n1,a\n" if name.endswith("csv") else '{"receivedAt":1,"msg":"a"}\n')
    error = refusal(path, column_map={"destination": "queue"})
    lacking = "received_at or unique_message_id or destination (field 'queue')"
    assert error.problem == f"no column {lacking}; there is: 'receivedAt', 'msg'"
    assert error.hint == (
        "did you mean 'receivedAt'? --map received_at=receivedAt --map unique_message_id=FIELD --map destination=FIELD"
        " (in Python: column_map)"
    )


@pytest.mark.parametrize(
    ("names", "column", "meant"),
    [
        ("OrderId,message_source_id", "unique_message_id", "OrderId"),
        ("messageSourceId,order_key", "unique_message_id", "order_key"),
        ("MessageSourceID,connection_id,destination,receiver_id", "unique_message_id", None),
        ("orderId,tradeId", "unique_message_id", None),
        ("CustomerId,value", "unique_message_id", None),
        ("message_sender_id", "unique_message_id", None),
        ("JMSMessageID,JMSCorrelationID", "unique_message_id", None),
        ("JMSMessageID,ORDER_ID", "unique_message_id", "ORDER_ID"),
        ("UniqueMessageID,OrderId", "unique_message_id", "UniqueMessageID"),
        ("paid,grid,thing", "unique_message_id", None),
        ("unique_message_id,eventTime,jms_timestamp", "received_at", "eventTime"),
        ("unique_message_id,JMSTimestamp", "received_at", None),
        ("unique_message_id,begin_ts,end_ts", "received_at", None),
    ],
)
def test_a_hint_never_proposes_another_of_our_columns(tmp_path, names, column, meant):
    """It proposes the field that is probably meant, or none. The proposal may be copied as it is."""
    path = tmp_path / "log.csv"
    given = names if column == "received_at" else f"received_at,{names}"
    path.write_text(f"{given}\n{','.join('1' for _ in given.split(','))}\n")
    error = refusal(path)
    assert f"no column {column}" in error.problem
    assert f"--map {column}={meant or 'FIELD'} " in error.hint
    if meant:
        assert len(read(path, column_map={column: meant})) == 1


def test_a_field_that_is_mapped_to_another_column_isnt_proposed(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text("received_at,OrderId\n1,a\n")
    assert "--map unique_message_id=FIELD" in refusal(path, column_map={"body_digest": "OrderId"}).hint


@pytest.mark.parametrize(
    "names", ["received_at,unique_message_id,JMSDestination", "received_at,unique_message_id,JMSDestination,key"]
)
def test_a_column_that_needs_no_mapping_is_named_when_the_mapped_field_isnt_there(tmp_path, names):
    path = tmp_path / "log.csv"
    path.write_text(f"{names}\n{','.join('1' for _ in names.split(','))}\n")
    assert refusal(path, column_map={"destination": "JMSDestinaton", "unique_message_id": "wrong"}).hint == (
        "leave out --map unique_message_id=wrong --map destination=JMSDestinaton (in Python: column_map):"
        " there is 'unique_message_id' and 'JMSDestination'"
    )


@pytest.mark.parametrize("mapped", [{}, {"received_at": "time"}])
def test_a_value_that_cant_be_read_asks_whether_its_mapping_is_right(tmp_path, mapped):
    path = tmp_path / "log.csv"
    path.write_text("received_at,unique_message_id,time\n1,a,1\nx,b,x\n")
    asked = "check --map received_at=time (in Python: column_map), or " if mapped else ""
    assert refusal(path, column_map=mapped).hint.startswith(f"{asked}mend the row; with --on-error skip")


def test_a_name_with_spaces_around_it_is_no_unknown_field(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text("received_at,unique_message_id, message_source_id\n1,a, s\n")
    assert refusal(path).problem == "there are spaces around the name ' message_source_id'"
    assert len(read(path, column_map={"message_source_id": " message_source_id"})) == 1


def test_the_nearest_name_and_both_spellings(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text("received_at,uniqueMesageId\n1,a\n")
    assert "did you mean 'uniqueMesageId'? --map unique_message_id=uniqueMesageId" in refusal(path).hint
    path.write_text("received_at,unique_message_id,uniqueMessageId\n1,a,a\n")
    assert "there twice, as 'unique_message_id' and 'uniqueMessageId'" in refusal(path).problem
    mapped = {"unique_message_id": "uniqueMessageId"}
    assert len(read(path, column_map=mapped)) == 1
    error = refusal(path, column_map=mapped | {"destination": "queue"})
    assert "no column destination (field 'queue')" in error.problem


@pytest.mark.parametrize("name", FORMATS)
def test_progress_counts_the_bytes_read(tmp_path, name):
    paths = [tmp_path / f"{number}.{name}" for number in range(2)]
    for path in paths:
        path.write_bytes(FORMATS[name](WRITTEN))
    for given in (paths, paths[:1]):
        reported: list[int] = []
        batches = read_logs([str(path) for path in given], ReadOptions())
        batches.on_read = reported.append
        list(batches)
        assert min(reported) >= 0
        assert sum(reported) == batches.size_bytes == sum(path.stat().st_size for path in given)


def test_the_recorded_log():
    batches = list(opened(SAMPLE))
    assert sum(map(len, batches)) == 215_293
    with gzip.open(SAMPLE, "rt", encoding="utf-8", newline="") as file:
        next(file)
        ids = [line.split(",")[1] for line in io.StringIO(file.read())]
    assert [text for batch in batches for text in batch.unique_message_id.to_pylist()] == ids


def test_folders_named_key_value_are_searched_to_any_depth(tmp_path):
    """If rows have the same time, those of the file whose path sorts first come first."""
    names = ["b.csv", "day=2/hour=1/a.csv", "day=2/z.csv", "day=10/a.csv", "day=/a.csv", "a.csv"]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(csv_bytes([Row(1_700_000_000_000_000, name)]))
    for name in ("other/a.csv", "=x/a.csv", "_day=3/a.csv", ".day=3/a.csv", "day=2/_hour=2/a.csv", "day=2/other/a.csv"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(csv_bytes([Row(1_700_000_000_000_000, "hidden")]))
    assert [row.unique_message_id for row in read(tmp_path)] == sorted(names)
    assert [row.unique_message_id for row in read(tmp_path.as_uri())] == sorted(names)
