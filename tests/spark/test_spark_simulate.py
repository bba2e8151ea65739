"""`receiver simulate --engine spark` prints what the local engine prints, byte for byte, and writes the same files."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from receiver.cli import app
from receiver.simulate.scenarios import SCENARIOS
from tests.logs.reading import FORMATS, Row

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "artemis-receipts.csv.gz"
pytestmark = pytest.mark.usefixtures("spark")
VECTORS = json.loads((ROOT / "tests" / "vectors" / "two_tier.json").read_text())


def run(*arguments) -> bytes:
    """Run the command in this process, where it gets the tests' session."""
    ran = CliRunner().invoke(app, list(map(str, arguments)), catch_exceptions=False)
    assert ran.exit_code == 0, ran.output
    return ran.stdout_bytes


def assert_same(*arguments) -> bytes:
    here = run("simulate", *arguments, "--json")
    assert run("simulate", *arguments, "--json", "--engine", "spark") == here
    return here


@pytest.mark.thinned(2)
@pytest.mark.parametrize("key", ["default", "destination"])
def test_the_recorded_log(key):
    answer = json.loads(assert_same(EXAMPLE, "--domain", key))
    assert answer["log"]["duplicates"] == {"default": 466, "destination": 941}[key]


def test_the_worked_cases(tmp_path):
    """Each case is a domain of one log. All are tried with all of their settings."""
    log = tmp_path / "log.jsonl"
    with log.open("w") as file:
        for vector in VECTORS:
            shift_us = max(0, -min(receipt["received_at_us"] for receipt in vector["receipts"]))
            for receipt in vector["receipts"]:
                row = {**receipt, "received_at": receipt["received_at_us"] + shift_us, "destination": vector["name"]}
                file.write(json.dumps(row) + "\n")
    windows = ",".join(str(vector["window"]) for vector in VECTORS)
    expiries = ",".join(str(vector["expiry_secs"]) for vector in VECTORS)
    how = "--domain", "destination", "--time-unit", "us", "--window", windows, "--expiry", expiries
    domains = {each["domain"]: each for each in json.loads(assert_same(log, *how))["domains"]}
    for vector in VECTORS:
        settings = domains[f"queue://{vector['name']}"]["settings"]
        (setting,) = [
            each
            for each in settings
            if (each["window"], each["expiry_secs"]) == (vector["window"], vector["expiry_secs"])
        ]
        assert [setting[name] for name in ("caught", "missed", "peak_ids")] == [
            vector[name] for name in ("caught", "missed", "peak_ids")
        ]


@pytest.mark.thinned(3)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_generated_scenario(scenario, tmp_path):
    log = tmp_path / "log.parquet"
    run("generate", log, "--scenario", scenario, "--receipts", 20_000, "--seed", 7)
    assert_same(log)


@pytest.mark.slow
def test_a_correlators_log_tells_no_connection(tmp_path):
    said = "2017-03-05 18:17:3{0}.091 INFO  [1:JMSReceiver:r] - 'r' has received JMS message: Property.uniqueMessageId={0}\n"
    more = '   JMSDestination=Queue<orders>\n   JMSRedelivered=false\n   Body="hello"\n'
    (tmp_path / "correlator.log").write_text("".join(said.format(id_) + more for id_ in "12"))
    for key, is_said in {"default": True, "receiver": True, "destination": False}.items():
        findings = json.loads(assert_same(tmp_path / "correlator.log", "--domain", key))["findings"]
        assert any("without connection_id: 2 of 2" in each["text"] for each in findings) is is_said


def test_a_folder_of_every_format(tmp_path):
    for index, (ending, encoded) in enumerate(sorted(FORMATS.items())):
        rows = [
            Row(received_at=10**15 + 10 * row + index, unique_message_id=f"id{row % 50}", message_source_id=ending)
            for row in range(100)
        ]
        (tmp_path / f"{index}.{ending}").write_bytes(encoded(rows))
    answer = json.loads(assert_same(tmp_path, "--time-unit", "us"))
    assert answer["log"]["receipts"] == 100 * len(FORMATS)


def test_sources_that_ended(tmp_path):
    log = tmp_path / "log.csv"
    rows = [Row(10**15 + row, f"id{row}", f"gw:{row // 100}", destination=f"q{row % 2}") for row in range(1000)]
    log.write_bytes(FORMATS["csv"](rows))
    findings = {each["id"]: each["text"] for each in json.loads(assert_same(log, "--time-unit", "us"))["findings"]}
    assert "9 of 20. Of the ids" in findings["ended-sources"]  # the tenth's last id came exactly at the middle
    assert "up to 450 of 1,000 (45 %)" in findings["ended-sources"]


@pytest.mark.slow
def test_report_table_and_exit_status(tmp_path):
    pages = []
    for engine in ("local", "spark"):
        page = tmp_path / f"{engine}.html"
        asked = "simulate", EXAMPLE, "--window", 1, "--expiry", 1, "--engine", engine, "--report", page
        ran = CliRunner().invoke(app, [*map(str, asked), "--fail-on-missed", "0"], standalone_mode=False)
        assert ran.return_value == 1
        pages.append((ran.stdout, page.read_text(encoding="utf-8")))
    assert pages[0] == pages[1]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["verdicts.csv", "verdicts.jsonl"])
def test_verdicts_in_one_file(tmp_path, name):
    files = [tmp_path / engine / name for engine in ("local", "spark")]
    for file in files:
        file.parent.mkdir()
        setting = "--window", 100, "--expiry", 5, "--engine", file.parent.name
        run("simulate", EXAMPLE, *setting, "--verdicts", file, "--json")
    assert files[0].read_bytes() == files[1].read_bytes()


def test_a_pipe_is_kept_for_the_tasks():
    text = "received_at,unique_message_id\n1,a\n2,b\n3,a\n"
    asked = "simulate", "-", "--domain", "name:x", "--json"
    here, there = (
        CliRunner().invoke(app, [*asked, "--engine", engine], input=text, catch_exceptions=False)
        for engine in ("local", "spark")
    )
    assert here.stdout_bytes == there.stdout_bytes
    assert json.loads(here.stdout)["log"]["duplicates"] == 1
