"""New databases that have the tables already. They are copies of one database per process, since making tables takes
most of a small test.

If a folder's tests aren't about making tables, its `conftest.py` imports these fixtures.
"""

import shutil

import pytest
from sqlalchemy import make_url

from receiver.store.schema import migrate
from tests.postgres import fresh_database


@pytest.fixture(scope="session")
def made_file(tmp_path_factory):
    file = tmp_path_factory.mktemp("made") / "receiver.db"
    migrate(make_url(f"sqlite:///{file}"))
    return file


@pytest.fixture(scope="session")
def made_database(postgres_url):
    """The name of a database with tables, to be copied."""
    with fresh_database(postgres_url) as url:
        migrate(make_url(url))
        yield make_url(url).database


@pytest.fixture
def sqlite_url(made_file, tmp_path):
    """The address of an SQLite file without any domain."""
    shutil.copy(made_file, tmp_path / "receiver.db")
    return f"sqlite:///{tmp_path / 'receiver.db'}"


@pytest.fixture
def fresh_postgres_url(postgres_url, made_database):
    """The address of a new PostgreSQL database without any domain."""
    with fresh_database(postgres_url, made_database) as url:
        yield url
