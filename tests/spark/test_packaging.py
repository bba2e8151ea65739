"""spark-submit to executors that share no process with the driver and lack the package. It is sent as docs/spark.md
says."""

import os
import re
import subprocess
import sys
import sysconfig
import time
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark
import pytest

ROOT = Path(__file__).parents[2]
UP = {"Master": r"spark://127\.0\.0\.1:\d+", "Worker": "Successfully registered with master"}
"""What each prints when it is up."""
UP_SECS = 300
SHORT = {"JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1"}
"""Java's best compiler never pays here."""
ASKED = ROOT / "examples" / "artemis-receipts.csv.gz", "--domain", "destination", "--json"


def zipped(folder: Path) -> Path:
    """The contents of this package's wheel, as a zip file."""
    package = folder / "receiver.zip"
    with zipfile.ZipFile(package, "w") as packed:
        for file in (ROOT / "receiver").rglob("*"):
            if file.is_file() and "__pycache__" not in file.parts:
                packed.write(file, file.relative_to(ROOT))
        packed.write(ROOT / "settings.yaml", "receiver/settings.yaml")
    return package


@contextmanager
def service(folder: Path, role: str, *arguments: str) -> Iterator[str]:
    """A part of a standalone cluster, until the block ends. Gives its output once it is up."""
    scripts, printed = Path(sysconfig.get_path("scripts")), folder / f"{role}.log"
    command = [scripts / "spark-class", f"org.apache.spark.deploy.{role.lower()}.{role}", "--host", "127.0.0.1"]
    with printed.open("wb") as file:
        process = subprocess.Popen(
            [*command, "--webui-port", "0", *arguments],
            env={**os.environ, **SHORT, "SPARK_HOME": str(Path(pyspark.__file__).parent)},
            stdout=file,
            stderr=file,
        )
    try:
        give_up = time.monotonic() + UP_SECS
        while not re.search(UP[role], printed.read_text()):
            assert process.poll() is None, printed.read_text()
            assert time.monotonic() < give_up, printed.read_text()
            time.sleep(0.1)
        yield printed.read_text()
    finally:
        process.terminate()
        process.wait()


@pytest.fixture
def standalone(tmp_path) -> Iterator[str]:
    """The address of a real master with a worker."""
    with ExitStack() as stack:
        said = stack.enter_context(service(tmp_path, "Master", "--port", "0"))
        (address,) = re.findall(UP["Master"], said)
        work = ["--cores", "2", "--memory", "3g", "--work-dir", str(tmp_path / "work")]
        stack.enter_context(service(tmp_path, "Worker", *work, address))
        yield address


def submitted(master: str, *options) -> subprocess.CompletedProcess[str]:
    """Submit to executors that run this environment's base Python. They see its libraries, but no editable install."""
    outside = Path(sys.base_prefix) / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}"
    libraries = f"spark.executorEnv.PYTHONPATH={sysconfig.get_path('purelib')}"
    command = [
        Path(sysconfig.get_path("scripts")) / "spark-submit",
        *("--master", master, "--conf", libraries),
        *options,
        ROOT / "spark_jobs" / "size_windows.py",
        *ASKED,
    ]
    python = {"PYSPARK_PYTHON": str(outside), "PYSPARK_DRIVER_PYTHON": sys.executable}
    return subprocess.run(
        command, env={**os.environ, **SHORT, **python}, capture_output=True, encoding="utf-8", check=False, timeout=900
    )


def assert_same_as_here(ran: subprocess.CompletedProcess[str]) -> None:
    assert ran.returncode == 0, ran.stderr
    here = [sys.executable, "-m", "receiver", "simulate", *ASKED]
    assert ran.stdout == subprocess.run(here, capture_output=True, encoding="utf-8", check=True).stdout


@pytest.mark.slow
@pytest.mark.usefixtures("java")
def test_the_package_sent_to_a_standalone_cluster(tmp_path, standalone):
    assert_same_as_here(submitted(standalone, "--py-files", zipped(tmp_path)))


@pytest.mark.slow
@pytest.mark.usefixtures("java")
def test_the_package_sent_to_executors_of_its_own(tmp_path, pytestconfig):
    if pytestconfig.getoption("--campaign") != "long":
        pytest.skip("a standalone cluster says the same, and more; here with --campaign=long")
    assert_same_as_here(submitted("local-cluster[2,1,2048]", "--py-files", zipped(tmp_path)))
