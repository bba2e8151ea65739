import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

COMMAND = [sys.executable, "-m", "examples.demo"]
ENDS_SECS = 120


class Demos:
    """Starts demos. All their temporary files are in one folder, which shows what they leave."""

    def __init__(self, folder: Path, home: Path) -> None:
        self.temporary = folder / "temporary"
        self.temporary.mkdir()
        caches = folder / "caches"
        caches.mkdir()
        (caches / "reliable-receiver").symlink_to(home.parent)
        self.environment = os.environ | {
            "TMPDIR": str(self.temporary),
            "XDG_CACHE_HOME": str(caches),
            "COLUMNS": "120",
            "PYTHONWARNINGS": "error",
        }
        self._folder = folder

    def start(self, *arguments: object) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*COMMAND, *map(str, arguments)],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def left(self) -> list[str]:
        """The files and processes that should have gone with the demo."""
        listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
        running = [line for line in listed.splitlines() if str(self._folder) in line]
        return [str(file) for file in self.temporary.iterdir()] + running


@pytest.fixture
def demos(tmp_path: Path, artemis_home: Path) -> Iterator[Demos]:
    demos = Demos(tmp_path, artemis_home)
    yield demos
    for process in _of(tmp_path):
        os.kill(process, signal.SIGKILL)


def _of(folder: Path) -> list[int]:
    listed = subprocess.run(["ps", "-eo", "pid,args"], capture_output=True, text=True, check=True).stdout
    return [int(line.split()[0]) for line in listed.splitlines() if str(folder) in line]
