"""The examples of the README and the pages behind it work exactly as printed. `.ci/run` runs the README's commands."""

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
START = "docs/start.md"


def run(block: str, **given: object) -> None:
    exec(compile(block, str(README), "exec"), given)  # noqa: S102 - our own text


def test_the_library_in_a_few_lines():
    (detector,) = blocks(START, "python", "The library")
    run(detector)


@pytest.mark.slow
def test_a_receiver_that_remembers(tmp_path, monkeypatch):
    """Run the ten lines, and then each command on the store that they made."""
    monkeypatch.chdir(tmp_path)
    (receiver,) = blocks(START, "python", "A receiver that remembers")
    assert len([line for line in receiver.splitlines() if line]) == 9
    delivered = []
    first = Broker("1", "2", "2")
    run(receiver, broker=first, deliver=lambda message: delivered.append(message.unique_message_id))
    run(receiver, broker=Broker("2", "3"), deliver=lambda message: delivered.append(message.unique_message_id))
    assert delivered == ["1", "2", "3"]
    assert [message.unique_message_id for message in first.acknowledged] == ["1", "2", "2"]

    (block,) = blocks(START, "sh", "A receiver that remembers")
    printed = {arguments[3]: markdown.run(arguments, tmp_path).stdout for arguments in commands(block)}
    assert "rx=5 " in printed["status"]
    assert "rDupsDet=2 rDupIds=3" in printed["status"]
    assert "none found" in printed["check"]
    assert "already" in printed["migrate"]


@pytest.mark.slow
def test_on_spark(tmp_path):
    """Run the commands exactly as printed, in a copy of the checkout that has the files they name."""
    if shutil.which("java") is None:
        pytest.skip("there is no Java")
    for name in ("examples", "spark_jobs"):
        (tmp_path / name).symlink_to(README.parent / name)
    scripts = Path(sysconfig.get_path("scripts"))
    words = {"sh bin/receiver": str(scripts / "receiver"), ".venv/bin/": f"{scripts}/"}
    (block, more) = blocks(START, "sh", "I have terabytes of receipts")
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


SHOWN = [
    (page, command, output)
    for page in ("README.md", "docs/simulate.md")
    for command, output in zip(
        re.findall(
            r"^sh bin/receiver ((?:simulate|compare) .*) --report \w+\.html$",
            (README.parent / page).read_text(encoding="utf-8"),
            re.MULTILINE,
        ),
        blocks(page, "text"),
        strict=True,
    )
]
COMMANDS = list(dict.fromkeys(command for _, command, _ in SHOWN))


@pytest.mark.thinned(2)
@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.partition(" ")[0])
def test_the_output_shown(command):
    """The commands print it, in their order, except for the marked lines."""
    ran = subprocess.run(
        [sys.executable, "-m", "receiver", *shlex.split(command)],
        cwd=README.parent,
        env={**os.environ, "COLUMNS": "80"},
        check=True,
        capture_output=True,
        encoding="utf-8",
    )
    printed = "\n".join(line.rstrip() for line in ran.stdout.splitlines()) + "\n"
    shown = [output for _, each, output in SHOWN if each == command]
    assert shown
    assert [part for output in shown for part in output.split("…\n") if part not in printed] == []


def test_the_pages_show_both_commands():
    assert [(page, command.partition(" ")[0]) for page, command, _ in SHOWN] == [
        ("README.md", "simulate"),
        ("docs/simulate.md", "simulate"),
        ("docs/simulate.md", "compare"),
    ]


@pytest.mark.browser
@pytest.mark.slow
def test_the_picture_of_the_report_is_taken_by_its_commands(tmp_path):
    """The picture has its size. Its look depends on the machine's fonts."""
    if shutil.which("chromium") is None:
        pytest.skip("needs Chromium: apt-get install chromium")
    (tmp_path / "examples").symlink_to(README.parent / "examples")
    picture = Path("docs", "images", "report.png")
    (tmp_path / picture).parent.mkdir(parents=True)
    (made,) = [block for block in blocks("CONTRIBUTING.md", "sh", "Documents") if str(picture) in block]
    made = made.replace("sh bin/receiver", f"{sys.executable} -m receiver")
    subprocess.run(["sh", "-e", "-c", made], cwd=tmp_path, check=True, capture_output=True)
    taken, kept = ((folder / picture).read_bytes() for folder in (tmp_path, README.parent))
    assert taken[:24] == kept[:24]  # a PNG's signature, its width and its height


def test_the_readme_is_short():
    """W and E are explained before any output has them."""
    text = README.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 150
    (output,) = blocks("README.md", "text")
    assert output.count("\n") == len(output.splitlines()) <= 8 + 1  # one for the mark that there is more
    assert 0 < text.index("**W, the window.**") < text.index("**E, the expiry.**") < text.index(output)
