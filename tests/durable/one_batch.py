"""Run under strace: one batch on a store, again and again. Each time the fault is at the next system call.

`python -m tests.durable.one_batch FOLDER SEED SYSCALL FIRST LAST`: for each k from FIRST to LAST, a forked process
receives the batch on a fresh copy of `FOLDER/template.db`, with the fault at the k-th SYSCALL of the batch. It leaves
`FOLDER/k.db`, and prints a line of JSON on how the batch ended. k=0 is without a fault.

strace always makes the WHEN-th call of a thread fail, whatever k is. So the batch runs in a thread of its own, which
first makes WHEN-k calls of that kind on a file beside the store. Starting Python anew for each k would take minutes.
"""

import json
import os
import shutil
import sys
import threading
from pathlib import Path

from receiver import Receiver
from receiver.errors import StoreError
from tests.durable import journal
from tests.durable.stream import SECOND_US, Received, stream_of
from tests.durable.worker import open_receiver

WHEN = 400
POLICY = "apama:window=1,expiry=100"
BATCH_SIZE = 20
LONG_AGO = 1_500
CHECKPOINT_PAGES = 8
SUFFIXES = ("", "-wal", "-shm")
BURN = {
    "pwrite64": lambda fd: os.pwrite(fd, b"x", 0),
    "fsync": os.fsync,
    "fdatasync": os.fdatasync,
    "ftruncate": lambda fd: os.ftruncate(fd, 1),
}


def receipts_of(seed: int) -> list[Received]:
    """Many receipts, then a batch that comes after they expire: so it deletes them and gives space back."""
    stream = stream_of(seed, 0, LONG_AGO + 3 * BATCH_SIZE)
    return stream[:LONG_AGO] + [(id_, source, at + 1_000 * SECOND_US) for id_, source, at in stream[LONG_AGO:]]


def receive(orders: Receiver, receipts: list[Received], first: int, size: int = BATCH_SIZE) -> str:
    received = receipts[first : first + size]
    with orders.batch() as batch:
        # So few pages that the batch also moves pages from the log to the file.
        batch.connection.exec_driver_sql(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
        decisions = batch.receive_many(received)
        journal.write(batch.connection, 0, first, received, decisions)
    return journal.letters(decisions)


def make_template(folder: Path, seed: int) -> None:
    url = f"sqlite:///{folder / 'template.db'}"
    journal.make(url)
    with open_receiver(url, POLICY) as orders:
        receive(orders, receipts_of(seed), 0, LONG_AGO)


def files_in(folder: Path) -> list[Path]:
    """The files on which calls are counted."""
    return [folder / f"receiver.db{suffix}" for suffix in SUFFIXES] + [folder / "burnt"]


def send_twice(folder: Path, receipts: list[Received], syscall: str, k: int) -> None:
    """Send the batch twice, or once if no call fails, and print how it ended each time."""

    def in_thread() -> None:
        burnt = os.open(folder / "burnt", os.O_RDWR | os.O_CREAT)
        for _ in range(WHEN - k if k else 0):
            BURN[syscall](burnt)
        answers = []
        for _ in range(2 if k else 1):
            try:
                answers.append(receive(orders, receipts, LONG_AGO))
            except StoreError as error:
                answers.append(f"failed: {error!r}")
        print(json.dumps({"k": k, "thread": threading.get_native_id(), "answers": answers}), flush=True)

    with open_receiver(f"sqlite:///{folder / 'receiver.db'}", POLICY) as orders:
        thread = threading.Thread(target=in_thread)
        thread.start()
        thread.join()


def main(folder: Path, seed: int, syscall: str, first: int, last: int) -> None:
    receipts = receipts_of(seed)
    for k in range(first, last + 1):
        for suffix in SUFFIXES:
            (folder / f"receiver.db{suffix}").unlink(missing_ok=True)
        shutil.copy(folder / "template.db", folder / "receiver.db")
        child = os.fork()
        if child == 0:
            send_twice(folder, receipts, syscall, k)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status):
            print(json.dumps({"k": k, "answers": ["killed"]}), flush=True)
        for suffix in SUFFIXES[:2]:  # without the shared memory, which doesn't survive
            left = folder / f"receiver.db{suffix}"
            if left.exists():
                shutil.copy(left, folder / f"{k}.db{suffix}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
