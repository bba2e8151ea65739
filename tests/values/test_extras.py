"""How to install what is missing: words that work where the package came from."""

import importlib.util
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


@pytest.fixture
def error_of(tmp_path):
    """The error as a copy of the package raises it, in a folder of its own."""

    def make(*beside: str):
        (tmp_path / "receiver").mkdir()
        copy = shutil.copy(errors.__file__, tmp_path / "receiver")
        for name in beside:
            (tmp_path / name).touch()
        spec = importlib.util.spec_from_file_location("copied_errors", copy)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module.MissingExtraError("simulate", "this command")

    return make


def test_a_checkout_is_named_by_its_folder(error_of, tmp_path):
    assert shlex.split(error_of("pyproject.toml").hint) == ["pip", "install", "--editable", f"{tmp_path}[simulate]"]


def test_an_installed_package_is_named_by_its_name(error_of):
    assert error_of().hint == "pip install 'reliable-receiver[simulate]'"


def test_pip_knows_an_installed_package_by_its_name_without_any_index():
    """Which is why the hint holds though no index has the package."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--dry-run", "--no-index"]
    ran = subprocess.run([*pip, "reliable-receiver[simulate]"], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr


def test_every_extra_that_is_named_is_declared():
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    code = "".join(file.read_text(encoding="utf-8") for file in (ROOT / "receiver").rglob("*.py"))
    named = set(re.findall(r'MissingExtraError\("(\w+)"', code))
    assert {"simulate", "spark", "bridge"} <= named <= set(declared)
