"""What only a real process shows: signals, a full disk, encodings, missing packages. Closed pipes are in a file of their own."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from running import HEADER, LOG, RECEIVER, Ran, complaint, process

from tests.patience import until

FULL = Path("/dev/full")
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text(LOG)
    return path


INTERRUPTS = [pytest.param(signal.SIGINT, 130, id="SIGINT"), pytest.param(signal.SIGTERM, 143, id="SIGTERM")]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["simulate", "compare"])
@pytest.mark.parametrize(("how", "ended"), INTERRUPTS)
def test_an_interrupt_ends_at_once_and_leaves_nothing(tmp_path, name, how, ended):
    report = tmp_path / "r.html"
    report.write_text("as it was")
    with subprocess.Popen(
        [*RECEIVER, name, "-", "--report", report, "--json"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as command:
        command.stdin.write(LOG.encode())
        command.stdin.flush()
        until(lambda: list(tmp_path.glob(".*.part")))  # it has begun, and waits for more input
        time.sleep(0.5)
        command.send_signal(how)
        try:
            status = command.wait(timeout=60)
        finally:
            command.kill()
        assert status == ended
        assert command.stdout.read() == b""
        assert b"Traceback" not in command.stderr.read()
    assert report.read_text() == "as it was"
    assert [path.name for path in tmp_path.iterdir()] == ["r.html"]


LONG_REPLAY = """
import time
from receiver.simulate import kernel

def long(*_):
    print("it replays", flush=True)
    time.sleep(600)

