"""What the README shows works as it stands there. Its commands are run by the continuous integration."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.docs import markdown
from tests.docs.bridge import Broker
from tests.docs.markdown import blocks, commands

README = Path(__file__).resolve().parents[2] / "README.md"


def run(block: str, **given: object) -> None:
    exec(compile(block, str(README), "exec"), given)  # noqa: S102 - our own text


def test_the_library_in_a_few_lines():
    (detector,) = blocks("README.md", "python", "The library")
    run(detector)


def test_a_receiver_that_remembers(tmp_path, monkeypatch):
    """The ten lines, and then each command on the store that they made."""
    monkeypatch.chdir(tmp_path)
    (receiver,) = blocks("README.md", "python", "A receiver that remembers")
    assert len([line for line in receiver.splitlines() if line]) == 9
    delivered = []
    first = Broker("1", "2", "2")
    run(receiver, broker=first, deliver=lambda message: delivered.append(message.unique_message_id))
    run(receiver, broker=Broker("2", "3"), deliver=lambda message: delivered.append(message.unique_message_id))
    assert delivered == ["1", "2", "3"]
    assert [message.unique_message_id for message in first.acknowledged] == ["1", "2", "2"]

    (block,) = blocks("README.md", "sh", "A receiver that remembers")
    printed = {arguments[3]: markdown.run(arguments, tmp_path).stdout for arguments in commands(block)}
    assert "rx=5 " in printed["status"]
    assert "rDupsDet=2 rDupIds=3" in printed["status"]
    assert "none found" in printed["check"]
    assert "already" in printed["migrate"]


@pytest.mark.slow
def test_on_spark(tmp_path):
    """The commands as they stand, in a copy of the checkout that holds what they name."""
    if shutil.which("java") is None:
        pytest.skip("there is no Java")
    for name in ("examples", "spark_jobs"):
        (tmp_path / name).symlink_to(README.parent / name)
    scripts = Path(sysconfig.get_path("scripts"))
    words = {"sh bin/receiver": str(scripts / "receiver"), ".venv/bin/": f"{scripts}/"}
    (block, more) = blocks("README.md", "sh", "On Spark")
    printed = []
    for line in [*block.splitlines(), *more.splitlines()]:
        (shown,) = [shown for shown in words if line.startswith(shown)]
        arguments = shlex.split(words[shown] + line.removeprefix(shown))
        ran = subprocess.run(arguments, cwd=tmp_path, check=True, capture_output=True, encoding="utf-8")
        printed.append(ran.stdout)
    on_spark, compacting, of_compacted = printed
    assert "215,293 receipts of 2 domains" in compacting
    command = [scripts / "receiver", "simulate", "examples/artemis-receipts.csv.gz", "--domain", "destination"]
    here = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, encoding="utf-8").stdout
    assert on_spark == here
    assert of_compacted == here


COMMANDS = re.findall(
    r"^sh bin/receiver ((?:simulate|compare) .*) --report \w+\.html$", README.read_text(encoding="utf-8"), re.MULTILINE
)


@pytest.mark.parametrize("number", range(len(COMMANDS)), ids=lambda number: COMMANDS[number].partition(" ")[0])
def test_the_output_shown(number):
    """Of the commands in their order, but for the places marked."""
    ran = subprocess.run(
        [sys.executable, "-m", "receiver", *shlex.split(COMMANDS[number])],
        cwd=README.parent,
        env={**os.environ, "COLUMNS": "80"},
        check=True,
        capture_output=True,
        encoding="utf-8",
    )
    printed = "\n".join(line.rstrip() for line in ran.stdout.splitlines())
    shown = blocks("README.md", "text")
    assert len(shown) == len(COMMANDS)
    for part in shown[number].split("…\n"):
        assert part in printed + "\n"
