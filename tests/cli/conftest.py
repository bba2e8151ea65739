import io
import sys

import pytest
from running import Ran

from receiver import cli


@pytest.fixture
def simulate(monkeypatch, capsysbinary, tmp_path):
    """`receiver simulate` within this process, where most cases cost nothing, in a folder of its own."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments, stdin: bytes = b"") -> Ran:
        monkeypatch.setattr(sys, "argv", ["receiver", "simulate", *map(str, arguments)])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        status = cli.run()
        out, err = capsysbinary.readouterr()
        return Ran(status, out.decode(), err.decode())

    return run
