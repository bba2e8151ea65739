"""If nobody reads standard output any more, the exit status stays the same. Any other output that can't be written
is an error."""

import os
import subprocess
from contextlib import contextmanager
from pathlib import Path

import pytest
from running import HEADER, RECEIVER

from receiver import Receiver
from tests.stores import execute

FULL = Path("/dev/full")
MISSING_SOME = HEADER + "".join(f"{time},{id_},s,c,q\n" for time, id_ in enumerate("abcdabcd", 1))
ONE_PAIR = ("--window", "1", "--expiry", "0")


@contextmanager
def closed_pipe():
    """The writing end of a pipe whose reader has gone."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        yield writing
    finally:
        os.close(writing)


def run(folder, *arguments, **streams):
    return subprocess.run(
        [*RECEIVER, *map(str, arguments)],
        cwd=folder,
        text=True,
        check=False,
        **({"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | streams),
    )


def unread(folder, *arguments):
    """Run the command with a standard output that nobody reads."""
    with closed_pipe() as pipe:
        return run(folder, *arguments, stdout=pipe)


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text(MISSING_SOME)
    return path


@pytest.fixture
def store(tmp_path):
    address = f"sqlite:///{tmp_path}/receiver.db"
    with Receiver.open(address, connection_id="c", destination="q") as receiver, receiver.batch() as batch:
        batch.receive("1:a", "a")
    return address


@pytest.mark.slow
@pytest.mark.parametrize("how", [(), ("--json",)], ids=["table", "json"])
def test_missed_duplicates_fail_whoever_reads(tmp_path, log, how):
    asked = ("simulate", log, *ONE_PAIR, "--fail-on-missed", "0", *how)
    assert run(tmp_path, *asked).returncode == 1
    ran = unread(tmp_path, *asked)
    assert (ran.returncode, ran.stderr) == (1, "4 duplicates missed, 0 allowed by --fail-on-missed\n")
    assert unread(tmp_path, *asked, "--fail-on-missed", "4").returncode == 0


@pytest.mark.slow
def test_neither_stream_is_read(tmp_path, log):
    """As after 2>&1 before the pipe."""
    with closed_pipe() as pipe:
        assert run(tmp_path, "simulate", log, *ONE_PAIR, stdout=pipe, stderr=pipe).returncode == 0
        failing = ("simulate", log, *ONE_PAIR, "--fail-on-missed", "0", "--json")
        assert run(tmp_path, *failing, stdout=pipe, stderr=pipe).returncode == 1
        assert run(tmp_path, "simulate", "no.csv", stdout=pipe, stderr=pipe).returncode == 2


@pytest.mark.slow
@pytest.mark.parametrize("how", [(), ("--json",)], ids=["list", "json"])
def test_a_broken_store_fails_the_check_whoever_reads(tmp_path, store, how):
    assert unread(tmp_path, "check", store, *how).returncode == 0
    execute(store, "UPDATE receiver_domain SET latest_us = latest_us - 1")
    ran = unread(tmp_path, "check", store, *how)
    assert (ran.returncode, ran.stderr) == (1, "")


@pytest.mark.thinned(9)
@pytest.mark.parametrize(
    "arguments",
    [
        ("simulate", "a.csv"),
        ("simulate", "a.csv", "--json"),
        ("compare", "a.csv", "--policy", "perfect"),
        ("compare", "a.csv", "--policy", "perfect", "--json"),
        ("status", "STORE"),
        ("status", "STORE", "--json"),
        ("parked", "list", "STORE"),
        ("parked", "retry", "STORE", "--all"),
        ("migrate", "STORE"),
        ("--help",),
        ("simulate", "--help"),
        ("--version",),
    ],
    ids=" ".join,
)
@pytest.mark.usefixtures("log")
def test_every_command_ends_quietly(tmp_path, store, arguments):
    ran = unread(tmp_path, *(store if word == "STORE" else word for word in arguments))
    assert (ran.returncode, ran.stderr) == (0, "")


@pytest.mark.slow
def test_what_is_asked_for_is_still_written(tmp_path, log):
    ran = unread(tmp_path, "simulate", log, *ONE_PAIR, "--verdicts", "v.csv", "--report", "r.html")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert len((tmp_path / "v.csv").read_text().splitlines()) == 9
    assert (tmp_path / "r.html").stat().st_size > 1_000


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes on this system")
def test_another_pipe_that_nobody_reads_is_an_error(tmp_path, log):
    """`--verdicts` and `--report` are results that the user asked for, whatever they are written to."""
    os.mkfifo(tmp_path / "v.csv")
    # It is opened for reading, so that the command can open it. Then its reader goes.
    holder = subprocess.Popen(["sh", "-c", "exec 3<v.csv; read -r line <&3; exec 3<&-"], cwd=tmp_path)
    log.write_text(HEADER + "".join(f"{time},id{time},s,c,q\n" for time in range(1, 100_000)))
    try:
        ran = run(tmp_path, "simulate", log, *ONE_PAIR, "--verdicts", "v.csv")
    finally:
        holder.wait(timeout=30)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr == "error: can't write v.csv: Broken pipe\n"


@pytest.mark.slow
@pytest.mark.skipif(not FULL.exists(), reason="no /dev/full here")
def test_a_full_disk_behind_standard_output_is_an_error_for_every_command(tmp_path, log, store):
    of_logs = ("simulate", log), ("simulate", log, "--json")
    for arguments in (*of_logs, ("status", store), ("check", store, "--json"), ("migrate", store), ("--version",)):
        with FULL.open("wb") as full:
            ran = run(tmp_path, *arguments, stdout=full)
        assert ran.returncode == 2, arguments
        assert ran.stderr == "error: can't write to standard output: No space left on device\n"


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (FileNotFoundError(2, "No such file", "/no/such"), "error: /no/such: No such file\n"),
        (OSError(5, "Input/output error"), "error: test_closed_pipes.refuse: Input/output error\n"),
        (BrokenPipeError(32, "Broken pipe"), "error: test_closed_pipes.refuse: Broken pipe\n"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_the_system_refuses_elsewhere_says_where(command, monkeypatch, error, words):
    """An unexpected error of the system isn't taken for one of standard output."""

    def refuse(_address):
        raise error

    monkeypatch.setattr("receiver.store.upkeep.parked_rows", refuse)
    assert command("parked", "list", "sqlite:///r.db") == (2, "", words)
