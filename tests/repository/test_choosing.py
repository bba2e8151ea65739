"""Each test is in the quick run or in that with `--slow`; scaled tests are in both. No test vanishes silently."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TESTS = """
import pytest

pytestmark = pytest.mark.slow

def test_large():
    pass

@pytest.mark.quick
def test_small():
    pass

@pytest.mark.scaled
def test_of_any_size(request):
    print(request.config.getoption("--campaign"))

@pytest.mark.costly
@pytest.mark.quick
def test_dear():
    pass

@pytest.mark.quick
def test_on_java(java):
    pass

@pytest.fixture
def java():
    pass

@pytest.mark.thinned(2)
@pytest.mark.parametrize("where", ["a", "b"])
@pytest.mark.parametrize("what", ["x", "y", "z"])
def test_cells(what, where):
    pass

@pytest.mark.parametrize("what", ["x", pytest.param("y z", marks=pytest.mark.quick)])
def test_one(what):
    pass

def test_broken(seed):
    raise AssertionError
"""
ON_DATABASES = """
import pytest

@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_one(kind):
    pass

@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_other(kind):
    pass

@pytest.mark.parametrize("what", ["x", "y"])
@pytest.mark.parametrize("kind", ["memory", "sqlite", "postgresql"])
def test_cells(kind, what):
    pass

@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_single(kind):
    pass

@pytest.mark.parametrize("driver", ["aiosqlite", "psycopg", "asyncpg"])
def test_driver(driver):
    pass

@pytest.mark.quick
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_both(kind):
    pass
"""
COSTLY = ["dear", "on_java"]
QUICK = ["small", "of_any_size", "cells[x-b]", "cells[y-a]", "cells[z-b]", "one[y z]"]
SLOW = ["large", "of_any_size", "cells[x-a]", "cells[y-b]", "cells[z-a]", "one[x]", "broken"]


@pytest.fixture
def file(tmp_path):
    file = tmp_path / "tests/test_it.py"
    file.parent.mkdir()
    file.write_text(TESTS)
    return file


def run(file, *arguments):
    where = ["-p", "tests.conftest", "-c", str(ROOT / "pyproject.toml"), "--rootdir", str(file.parents[1])]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *where, *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=file.parents[1], env=environment, capture_output=True, text=True, check=False)


def chosen_by(ran):
    return [line.partition("::test_")[2] for line in ran.stdout.splitlines() if "::" in line]


@pytest.mark.thinned(3)
@pytest.mark.parametrize(
    ("arguments", "chosen", "said"),
    [
        ([], QUICK, "run with --slow, costly ones with --costly"),
        (["--costly"], COSTLY, "without --costly"),
        (["--slow"], SLOW, "without --slow"),
        (["--all"], {*QUICK, *COSTLY, *SLOW}, ""),
        (["tests/test_it.py"], {*QUICK, *COSTLY}, "run with --slow\n"),
    ],
)
def test_each_is_in_one_run(file, arguments, chosen, said):
    ran = run(file, "--collect-only", *arguments)
    assert sorted(chosen_by(ran)) == sorted(chosen)
    assert said in ran.stdout


@pytest.mark.slow
def test_what_is_named_runs_and_a_failure_says_how_it_comes_again(file):
    named = [f"{file}::test_{name}" for name in ("small", "cells[x-a]", "one", "broken")]
    ran = run(file, "--slow", "--seed=7", *named)
    assert "1 failed, 4 passed" in ran.stdout
    assert "sh bin/test tests/test_it.py::test_broken --slow --seed=7\n" in ran.stdout


@pytest.mark.slow
def test_a_test_for_all_databases_or_drivers_is_quick_on_one_of_them(file):
    file.write_text(ON_DATABASES)
    quick, slow = (chosen_by(run(file, "--collect-only", *how, str(file))) for how in ([], ["--slow"]))
    assert len(quick) + len(slow) == len({*quick, *slow}) == 17
    assert len([name for name in quick if "driver" in name]) == 1
    assert [name for name in quick if "cells" not in name and "driver" not in name] == [
        "one[sqlite]",
        "other[postgresql]",
        "single[memory]",
        "single[sqlite]",
        "both[sqlite]",
        "both[postgresql]",
    ]
    assert {name for name in quick if "cells" in name} in (
        {"cells[memory-x]", "cells[memory-y]", "cells[sqlite-x]", "cells[postgresql-y]"},
        {"cells[memory-x]", "cells[memory-y]", "cells[postgresql-x]", "cells[sqlite-y]"},
    )
