"""Which addresses lead to a store, and how others are refused."""

import subprocess
import sys
from pathlib import Path

import pytest

from receiver.cli.bridge import _Store
from receiver.cli.stores import StoreAddress
from receiver.errors import SettingsError
from receiver.store.databases import _DATABASES, store_url
from receiver.store.databases.database import ADDRESSES, shown


@pytest.mark.parametrize("driver", ["sqlite", "sqlite+pysqlite"])
def test_a_relative_file_is_the_one_of_now(driver, tmp_path, monkeypatch):
    """If the working directory changes later, the address still leads to the same file."""
    monkeypatch.chdir(tmp_path)
    assert store_url(f"{driver}:///receiver.db").render_as_string() == f"sqlite:///{tmp_path}/receiver.db"


@pytest.mark.parametrize("driver", ["postgresql", "postgresql+psycopg"])
def test_postgresql_goes_through_psycopg(driver):
    url = store_url(f"{driver}://bridge:p%40ss@db.example.com:5433/orders?sslmode=require")
    assert url.drivername == "postgresql+psycopg"
    assert url.password == "p@ss"  # noqa: S105
    assert url.query == {"sslmode": "require"}


@pytest.mark.parametrize("hosts", ["host=a,b", "host=a:5432&host=b:5432", "host=a,b&port=5432,5432"])
def test_an_address_may_name_several_servers(hosts):
    url = store_url(f"postgresql://bridge@/desk?{hosts}&target_session_attrs=read-write")
    _, options = url.get_dialect()().create_connect_args(url)
    assert (options["host"], options["target_session_attrs"]) == ("a,b", "read-write")


@pytest.mark.parametrize(
    "address",
    [
        "",
        "receiver.db",
        "sqlite://",
        "sqlite:///",
        "sqlite:///:memory:",
        "sqlite://folder/receiver.db",
        "sqlite:///file:receiver.db?uri=true",
        "sqlite:///receiver.db?mode=ro",
        "sqlite:///a\0b",
        "sqlite:///caf\udce9.db",  # a file's name that isn't UTF-8
        "sqlite+aiosqlite:///receiver.db",
        "memory://",
        "mysql://u:secret@h/d",
        "postgres://u:secret@h/d",
        "postgresql+asyncpg://u:secret@h/d",
        "postgresql://u:secret@h:port/d",
        "postgresql://u:secret@a:5432,b:5432/d",
        "postgresql://u:sec@ret@h/d",
        "postgresql://u:secret@/d?host=a&host=b&port=1&port=2",
        "postgresql://u:secret@/d?host=a:port&host=b",
        "postgresql//u:secret@h/d",
        "://u:secret@",
        "postgresql:/u:secret@h/d",
        "u:secret@h/d",
        "postgres://u@h/d?sslmode=require&password=secret",
        "sqlite:///receiver.db?password=secret&mode=ro",
        "sqlite",
        None,
        7,
    ],
)
def test_refused(address):
    with pytest.raises(SettingsError) as refusal:
        store_url(address)
    assert refusal.value.hint
    for part in ("secret", "sec@", "ret@"):
        assert part not in str(refusal.value)


@pytest.mark.parametrize(
    ("address", "meant"),
    [
        ("w.db", "sqlite:///w.db"),
        ("/var/w.sqlite3", "sqlite:////var/w.sqlite3"),
        (Path("w.db"), "sqlite:///w.db"),
        ("sqlite:w.db", "sqlite:///w.db"),
        ("sqlite:/var/w.db", "sqlite:////var/w.db"),
        ("sqlite://w.db", "sqlite:///w.db"),
        ("sqlite+aiosqlite:////var/w.db", "sqlite:////var/w.db"),
        ("sqlite:///file:w.db?mode=ro", "sqlite:///w.db"),
        ("postgres://u:secret@h/d", "postgresql://***@h/d"),
        ("postgresql+psycopg2://h/d", "postgresql://h/d"),
        ("jdbc:postgresql://h/d", "postgresql://h/d"),
    ],
)
def test_an_address_as_others_write_it_leads_to_ours(address, meant):
    with pytest.raises(SettingsError) as refusal:
        store_url(address)
    assert refusal.value.hint == f"write {meant}"


def test_an_address_is_named_as_it_was_written():
    with pytest.raises(SettingsError, match=r"'sqlite:///:memory:' names no file .*memory:// is for"):
        store_url("sqlite:///:memory:")


def test_a_working_directory_that_is_not_utf8(tmp_path, monkeypatch):
    folder = tmp_path / "caf\udce9"
    folder.mkdir()
    monkeypatch.chdir(folder)
    with pytest.raises(SettingsError, match=r"'sqlite:///w\.db' lies in a folder whose name isn't UTF-8"):
        store_url("sqlite:///w.db")


def test_passwords_are_not_shown():
    address = "postgresql://u:secret@h/d?password=secret&sslpassword=secret&sslmode=require"
    assert shown(address) == "postgresql://u:***@h/d?sslmode=require"


def test_a_missing_driver_is_named():
    """For example, psycopg or its libpq isn't installed."""
    program = """if True:
        import sys
        sys.modules["psycopg"] = None
        from receiver.cli import run
        sys.argv = ["receiver", "migrate", "postgresql://u:secret@h/d"]
        sys.exit(run())
    """
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ran.returncode == 2
    assert ran.stderr == (
        "error: the store postgresql://u:***@h/d needs the extra 'postgres', which isn't installed\n"
        f"hint: {sys.executable} -m pip install 'psycopg[binary]>=3.2.3'\n"
    )


@pytest.mark.parametrize("database", _DATABASES, ids=lambda database: database.name)
def test_every_kind_of_database_is_told_of(database):
    helps = [argument.__metadata__[0].help for argument in (_Store, StoreAddress)]
    assert all(f"{database.drivers[0]}://" in text for text in (ADDRESSES, *helps))
