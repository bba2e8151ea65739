"""The scripts in `bin/` on machines that lack a program: a clear message, exit 2, nothing left behind.

Every run of the continuous integration shows that they work on a complete machine.
"""

import os
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def checkout(tmp_path):
    """The part of a fresh clone that the set-up reads, at a path with a space; and a PATH without Python."""
    root = tmp_path / "a checkout"
    shutil.copytree(ROOT / "bin", root / "bin")
    shutil.copy(ROOT / "pyproject.toml", root)
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("cat", "cksum", "dirname"):
        (tools / name).symlink_to(shutil.which(name))
    return root


def run(checkout: Path, **pythons: str) -> subprocess.CompletedProcess[str]:
    """Run `bin/receiver` from another folder. Only the given Pythons (name -> shell script) are on the PATH."""
    tools = checkout.parent / "tools"
    for name, script in pythons.items():
        (tools / name).write_text(f"#!{shutil.which('sh')}\n{script}\n")
        (tools / name).chmod(0o755)
    command = [shutil.which("sh"), str(checkout / "bin" / "receiver"), "--help"]
    ran = subprocess.run(
        command, env={"PATH": str(tools)}, cwd=tools, capture_output=True, text=True, check=False, timeout=300
    )
    assert ran.stdout == ""
    assert not list((checkout / ".venv").glob("installed-*"))
    return ran


def test_no_python(checkout):
    ran = run(checkout)
    assert ran.returncode == 2
    assert ran.stderr.startswith("receiver: needs Python 3.11 or newer, and none is on the PATH: install it")


def test_only_an_old_python(checkout):
    ran = run(checkout, python3='case $2 in *"3, 11"*) exit 1 ;; esac')
    assert ran.returncode == 2
    assert "needs Python 3.11 or newer" in ran.stderr


def test_a_python_without_venv(checkout):
    ran = run(checkout, python3="case $2 in *ensurepip*) exit 1 ;; esac")
    assert ran.returncode == 2
    assert "tools/python3 can't make virtual environments" in ran.stderr
    assert "apt install python3-venv" in ran.stderr


def test_a_failing_step_shows_what_it_said(checkout):
    """The next run tries again, because there is no stamp."""
    ran = run(checkout, python3='[ "$2" != venv ] || { echo "no space left"; exit 1; }')
    assert ran.returncode == 2
    assert "no space left\nreceiver: failed: " in ran.stderr


def test_a_checkout_that_cannot_be_written_to(checkout):
    (checkout / ".venv.lock").mkdir()  # permissions don't stop tests that run as root
    ran = run(checkout)
    assert ran.returncode == 2
    assert f"can't write to {checkout}, where .venv belongs" in ran.stderr


NOTING = """echo "$@" >>"$0.calls"
[ "$2" != venv ] || { mkdir -p "$4/bin"; cp "$0" "$4/bin/python"; }"""


PIP = f"""{NOTING}
case " $* " in *" install "*)
    printf '%s\\n' 'Obtaining file:///x' 'Collecting numpy>=2.1' 'Collecting numba' 'Installing collected packages: numba, numpy'
esac"""


def make_python(checkout: Path, script: str) -> Path:
    """A Python on the PATH that makes virtual environments of itself."""
    tools = checkout.parent / "tools"
    for name in ("mkdir", "cp"):
        (tools / name).symlink_to(shutil.which(name))
    python = tools / "python3"
    python.write_text(f"#!{shutil.which('sh')}\n{script}\n")
    python.chmod(0o755)
    return python


def calls_of(checkout: Path, command: str) -> list[str]:
    """The calls of Python that a script in `bin/` makes, once everything for the commands before it is installed."""
    python = checkout.parent / "tools" / "python3"
    calls = checkout / ".venv" / "bin" / "python.calls"
    calls.unlink(missing_ok=True)
    script, *arguments = command.split()
    started = [shutil.which("sh"), str(checkout / "bin" / script), *arguments]
    subprocess.run(
        started, env={"PATH": str(python.parent)}, cwd=checkout, capture_output=True, check=True, timeout=300
    )
    return [call for call in calls.read_text().splitlines() if " install " in call or call.startswith("-P ")]


