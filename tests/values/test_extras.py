"""How to install what is missing: words that work where the package came from."""

import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

from receiver import errors

ROOT = Path(__file__).resolve().parents[2]


def hint_of(folder: Path) -> str:
    """What a copy of the package in that folder says."""
    shutil.copy(errors.__file__, folder / "receiver")
    (folder / "receiver" / "__init__.py").touch()
    program = "from receiver.errors import MissingExtraError; print(MissingExtraError('simulate', 'this').hint)"
    ran = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(folder), "PYTHONSAFEPATH": "1"},
    )
    return ran.stdout.removesuffix("\n")


def test_a_checkout_is_named_by_its_folder(tmp_path):
    checkout = tmp_path / "my checkout"
    (checkout / "receiver").mkdir(parents=True)
    (checkout / "settings.yaml").touch()
    assert shlex.split(hint_of(checkout)) == ["pip", "install", "--editable", f"{checkout}[simulate]"]


def test_an_installed_package_is_named_by_its_name(tmp_path):
    """As pyproject.toml has it, its settings stand within."""
    (tmp_path / "receiver").mkdir()
    (tmp_path / "receiver" / "settings.yaml").touch()
    assert hint_of(tmp_path) == "pip install 'reliable-receiver[simulate]'"


def test_pip_knows_an_installed_package_by_its_name_without_any_index():
    """Which is why the hint holds though no index has the package."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--dry-run", "--no-index"]
    ran = subprocess.run([*pip, "reliable-receiver[simulate]"], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr


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
