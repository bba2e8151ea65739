"""The scripts in `bin/` on machines that lack something: a clear word, exit 2, nothing left behind.

That they work where nothing is lacking is shown by every run of the continuous integration.
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
    """The part of a fresh clone that the set-up reads, at a path with a space, and a PATH without Python."""
    root = tmp_path / "a checkout"
    shutil.copytree(ROOT / "bin", root / "bin")
    shutil.copy(ROOT / "pyproject.toml", root)
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("cat", "cksum", "dirname"):
        (tools / name).symlink_to(shutil.which(name))
    return root


def run(checkout: Path, **pythons: str) -> subprocess.CompletedProcess[str]:
    """Run `bin/receiver` from elsewhere, with the given Pythons (name -> shell script) on the PATH and no others."""
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
    """And the next run tries again: there is no stamp."""
    ran = run(checkout, python3='[ "$2" != venv ] || { echo "no space left"; exit 1; }')
    assert ran.returncode == 2
    assert "no space left\nreceiver: failed: " in ran.stderr


def test_a_checkout_that_cannot_be_written_to(checkout):
    (checkout / ".venv.lock").mkdir()  # what permissions can't do where the tests run as root
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


def test_the_first_command_of_the_readme_can_write_its_report(checkout):
    first = next(line for line in (ROOT / "README.md").read_text().splitlines() if line.startswith("sh bin/receiver"))
    assert first.endswith("--report report.html")
    tools = make_python(checkout, NOTING).parent
    command = [shutil.which("sh"), *first.split()[1:]]
    subprocess.run(command, env={"PATH": str(tools)}, cwd=checkout, capture_output=True, check=True, timeout=300)
    calls = (checkout / ".venv" / "bin" / "python.calls").read_text().splitlines()
    (installs,) = (call for call in calls if " install " in call)
    assert "report" in installs.rpartition("[")[2].rstrip("]").split(",")


def test_the_demo_has_its_extra_installed(checkout):
    python = make_python(checkout, NOTING)
    command = [shutil.which("sh"), str(checkout / "bin" / "demo"), "--secs", "5"]
    subprocess.run(command, env={"PATH": str(python.parent)}, capture_output=True, check=True, timeout=300)
    *_, install, started = (checkout / ".venv" / "bin" / "python.calls").read_text().splitlines()
    assert install.endswith("[demo]")
    assert started == "-P -m examples.demo --secs 5"


def everything_from(reader: int) -> bytes:
    """To its end, for a terminal passes on what was written only by and by."""
    parts = []
    with suppress(OSError):  # a terminal's end is an error
        while part := os.read(reader, 10_000):
            parts.append(part)
    os.close(reader)
    return b"".join(parts)


@pytest.mark.parametrize("on_a_terminal", [False, True])
def test_the_first_run_says_what_it_installs_and_how_far_it_is(checkout, on_a_terminal):
    python = make_python(checkout, PIP)
    command = [shutil.which("sh"), str(checkout / "bin" / "receiver"), "--help"]
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
        f"{start}downloading this package's extras report,postgres, and the libraries they need\n"
        f"{counted}{cleared}receiver: 3 of 3: installing what was downloaded\n{cleared}receiver: done\n"
    )