def installed(call: str) -> set[str]:
    assert " install " in call
    return set(filter(None, call.partition("[")[2].rstrip("]").split(",")))


def test_the_first_command_of_the_readme_can_write_its_report(checkout):
    make_python(checkout, NOTING)
    first = next(line for line in (ROOT / "README.md").read_text().splitlines() if line.startswith("sh bin/receiver"))
    assert first.endswith("--report report.html")
    install, _ = calls_of(checkout, first.removeprefix("sh bin/"))
    assert "report" in installed(install)


@pytest.mark.parametrize(
    ("command", "extras"),
    [
        ("receiver simulate s3://bucket/logs/", {"report", "remote"}),
        ("receiver compare a.csv", {"report"}),
        ("receiver simulate a.csv --engine spark --master spark://host:7077", {"report", "spark"}),
        ("receiver bridge amqp://host/a file:a --store postgresql://host/d", {"bridge", "postgres", "simulate"}),
        ("receiver bridge stomp://host/a kafka://host/a --store sqlite:///a.db", {"kafka"}),
        ("receiver probe amqp://host/a", {"bridge"}),
        ("receiver status postgresql://host/d", {"postgres"}),
        ("demo --secs 5", {"demo"}),
    ],
)
def test_a_command_has_its_extras_installed(checkout, command, extras):
    make_python(checkout, NOTING)
    install, started = calls_of(checkout, command)
    assert extras <= installed(install)
    assert started.endswith(command.partition(" ")[2])
    assert calls_of(checkout, command) == [started]


@pytest.mark.parametrize(
    "shown", ["receiver", "receiver --help", "receiver --version", "receiver bridge --help", "demo --help"]
)
def test_help_takes_what_is_installed_or_else_installs_no_extra(checkout, shown):
    make_python(checkout, NOTING)
    install, started = calls_of(checkout, shown)
    assert installed(install) == set()
    shutil.rmtree(checkout / ".venv")
    calls_of(checkout, "receiver status sqlite:///a.db")
    assert calls_of(checkout, shown) == [started]


def everything_from(reader: int) -> bytes:
    """Read to the end, because a terminal passes output on in parts."""
    parts = []
    with suppress(OSError):  # a terminal's end is an error
        while part := os.read(reader, 10_000):
            parts.append(part)
    os.close(reader)
    return b"".join(parts)


@pytest.mark.parametrize("on_a_terminal", [False, True])
def test_the_first_run_says_what_it_installs_and_how_far_it_is(checkout, on_a_terminal):
    python = make_python(checkout, PIP)
    command = [shutil.which("sh"), str(checkout / "bin" / "receiver"), "status", "sqlite:///a.db"]
    reader, writer = os.openpty() if on_a_terminal else os.pipe()
    ran = subprocess.run(
        command, env={"PATH": str(python.parent)}, stdout=subprocess.PIPE, stderr=writer, check=True, timeout=300
    )
    os.close(writer)
    said = everything_from(reader).decode().replace("\r\n", "\n")
    assert ran.stdout == b""
    start = "receiver: 2 of 3: "
    cleared = "\r\033[K" if on_a_terminal else ""
    counted = f"{cleared}{start}package 1: numpy>=2.1{cleared}{start}package 2: numba" if on_a_terminal else ""
    assert said == (
        f"receiver: installing what this command needs into {checkout}/.venv, once: about a minute, and up to 1 GB of disk\n"
        f"receiver: 1 of 3: making a virtual environment with {python}\n"
        f"{start}downloading this package with the extras report,postgres, and the libraries that it needs\n"
        f"{counted}{cleared}receiver: 3 of 3: installing what was downloaded\n{cleared}receiver: done\n"
    )
