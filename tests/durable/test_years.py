"""Years of daily restarts and upgrades: the sizes of a store, its memory and its recording stay the same."""

import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import inspect, text
from year_of_restarts import MESSAGES, SENDERS

from receiver.durable.audit import audit
from tests.before import package_of, python_of
from tests.stores import engine_of

PROGRAM = Path(__file__).with_name("year_of_restarts.py")
VERSIONS = ["e09966d7833eaea6437ae3e5f475c592b0abdb62", "46c346d8ea60c831f47cf520840a8c7c1feca3cc", None, None, None]
"""The version that has the store in each year; None for this one."""
SLACK = 1.1
"""How much larger a year may be than the one before, since days are more or less full."""


def taken(url, folder):
    """The sizes of the store and of the recording."""
    engine = engine_of(url)
    tables = [name for name in inspect(engine).get_table_names() if name.startswith("receiver_")]
    with engine.connect() as connection:
        rows = sum(connection.scalar(text(f"SELECT count(*) FROM {name}")) for name in tables)  # noqa: S608 - the tables' own names
    files = [path.stat().st_size for path in folder.iterdir()]
    size = Path(engine.url.database).stat().st_size
    return {"rows": rows, "size": size, "files": len(files), "recorded": sum(files)}


@pytest.mark.slow
def test_years(missing_sqlite_url, tmp_path_factory, request):
    """Each year has all its 365 days only in the long run. A source that has ended is retired after 30 days."""
    days = 365 if request.config.getoption("--campaign") == "long" else 60
    url, folder, after = missing_sqlite_url, tmp_path_factory.mktemp("receipts"), []
    for year, version in enumerate(VERSIONS):
        python = (
            [sys.executable] if version is None else python_of(package_of(version, tmp_path_factory.mktemp("before")))
        )
        command = [*python, PROGRAM, url, folder, f"{year * days}", f"{days}"]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=3_600, check=False)
        assert ran.returncode == 0, ran.stderr
        memory_kb, duplicates = map(int, ran.stdout.split())
        # On the very first day nothing was sent before.
        assert duplicates == (days - (year == 0)) * SENDERS * MESSAGES
        after.append(taken(url, folder) | {"memory": memory_kb})
        print(f"year {year}: {after[-1]}")
    third, *later = after[2:]
    for what, size in third.items():
        assert all(year[what] <= size * SLACK for year in later), what
    assert not audit(url).findings
