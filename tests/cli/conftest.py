import io
import logging
import sys
from functools import partial

import pytest
from running import Ran

from receiver import cli
from tests.made import fresh_postgres_url, made_database, made_file, sqlite_url

__all__ = ["fresh_postgres_url", "made_database", "made_file", "sqlite_url"]


@pytest.fixture
def command(monkeypatch, capsysbinary, tmp_path):
    """Runs `receiver …` inside this process, where most cases cost nothing. The current folder is the test's
    own."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments, stdin: bytes = b"") -> Ran:
        monkeypatch.setattr(sys, "argv", ["receiver", *map(str, arguments)])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        status = cli.run()
        out, err = capsysbinary.readouterr()
        return Ran(status, out.decode(), err.decode())

    return run


@pytest.fixture
def simulate(command):
    return partial(command, "simulate")


@pytest.fixture
def compare(command):
    return partial(command, "compare")


@pytest.fixture
def bridge(command):
    """Runs `receiver bridge` inside this process, and restores the log's levels at the end."""
    names = ("receiver", "receiver.bridge")
    levels = {name: logging.getLogger(name).level for name in names}
    yield lambda *arguments: command("bridge", *arguments)
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)
