"""The lowest versions of libraries that `pyproject.toml` allows, as constraints for pip: `python tests/lowest_versions.py`."""

import re
import tomllib
from pathlib import Path

PROJECT = tomllib.loads((Path(__file__).resolve().parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
OF_DEVELOPERS = {"dev", "docs"}
REQUIREMENT = re.compile(r"(?P<name>[\w.-]+)(?:\[[^]]*\])?>=(?P<lowest>[\w.]+)")


def lowest_versions() -> dict[str, str]:
    extras = PROJECT["optional-dependencies"]
    wanted = [*PROJECT["dependencies"], *(each for extra in extras.keys() - OF_DEVELOPERS for each in extras[extra])]
    return {match["name"]: match["lowest"] for match in map(REQUIREMENT.match, wanted) if match}


if __name__ == "__main__":
    print("\n".join(f"{name}=={lowest}" for name, lowest in sorted(lowest_versions().items())))  # noqa: T201 - for a file
