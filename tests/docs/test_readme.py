"""What the README shows works as it stands there. Its commands are run by the continuous integration."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

from tests.docs.bridge import Broker

README = Path(__file__).resolve().parents[2] / "README.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def run(block: str, **given: object) -> None:
    exec(compile(block, str(README), "exec"), given)  # noqa: S102 - our own text


def test_the_library_in_a_few_lines():
    (detector, _) = blocks("python")
    run(detector)


def test_a_receiver_that_remembers(tmp_path, monkeypatch):
    """The ten lines, and then each command on the store that they made."""
    monkeypatch.chdir(tmp_path)
    (_, receiver) = blocks("python")
    assert len([line for line in receiver.splitlines() if line]) == 9
    delivered = []
    first = Broker("1", "2", "2")
    run(receiver, broker=first, deliver=lambda message: delivered.append(message.unique_message_id))
    run(receiver, broker=Broker("2", "3"), deliver=lambda message: delivered.append(message.unique_message_id))
    assert delivered == ["1", "2", "3"]
    assert [message.unique_message_id for message in first.acknowledged] == ["1", "2", "2"]

    commands = [shlex.split(line, comments=True) for block in blocks("sh") for line in block.splitlines()]
    printed = {
        arguments[1]: subprocess.run(
            [sys.executable, "-m", *arguments], check=True, capture_output=True, encoding="utf-8"
        ).stdout
        for arguments in commands
        if arguments[0] == "receiver"
    }
    assert "rx=5 " in printed["status"]
    assert "rDupsDet=2 rDupIds=3" in printed["status"]
    assert "none found" in printed["check"]
    assert "already" in printed["migrate"]


def test_the_output_of_the_main_command():
    text = README.read_text(encoding="utf-8")
    (command,) = re.findall(r"^sh bin/receiver (simulate .*) --report report\.html$", text, re.MULTILINE)
    ran = subprocess.run(
        [sys.executable, "-m", "receiver", *shlex.split(command)],
        cwd=README.parent,
        env={**os.environ, "COLUMNS": "80"},
        check=True,
        capture_output=True,
        encoding="utf-8",
    )
    printed = "\n".join(line.rstrip() for line in ran.stdout.splitlines())
    (shown,) = re.findall(r"^```text\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    for part in shown.split("…\n"):
        assert part in printed + "\n"
