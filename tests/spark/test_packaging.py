"""spark-submit to executors that share no process with the driver, nor have the package: sent as docs/spark.md says."""

import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ASKED = ROOT / "examples" / "artemis-receipts.csv.gz", "--domain", "destination", "--json"


def zipped(folder: Path) -> Path:
    """What a wheel of this package holds, under the name of a zip file."""
    package = folder / "receiver.zip"
    with zipfile.ZipFile(package, "w") as packed:
        for file in (ROOT / "receiver").rglob("*"):
            if file.is_file() and "__pycache__" not in file.parts:
                packed.write(file, file.relative_to(ROOT))
        packed.write(ROOT / "settings.yaml", "receiver/settings.yaml")
    return package


def submitted(*options) -> subprocess.CompletedProcess[str]:
    """In executors that run the Python this environment was made of, and see its libraries, but no editable install."""
    outside = Path(sys.base_prefix) / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}"
    libraries = f"spark.executorEnv.PYTHONPATH={sysconfig.get_path('purelib')}"
    command = [
        Path(sysconfig.get_path("scripts")) / "spark-submit",
        *("--master", "local-cluster[2,1,2048]", "--conf", libraries),
        *options,
        ROOT / "spark_jobs" / "size_windows.py",
        *ASKED,
    ]
    python = {"PYSPARK_PYTHON": str(outside), "PYSPARK_DRIVER_PYTHON": sys.executable}
    return subprocess.run(
        command, env={**os.environ, **python}, capture_output=True, encoding="utf-8", check=False, timeout=300
    )


@pytest.mark.slow
@pytest.mark.usefixtures("java")
def test_the_package_sent_along(tmp_path):
    ran = submitted("--py-files", zipped(tmp_path))
    assert ran.returncode == 0, ran.stderr
    here = [sys.executable, "-m", "receiver", "simulate", *ASKED]
    assert ran.stdout == subprocess.run(here, capture_output=True, encoding="utf-8", check=True).stdout
