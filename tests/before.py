"""Earlier versions of the package, from the history of the checkout."""

import io
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def package_of(commit: str, folder: Path) -> Path:
    """Put the package of a commit into a folder. Skips the test without that history, for example in a shallow
    clone."""
    git = ["git", "-C", str(ROOT), "archive", commit, "receiver", "migrations", "settings.yaml"]
    try:
        archive = subprocess.run(git, capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"the version before, {commit}, isn't in a history here: {error}")
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(folder, filter="data")
    return folder


def python_of(package: Path) -> list[str]:
    """A Python command whose `receiver` is the package in a folder."""
    return ["env", f"PYTHONPATH={package}", sys.executable, "-P"]
