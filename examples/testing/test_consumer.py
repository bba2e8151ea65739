"""Each payment is made once, whatever crashes, fails or comes again. Run it with `pytest`; it needs the extra `testing`."""

import shutil
from collections.abc import Callable
from pathlib import Path

import async_consumer
import bridged
import consumer
import pytest

from receiver import Receiver
from receiver.testing import AsyncFlakyBroker, FlakyBroker, check_exactly_once


@pytest.fixture
def database(tmp_path: Path) -> Callable[[str], Path]:
    """A story's own database, copied from one that has the tables: to make those each time would take most of the time."""
    made = tmp_path / "made.db"
    consumer.make_table(f"sqlite:///{made}")
    Receiver.open(f"sqlite:///{made}", connection_id="shop", destination="queue://payments").close()

    def copied(story: str) -> Path:
        path = tmp_path / f"{story}.db"
        if not path.exists():
            shutil.copy(made, path)
        return path

    return copied


@pytest.fixture
def effects(database: Callable[[str], Path]) -> Callable[[str], list[str]]:
    return lambda story: consumer.paid(f"sqlite:///{database(story)}")


def test_each_payment_is_made_once(database: Callable[[str], Path], effects: Callable[[str], list[str]]) -> None:
    def consume(broker: FlakyBroker, story: str) -> None:
        consumer.consume(broker, f"sqlite:///{database(story)}")

    check_exactly_once(consume, effects)


def test_in_an_event_loop(database: Callable[[str], Path], effects: Callable[[str], list[str]]) -> None:
    async def consume(broker: AsyncFlakyBroker, story: str) -> None:
        path = database(story)
        await async_consumer.consume(broker, f"sqlite:///{path}", f"sqlite+aiosqlite:///{path}")

    check_exactly_once(consume, effects, max_examples=30)


def test_by_a_bridge(database: Callable[[str], Path], effects: Callable[[str], list[str]]) -> None:
    def consume(broker: FlakyBroker, story: str) -> None:
        bridged.consume(broker, f"sqlite:///{database(story)}")

    check_exactly_once(consume, effects, max_examples=30)
