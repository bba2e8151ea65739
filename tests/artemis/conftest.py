from collections.abc import Iterator

import pytest

from tests.artemis.broker import Broker, missing, new_broker

LIVES = {"small": 6, "long": 60}
"""Of the broker in the differential run, from a start to a stop or a kill."""


@pytest.fixture
def lives(request: pytest.FixtureRequest) -> int:
    return LIVES[request.config.getoption("--campaign")]


@pytest.fixture(scope="session")
def fetched_artemis() -> Iterator[Broker]:
    """One broker for all tests, as fetching it takes seconds."""
    lacking = missing()
    if lacking:
        pytest.skip(lacking)
    with new_broker() as broker:
        yield broker


@pytest.fixture
def artemis(fetched_artemis: Broker) -> Iterator[Broker]:
    """A real broker that isn't running; tests send to addresses of their own."""
    yield fetched_artemis
    fetched_artemis.close()
