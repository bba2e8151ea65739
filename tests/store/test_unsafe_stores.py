"""A new store warns if commits to it may be lost: in a container, in memory, or by a server that doesn't sync."""

import subprocess
from contextlib import ExitStack
from pathlib import Path

import pytest
from sqlalchemy import create_engine, make_url, text

from receiver.errors import StoreError
from receiver.settings import StoreSettings
from receiver.store.databases import store_url
from receiver.store.databases.sqlite_file import why_unsafe
from receiver.store.schema import examined, migrate, open_store_engine
from tests.postgres import fresh_database
from tests.stores import execute


def opened(address):
    open_store_engine(store_url(address), StoreSettings()).dispose()


@pytest.fixture
def mounted():
    """Mounts what the options say on a new folder. If that isn't allowed, the test is skipped."""
    with ExitStack() as at_end:

        def mount(folder: Path, *options: str) -> Path:
            folder.mkdir()
            if subprocess.run(["mount", *options, folder], capture_output=True, check=False).returncode != 0:
                pytest.skip("only root on Linux may mount")
            at_end.callback(subprocess.run, ["umount", folder], check=True)
            return folder

        yield mount


def overlay(mounted, tmp_path):
    disk = mounted(
        tmp_path / "disk", "-t", "tmpfs", "tmpfs"
    )  # `tmp_path` may be on an overlay, and another overlay can't lie on that
    for name in ("image", "container", "work"):
        (disk / name).mkdir()
    layers = f"lowerdir={disk}/image,upperdir={disk}/container,workdir={disk}/work"
    return mounted(tmp_path / "a container", "-t", "overlay", "-o", layers, "overlay")


def empty_dir(mounted, tmp_path):
    volume = tmp_path / "volumes" / "kubernetes.io~empty-dir" / "data"
    volume.mkdir(parents=True)
    return mounted(tmp_path / "pod", "--bind", volume)


def memory(mounted, tmp_path):
    return mounted(tmp_path / "memory", "-t", "tmpfs", "tmpfs")


@pytest.mark.parametrize(
    ("where", "said"),
    [(overlay, "in a container, and all ids"), (empty_dir, "mount a volume"), (memory, "name one on a disk")],
)
def test_a_file_that_goes_with_its_container_or_with_a_restart_is_warned_of(where, said, mounted, tmp_path, caplog):
    folder = where(mounted, tmp_path) / "orders"
    folder.mkdir()
    opened(f"sqlite:///{folder / 'receiver.db'}")
    assert said in caplog.text
    caplog.clear()
    opened(f"sqlite:///{folder / 'receiver.db'}")
    assert caplog.text == "", "once is enough"


def test_a_volume_in_a_container_is_safe(mounted, tmp_path):
    container = overlay(mounted, tmp_path)
    (volume := tmp_path / "volume").mkdir()
    (container / "data").mkdir()
    subprocess.run(["mount", "--bind", volume, container / "data"], check=True)
    try:
        inside, outside = (
            why_unsafe(store_url(f"sqlite:///{folder}/receiver.db")) for folder in (container / "data", volume)
        )
    finally:
        subprocess.run(["umount", container / "data"], check=True)
    assert inside == outside


def test_a_server_that_commits_before_it_syncs_is_warned_of(postgres_url, caplog):
    with fresh_database(postgres_url) as url:
        engine = create_engine(url)
        with engine.begin() as connection:
            connection.execute(text(f"ALTER DATABASE {engine.url.database} SET synchronous_commit = off"))
        engine.dispose()
        opened(url)
    assert "may lose commits when it crashes, with synchronous_commit off" in caplog.text


def test_a_store_made_beside_one_that_its_address_led_to_before(postgres_url, caplog):
    """PostgreSQL silently leaves a schema out of the search_path once the user may not use it any more."""
    said = "this is a new store. It knows no id of that in the schema public"
    with fresh_database(postgres_url) as url:
        opened(url)
        assert said not in caplog.text
        execute(url, "CREATE SCHEMA bridge", f"ALTER DATABASE {make_url(url).database} SET search_path = bridge")
        with pytest.raises(StoreError, match=r"there is no store \(there is one in the schema public"):
            examined(store_url(url))
        opened(url)
        assert said in caplog.text
        caplog.clear()
        opened(url)
        assert caplog.text == "", "once is enough"


def test_a_store_that_was_removed_isnt_warned_of(postgres_url, caplog):
    """Its table of versions is left."""
    with fresh_database(postgres_url) as url:
        opened(url)
        migrate(store_url(url), "base")
        execute(url, "CREATE SCHEMA bridge", f"ALTER DATABASE {make_url(url).database} SET search_path = bridge")
        opened(url)
    assert caplog.text == ""
