"""What the command prints and writes, against known answers and the naive model."""

import csv
import gzip
import html
import json
import re
import shlex
import shutil
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

import pytest
import zstandard
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from model import Model
from running import EXAMPLE, HEADER, LOG, process

from tests.choosing import cases

VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "two_tier.json").read_text())


@pytest.mark.costly
def test_the_sample_log_read_as_one_domain_per_queue():
    ran = process(EXAMPLE, "--domain", "destination", "--window", "100,2000", "--expiry", "5,120", "--json")
    assert (ran.status, ran.err) == (0, "")
    answer = json.loads(ran.out)
    assert answer["log"]["receipts"] == 215_293
    assert answer["log"]["duplicates"] == 941
    settings = {(s["window"], s["expiry_secs"]): (s["missed"], s["peak_ids"]) for s in answer["settings"]}
    assert settings[100, 5.0] == (0, 5_780)
    assert settings[2000, 120.0] == (0, 104_598)


def test_the_sample_log_by_default(simulate):
    answer = json.loads(simulate(EXAMPLE, "--window", "100", "--expiry", "5", "--json").out)
    assert answer["log"]["duplicates"] == 466
    findings = {finding["id"]: finding["text"] for finding in answer["findings"]}
    assert findings["crosses-connections"].count("over another connection or receiver: 475. ")
    said = (
        "first run again with --domain destination: this KEY counts 466 duplicates, and not the 475 repeats that came"
    )
    assert said in answer["recommendation"]["why"]


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["name"])
def test_worked_cases(simulate, tmp_path, vector):
    # A log has no negative times. Only differences count, so all of them may be shifted.
    shift_us = max(0, -min(receipt["received_at_us"] for receipt in vector["receipts"]))
    with (tmp_path / "log.jsonl").open("w") as log:
        for receipt in vector["receipts"]:
            row = {**receipt, "received_at": receipt["received_at_us"] + shift_us}
            log.write(json.dumps(row) + "\n")
    setting = "--window", vector["window"], "--expiry", vector["expiry_secs"]
    how = "--domain", "name:x", "--time-unit", "us", "--json", "--verdicts", "verdicts.jsonl"
    ran = simulate("log.jsonl", *setting, *how)
    assert ran.status == 0, ran.err
    answer = json.loads(ran.out)
    only = answer["settings"][0]
    assert len(answer["settings"]) == 1
    for figure in ("caught", "missed", "peak_ids"):
        assert only[figure] == vector[figure]
    for figure in ("duplicates", "unchecked"):
        assert answer["log"][figure] == vector[figure]
    rows = [json.loads(line) for line in (tmp_path / "verdicts.jsonl").read_text().splitlines()]
    assert [row["verdict"] for row in rows] == vector["verdicts"]


ROWS = st.lists(
    st.tuples(
        st.sampled_from([0, 0, 1, 2, 9, -3]),
        st.sampled_from(["a", "b", "c", "d", "e", ""]),
        st.sampled_from(["", "s", "t"]),
        st.sampled_from(["q1", "q2"]),
    ),
    min_size=1,
    max_size=30,
)


