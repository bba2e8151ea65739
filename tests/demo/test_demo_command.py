"""The demo as a process of its own: it runs to its end, is interrupted, or is refused."""

import json
import os
import re
import signal
import subprocess
import sys
import threading

import pytest

from examples.demo import __main__ as program
from receiver.errors import MissingExtraError
from tests.cli.running import RECEIVER, Ran, complaint
from tests.demo.conftest import COMMAND, ENDS_SECS


def figure(shown: str, name: str) -> int:
    """The figure in a row of the table."""
    return int(re.search(rf"^ *{name} +([\d,]+)", shown, re.MULTILINE)[1].replace(",", ""))


@pytest.mark.artemis
@pytest.mark.slow
def test_each_message_has_one_effect(demos, tmp_path, seed):
    kept = tmp_path / "kept"
    running = demos.start("--secs", 5, "--seed", seed, "--keep", kept)
    shown, said = running.communicate(timeout=ENDS_SECS)
    assert running.returncode == 0, said + shown
    assert f"--seed {seed}" in said
    assert {"kill -9 the broker", "the senders finish"} <= set(
        re.findall(r"supervisor \| (kill -9 the broker|the senders finish)", said)
    )
    messages = figure(shown, "messages")
    lines = (kept / "orders.jsonl").read_text().splitlines()
    # A sender's last batch may have arrived although the sender crashed and doesn't know it.
    unknown = re.search(r"([\d,]+) more arrived", shown)
    arrived = messages + (int(unknown[1].replace(",", "")) if unknown else 0)
    assert len({json.loads(line)["unique_message_id"] for line in lines}) == len(lines) == arrived > 0
    assert figure(shown, "missing") == figure(shown, "double") == 0
    assert figure(shown, "receipts") - figure(shown, "duplicates caught") == arrived
    assert figure(shown, "sent") >= figure(shown, "receipts") - figure(shown, "duplicates caught")
    assert figure(shown, "crashes") >= 1
    assert re.search(r"^(Keep|Raise) .*\bW (=|from) ", shown, re.MULTILINE)
    # However often they were killed, the bridges have recorded the receipts that their store has counted.
    recorded = f"{figure(shown, 'receipts'):,} receipts, {figure(shown, 'duplicates caught'):,} duplicates"
    assert recorded in shown
    assert demos.left() == []
    check_what_next(shown, kept)


def check_what_next(shown: str, kept) -> None:
    """Check that the commands shown at the end work exactly as printed."""
    commands = [line.split() for line in shown.splitlines() if line.startswith("  receiver ")]
    assert [command[1] for command in commands] == ["simulate", "compare", "status", "check"]
    for command in commands:
        ran = subprocess.run([*RECEIVER, *command[1:]], cwd=kept, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stderr


@pytest.mark.artemis
@pytest.mark.slow
@pytest.mark.parametrize(
    ("when", "how"),
    [("starting ActiveMQ", signal.SIGTERM), ("taking messages", signal.SIGHUP), ("kill -9", signal.SIGINT)],
)
def test_it_can_be_interrupted_at_any_time(demos, when, how):
    if how is signal.SIGHUP and signal.getsignal(how) is signal.SIG_IGN:
        how = signal.SIGTERM  # under nohup, the demo must ignore it
    with demos.start("--secs", 30, "--protocol", "amqp") as running:
        for line in running.stderr:
            if when in line:
                break
        rest = threading.Thread(target=running.stderr.read)
        rest.start()
        running.send_signal(how)
        assert running.wait(ENDS_SECS) == 130
        rest.join()
        assert running.stdout.read() == ""
    assert demos.left() == []


def refusal(*arguments: object, **environment: str) -> str:
    ran = subprocess.run(
        [*COMMAND, *map(str, arguments)], capture_output=True, text=True, env=os.environ | environment, check=False
    )
    return complaint(Ran(ran.returncode, ran.stdout, ran.stderr))


def test_a_folder_that_is_not_empty_is_not_written_to(tmp_path):
    (tmp_path / "mine").touch()
    assert "isn't empty" in refusal("--keep", tmp_path)
    assert "can't make the folder" in refusal("--keep", tmp_path / "mine")
    assert "can't make the folder" in refusal("--keep", tmp_path / "mine" / "below")
    assert [file.name for file in tmp_path.iterdir()] == ["mine"]


@pytest.mark.parametrize("arguments", [("--secs", "1"), ("--secs", "nan"), ("--protocol", "mqtt"), ("--seed", "x")])
def test_what_can_not_be_meant(arguments):
    assert arguments[0] in refusal(*arguments)


def test_no_java(tmp_path):
    said = refusal("--keep", tmp_path / "kept", PATH=str(tmp_path), JAVA_HOME="", XDG_CACHE_HOME=str(tmp_path))
    assert "ActiveMQ Artemis needs Java" in said
    assert "hint: install Java 17" in said
    assert not list(tmp_path.iterdir())


def test_no_maven(tmp_path):
    java = tmp_path / "java"
    java.write_text(f"#!{sys.executable}\nimport sys\nprint('openjdk version \"21.0.1\"', file=sys.stderr)\n")
    java.chmod(0o755)
    said = refusal(PATH=str(tmp_path), JAVA_HOME="", XDG_CACHE_HOME=str(tmp_path))
    assert "no mvn on the PATH" in said
    assert "hint: install it" in said


def test_a_missing_extra(monkeypatch):
    monkeypatch.setattr(program, "_NEEDED", ("receiver", "a_library_that_nobody_has"))
    with pytest.raises(MissingExtraError, match=r"needs the extra 'demo'.* -m pip install "):
        program.demo()
