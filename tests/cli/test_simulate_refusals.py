"""A refusal is one line, with exit status 2, and leaves everything as it was."""

import gzip
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from running import HEADER, LOG, complaint


@pytest.fixture
def refused(simulate, tmp_path):
    """Run the command on files with these contents, expect a refusal, and return its words."""

    def run(*arguments, stdin=b"", **files) -> str:
        for name, content in files.items():
            path = tmp_path / name.replace("_", ".")
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
        (tmp_path / "before.html").write_text("as it was")
        (tmp_path / "before.csv").write_text("as it was")
        outputs = "--window", "1", "--expiry", "1", "--report", "before.html", "--verdicts", "before.csv"
        said = complaint(simulate(*outputs, *arguments, stdin=stdin))
        assert (tmp_path / "before.html").read_text() == (tmp_path / "before.csv").read_text() == "as it was"
        assert list(tmp_path.rglob("*.part")) == []
        return said

    return run


def test_a_missing_file(refused):
    assert "nowhere.csv: No such file" in refused("nowhere.csv")


@pytest.mark.parametrize(
    ("log", "remedy"),
    [
        ("table:receipts", "add --engine spark"),
        ("sqlite:///receipts.db", "add --query"),
        ("postgresql://me:secret@localhost/orders", "add --query"),
    ],
)
def test_a_table_and_a_database_are_no_files(refused, log, remedy):
    said = refused(log)
    assert remedy in said
    assert "secret" not in said


def test_a_glob_that_matches_nothing(refused):
    assert "*.log: no file matches" in refused("*.log")


def test_a_glob_that_only_folders_match(refused, tmp_path):
    (tmp_path / "day=1").mkdir()
    assert "hint: folders do: write day=*/*\n" in refused("day=*/")


def test_a_folder_without_logs(refused, tmp_path):
    (tmp_path / "logs" / "inner").mkdir(parents=True)
    (tmp_path / "logs" / ".hidden.csv").write_text(LOG)
    (tmp_path / "logs" / "_temporary.csv").write_text(LOG)
    assert "logs: a folder without logs" in refused("logs")


@pytest.mark.parametrize("content", [b"", gzip.compress(b"", mtime=0), zstandard.compress(b"")])
def test_an_empty_file(refused, content):
    assert "a.csv: " in refused("a.csv", a_csv=content)


@pytest.mark.parametrize("content", [HEADER, HEADER + "\n\n", "\n\n"])
def test_no_receipt_at_all(refused, content):
    assert "a.csv" in refused("a.csv", a_csv=content)


def packed_parquet() -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"received_at": list(range(1000)), "unique_message_id": ["x"] * 1000}), sink)
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize(
    ("arguments", "remedy"),
    [
        (["a.csv", "--expiry", "2min"], "hint: in seconds, such as 120"),
        (["a.csv", "--window", "2k"], "hint: in ids, such as 2000"),
        (["a.csv", "--report", "no folder/r.html"], "hint: make the folder first: mkdir -p 'no folder'"),
        (["a.csv", "--verdicts", "no/v.csv"], "hint: make the folder first: mkdir -p no"),
        (["a.csv", "--verdicts", "s3://b/v.csv"], "hint: this is written to paths only: name one, and copy the file"),
        (["a.csv", "--report", "."], "hint: name a file in that folder"),
        (["a.csv.gz"], "hint: copy it again from where it came, or leave out .gz if it isn't compressed"),
        (["u16.csv"], "hint: write it as UTF-8: iconv -f UTF-16 -t UTF-8"),
        (["latin.csv"], "hint: write the log as UTF-8, such as by iconv -f LATIN1"),
        (["ragged.csv"], "hint: mend the row; with --on-error skip"),
        (["a.csv", "--map", "unique_message_id"], "hint: such as --map unique_message_id=OrderId"),
        (["a.csv", "--map", "received_at=x", "--map", "received_at=y"], "hint: leave one out"),
        (["a.csv", "--map", "OrderId=unique_message_id"], "hint: did you mean --map unique_message_id=OrderId?"),
        (["a.csv", "--report"], "hint: receiver simulate --help"),
        (["program.py"], "hint: if it is no log of receipts, name those that are, such as 'logs/*.csv'; else"),
    ],
)
def test_what_to_do_is_said(refused, arguments, remedy):
    program = 'print("not a log")\n'
    assert remedy in refused(
        *arguments,
        a_csv=LOG,
        a_csv_gz=LOG.split("\n")[1],
        program_py=program,
        u16_csv=LOG.encode("utf-16"),
        latin_csv=f"{LOG}4,é,s,c,q\n".encode("latin-1"),
        ragged_csv=f"{LOG}4,d\n",
    )


