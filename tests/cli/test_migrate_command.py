"""`receiver migrate`: what it prints, and how it refuses."""

import subprocess
import sys

import pytest
from running import Ran, complaint


def migrate(*arguments) -> Ran:
    ran = subprocess.run(
        [sys.executable, "-m", "receiver", "migrate", *arguments], capture_output=True, text=True, check=False
    )
    return Ran(ran.returncode, ran.stdout, ran.stderr)


def test_there_and_back(tmp_path):
    address = f"sqlite:///{tmp_path}/receiver.db"
    for arguments, said in (
        ([], "from no tables to version 0004"),
        ([], "version 0004 already"),
        (["--revision", "base"], "from version 0004 to no tables"),
        (["--revision", "base"], "no tables already"),
        (["--revision", "0004"], "from no tables to version 0004"),
    ):
        assert migrate(address, *arguments) == Ran(0, f"{address}: {said}\n", "")


def test_a_password_is_not_printed(fresh_postgres_url):
    address = fresh_postgres_url.replace("postgres:@", "postgres:secret@")
    ran = migrate(address)
    assert ran.status == 0
    assert "secret" not in ran.out


@pytest.mark.parametrize(
    ("address", "arguments", "problem"),
    [
        ("memory://", [], "is no address of a store"),
        ("sqlite:///no/such/receiver.db", [], "there is no folder"),
        ("sqlite:///receiver.db", ["--revision", "0999"], "there is no version '0999'"),
        ("postgresql://u:secret@127.0.0.1:1/d", [], "the server can't be reached"),
    ],
)
def test_refusals(address, arguments, problem, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = complaint(migrate(address, *arguments))
    assert problem in said
    assert "hint: " in said
    assert "secret" not in said
    assert not any(tmp_path.iterdir())