@given(ROWS, st.integers(0, 4), st.sampled_from([0, 0.5, 1, 5]))
@cases(40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_random_logs_against_the_model(simulate, rows, window, expiry_secs):
    time, log, models, verdicts = 10, HEADER, {}, []
    for step, id_, source, queue in rows:
        time = max(0, time + step)
        log += f"{time},{id_},{source},c,{queue}\n"
        model = models.setdefault(queue, Model(window, round(expiry_secs * 1_000_000)))
        verdicts.append(model.receive(id_, source, time * 1_000_000))
    setting = "--window", f"0,1,{window}", "--expiry", f"0,3,{expiry_secs}"
    answer = json.loads(simulate("-", *setting, "--json", stdin=log.encode()).out)
    assert answer["log"]["clock_clamped"] == sum(model.clock_clamped for model in models.values())
    assert [domain["domain"] for domain in answer["domains"]] == sorted(f"c:queue://{queue}" for queue in models)
    if window or expiry_secs:
        asked = next(s for s in answer["settings"] if (s["window"], s["expiry_secs"]) == (window, expiry_secs))
        assert asked["caught"] == verdicts.count("duplicate")
        assert asked["peak_ids"] == sum(model.peak_ids for model in models.values())
        single = "--window", window, "--expiry", expiry_secs, "--verdicts", "v.csv"
        assert simulate("-", *single, stdin=log.encode()).status == 0
        with Path("v.csv").open(newline="") as file:
            assert [row["verdict"] for row in csv.DictReader(file)] == verdicts


def test_settings_are_ordered_and_the_pair_that_detects_nothing_is_left_out_with_a_note(simulate, tmp_path):
    (tmp_path / "a.csv").write_text(LOG)
    ran = simulate("a.csv", "--window", "5,0", "--expiry", "2,0,1", "--json")
    assert ran.err.startswith("note: ")
    assert ran.err.count("\n") == 1
    pairs = [(s["window"], s["expiry_secs"]) for s in json.loads(ran.out)["settings"]]
    assert pairs == [(0, 1.0), (0, 2.0), (5, 0.0), (5, 1.0), (5, 2.0)]
    assert simulate("a.csv", "--window", "0", "--json").err.startswith("note: ")
    assert simulate("a.csv", "--json").err == ""


def test_a_pair_left_out_may_leave_one_setting(simulate, tmp_path):
    (tmp_path / "a.csv").write_text(LOG)
    ran = simulate("a.csv", "--window", "0", "--expiry", "0,9", "--verdicts", "v.csv", "--fail-on-missed", "0")
    assert ran.status == 0
    assert "duplicate" in (tmp_path / "v.csv").read_text()


@pytest.mark.parametrize(
    ("setting", "allowed", "status"),
    [
        (("--window", "1", "--expiry", "0"), 0, 1),
        (("--window", "1", "--expiry", "0"), 1, 0),
        (("--window", "2", "--expiry", "0"), 0, 0),
        (("--window", "1,2", "--expiry", "0"), 0, 0),  # the recommendation misses none
        ((), 0, 0),
    ],
)
def test_fail_on_missed_still_prints(simulate, tmp_path, setting, allowed, status):
    (tmp_path / "a.csv").write_text(LOG)
    ran = simulate("a.csv", *setting, "--fail-on-missed", allowed, "--json")
    assert ran.status == status
    assert ran.err == "1 duplicate missed, 0 allowed by --fail-on-missed\n" * status
    assert json.loads(ran.out)["log"]["duplicates"] == 1


@pytest.mark.parametrize(
    ("setting", "allowed", "said"),
    [
        (("20", "10"), (), "W = 20 and E = 10 s would miss nothing."),
        (("1", "0"), (), "W = 1 and E = 0 s would miss the one duplicate."),
        (("1", "0"), ("0",), "W = 1 and E = 0 s would miss the one duplicate. This fails: --fail-on-missed allows 0."),
        (("1", "0"), ("1",), "W = 1 and E = 0 s would miss the one duplicate. This passes: --fail-on-missed allows 1."),
    ],
)
def test_the_first_line_answers_the_question_that_was_asked(simulate, tmp_path, setting, allowed, said):
    """Terminal and page answer it, and so does the exit status. The advice comes after it."""
    (tmp_path / "a.csv").write_text(LOG)
    window, expiry = setting
    how = [word for each in allowed for word in ("--fail-on-missed", each)]
    ran = simulate("a.csv", "--window", window, "--expiry", expiry, *how, "--report", "r.html")
    assert ran.status == ("This fails" in said)
    shown = " ".join(ran.out.split())
    assert shown.startswith(said)
    assert "Keep the defaults, W = 2,000" in shown
    assert said in (tmp_path / "r.html").read_text()


def test_todays_setting_is_raised_where_the_log_asks_for_more(simulate, tmp_path):
    (tmp_path / "a.csv").write_text(LOG)
    assert simulate("a.csv", "--current", "1,30").out.startswith(
        "Raise W from 1 to 4 ids per source and keep E = 30 s."
    )
    answer = json.loads(simulate("a.csv", "--current", "1,30", "--json").out)
    assert answer["recommendation"]["moves"] == {"window": "raise", "expiry": "keep"}
    assert (answer["kinds"]["keep"]["window"], answer["kinds"]["keep"]["expiry_secs"]) == (4, 30.0)


def test_a_key_that_counts_too_little_is_in_the_decision(simulate, tmp_path):
    (tmp_path / "a.csv").write_text(HEADER + "1,a,s,c1,q\n2,a,s,c2,q\n")
    said = "But first run again with --domain destination: this KEY counts 0 duplicates, and not the 1 repeat"
    assert said in " ".join(simulate("a.csv").out.split())[:250]
    assert said in json.loads(simulate("a.csv", "--json").out)["recommendation"]["why"]
    assert "run again" not in simulate("a.csv", "--domain", "destination").out


def test_fail_on_missed_judges_the_recommendation(simulate, tmp_path):
    (tmp_path / "a.csv").write_text(
        HEADER + "1,a,s,c,q\n2,a,s,c,q\n" + "".join(f"3,{n},s,c,q\n" for n in range(9)) + "4,a,s,c,q\n"
    )
    ran = simulate("a.csv", "--max-missed", "1", "--margin", "1", "--json", "--fail-on-missed", "0")
    missed = json.loads(ran.out)["recommendation"]["missed"]
    assert ran.status == (1 if missed else 0)
    assert simulate("a.csv", "--max-missed", "1", "--margin", "1", "--fail-on-missed", "1").status == 0


@pytest.mark.parametrize("pack", [bytes, gzip.compress, zstandard.compress])
@pytest.mark.parametrize(
    "log", [LOG, '{"received_at":1,"unique_message_id":"a"}\n{"received_at":2,"unique_message_id":"a"}\n']
)
def test_standard_input(simulate, pack, log):
    ran = simulate("-", "--domain", "name:x", "--json", stdin=pack(log.encode()))
    assert ran.status == 0, ran.err
    assert json.loads(ran.out)["log"]["duplicates"] == 1


def test_files_folders_and_globs_together(simulate, tmp_path):
    (tmp_path / "logs").mkdir()
    rows = LOG.splitlines(keepends=True)
    for name, row in (("logs/2.csv", 1), ("logs/1.csv", 2), ("b1.csv", 3)):
        (tmp_path / name).write_text(rows[0] + rows[row])
    (tmp_path / "logs" / "_unfinished.csv").write_text("no log")
    shutil.copy(tmp_path / "b1.csv", tmp_path / "b2.csv")
    where = "logs", "b?.csv", "b1.csv"
    ran = simulate(*where, "--window", "9", "--expiry", "0", "--verdicts", "v.jsonl", "--json")
    assert ran.status == 0, ran.err
    assert json.loads(ran.out)["log"]["receipts"] == 5
    ids = [json.loads(line)["unique_message_id"] for line in (tmp_path / "v.jsonl").read_text().splitlines()]
    assert ids == ["a", "b", "a", "a", "a"]


@pytest.mark.parametrize(
    ("log", "receipts"),
    [
        (HEADER + "1,a,s,c,q\n", 1),
        (HEADER + "1,,s,c,q\n2,,s,c,q\n", 2),
        (HEADER + "1,a,s,c,q\n2,b,s,c,q\n", 2),
    ],
    ids=["one receipt", "only unchecked", "no duplicates"],
)
def test_logs_that_say_little(simulate, tmp_path, log, receipts):
    (tmp_path / "a.csv").write_text(log)
    ran = simulate("a.csv", "--json", "--report", "r.html", "--fail-on-missed", "0")
    assert (ran.status, ran.err) == (0, "")
    answer = json.loads(ran.out)
    assert (answer["log"]["receipts"], answer["log"]["duplicates"]) == (receipts, 0)
    assert answer["recommendation"]["missed"] == 0
    assert "<html" in (tmp_path / "r.html").read_text()
    table = simulate("a.csv")
    assert table.status == 0
    doubt = "Most receipts have no uniqueMessageId" if ",," in log else "No id comes twice"
    assert table.out.startswith(f"Keep the defaults, W = 2,000 ids per source and E = 120 s.\n- {doubt}")
    assert "The log itself asks for nothing. Evidence: weak." in table.out
    single = simulate("a.csv", "--window", "1", "--expiry", "1", "--verdicts", "v.parquet")
    assert single.status == 0


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("s3://nobody:hunter2@host/?signature=hunter3", "s3://***@host/?***"),
        ("postgresql://u:hunter#2@host/db", "postgresql://***@host/db"),
        ("postgresql://u:hunter/2@host/db?password=hunter3@4", "postgresql://***@4"),
        ("postgresql://u:hunter?2@host/db", "postgresql://***@host/db"),
        ("https://host:80/a.csv?signature=hunter@3", "https://***@3"),
        ("s3://folder/a@b.csv", "s3://folder/a@b.csv"),
        (r"(?<=Order=)\w", r"(?<=Order=)\w"),
    ],
)
def test_a_report_says_what_made_it_and_no_password(simulate, tmp_path, address, shown):
    (tmp_path / "a log.csv").write_text(LOG)
    days = [datetime.now(UTC).date()]
    assert simulate("a log.csv", "--domain", f"name:{address}", "--report", "r.html").status == 0
    days.append(datetime.now(UTC).date())
    made = re.search("Made by <code><bdi>(.*?)</bdi>", (tmp_path / "r.html").read_text())[1]
    command = f"receiver simulate 'a log.csv' --domain {shlex.quote(f'name:{shown}')} --report r.html"
    version = metadata.version("reliable-receiver")
    assert html.unescape(made) in {f"{command} (version {version}, {day} UTC)" for day in days}


def test_the_times_of_the_log_are_those_read(simulate, tmp_path):
    (tmp_path / "a.csv").write_text(HEADER + "2026-01-01T00:00:01+01:00,a,s,c,q\n2026-01-01T00:00:00,b,s,c,q\n")
    log = json.loads(simulate("a.csv", "--time-zone", "Europe/Paris", "--json").out)["log"]
    assert log["first_received_at"] == "2025-12-31T23:00:00.000000Z"
    assert log["last_received_at"] == "2025-12-31T23:00:01.000000Z"
    assert log["clock_clamped"] == 1


def test_a_column_by_another_name(simulate, tmp_path):
    (tmp_path / "a.csv").write_text("received_at,OrderId\n1000,a\n2000,a\n")
    how = "--map", "unique_message_id=OrderId", "--domain", "name:x", "--time-unit", "ms", "--json"
    log = json.loads(simulate("a.csv", *how).out)["log"]
    assert (log["duplicates"], log["last_received_at"]) == (1, "1970-01-01T00:00:02.000000Z")