def test_a_log_that_is_named_twice_is_a_note(simulate, tmp_path):
    (tmp_path / "a.csv").write_text(LOG)
    assert "a.csv is read 2 times, so each of its receipts counts" in simulate("a.csv", "./a.csv", "--json").err


@pytest.mark.parametrize("command_name", ["simulate", "compare"])
def test_folders_that_are_not_searched_are_a_note(command, command_name, tmp_path):
    """Without it, the receipts in them would be missing unseen."""
    for name in (
        "a.csv",
        "day=1/b.csv",
        "2026/c.csv",
        "day=1/x\x1b/c.csv",
        "_old/c.csv",
        ".git/c.csv",
        "day=1/_old/c.csv",
    ):
        (tmp_path / "logs" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "logs" / name).write_text(LOG)
    said = command(command_name, "logs", "--json").err
    how = "(only a folder that is named itself is searched, and those in it named KEY=VALUE)"
    assert said == f"note: 2 folders left out {how}: logs/2026, logs/day=1/x\\x1b\n"
    assert command(command_name, "logs/*", "--json").err == f"note: 2 folders left out {how}: logs/2026, logs/day=1\n"
    assert command(command_name, "logs/**", "--json").err == ""
    assert command(command_name, "logs/a.csv", "--json").err == ""
    (tmp_path / "logs" / "day=1" / "x\x1b").rename(tmp_path / "logs" / "b")
    (tmp_path / "logs" / "c" / "d").mkdir(parents=True)
    (tmp_path / "logs" / "e").mkdir()
    assert "4 folders" in command(command_name, "logs", "--json").err
    assert "logs/2026, logs/b, logs/c, ...\n" in command(command_name, "logs", "--json").err


@pytest.mark.parametrize(("options", "is_asked"), [((), True), (("--current", "2000,120"), False)])
def test_who_names_what_is_set_is_not_asked_for_it(simulate, tmp_path, options, is_asked):
    (tmp_path / "a.csv").write_text(LOG)
    assert ("Name it: --current W,E." in " ".join(simulate("a.csv", *options).out.split())) == is_asked


@pytest.mark.parametrize(
    ("option", "value", "note"),
    [
        ("--current", "120,2000", "W = 120 ids and E = 2,000 s: are they swapped? W comes first"),
        ("--current", "2000,120000", "E = 120,000 s are 1 d 9 h: was it meant in milliseconds? E is in seconds"),
        ("--current", "2000,86400", ""),
        ("--window", "2,000", "--window 2,000 is a list: write 2000 for one number"),
        ("--expiry", "1,000,000", "--expiry 1,000,000 is a list: write 1000000 for one number"),
        ("--window", "2,100", ""),
        ("--window", "2.000", "--window: 2.000 is W = 2: write a window without a point"),
        ("--window", "9, 2.5", "--window: 2.5 is W = 2: write a window without a point"),
        ("--window", "1.5:9:3", ""),
        ("--current", "2.000,120", "--current: 2.000 is W = 2: write a window without a point"),
        ("--current", "2000,1.5", ""),
        ("--expiry", "120000", "--expiry: E = 120,000 s are 1 d 9 h: was it meant in milliseconds?"),
        ("--report", "report.pdf", "the report is HTML, whatever report.pdf ends with"),
        ("--report", "report.HTM", ""),
        ("--current", "0,3600", ""),
        ("--budget", "2", "--budget 2 is 2 bytes; for megabytes write 2MB"),
        ("--budget", "2kB", ""),
        ("--budget", "500000000", ""),
    ],
)
def test_what_is_valid_and_improbable_is_asked_about(simulate, tmp_path, option, value, note):
    (tmp_path / "a.csv").write_text(LOG)
    ran = simulate("a.csv", option, value, "--json")
    assert ran.status == 0
    assert json.loads(ran.out)
    assert ran.err.startswith("note: ") == bool(note)
    assert note in ran.err


def test_a_window_that_is_refused_is_not_said_to_be_another(simulate, tmp_path):
    (tmp_path / "a.csv").write_text(LOG)
    ran = simulate("a.csv", "--current", "2.5,120")
    assert ran.err.startswith("error: --current: the window 2.5 isn't a whole number\n")


