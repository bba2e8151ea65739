"""Ids and names meant to do harm come through: exact where programs read them, harmless where people do."""

import json

import pytest
from hostile_logs import HOSTILE, READERS, WRITERS, hostile_rows, read_jsonl, write_jsonl


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
