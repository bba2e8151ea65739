"""Logs at URLs, on an S3 server on loopback, give the same receipts as files."""

import json
import ssl
import time
from collections import deque
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import ClassVar
from urllib.parse import urlsplit

import boto3
import msgspec
import pytest
import trustme
from aiohttp import ClientTimeout
from fsspec import register_implementation
from fsspec.implementations.http import HTTPFileSystem
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.utils import infer_storage_options
from s3fs import S3FileSystem
from typer.testing import CliRunner

from receiver.cli import app
from receiver.errors import LogFormatError, SettingsError
from receiver.logs.compacted import MANIFEST, DomainFiles, Manifest, PartFile, new_folder
from receiver.logs.files import find_files
from receiver.logs.remote import UrlPath, UrlStream, is_url
from tests.logs.reading import FORMATS, Row, csv_bytes, opened, read

ROWS = [Row(1_795_225_068_000_000 + number, f"id {number % 7}", "s") for number in range(20)]


@pytest.fixture(scope="module")
def s3():
    from moto.server import ThreadedMotoServer  # takes long to import

    server = ThreadedMotoServer("127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    settings = {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "anybody",
        "AWS_SECRET_ACCESS_KEY": "any",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in settings.items():
            patch.setenv(name, value)
        client = boto3.client("s3")
        client.create_bucket(Bucket="receipts")
        yield client
    server.stop()


def put(s3, key, content):
    s3.put_object(Bucket="receipts", Key=key, Body=content)
    return f"s3://receipts/{key}"


@pytest.mark.parametrize("scheme", ["s3", "s3a"])
@pytest.mark.parametrize(("name", "content"), FORMATS.items())
def test_every_format(s3, name, content, scheme):
    url = put(s3, f"formats/{name}", content(ROWS)).replace("s3:", f"{scheme}:")
    assert read(url) == ROWS


def test_a_folder_of_partitions_and_a_glob(s3):
    for day, rows in (("2026-11-02", ROWS[10:]), ("2026-11-01", ROWS[:10])):
        put(s3, f"days/day={day}/part.csv", csv_bytes(rows))
    put(s3, "days/day=2026-11-01/_SUCCESS", b"")
    put(s3, "days/_temporary/0/part.csv", b"half a li")
    assert read("s3://receipts/days/") == read("s3://receipts/days") == ROWS
    assert read("s3://receipts/days/day=*/*.csv") == ROWS
    assert read("s3://receipts/days/day=2026-11-02/part.csv", "s3://receipts/days/day=2026-11-01/part.csv") == ROWS


def test_objects_that_stand_for_folders_are_no_logs(s3):
    for marker in ("marked/", "marked/day=1/", "marked/day=1_$folder$", "bare/"):
        put(s3, marker, b"")
    put(s3, "marked/day=1/part.csv", csv_bytes(ROWS))
    for log in ("marked", "marked/", "marked/*/*", "marked/**"):
        assert read(f"s3://receipts/{log}") == ROWS, log
    for log in ("marked/*", "bare/"):
        with pytest.raises(LogFormatError, match="no file matches"):
            read(f"s3://receipts/{log}")
    with new_folder(UrlPath("s3://receipts/bare")) as folder:
        assert str(folder) == "s3://receipts/bare"
    put(s3, "filled/x_$folder$", b"x")
    with pytest.raises(SettingsError, match="isn't empty"), new_folder(UrlPath("s3://receipts/filled")):
        pass


@pytest.mark.parametrize("name", ["a[1].csv", "b?c.csv", "d*e.csv"])
def test_a_name_that_is_there_is_no_glob(s3, name):
    put(s3, f"named/{name}".replace("?", "-").replace("*", "-"), csv_bytes(ROWS))
    assert read(put(s3, f"named/{name}", csv_bytes(ROWS[:9]))) == ROWS[:9]
    put(s3, f"in/{name}/part.csv", csv_bytes(ROWS[9:]))
    assert read(f"s3://receipts/in/{name}/") == ROWS[9:]


def test_a_folder_above_a_compacted_log_is_refused(s3):
    put(s3, "above/compacted/domain=q/day=2026-11-01/part-00000.csv", csv_bytes(ROWS))
    put(s3, "above/compacted/_receiver_log.json", b"{}")
    with pytest.raises(
        LogFormatError, match=r"holds a compacted log: s3://receipts/above/compacted/_receiver_log\.json"
    ):
        read("s3://receipts/above")


def compacted_log(count, write):
    """Write a compacted log of so many parts, by a function of its paths and bytes."""
    paths = [f"_data/day=2026-11-01/part-{number}.csv" for number in range(count)]
    parts = [PartFile(path, len(ROWS), ROWS[-1].received_at) for path in paths]
    for part in parts:
        write(part.path, csv_bytes(ROWS))
    manifest = Manifest("name:x", [DomainFiles("x", parts)], ["received_at"], len(parts) * len(ROWS), 0, 0)
    write(MANIFEST, msgspec.json.encode(manifest))


def test_the_files_of_a_compacted_log_are_listed_together(s3, monkeypatch):
    compacted_log(5, lambda path, data: put(s3, f"listed/{path}", data))
    asked = []
    call = S3FileSystem._call_s3

    async def noted(self, method, *arguments, **options):
        asked.append(method)
        return await call(self, method, *arguments, **options)

    monkeypatch.setattr(S3FileSystem, "_call_s3", noted)
    assert [file.size_bytes for file in find_files(["s3://receipts/listed"])] == [len(csv_bytes(ROWS))] * 5
    assert "head_object" not in asked
    assert read("s3://receipts/listed") == ROWS * 5


def test_a_compacted_log_may_grow_after_its_folder_was_listed(s3, monkeypatch):
    def written(path, data):
        put(s3, f"grows/{path}", data)

    compacted_log(1, written)
    listed = UrlPath.rglob

    def grown(self, pattern):
        yield from list(listed(self, pattern))
        compacted_log(2, written)

    monkeypatch.setattr(UrlPath, "rglob", grown)
    assert read("s3://receipts/grows") == ROWS * 2


@contextmanager
def serving(handler, context=None):
    """A server by HTTP, or with `context` by HTTPS; its port."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        if context is not None:
            server.socket = context.wrap_socket(server.socket, server_side=True)
        Thread(target=server.serve_forever).start()
        try:
            yield server.server_port
        finally:
            server.shutdown()


@pytest.fixture
def web(tmp_path):
    """A server of the files in `tmp_path`. Yields its address and a list of what was asked for."""
    asked = []

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, _form, *arguments):
            asked.append(str(arguments[0]))

    with serving(partial(Handler, directory=str(tmp_path))) as port:
        yield f"http://127.0.0.1:{port}", asked


def test_a_file_by_http_is_read_once_whatever_links_it_holds(web, tmp_path):
    address, asked = web
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "1.csv").write_bytes(csv_bytes([*ROWS[:9], Row(ROWS[9].received_at, '<a href="/else.csv">')]))
    (tmp_path / "logs" / "2.csv").write_bytes(csv_bytes(ROWS[10:]))
    assert [row.unique_message_id for row in read(f"{address}/logs/1.csv")][-1] == '<a href="/else.csv">'
    assert [line for line in asked if line.startswith("GET")] == ["GET /logs/1.csv HTTP/1.1"]
    (tmp_path / "answer").mkdir()
    (tmp_path / "answer" / "index.html").write_bytes(csv_bytes(ROWS))
    assert read(f"{address}/answer/") == ROWS
    for log in ("logs/", "logs", "logs/*.csv"):
        assert read(f"{address}/{log}")[10:] == ROWS[10:]
    with pytest.raises(LogFormatError, match="Cannot connect"):
        opened("http://127.0.0.1:1/logs/1.csv?x=1")


def test_a_compacted_log_by_http_is_read_without_a_list_of_its_folders(web, tmp_path):
    """A server may refuse to list them."""
    address, asked = web

    def written(path, data):
        (tmp_path / "log" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "log" / path).write_bytes(data)

    compacted_log(2, written)
    assert read(f"{address}/log") == ROWS * 2
    assert [line for line in asked if "_data/ " in line] == []


@pytest.mark.parametrize("query", ["", "?signature=secret"])
def test_a_server_that_nobody_vouches_for_is_said_to_be_one(query):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("localhost").configure_cert(context)
    with (
        serving(SimpleHTTPRequestHandler, context) as port,
        pytest.raises(LogFormatError, match="certificate verify failed") as error,
    ):
        read(f"https://me:secret@localhost:{port}/1.csv{query}")
    assert "secret" not in str(error.value)


def test_a_long_file_from_a_server_without_ranges(web, tmp_path):
    """fsspec asks for 5 MB at a time."""
    rows = [Row(second, f"{second}" * 10_000) for second in range(1_000, 1_200)]
    (tmp_path / "long.csv").write_bytes(csv_bytes(rows))
    assert read(f"{web[0]}/long.csv") == read(tmp_path / "long.csv")


class Whole(SimpleHTTPRequestHandler):
    """Answers with the whole file only."""

    ranges = "none"

    def end_headers(self):
        self.send_header("Accept-Ranges", self.ranges)
        super().end_headers()

    def log_message(self, _form, *_arguments):
        pass


def test_many_long_answers_are_open_at_once(tmp_path, monkeypatch):
    """aiohttp's own client ends each after five minutes, here after one second, and has more than a hundred wait."""
    monkeypatch.setattr("aiohttp.client.DEFAULT_TIMEOUT", ClientTimeout(total=1))
    HTTPFileSystem.clear_instance_cache()
    (tmp_path / "1.csv").write_bytes(content := b"0123456789" * 100_000)
    with serving(partial(Whole, directory=str(tmp_path))) as port:
        streams = [UrlStream(f"http://127.0.0.1:{port}/1.csv") for _ in range(101)]
        time.sleep(1)
        for stream in streams:
            assert b"".join(iter(partial(stream.read, 100_000), b"")) == content
            stream.close()


class Ranges(Whole):
    """Answers with ranges."""

    ranges = "bytes"

    def do_GET(self):
        content = Path(self.translate_path(self.path)).read_bytes()
        first, last = self.headers["Range"].removeprefix("bytes=").split("-")
        part = content[int(first) : int(last) + 1]
        self.send_response(206 if part else 416)
        self.send_header("Content-Length", str(len(part)))
        self.end_headers()
        self.wfile.write(part)


def test_a_file_that_is_cut_while_it_is_read_has_not_ended(tmp_path):
    (tmp_path / "1.csv").write_bytes(bytes(12_000_000))
    with serving(partial(Ranges, directory=str(tmp_path))) as port:
        stream = UrlStream(f"http://127.0.0.1:{port}/1.csv")
        stream.read(100_000)
        (tmp_path / "1.csv").write_bytes(bytes(100))
        with pytest.raises(LogFormatError, match=r"/1\.csv: ended after [56],\d{3},\d{3} of 12,000,000 bytes"):
            deque(iter(partial(stream.read, 100_000), b""), maxlen=0)
        stream.close()


def test_a_bad_row_is_named(s3):
    url = put(s3, "bad.csv", b"received_at,unique_message_id\n1,a\nnever,b\n")
    with pytest.raises(LogFormatError, match=f"^{url}:3: "):
        read(url)


@pytest.mark.usefixtures("s3")
@pytest.mark.parametrize(
    ("url", "error", "complaint"),
    [
        ("s3://receipts/nothing.csv", LogFormatError, "can't be read: "),
        ("s3://receipts/nothing*.csv", LogFormatError, "no file matches"),
        ("s3://nobodys/log.csv", LogFormatError, "can't be read: "),
        ("nosuch://receipts/log.csv", SettingsError, "can't be read: .*nosuch"),
        ("gs://receipts/log.csv", SettingsError, "install that package"),
    ],
)
def test_what_is_not_there(url, error, complaint):
    with pytest.raises(error, match=complaint):
        opened(url)


def test_the_command_reads_it_as_a_file(s3, tmp_path):
    log = tmp_path / "log.csv"
    log.write_bytes(csv_bytes(ROWS))
    url = put(s3, "log.csv", csv_bytes(ROWS))
    here, there = (
        CliRunner().invoke(app, ["simulate", where, "--domain", "name:x", "--json"]) for where in (log.as_uri(), url)
    )
    assert here.exit_code == there.exit_code == 0
    assert json.loads(here.stdout) == json.loads(there.stdout)


def test_what_is_a_url():
    assert is_url("s3a://b/k")
    assert not any(map(is_url, ["file:///a", "table:x", "a.csv", "C:\\a.csv", "-", "a b://c"]))


class Served(MemoryFileSystem):
    """A filesystem whose own names of files lack the host and the user, as FTP's and HDFS's."""

    protocol = "served"
    store: ClassVar = {}
    pseudo_dirs: ClassVar = [""]

    def __init__(self, host, username, password, **options):
        assert (host, username, password) == ("h:21", "user", "secret")
        super().__init__(**options)

    @classmethod
    def _strip_protocol(cls, path):
        return "/" + infer_storage_options(path)["path"].strip("/")

    @staticmethod
    def _get_kwargs_from_urls(url):
        parts = urlsplit(url)
        return {"host": f"{parts.hostname}:{parts.port}", "username": parts.username, "password": parts.password}


@pytest.fixture
def served():
    register_implementation("served", Served, clobber=True)
    files = Served("h:21", "user", "secret")
    for day in (1, 2):
        files.pipe_file(f"/logs/{day}.csv", csv_bytes(ROWS[10 * day - 10 : 10 * day]))
    files.pipe_file("/bad/1.csv", b"received_at,unique_message_id\nnever,b\n")
    return "served://user:secret@h:21"


@pytest.mark.parametrize("log", ["logs", "logs/", "logs/*.csv"])
def test_files_keep_the_host_and_the_user(served, log):
    assert read(f"{served}/{log}") == ROWS


def test_credentials_are_not_shown(served):
    for log in ("bad", "bad/1.csv", "none.csv", "none*"):
        with pytest.raises(LogFormatError, match=r"^served://\*\*\*@h:21/") as error:
            read(f"{served}/{log}")
        assert "secret" not in str(error.value)


def test_half_a_password_is_not_shown_as_a_port():
    with pytest.raises(SettingsError, match=r"ftp://\*\*\*@host/x\.csv can't be read: its port is no number"):
        opened("ftp://user:half/rest@host/x.csv")