LONG = (HEADER + "".join(f"{n},{n * 7919},s,c,q\n" for n in range(5000))).encode()


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.csv.gz", b"no gzip", "not gzip data"),
        ("a.csv.zst", b"no zstd", "not zstd data"),
        ("a.csv.gz", gzip.compress(LONG, mtime=0)[:-9], "truncated gzip"),
        ("a.csv.gz", gzip.compress(LONG, mtime=0)[:500] + b"garbage" * 99, "broken gzip"),
        ("a.csv.zst", zstandard.compress(LONG)[:-9], "truncated zstd"),
        ("a.csv.zst", zstandard.compress(LONG) + b"garbage" * 99, "broken zstd"),
        ("a.parquet", b"no Parquet", "a.parquet"),
        ("a.parquet", packed_parquet()[:-20], "a.parquet"),
        ("a.parquet", packed_parquet()[:60], "a.parquet"),
        ("a.parquet", b"PAR1", "a.parquet"),
    ],
)
def test_wrong_or_truncated_files(refused, tmp_path, name, content, said):
    (tmp_path / name).write_bytes(content)
    assert said in refused(name, "--domain", "name:x")


def test_a_missing_column_names_the_nearest(refused):
    said = refused("a.csv", a_csv="recieved_at,unique_message_id\n1,a\n")
    assert "received_at" in said
    assert "recieved_at" in said


@pytest.mark.parametrize(
    "time", ["soon", "", "nan", "NaN", "inf", "-inf", "-1", "-0.5", "2026-13-01T00:00:00Z", "1e400"]
)
def test_an_unreadable_time_is_named_by_its_line(refused, time):
    assert "a.csv:3: " in refused("a.csv", a_csv=f"{HEADER}1,a,s,c,q\n{time},b,s,c,q\n")


@pytest.mark.parametrize("time", ["null", "NaN", "Infinity", "-1", "true", "[]", '"soon"'])
def test_an_unreadable_time_in_json(refused, time):
    said = refused("a.jsonl", "--domain", "name:x", a_jsonl=f'{{"received_at":{time},"unique_message_id":"a"}}\n')
    assert "a.jsonl:1: " in said


def test_a_time_of_no_number_in_parquet(refused, tmp_path):
    pq.write_table(
        pa.table({"received_at": [1.0, float("nan")], "unique_message_id": ["a", "b"]}), tmp_path / "a.parquet"
    )
    assert "a.parquet:2: " in refused("a.parquet", "--domain", "name:x")


def test_bytes_that_are_not_utf8(refused):
    assert "a.csv:3: " in refused("a.csv", a_csv=HEADER.encode() + b"1,a,s,c,q\n2,\xff,s,c,q\n")


@pytest.mark.parametrize("line", ["[1]", "7", '"text"', "null", "{", '{"received_at":1'])
def test_a_json_line_that_is_no_object(refused, line):
    first = '{"received_at":1,"unique_message_id":"a"}\n'
    assert "a.jsonl:2: " in refused("a.jsonl", "--domain", "name:x", a_jsonl=first + line + "\n")


@pytest.mark.parametrize("option", ["--window", "--expiry"])
@pytest.mark.parametrize("value", ["", "x", "-1", "9:1:3", "0:9:3", "1:9:1", "1:9", "nan"])
def test_a_bad_list_is_said_before_reading(refused, option, value):
    assert option in refused("nowhere.csv", f"{option}={value}")


def test_a_pair_that_detects_nothing_alone(refused):
    assert "AT_LEAST_ONCE" in refused("nowhere.csv", "--window", "0", "--expiry", "0")


def test_a_huge_grid(refused):
    said = refused("nowhere.csv", "--window", "1:1000000:200", "--expiry", "1:1000:60")
    assert "10,000" in said


@pytest.mark.parametrize("lists", [(), ("--window", "2"), ("--window", "2", "--expiry", "1,2")])
def test_verdicts_of_several_settings(simulate, lists):
    assert "--verdicts needs one setting" in complaint(simulate("nowhere.csv", "--verdicts", "v.csv", *lists))


