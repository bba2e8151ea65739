"""Logs compacted on Spark: `receiver simulate OUT` says the same as for the log itself."""

import json
import random
import sys

import pytest
import zstandard

from receiver import cli
from spark_jobs import compact_logs
from tests.logs.reading import Row, csv_bytes, jsonl_bytes, parquet_bytes

HOSTILE = ["", "queue://a/b", "topic://t", "../..", "a\0b", "\n", "Orders", "orders", "caf\u00e9", "x" * 65_536, "%41"]
MORNING_US = 1_795_219_200_000_000


def receipts(seed: int, destinations: list[str], rows: int = 400) -> list[Row]:
    """Receipts of three days, with ties, a clock that steps back at times, repeated ids and missing ids."""
    draw = random.Random(seed)  # noqa: S311 - draws by seed
    time_us, rows_made = MORNING_US, []
    for _ in range(rows):
        time_us += draw.choice([0, 1, 600_000_000, 1_500_000_000, -900_000_000])
        rows_made.append(
            Row(
                time_us,
                draw.choice(["", "NaN", "007", *(f"{number}\0:\u00e9" for number in range(60))]),
                draw.choice(["", "s", "t"]),
                draw.choice(["c", "d:e", ""]),
                draw.choice(destinations),
                draw.choice(["", "r"]),
                jms_redelivered=draw.random() < 0.2,
                jms_timestamp=draw.choice([0, (time_us - 5_000_000) // 1_000]),
                body_digest=draw.choice(["", "x", "y"]),
            )
        )
    return rows_made


@pytest.fixture
def logs(tmp_path):
    folder = tmp_path / "logs"
    folder.mkdir()
    (folder / "a.csv").write_bytes(csv_bytes(receipts(1, HOSTILE[:4])) + b"never,,,,,,,,\n")
    (folder / "b.jsonl.zst").write_bytes(zstandard.compress(b"{}\n" + jsonl_bytes(receipts(2, HOSTILE))))
    (folder / "c.parquet").write_bytes(parquet_bytes(receipts(3, HOSTILE[2:8])))
    return folder


@pytest.fixture
def run(spark, monkeypatch, capfd):  # noqa: ARG001 - it has to be there
    """Runs a command in this process, on the session of all tests here. Returns its status and its output."""

    def run(main, *arguments):
        monkeypatch.setattr(sys, "argv", ["command", *map(str, arguments)])
        status = main()
        out, err = capfd.readouterr()
        return status, out, err

    return run


def figures(run, log, key: str) -> dict:
    """The figures of a log's replay, without those that depend on the order between domains."""
    options = ["--domain", key, "--window", "0,3,20", "--expiry", "0,600,90000", "--on-error", "skip", "--json"]
    status, out, err = run(cli.run, "simulate", log, *options)
    assert status == 0, err
    analysis = json.loads(out)
    analysis["findings"] = [each for each in analysis["findings"] if each["id"] != "crosses-connections"]
    return analysis


@pytest.mark.slow
@pytest.mark.parametrize("key", ["default", "name:all"])
def test_a_compacted_log_gives_the_figures_of_the_log(logs, tmp_path, run, key):
    out = tmp_path / "out"
    options = ["--domain", key, "--rows-per-file", 150, "--on-error", "skip"]
    status, printed, err = run(compact_logs.main, logs, out, *options)
    assert (status, err) == (0, "")
    assert printed.startswith("1,200 receipts of ")
    assert figures(run, out, key) == figures(run, logs, key)
    bad = [json.loads(line) for line in (out / "_bad_rows.jsonl").read_text().splitlines()]
    assert [(row["file"], row["line"]) for row in bad] == [(str(logs / "a.csv"), 402), (str(logs / "b.jsonl.zst"), 1)]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["logs", "out"]


@pytest.mark.slow
def test_a_row_that_can_not_be_read_leaves_nothing(logs, tmp_path, run):
    status, printed, err = run(compact_logs.main, logs, tmp_path / "out")
    assert (status, printed) == (2, "")
    assert f"{logs / 'a.csv'}:402: " in err
    assert [path.name for path in tmp_path.iterdir()] == ["logs"]


@pytest.mark.thinned(4)
@pytest.mark.usefixtures("logs")
@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["logs", "full"], "is there already and isn't empty"),
        (["logs", "logs/a.csv"], "is there already and isn't empty"),
        (["nothing", "out"], "nothing"),
        (["logs", "out", "--domain", "dommain"], "unknown domain key"),
        (["logs", "out", "--domain", "name:\udcff"], "isn't text in UTF-8"),
        (["logs", "out", "--rows-per-file", "0"], "rows-per-file"),
        (["-", "out"], "standard input"),
        (["logs", "nowhere/out"], "can't write nowhere/out"),
        (["logs"], "compact_logs.py --help"),
    ],
)
def test_refusals(tmp_path, monkeypatch, run, arguments, complaint):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "kept").write_text("kept")
    status, printed, err = run(compact_logs.main, *arguments)
    assert (status, printed) == (2, "")
    assert complaint in err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["full", "logs"]
    assert (tmp_path / "full" / "kept").read_text() == "kept"


@pytest.mark.slow
def test_a_day_is_added(tmp_path, run):
    days = []
    for day in range(2):
        rows = [
            row._replace(received_at=row.received_at + day * 40 * 86_400_000_000) for row in receipts(day, HOSTILE[1:4])
        ]
        days.append(tmp_path / f"{day}.csv")
        days[-1].write_bytes(csv_bytes(rows))
    out = tmp_path / "out"
    for day in days:
        status, _, err = run(compact_logs.main, day, out, "--append", "--rows-per-file", 150)
        assert (status, err) == (0, "")
    (tmp_path / "both").mkdir()
    for day in days:
        day.rename(tmp_path / "both" / day.name)
    assert figures(run, out, "default") == figures(run, tmp_path / "both", "default")
    status, printed, err = run(compact_logs.main, tmp_path / "both" / "0.csv", out, "--append")
    assert (status, printed) == (2, "")
    assert "come before" in err


@pytest.mark.slow
def test_a_file_url_is_the_path_that_it_means(logs, tmp_path, run):
    out = tmp_path / "a b" / "%41[x]"
    out.parent.mkdir()
    for options in ([], ["--append"]):
        log = logs / "c.parquet"
        status, printed, err = run(compact_logs.main, log, out.as_uri(), "--domain", "default", *options)
        if options:
            assert (status, printed) == (2, "")
            assert "come before" in err
        else:
            assert (status, err) == (0, "")
    assert figures(run, out.as_uri(), "default") == figures(run, logs / "c.parquet", "default")
    assert [path.name for path in out.parent.iterdir()] == [out.name]
