"""Receipts to record, and readers of the recorded logs."""

import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from receiver.logs import ReadOptions, read_logs
from receiver.message import Receipt
from receiver.recording import Recorder

FORMATS = ("jsonl.zst", "parquet")
START_US = 1_795_225_068_711_509


def receipt(number: int, **fields: object) -> Receipt:
    return Receipt(**{"unique_message_id": f"id-{number}", "received_at_us": START_US + number, **fields})


def record(recorder: Recorder, receipts: Iterable[Receipt]) -> None:
    """Record a committed batch of receipts without rows, each with its time as read."""
    if (row := recorder.packed((), list(enumerate(receipts)))) is not None:
        recorder.commit(row)


def read(*paths: object) -> list[Receipt]:
    """The receipts in a log. A missing value is the one that a receipt has by default."""
    receipts = []
    for batch in read_logs([str(path) for path in paths], ReadOptions()):
        names = ("unique_message_id", "message_source_id", "received_at_us", "jms_redelivered", "jms_timestamp_ms")
        columns = [getattr(batch, name).tolist() for name in (*names, "body_digest")]
        receipts += [
            Receipt(id_, source or None, at_us, redelivered, sent_ms or None, digest or None)
            for id_, source, at_us, redelivered, sent_ms, digest in zip(*columns, strict=True)
        ]
    return receipts


def ids(receipts: Iterable[Receipt]) -> list[str | None]:
    return [receipt.unique_message_id for receipt in receipts]


def simulate(path: object) -> dict:
    """The output of `receiver simulate` on a log, as a process of its own."""
    command = [sys.executable, "-m", "receiver", "simulate", str(path), "--window", "10", "--expiry", "1", "--json"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


def segments(folder: Path) -> list[str]:
    """The finished files of a folder."""
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))


def unfinished(folder: Path) -> list[Path]:
    """The unfinished files of a folder. The lock isn't one of them: it always stays."""
    return sorted(path for path in folder.iterdir() if path.name.startswith(".") and path.suffix != ".lock")
