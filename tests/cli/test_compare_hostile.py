"""Ids meant to do harm come through a comparison: exact where programs read them, harmless where people do."""

import json

import pytest
from hostile_logs import HOSTILE, READERS, hostile_rows, write_jsonl

# The second receipts are too late for this policy, so every id is in dispute.
ONE_IN_DISPUTE = "--policy", "perfect", "--policy", "ttl:expiry=0.5"


@pytest.mark.parametrize("ending", READERS)
def test_verdicts_hold_the_exact_text(compare, tmp_path, ending):
    write_jsonl(tmp_path / "log.jsonl", hostile_rows())
    ran = compare("log.jsonl", "--domain", "name:one", *ONE_IN_DISPUTE, "--verdicts", f"v.{ending}", "--json")
    assert ran.status == 0, ran.err
    rows = READERS[ending](tmp_path / f"v.{ending}")
    assert [row["unique_message_id"] for row in rows] == HOSTILE * 2
    assert [row["message_source_id"] for row in rows] == HOSTILE * 2
    assert [row["perfect"] for row in rows] == ["new"] * len(HOSTILE) + ["duplicate"] * len(HOSTILE)
    assert [row["ttl:expiry=0.5"] for row in rows] == ["new"] * len(HOSTILE) * 2
    disputes = json.loads(ran.out)["disputes"]
    assert [dispute["unique_message_id"] for dispute in disputes] == HOSTILE[:10]
    assert not any(control in ran.out for control in "\0\x1b\u2028\u202e")


@pytest.mark.parametrize("key", ["default", "name:<b>\x1b[31m"])
def test_the_table_and_the_report_are_harmless(compare, tmp_path, key):
    # The worst ones, since only the first ten receipts in dispute are shown.
    rows = hostile_rows()
    chosen = [rows[index] for index in (27, 23, 24, 25, 4, 5, 2, 0)]
    write_jsonl(tmp_path / "log.jsonl", [*chosen, *({**row, "received_at": 2_000} for row in chosen)])
    ran = compare("log.jsonl", "--domain", key, *ONE_IN_DISPUTE, "--report", "r.html")
    assert ran.status == 0, ran.err
    assert "The policies disagree on 8 receipts." in ran.out
    assert "\\x1b[31mred" in ran.out
    assert not any(control in ran.out for control in "\0\x1b\r\u2028\u202e\ufeff")
    report = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert "&lt;script&gt;alert(1)" in report
    assert "<script>alert(1)" not in report
    assert "<img src=x" not in report
