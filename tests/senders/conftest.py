"""Senders on stores that have their tables already."""

import pytest

from tests.made import fresh_postgres_url, made_database, made_file, sqlite_url
from tests.senders.making import billing, gateway

__all__ = ["fresh_postgres_url", "made_database", "made_file", "sqlite_url"]


@pytest.fixture
def keys(store_url):
    with billing(store_url) as keys:
        yield keys


@pytest.fixture
def ids(store_url):
    with gateway(store_url) as ids:
        yield ids
