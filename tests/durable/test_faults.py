"""Each system call of a batch on SQLite fails once, or is the last one before a kill. The store stays consistent."""

import json
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

from receiver.errors import StoreError
from tests.campaigns import survived
from tests.choosing import scaled, slow
from tests.durable import journal
from tests.durable.checks import assert_sound
from tests.durable.one_batch import BATCH_SIZE, LONG_AGO, POLICY, WHEN, files_in, make_template, receipts_of, receive
from tests.durable.strace import Call, Fault, traced
from tests.durable.stream import stream_of
from tests.durable.worker import open_receiver

SYSCALLS = ("pwrite64", "fsync", "fdatasync", "ftruncate")
ROOT = Path(__file__).resolve().parents[2]
ALL_DUPLICATES = "d" * BATCH_SIZE


def batches(folder, seed, syscall, first, last, *, syscalls=SYSCALLS, fault=None) -> tuple[list[dict], list[Call]]:
    program = [sys.executable, "-m", "tests.durable.one_batch", folder, str(seed), syscall, str(first), str(last)]
    out, calls = traced(program, syscalls=syscalls, files=files_in(folder), log=folder / "trace", fault=fault, cwd=ROOT)
    return [json.loads(line) for line in out.splitlines()], calls


@pytest.fixture
def folder(tmp_path, seed):
    """A folder with the store from which batches with faults begin."""
    make_template(tmp_path, seed)
    return tmp_path


def calls_of_a_batch(folder, seed) -> Counter[str]:
    ((batch,), calls) = batches(folder, seed, "pwrite64", 0, 0)
    return Counter(call.name for call in calls if call.thread == batch["thread"])


def assert_survived(url, seed, answers) -> None:
    """Check that the batch's reports are true, and that it takes effect once if it is sent until confirmed."""
    receipts = receipts_of(seed)
    with open_receiver(url, POLICY) as orders:
        assert_sound(url)
        turns, _ = journal.read(url)
        reported = [verdicts for verdicts in answers if len(verdicts) == BATCH_SIZE]
        verdicts = [verdicts for _, first, verdicts in turns if first == LONG_AGO]
        assert verdicts[len(verdicts) - len(reported) :] == reported
        assert verdicts[1:] in ([], [ALL_DUPLICATES])
        again = receive(orders, receipts, LONG_AGO)
        assert (again == ALL_DUPLICATES) == bool(verdicts)
    assert_sound(url)
    took_effect = journal.verify(url, {0: receipts}, POLICY)
    assert took_effect.keys() == {id_ for id_, _, _ in receipts[: LONG_AGO + BATCH_SIZE]}


@pytest.mark.costly
@pytest.mark.parametrize("outcome", [scaled("error=EIO"), slow("error=ENOSPC"), scaled("signal=SIGKILL")])
def test_a_fault_at_every_system_call_of_a_batch(folder, seed, campaign, outcome):
    """The quick run tries every fdatasync, of which there are few, and the last calls of each other kind."""
    counted = calls_of_a_batch(folder, seed)
    print(f"in a batch: {counted}")
    assert counted["pwrite64"] > BATCH_SIZE, "it deletes, appends, and moves pages to the file"
    assert counted["fdatasync"] + counted["fsync"] > 0
    for syscall, last in counted.items():
        assert last < WHEN
        first = 1 if syscall == "fdatasync" else max(1, last + 1 - campaign.faults)
        tried = range(first, last + 1)
        fault = Fault(syscall, outcome, WHEN)
        ended, calls = batches(folder, seed, syscall, first, last, syscalls=[syscall], fault=fault)
        assert [batch["k"] for batch in ended] == list(tried)
        if outcome == "signal=SIGKILL":
            assert [batch["answers"] for batch in ended] == [["killed"]] * len(tried)
        else:
            assert sum(call.injected for call in calls) == len(tried)
        if (syscall, outcome) == ("fdatasync", "error=EIO"):
            failed = [batch for batch in ended if batch["answers"][0].startswith("failed")]
            assert len(failed) > 1, "the log's header and the commit are on disk before a batch is confirmed"
        for batch in ended:
            print(syscall, batch)
            if outcome != "signal=SIGKILL":
                assert len(batch["answers"][1]) == BATCH_SIZE, "the service resumes when the fault is over"
            assert_survived(f"sqlite:///{folder / str(batch['k'])}.db", seed, batch["answers"])
        what = "kills at a system call" if outcome == "signal=SIGKILL" else "system calls that failed"
        survived({what: len(tried)}, len(tried) * BATCH_SIZE)


@pytest.fixture
def small_disk(tmp_path):
    """A file system of a few megabytes."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", disk]
    if sys.platform != "linux" or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("only root on Linux may mount a small file system to fill")
    yield disk
    subprocess.run(["umount", disk], check=True)


def fill(file: Path) -> None:
    """Write until not one more byte fits."""
    with file.open("wb", buffering=0) as ballast, suppress(OSError):
        while True:
            ballast.write(bytes(4096))


def test_a_full_disk(small_disk, seed):
    """Batches fail with a hint, record nothing, and go on when there is space again."""
    url = f"sqlite:///{small_disk / 'receiver.db'}"
    ballast = small_disk / "ballast"
    receipts = stream_of(seed, 0, 200 * BATCH_SIZE)
    positions = range(0, len(receipts), BATCH_SIZE)
    refused = []
    journal.make(url)
    with open_receiver(url, POLICY) as orders:
        for first in positions:
            if first % (50 * BATCH_SIZE) == 0:
                fill(ballast)
            try:
                receive(orders, receipts, first)
            except StoreError as error:
                refused.append(error)
                ballast.unlink()
                receive(orders, receipts, first)
    assert len(refused) > 1
    for error in refused:
        assert "full" in error.message
        assert "make room" in error.hint
    assert_sound(url)
    turns, _ = journal.read(url)
    assert [first for _, first, _ in turns] == list(positions)
    journal.verify(url, {0: receipts}, POLICY)
