"""The recorded log, fed through receivers by a process that may be killed; and the verdicts that it committed."""

import csv
import gzip
import time
from datetime import UTC, datetime
from multiprocessing.connection import Connection
from pathlib import Path

from sqlalchemy import Column, Integer, MetaData, NullPool, Table, Text, create_engine, func, insert, select

from receiver import Receipt, ReceiverSettings
from tests.durable.opened import opened

LOG = Path(__file__).parents[2] / "examples" / "artemis-receipts.csv.gz"
BATCH_SIZE = 500
HELD_SECS = 60

METADATA = MetaData()
progress = Table(
    "progress",
    METADATA,
    Column("destination", Text, primary_key=True),
    Column("following", Integer, primary_key=True),  # which of the destination's receipts comes next
    Column("verdicts", Text),  # the first letter of each verdict
)


def receipts_of_the_log() -> dict[str, list[tuple[int, Receipt]]]:
    """The receipts by destination, each with its row in the log."""
    by_destination: dict[str, list[tuple[int, Receipt]]] = {}
    with gzip.open(LOG, "rt", encoding="utf-8", newline="") as lines:
        for row, fields in enumerate(csv.DictReader(lines)):
            at = datetime.fromisoformat(fields["received_at"]).astimezone(UTC)
            receipt = Receipt(
                fields["unique_message_id"],
                fields["message_source_id"],
                int(at.timestamp()) * 1_000_000 + at.microsecond,
                fields["jms_redelivered"] == "true",
                int(fields["jms_timestamp"]),
                fields["body_digest"],
            )
            by_destination.setdefault(fields["destination"], []).append((row, receipt))
    return by_destination


def feed(url: str, settings: ReceiverSettings, hold_in_batch: int | None, reports: Connection) -> None:
    """Go on behind the last committed batch, and report each commit. If asked to, stop inside a batch until killed."""
    batches = 0
    for destination, receipts in receipts_of_the_log().items():
        with opened(url, destination=destination, domain="destination", settings=settings) as receiver:
            at = start_of(url, destination)
            while at < len(receipts):
                following = min(at + BATCH_SIZE, len(receipts))
                with receiver.batch() as batch:
                    decisions = batch.receive_many(receipt for _, receipt in receipts[at:following])
                    verdicts = "".join(decision.verdict[0] for decision in decisions)
                    batch.connection.execute(
                        insert(progress).values(destination=destination, following=following, verdicts=verdicts)
                    )
                    if batches == hold_in_batch:
                        reports.send("inside")
                        time.sleep(HELD_SECS)
                at = following
                batches += 1
                reports.send("committed")
    reports.send("done")


def start_of(url: str, destination: str) -> int:
    engine = create_engine(url, poolclass=NullPool)
    with engine.connect() as connection:
        last = select(func.max(progress.c.following)).where(progress.c.destination == destination)
        return connection.execute(last).scalar() or 0


def make(url: str) -> None:
    METADATA.create_all(create_engine(url, poolclass=NullPool))


def verdicts_committed(url: str) -> list[str]:
    """The verdicts on all receipts, by row of the log."""
    by_row: dict[int, str] = {}
    engine = create_engine(url, poolclass=NullPool)
    with engine.connect() as connection:
        for destination, receipts in receipts_of_the_log().items():
            mine = select(progress.c.verdicts).where(progress.c.destination == destination)
            letters = "".join(connection.execute(mine.order_by(progress.c.following)).scalars())
            assert len(letters) == len(receipts)
            by_row.update(zip((row for row, _ in receipts), letters, strict=True))
    return [by_row[row] for row in range(len(by_row))]