@pytest.mark.parametrize("key", ["queue", "", "name:", "Default", "name:\udcff"])
def test_an_unknown_domain_key(refused, key):
    assert "domain key" in refused("nowhere.csv", "--domain", key)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--map", "unique_message_id"), "COLUMN=FIELD"),
        (("--map", "=x"), "COLUMN=FIELD"),
        (("--map", "unique_message_id="), "COLUMN=FIELD"),
        (("--map", "unique_message_id=x", "--map", "unique_message_id=y"), "twice"),
        (("--map", "colour=x"), "colour"),
        (("--map", "unique_message_id=OrderId"), "OrderId"),
        (("--time-zone", "Mars/Olympus"), "Mars/Olympus"),
        (("--time-zone", "../etc/passwd"), "time zone"),
        (("--time-unit", "hours"), "--time-unit"),
        (("--on-error", "ignore"), "--on-error"),
        (("--engine", "abacus"), "--engine"),
        (("--margin", "0.5"), "margin"),
        (("--margin", "nan"), "margin"),
        (("--margin", "1e300"), "margin"),
        (("--max-missed", "-1"), "max_missed"),
        (("--fail-on-missed", "-1"), "--fail-on-missed"),
        (("--fail-on-missed", "few"), "--fail-on-missed"),
        (("--colour",), "--colour"),
    ],
)
def test_options_that_cannot_be_meant(refused, options, said):
    assert said in refused("a.csv", *options, a_csv=LOG)


def test_no_log_named(refused):
    assert "LOG" in refused()


@pytest.mark.parametrize("key", ["default", "destination", "connection", "receiver"])
def test_a_key_whose_column_the_log_lacks(refused, key):
    said = refused("a.csv", "--domain", key, a_csv="received_at,unique_message_id\n1,a\n")
    assert "has no column " in said
    assert "--map" in said


def test_times_of_two_units(refused):
    assert "a.csv" in refused("a.csv", a_csv=f"{HEADER}1700000000,a,s,c,q\n1700000000000,b,s,c,q\n")


@pytest.mark.parametrize("option", ["--report", "--verdicts"])
@pytest.mark.parametrize("path", ["nowhere/out.csv", "folder.csv", "a.csv/out.csv"])
def test_a_place_that_cannot_be_written_is_said_before_reading(refused, tmp_path, option, path):
    (tmp_path / "folder.csv").mkdir()
    said = refused("a.csv", option, path, a_csv="no log at all")
    assert f"can't write {path}" in said


@pytest.mark.parametrize("path", ["v.txt", "v", "v.xlsx", "csv"])
def test_verdicts_of_an_unknown_ending(refused, tmp_path, path):
    assert ".parquet" in refused("a.csv", "--verdicts", path, a_csv="no log at all")
    assert not (tmp_path / path).exists()


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (("--report", "a.csv"), "overwritten"),
        (("--verdicts", "../here/a.csv"), "overwritten"),
        (("--report", "v.csv", "--verdicts", "./v.csv"), "same file"),
    ],
)
def test_a_result_in_the_place_of_the_log_or_of_the_other_result(simulate, tmp_path, monkeypatch, names, said):
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    (here / "a.csv").write_text(LOG)
    assert said in complaint(simulate("a.csv", "--window", "1", "--expiry", "1", *names))
    assert [path.name for path in here.iterdir()] == ["a.csv"]
    assert (here / "a.csv").read_text() == LOG


def test_a_link_that_leads_in_a_circle_becomes_the_report(simulate, tmp_path):
    (tmp_path / "a.csv").write_text(LOG)
    (tmp_path / "r.html").symlink_to("r.html")
    assert simulate("a.csv", "--report", "r.html", "--json").status == 0
    assert (tmp_path / "r.html").is_file()


def test_a_refusal_leaves_no_new_file(refused, tmp_path):
    refused("nowhere.csv", "--report", "new.html", "--verdicts", "new.csv")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["before.csv", "before.html"]


def test_standard_input_that_holds_nothing(refused):
    assert "-: the file is empty" in refused("-")
    assert "once" in refused("-", "-", stdin=LOG.encode())


def test_a_hostile_name_in_a_complaint_is_sanitised(refused):
    said = refused("\x1b[31mred\n.csv")
    assert "\x1b" not in said
    assert "\\x1b[31mred\\n.csv" in said


def test_unreadable_rows_are_counted_where_that_is_asked_for(simulate, tmp_path):
    (tmp_path / "a.csv").write_bytes(LOG.encode() + b"soon,c,s,c,q\n4,d\n5,\xff,s,c,q\n6,b,s,c,q\n")
    ran = simulate("a.csv", "--on-error", "skip", "--window", "5", "--expiry", "0", "--json", "--verdicts", "v.csv")
    assert ran.status == 0
    log = json.loads(ran.out)["log"]
    assert (log["receipts"], log["skipped"], log["duplicates"]) == (4, 3, 2)
    assert Path("v.csv").read_text().count("\n") == 5


@pytest.mark.parametrize("option", ["--master=local[2]", "--verbose"])
def test_options_of_spark_on_the_local_engine(refused, option):
    assert f"{option.partition('=')[0]} is for Spark" in refused("nowhere.csv", option)
