"""How to install what is missing: the words fit the way in which the package was installed."""

import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from receiver import errors

ROOT = Path(__file__).resolve().parents[2]


PIP = [sys.executable, "-m", "pip", "install"]


def hint_of(folder: Path, *options: str, extra: str = "simulate") -> list[str]:
    """The hint of a package in this folder, split as a shell does."""
    shutil.copy(errors.__file__, folder / "receiver")
    (folder / "receiver" / "__init__.py").touch()
    program = f"from receiver.errors import MissingExtraError; print(MissingExtraError('{extra}', 'this').hint)"
    ran = subprocess.run(
        [sys.executable, *options, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(folder), "PYTHONSAFEPATH": "1"},
    )
    return shlex.split(ran.stdout)


def test_a_checkout_that_is_not_installed_is_named_by_its_folder(tmp_path):
    checkout = tmp_path / "my checkout"
    (checkout / "receiver").mkdir(parents=True)
    assert hint_of(checkout, "-S") == [*PIP, "--editable", f"{checkout}[simulate]"]


def test_an_installed_package_has_its_libraries_named(tmp_path):
    """If an index lacks a name, somebody else may register it. Extras of extras are resolved into libraries too."""
    (tmp_path / "receiver").mkdir()
    wheel = tmp_path / "reliable_receiver-0.1.0.dist-info"
    wheel.mkdir()
    requires = (
        "alembic>=1.18",
        "numpy>=2.1; extra == 'simulate'",
        "tzdata; (platform_system == 'Windows') and extra == \"simulate\"",
        "reliable-receiver[report,simulate]; extra == 'other'",
        "psycopg[binary]>=3.2.3; extra == 'report'",
        "reliable-receiver[simulate]; extra == 'report'",
    )
    lines = ["Metadata-Version: 2.4", "Name: reliable-receiver", *(f"Requires-Dist: {each}" for each in requires)]
    (wheel / "METADATA").write_text("\n".join(lines) + "\n")
    assert hint_of(tmp_path, extra="simulate") == [*PIP, "numpy>=2.1", "tzdata"]
    assert hint_of(tmp_path, extra="other") == [*PIP, "numpy>=2.1", "tzdata", "psycopg[binary]>=3.2.3"]
    assert hint_of(tmp_path, extra="simulate,report") == hint_of(tmp_path, extra="other")


@pytest.mark.parametrize("extra", ["simulate", "demo"])
def test_pip_takes_the_hint(extra):
    """pip uses no index, because everything is installed here."""
    *pip, install = shlex.split(errors.MissingExtraError(extra, "this").hint)[:4]
    libraries = shlex.split(errors.MissingExtraError(extra, "this").hint)[4:]
    command = [*pip, "--disable-pip-version-check", install, "--dry-run", "--no-index", *libraries]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert "reliable" not in " ".join(libraries)


@pytest.mark.parametrize(
    ("missing", "use", "extra"),
    [
        ("pyspark", "from receiver.spark import size_windows", "spark"),
        ("numba", "from receiver.spark import judge", "spark"),
        ("hypothesis", "import receiver.testing", "testing"),
        ("prometheus_client", "import receiver.durable.metrics", "metrics"),
    ],
)
def test_who_imports_what_needs_an_extra_is_told_of_it(missing, use, extra):
    program = f"import sys; sys.modules[{missing!r}] = None; {use}"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert f"needs the extra '{extra}', which isn't installed" in ran.stderr.splitlines()[-1]


def test_a_job_names_the_extra_that_has_all_it_needs():
    """It once named `simulate` first, and `spark` after that was installed."""
    program = (
        "import sys; sys.modules.update(dict.fromkeys(('numpy', 'pyarrow', 'pandas', 'platformdirs')))\n"
        "sys.path.append('.'); from spark_jobs import compact_logs; sys.exit(compact_logs.main())"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program, "a.csv", "out"], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert (ran.returncode, ran.stderr.splitlines()[0]) == (
        2,
        "error: the Spark engine needs the extra 'spark', which isn't installed",
    )


def test_every_extra_that_is_named_is_declared():
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    code = "".join(file.read_text(encoding="utf-8") for file in (ROOT / "receiver").rglob("*.py"))
    named = set(re.findall(r'MissingExtraError\("(\w+)"', code))
    assert {"simulate", "report", "spark", "bridge"} <= named <= set(declared)


def test_what_draws_is_in_the_extra_for_reports_alone():
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    drawing = {"altair", "jinja2", "vl-convert-python"}
    holding = {name for name, needed in declared.items() if {re.split("[^a-z-]", what)[0] for what in needed} & drawing}
    assert holding == {"report"}
    assert "report" in re.findall(r"\w+", declared["all"][0].partition("[")[2])
