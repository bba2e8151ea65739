from dataclasses import dataclass

import pytest


@dataclass(frozen=True)
class Campaign:
    """How much the durable tests do."""

    kills: int
    receipts_per_process: int
    restarts: int
    sender_restarts: int


CAMPAIGNS = {
    "small": Campaign(kills=20, receipts_per_process=25_000, restarts=3, sender_restarts=20),
    "long": Campaign(kills=250, receipts_per_process=250_000, restarts=30, sender_restarts=1_000),
}


@pytest.fixture(scope="session")
def campaign(request):
    return CAMPAIGNS[request.config.getoption("--campaign")]
