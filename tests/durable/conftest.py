import math
from dataclasses import dataclass

import pytest

from tests.durable.async_opened import DRIVERS
from tests.made import fresh_postgres_url, made_database, made_file, sqlite_url

__all__ = ["fresh_postgres_url", "made_database", "made_file", "sqlite_url"]


@dataclass(frozen=True)
class Campaign:
    """How much the durable tests do, by size."""

    kills: int
    receipts_per_process: int
    turns: int
    restarts: int
    sender_restarts: int
    faults: float = math.inf
    """The most system calls of each kind that fail."""


CAMPAIGNS = {
    "quick": Campaign(kills=4, receipts_per_process=5_000, turns=125, restarts=1, sender_restarts=20, faults=3),
    "small": Campaign(kills=20, receipts_per_process=25_000, turns=125, restarts=3, sender_restarts=20),
    "long": Campaign(kills=250, receipts_per_process=250_000, turns=1_250, restarts=30, sender_restarts=1_000),
}


@pytest.fixture(scope="session")
def campaign(request):
    return CAMPAIGNS[request.config.getoption("--campaign")]


@pytest.fixture(params=DRIVERS)
def driver(request):
    """The driver for an event loop."""
    return request.param


@pytest.fixture
def url(request, driver):
    """The address of a new empty database for the driver."""
    return request.getfixturevalue("sqlite_url" if DRIVERS[driver] == "sqlite" else "fresh_postgres_url")
