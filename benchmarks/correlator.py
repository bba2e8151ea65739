"""Messages a second read from a correlator's log, against Python's `csv` reading the same receipts from a CSV. The CSV
is a third as long.

Each runs in one thread, and is timed by the processor's time. Ours checks times and text, and gives whole columns.

Where the time goes (2 cores, 25 GB; docs/performance.md has the results):

`correlator` searches a block by NumPy: for its lines, the first `=` of each line, and the entries of the log. The text
of a line up to its first `=` shows what the line is. Few such texts differ, so a regular expression matches each only
once. A value that isn't plain, such as one with line breaks, is read line by line, which takes ten times as long.
"""

from __future__ import annotations

import csv
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.pairing import Comparison, Goal, by_turns, seconds
from benchmarks.workload import stream
from receiver.logs import ReadOptions, read_logs

_TURNS = 5
_ENTRY = """\
{time} INFO  [27192:JMSReceiver:orders] - 'orders' has received JMS message: Property.uniqueMessageId={id_}
   Property.messageSourceId={source}
   JMSDestination=Queue<orders>
   JMSMessageID=ID:{id_}
   JMSReplyTo=null
   JMSRedelivered=false
   JMSTimestamp={sent_at_ms}
   JMSDeliveryMode=PERSISTENT
   JMSPriority=4
   JMSExpiration=0
   JMSType=null
   MessageClass=TextMessage
   Body="<order id='{id_}'>
     <amount currency='EUR'>119.50</amount>
   </order>"
"""
_COLUMNS = [
    "received_at",
    "unique_message_id",
    "message_source_id",
    "destination",
    "receiver_id",
    "jms_redelivered",
    "jms_timestamp",
]


def _messages(count: int) -> Iterator[dict[str, str | int]]:
    for id_, source, received_at_us in stream(count):
        at_ms = received_at_us // 1_000
        at = datetime.fromtimestamp(at_ms // 1_000, UTC)
        time = f"{at:%Y-%m-%d %H:%M:%S}.{at_ms % 1_000:03}"
        yield {"time": time, "id_": id_, "source": source, "sent_at_ms": at_ms - 20}


def _write(count: int, log: Path, table: Path) -> None:
    with log.open("w", encoding="utf-8") as entries, table.open("w", encoding="utf-8", newline="") as rows:
        writer = csv.writer(rows)
        writer.writerow(_COLUMNS)
        for message in _messages(count):
            entries.write(_ENTRY.format_map(message))
            time, id_, source, sent_at_ms = message.values()
            writer.writerow([time, id_, source, "Queue<orders>", "orders", "false", sent_at_ms])


def _read(log: Path) -> int:
    return sum(map(len, read_logs([str(log)], ReadOptions())))


def _read_csv(table: Path) -> int:
    with table.open(encoding="utf-8", newline="") as rows:
        return sum(1 for _row in csv.reader(rows)) - 1


def correlator(scale: float) -> list[Comparison]:
    count = max(1_000, round(500_000 * scale))
    with tempfile.TemporaryDirectory() as folder:
        log, table = Path(folder) / "correlator.log", Path(folder) / "receipts.csv"
        _write(count, log, table)
        if (read := {_read(log), _read_csv(table)}) != {count}:
            raise AssertionError(f"of {count} receipts, the readers give {read}")
        return [
            by_turns(
                lambda: count / seconds(lambda: _read(log)),
                lambda: count / seconds(lambda: _read_csv(table)),
                turns=_TURNS,
                name="correlator",
                work=f"reading a correlator's log: {count:,} messages in {log.stat().st_size / 1e6:,.0f} MB",
                unit="messages/s",
                anchor_name=f"Python's csv.reader, the same receipts in {table.stat().st_size / 1e6:,.0f} MB",
                goal=Goal(0.25, aim=0.5, enough=400_000),
            )
        ]
