"""`receiver bridge … python:MODULE:FUNCTION` in a folder whose files have the names of libraries."""

import subprocess
import sys

import pytest

from examples.demo.processes import HOST

LIBRARIES = ["proton", "prometheus_client"]
DESK = "def book(message):\n    pass\n"
# As the installed command runs: Python doesn't look for modules in the current folder.
AS_INSTALLED = "import sys; from receiver import cli; sys.exit(cli.run())"
WITHOUT = """
import sys
from importlib.machinery import PathFinder
hidden = sys.argv.pop(1)
class NotInstalled:
    def find_spec(self, name, path=None, target=None):
        if name != hidden:
            return None
        spec = PathFinder.find_spec(name, [path for path in sys.path if "-packages" not in path])
        if spec is None:
            raise ModuleNotFoundError(name)
        return spec
sys.meta_path.insert(0, NotInstalled())
from receiver import cli
sys.exit(cli.run())
"""


@pytest.fixture
def folder(tmp_path):
    for name in LIBRARIES:
        (tmp_path / f"{name}.py").write_text(f"open('{name} was run', 'w').close()\n")
    (tmp_path / "desk.py").write_text(DESK)
    return tmp_path


def bridge(folder, program, protocol, *before):
    arguments = ["bridge", f"{protocol}://{HOST}:1/orders", "python:desk:book", "--store", "sqlite:///r.db"]
    ran = subprocess.run(
        [sys.executable, "-P", "-c", program, *before, *arguments, "--metrics-port", "0"],
        cwd=folder,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert ran.returncode == 2, ran
    assert [path.name for path in folder.iterdir() if path.name.endswith("was run")] == []
    return ran.stderr


@pytest.mark.thinned(2)
@pytest.mark.parametrize("protocol", ["stomp", "amqp"])
def test_no_file_there_is_run_in_a_librarys_stead(folder, protocol):
    assert "can't be reached" in bridge(folder, AS_INSTALLED, protocol)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("library", LIBRARIES)
def test_nor_where_the_library_is_not_installed(folder, library):
    protocol, extra = (
        ("amqp" if library == "proton" else "stomp"),
        ("metrics" if library == "prometheus_client" else "bridge"),
    )
    assert f"needs the extra '{extra}'" in bridge(folder, WITHOUT, protocol, library)
