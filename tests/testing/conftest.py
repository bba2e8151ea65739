import pytest

from tests.testing.shop import Checked


@pytest.fixture
def checked(store_url, tmp_path):
    """Checks consumers of the shop, on each database."""
    return Checked(store_url, tmp_path)


@pytest.fixture
def checked_on_sqlite(sqlite_url, tmp_path):
    return Checked(sqlite_url, tmp_path)


@pytest.fixture
def checked_on_postgresql(fresh_postgres_url, tmp_path):
    return Checked(fresh_postgres_url, tmp_path)
