"""The broker's program in its cache: whole or absent, whatever becomes of the download."""

import sys
import threading
from pathlib import Path

import pytest

from examples.demo.artemis import fetch, home_in
from receiver.errors import MissingProgramError

MVN = """#!{python}
import io, pathlib, sys, tarfile, time
folder = next(pathlib.Path(word.partition("=")[2]) for word in sys.argv if word.startswith("-DoutputDirectory="))
with tarfile.open(folder / "broker.tar.gz", "w:gz") as packed:
    for name in ("bin/artemis", "lib/artemis.jar"):
        entry = tarfile.TarInfo(f"{{'{home}'}}/{{name}}")
        entry.size = 3
        packed.addfile(entry, io.BytesIO(b"abc"))
{then}
"""


@pytest.fixture
def maven(tmp_path, monkeypatch):
    """Makes a Maven that brings a small archive, and then runs `then`."""

    def make(then: str = "") -> None:
        mvn = tmp_path / "mvn"
        mvn.write_text(MVN.format(python=sys.executable, home=home_in(Path()), then=then))
        mvn.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path))

    return make


def test_it_is_fetched_once(maven, tmp_path):
    cache = tmp_path / "a new" / "cache"
    maven()
    assert fetch(cache) == home_in(cache)
    maven("raise SystemExit('fetched again')")
    assert fetch(cache) == home_in(cache)
    assert [file.name for file in cache.iterdir()] == [home_in(cache).name]
    assert (home_in(cache) / "bin" / "artemis").read_bytes() == b"abc"


@pytest.mark.parametrize(
    ("then", "said"),
    [
        ("print('line 1'); print('Could not resolve it'); sys.exit(1)", "line 1 | Could not resolve it"),
        ("sys.exit(1)", "it said nothing"),
        ("(folder / 'broker.tar.gz').write_bytes(b'half')", "isn't the archive"),
        ("(folder / 'broker.tar.gz').unlink()", "isn't the archive"),
    ],
)
def test_what_maven_can_not_fetch_leaves_nothing(maven, tmp_path, then, said):
    cache = tmp_path / "cache"
    maven(then)
    with pytest.raises(MissingProgramError) as caught:
        fetch(cache)
    assert said in caught.value.message
    assert list(cache.iterdir()) == []
    maven()
    assert fetch(cache).is_dir()


def test_of_several_who_fetch_at_once_each_has_it(maven, tmp_path):
    cache = tmp_path / "cache"
    maven("time.sleep(0.3)")
    homes = []
    fetching = [threading.Thread(target=lambda: homes.append(fetch(cache))) for _ in range(3)]
    for thread in fetching:
        thread.start()
    for thread in fetching:
        thread.join()
    assert homes == [home_in(cache)] * 3
    assert [file.name for file in cache.iterdir()] == [home_in(cache).name]