kernel._replay = long
from receiver.__main__ import main
main()
"""


@pytest.mark.parametrize(("how", "ended"), INTERRUPTS)
def test_an_interrupt_waits_for_no_replay(tmp_path, how, ended):
    """Of a log of billions of receipts one replay takes minutes, and machine code can't be interrupted."""
    log = tmp_path / "a.csv"
    log.write_text("received_at,unique_message_id\n" + "".join(f"{n},{n // 2}\n" for n in range(20_000)))
    with subprocess.Popen(
        [sys.executable, "-c", LONG_REPLAY, "simulate", log, "--domain", "name:x"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as command:
        assert command.stdout.readline() == b"it replays\n"
        command.send_signal(how)
        try:
            assert command.wait(timeout=60) == ended
        finally:
            command.kill()
        assert command.stderr.read() == b""


SWALLOWS = """
import os, signal, time
try:
    os.kill(os.getpid(), signal.{name})
    time.sleep(0.01)
except BaseException:
    pass
"""
IMPORTS = """
import time
import receiver.cli

def run():
    import swallows
    time.sleep(600)

receiver.cli.run = run
from receiver.__main__ import main
main()
"""


@pytest.mark.parametrize(("how", "ended"), INTERRUPTS)
def test_an_interrupt_during_an_import_is_not_lost(tmp_path, how, ended):
    """As Numba is imported, whatever is raised may be caught."""
    (tmp_path / "swallows.py").write_text(SWALLOWS.format(name=how.name))
    python_path = os.pathsep.join([str(tmp_path), str(ROOT)])
    ran = subprocess.run(
        [sys.executable, "-c", IMPORTS], env={**os.environ, "PYTHONPATH": python_path}, timeout=60, check=False
    )
    assert ran.returncode == ended


HANGS = """
import __main__, os, signal, time
__main__._LONGEST_IMPORT_SECS = 0.3
os.kill(os.getpid(), signal.{name})
while True:
    time.sleep(0.1)
"""


@pytest.mark.parametrize(("how", "ended"), INTERRUPTS)
def test_an_interrupt_ends_even_an_import_that_waits_for_ever(tmp_path, how, ended):
    """So may the import of a function's module."""
    (tmp_path / "hangs.py").write_text(HANGS.format(name=how.name))
    with subprocess.Popen(
        [*RECEIVER, "bridge", "stomp://localhost/queue/a", "python:hangs:f", "--store", "sqlite:///a.db"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
    ) as command:
        try:
            assert command.wait(timeout=60) == ended
        finally:
            command.kill()
        assert command.stderr.read() == b""


@pytest.mark.skipif(not FULL.exists(), reason="no /dev/full here")
def test_a_full_disk_behind_a_report(simulate, log):
    assert "can't write /dev/full: No space" in complaint(simulate(log, "--report", FULL))


@pytest.mark.slow
@pytest.mark.parametrize(
    "environment", [{"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}]
)
def test_a_terminal_that_knows_no_unicode(tmp_path, environment):
    (tmp_path / "a.csv").write_text(f"{HEADER}1,é,é,\u6f22,\U0001f600\n2,é,é,\u6f22,\U0001f600\n", encoding="utf-8")
    table = process(tmp_path / "a.csv", "--domain", "destination", **environment)
    assert (table.status, table.err) == (0, "")
    assert table.out.isascii()
    ran = process(tmp_path / "a.csv", "--domain", "destination", "--json", **environment)
    assert json.loads(ran.out)["domains"][0]["domain"] == "queue://\U0001f600"
    assert complaint(process(tmp_path / "\u6f22.csv", **environment))


WITHOUT = """
import sys
from importlib.abc import MetaPathFinder

class Missing(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] in {names!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Missing())
from receiver.__main__ import main
main()
"""


ONE = ("--window", "2", "--expiry", "3")
REPORTS = {"altair", "jinja2", "vl_convert"}


@pytest.mark.thinned(9)
@pytest.mark.parametrize("how", [("simulate",), ("simulate", "--engine", "spark"), ("compare",)], ids=" ".join)
@pytest.mark.parametrize("module", sorted(REPORTS))
def test_without_its_extra_a_report_is_refused_before_anything_is_read(tmp_path, module, how):
    report = tmp_path / "r.html"
    ran = subprocess.run(
        [sys.executable, "-c", WITHOUT.format(names={module}), *how, tmp_path / "no such log.csv", "--report", report],
        capture_output=True,
        text=True,
        check=False,
    )
    said = complaint(Ran(ran.returncode, ran.stdout, ran.stderr))
    assert "--report needs the extra 'report'" in said
    assert " 'jinja2>=" in said
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("how", "extras"),
    [
        (("simulate",), "--report needs the extra 'report',"),
        (("simulate", "--engine", "spark"), "--engine spark with --report needs the extra 'spark,report',"),
        (("compare",), "--report needs the extra 'report',"),
    ],
)
def test_all_extras_that_are_missing_are_named_at_once(tmp_path, how, extras):
    names = {*REPORTS, "numba", "numpy", "pyarrow", "pyspark"}
    ran = subprocess.run(
        [sys.executable, "-c", WITHOUT.format(names=names), *how, "a.csv", "--report", "r.html"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    said = complaint(Ran(ran.returncode, ran.stdout, ran.stderr))
    assert extras in said
    assert " 'numpy>=" in said
    assert " 'jinja2>=" in said
    assert ("pyspark>=" in said) == ("spark" in how)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["simulate", "compare"])
def test_only_reports_need_that_extra(log, name):
    ran = subprocess.run(
        [sys.executable, "-c", WITHOUT.format(names=REPORTS), name, log, "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    assert json.loads(ran.stdout)["log"]["duplicates"] == 1


@pytest.mark.thinned(2)
@pytest.mark.parametrize("module", ["numba", "numpy", "pyarrow", "zstandard"])
def test_a_missing_extra_is_named(log, module):
    ran = subprocess.run(
        [
            sys.executable,
            "-c",
            WITHOUT.format(names={module}),
            "simulate",
            log,
            "--verdicts",
            log.with_name("v.csv"),
            *ONE,
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr.startswith("error: ")
    assert "-m pip install 'msgspec>=" in ran.stderr
    assert "Traceback" not in ran.stderr
    assert [path.name for path in log.parent.iterdir()] == ["a.csv"]


def test_help_needs_no_extra():
    ran = subprocess.run(
        [sys.executable, "-c", WITHOUT.format(names={"numpy"}), "simulate", "--help"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "--verdicts" in ran.stdout


@pytest.mark.slow
def test_the_same_log_gives_the_same_bytes(log):
    """Each process seeds its hashes anew. The output must not depend on it."""
    first, second = (process(log, "--json", PYTHONHASHSEED=seed) for seed in ("1", "2"))
    assert first == second


@pytest.mark.slow  # it compiles everything
def test_compiled_code_that_can_be_kept_nowhere(tmp_path):
    """For example, root installed the package, and a user without a home runs it."""
    shutil.copytree(ROOT / "receiver", tmp_path / "receiver", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "settings.yaml", tmp_path)
    (tmp_path / "receiver" / "simulate" / "__pycache__").touch()
    nowhere = {"HOME": os.devnull, "XDG_CACHE_HOME": os.devnull, "PYTHONPATH": str(tmp_path), "PYTHONSAFEPATH": "1"}
    ran = process("-", "--domain", "destination", "--json", stdin=LOG.encode(), **nowhere)
    assert (ran.status, ran.err) == (0, "")
    assert json.loads(ran.out)["log"]["duplicates"] == 1
