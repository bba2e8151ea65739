"""Imports point one way, and `import receiver` loads what it needs and no more."""

import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_imports_point_one_way():
    """The layers of `docs/architecture.md`, as `pyproject.toml` states them."""
    # A process of its own, since it switches off every logger, and later tests read loggers.
    program = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True))"
    ran = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.parametrize("module", ["receiver", "receiver.detector", "receiver.domains", "receiver.settings"])
def test_the_library_is_light(module):
    """A program that embeds the library doesn't load what only commands need."""
    heavy = {"numpy", "numba", "pyarrow", "pandas", "polars", "pyspark", "typer", "rich", "yaml", "altair"}
    assert heavy.isdisjoint(loaded_by(module))


def test_the_command_is_light():
    """Loading these would take a third of the time of each short command."""
    heavy = {"numpy", "numba", "pyarrow", "sqlalchemy", "rich", "asyncio", "http.server"}
    assert heavy.isdisjoint(loaded_by("receiver.cli"))


def loaded_by(module):
    program = f"import json, sys, {module}; print(json.dumps(sorted(sys.modules)))"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return json.loads(ran.stdout)


@pytest.mark.parametrize("name", ["receiver", "receiver.bridge"])
def test_what_is_loaded_later_is_listed_and_there(name):
    """So a shell can complete it."""
    module = import_module(name)
    assert set(module.__all__) <= set(dir(module))
    assert [each for each in module.__all__ if getattr(module, each).__name__ != each] == []


def test_a_log_of_files_loads_no_database(tmp_path):
    """Loading it would take a quarter of a second of each `receiver simulate`."""
    log = tmp_path / "log.csv"
    log.write_text("unique_message_id,received_at\na,2026-01-01T00:00:00Z\n")
    program = f"""
import sys
from receiver.cli import run
sys.argv[1:] = ["simulate", {str(log)!r}, "--domain", "name:orders"]
status = run()
print(status, "sqlalchemy" in sys.modules, file=sys.stderr)
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ran.stderr.splitlines()[-1:] == ["0 False"], ran.stderr
