"""Stores, recordings and files after a power cut: rebuilt from recorded system calls, and opened again.

Everything acknowledged is there. Every other step is there as a whole or not at all.
"""

import random
import shutil
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.campaigns import survived
from tests.power.cut_programs import PROGRAMS
from tests.power.disk import Disk, Model
from tests.power.system_calls import recorded

pytestmark = pytest.mark.costly
ROOT = Path(__file__).resolve().parents[2]
STATES = {"quick": 6, "small": 25, "long": 400}
"""How many states are tried for each program and model."""


def files_in(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and not path.name.endswith("-shm")}


class Cuts:
    """A program's run on a folder, and the folder as power cuts leave it."""

    def __init__(self, name, tmp_path, seed, patched=""):
        self.program = PROGRAMS[name]
        self.seed = str(seed)
        self.folder = tmp_path / "disk"
        self.folder.mkdir()
        self.program.prepare(self.folder, self.seed)
        self._before = files_in(self.folder)
        self._folders = [path for path in self.folder.rglob("*") if path.is_dir()]
        start = f"import sys; sys.argv[1:] = {[name, str(self.folder), self.seed]!r}\n{patched}\n"
        script = tmp_path / "program.py"
        script.write_text(
            f"{start}from tests.power.cut_programs import PROGRAMS\nfrom pathlib import Path\n"
            "PROGRAMS[sys.argv[1]].run(Path(sys.argv[2]), sys.argv[3])\n"
        )
        command = ["env", f"PYTHONPATH={ROOT}", sys.executable, script]
        self.events = recorded(command, self.folder, tmp_path / "strace.log", ROOT)

    def states(self, count, model, draw):
        """The files that cuts at drawn times leave, and what the program had said by then."""
        disk = Disk(self._before)
        due = Counter(draw.randrange(len(self.events) + 1) for _ in range(count))
        for number, event in enumerate([None, *self.events]):
            if event is not None:
                disk.does(event)
            for _ in range(due[number]):
                yield number, disk.cut(model, draw), list(disk.said)

    def check(self, files, said):
        shutil.rmtree(self.folder)
        for folder in (self.folder, *self._folders):
            folder.mkdir()
        for path, data in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        self.program.check(self.folder, self.seed, said)


@pytest.mark.scaled
@pytest.mark.parametrize("name", PROGRAMS)
def test_what_was_acknowledged_is_there(name, tmp_path, seed, request):
    cuts = Cuts(name, tmp_path, seed)
    count = STATES[request.config.getoption("--campaign")]
    for model in Model:
        for number, files, said in cuts.states(count, model, random.Random(seed)):
            try:
                cuts.check(files, said)
            except BaseException:
                print(f"{name}: {model.name} cut after {number} of {len(cuts.events)} calls; said: {said[-1:]}")
                raise
    survived({f"power cuts ({model.name})": count for model in Model}, 0)


UNSYNCED_STORE = """
import os
file = sys.argv[2] + ".yaml"
with open(file, "w") as opened:
    opened.write("store: {sqlite_synchronous: 'OFF'}")
os.environ["RECEIVER_SETTINGS"] = file
import receiver.settings as module
module._SYNCHRONOUS = ("OFF",)
"""
UNSYNCED = """
import receiver.{} as module
module.os = type("os", (), {{**vars(module.os), "fsync": lambda _: None}})
"""
FAULTS = {
    "store": ("batches", UNSYNCED_STORE),
    "file": ("recorded", UNSYNCED.format("logs.writer")),
    "its folder": ("recorded", UNSYNCED.format("closing")),
}


def is_caught(cuts, files, said):
    try:
        cuts.check(files, said)
    except Exception:  # noqa: BLE001 - whatever a damaged store does to whoever looks at it
        return True
    return False


@pytest.mark.parametrize("fault", FAULTS)
def test_a_missing_sync_is_caught(fault, tmp_path, seed):
    name, patched = FAULTS[fault]
    cuts = Cuts(name, tmp_path, seed, patched)
    assert any(is_caught(cuts, files, said) for _, files, said in cuts.states(60, Model.HARSH, random.Random(seed)))
