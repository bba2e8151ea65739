"""`receiver generate`, called as a command."""

import csv
import io
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import typer
from typer.testing import CliRunner

from receiver.cli.options import CommandWithSettings
from receiver.cli.simulate import generate
from receiver.errors import OutputError, SettingsError
from receiver.simulate.scenarios import SCENARIOS

app = typer.Typer()
app.command(cls=CommandWithSettings)(generate)


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=True)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_scenario_makes_a_csv_log_of_the_usual_columns(tmp_path, scenario):
    one, two = tmp_path / "one.csv", tmp_path / "two.csv"
    for path in (one, two):
        assert run(path, "--scenario", scenario, "--receipts", 2_000, "--seed", 7).exit_code == 0
    assert one.read_bytes() == two.read_bytes()
    header, *rows = csv.reader(io.StringIO(one.read_text(), newline=""), strict=True)
    assert header == [
        "received_at", "unique_message_id", "message_source_id", "connection_id", "destination", "receiver_id",
        "jms_redelivered", "jms_timestamp", "body_digest",
    ]  # fmt: skip
    assert len(rows) == 2_000
    assert rows[0][0].startswith("2026-01-05T08:00:00.")
    assert all(len(row[0]) == len("2026-01-05T08:00:00.000000Z") and row[0].endswith("Z") for row in rows)


def test_parquet_holds_times_and_plain_text(tmp_path):
    path = tmp_path / "log.parquet"
    assert run(path, "--scenario", "steady", "--receipts", 10).exit_code == 0
    schema = pq.read_schema(path)
    assert schema.field("received_at").type == pa.timestamp("us", "UTC")
    assert schema.field("message_source_id").type == pa.string()


def test_help_shows_every_scenario_with_its_line_and_examples():
    shown = " ".join(run("--help").output.replace("│", " ").split())
    for name, what in SCENARIOS.items():
        assert f"{name}: {what}" in shown
    assert "receiver generate storm.csv --scenario redelivery-storm" in shown


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["log.csv", "--scenario", "steady", "--receipts", "0"], SettingsError),
        (["log.csv", "--scenario", "steady", "--receipts", "9" * 400], SettingsError),
        (["log.csv", "--scenario", "", "--receipts", "10"], SettingsError),
        (["log.csv", "--scenario", "stedy", "--receipts", "10"], SettingsError),
        (["log.csv", "--scenario", "steady", "--receipts", "10", "--start", "soon"], SettingsError),
        (["log.txt", "--scenario", "steady", "--receipts", "10"], SettingsError),
        (["missing/log.csv", "--scenario", "steady", "--receipts", "10"], OutputError),
    ],
)
def test_mistakes_are_errors_of_the_package_and_leave_no_file(tmp_path, monkeypatch, arguments, error):
    monkeypatch.chdir(tmp_path)
    assert isinstance(run(*arguments).exception, error)
    assert not list(tmp_path.iterdir())


def test_help_needs_none_of_the_heavy_packages():
    code = "import receiver.cli.simulate, sys; print(sorted({'numpy', 'pyarrow', 'zstandard'} & set(sys.modules)))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "[]\n"
