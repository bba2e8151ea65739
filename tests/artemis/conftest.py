from collections.abc import Iterator
from pathlib import Path

import pytest

from examples.demo.artemis import Broker, new_broker

LIVES = {"quick": 2, "small": 6, "long": 60}
"""How many lives the broker has in the differential run. A life ends by a stop or a kill."""


@pytest.fixture
def lives(request: pytest.FixtureRequest) -> int:
    return LIVES[request.config.getoption("--campaign")]


@pytest.fixture(scope="session")
def shared_artemis(artemis_home: Path) -> Iterator[Broker]:
    with new_broker(artemis_home) as broker:
        yield broker


@pytest.fixture
def artemis(shared_artemis: Broker) -> Iterator[Broker]:
    """A real broker that isn't running; tests send to addresses of their own."""
    yield shared_artemis
    shared_artemis.close()
