"""Two policies that don't exist, as files of `receiver/policies/`. They show all that a new policy needs, and what
each fact is for."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FACTS = {
    "name": '"toy"',
    "same_rule_as": "None",
    "kind": '"toy"',
    "order": "1_000",
    "parameters": '(Parameter("keep", "expiry_us"),)',
    "vendors": '(Vendor(("Toy MQ",), "keep=7", aliases=("toymq",), setting=Setting("toy_keep", "https://toy")),)',
    "names_its_system": "False",
    "records_duplicates": "False",
    "goes_by_send_time": "False",
    "clock": "None",
    "limit": "Limit.AGE",
    "misses": "Misses(Cause.EXPIRED)",
    "false_cause": "None",
    "compiled_policy": '"age"',
    "refusals": "()",
}
TOY_BYTES = 100
"""The toy's memory per id, in `settings.yaml`."""
CALLER = {
    "name": '"advanced-toy"',
    "kind": '"advanced-toy"',
    "order": "1_001",
    "parameters": '(Parameter("retry", "retry_us"), Parameter("network", "network_us"))',
    "goes_by_send_time": "True",
    "clock": "Clock.CALLER",
    "vendors": '(Vendor(("Toy MQ",), aliases=("toymq",)),)',
    "limit": "None",
    "misses": "Misses(Cause.EXPIRED)",
    "compiled_policy": "None",
    "refusals": '(Refusal(Use.COMPARISON, "no toy is", "play"), Refusal(Use.BRIDGE, "it sinks", "swim"))',
}
_TOYS = """
from receiver.policies.cmq import CmqMinimumTimeCache
from receiver.policies.interface import *
from receiver.policies.ttl import TimeToLive
from receiver.quantities import exact_secs


@Declaration({facts})
class Toy({base}):
    def __str__(self):
        return {text}
"""


def toy(facts: dict[str, str]) -> str:
    """The file of a toy that remembers ids for a time."""
    text = "f'{self.name}:keep={exact_secs(self.sizes[1])}'"
    return _TOYS.format(facts=", ".join(map("=".join, facts.items())), base="TimeToLive", text=text)


def callers_clock_toy() -> str:
    """The file of a toy whose caller moves its clock, by a queue's minimum."""
    facts = ", ".join(map("=".join, (FACTS | CALLER).items()))
    return _TOYS.format(facts=facts, base="CmqMinimumTimeCache", text="super().__str__()")


def grown(folder: Path, **files: str) -> None:
    """Put a package into a folder: links to this one, its compiled code included, and more files among the policies.

    Its settings have the toy's memory.
    """
    folder.joinpath("migrations").symlink_to(ROOT / "migrations")
    room = folder / "receiver" / "policies"
    room.mkdir(parents=True)
    for linked in (ROOT / "receiver").iterdir():
        if linked.name not in {"policies", "__pycache__"}:
            (folder / "receiver" / linked.name).symlink_to(linked)
    for linked in (ROOT / "receiver" / "policies").glob("*.py"):
        (room / linked.name).symlink_to(linked)
    settings = (
        (ROOT / "settings.yaml").read_text(encoding="utf-8").replace("    ttl: ", f"    toy: {TOY_BYTES}\n    ttl: ")
    )
    (folder / "receiver" / "settings.yaml").write_text(settings, encoding="utf-8")
    for name, text in files.items():
        (room / f"{name}.py").write_text(text, encoding="utf-8")


def ran(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python in this folder, with its package."""
    environment = {**os.environ, "PYTHONPATH": str(folder), "COLUMNS": "300"}
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
