"""If a call to the database fails, a program gets the same errors as from a lost connection; by each driver."""

import pytest
from sqlalchemy.exc import OperationalError

from receiver.testing import playing
from tests.testing.gallery import take
from tests.testing.shop import Checked


@pytest.fixture(params=["pysqlite", "psycopg", "aiosqlite", "asyncpg", "psycopg in a loop"])
def driver(request):
    return request.param


@pytest.fixture
def checked(request, driver, tmp_path):
    url = request.getfixturevalue("sqlite_url" if "sqlite" in driver else "fresh_postgres_url")
    return Checked(url, tmp_path)


@pytest.fixture
def struck(monkeypatch):
    """Which calls failed, and when."""
    strikes, play = set(), playing.play

    def watch(*arguments, **options):
        outcome = play(*arguments, **options)
        strikes.update(event.strike for event in outcome.world.journal if isinstance(event, playing.Struck))
        return outcome

    monkeypatch.setattr("receiver.testing.checking.play", watch)
    return strikes


@pytest.mark.costly
def test_the_connection_is_lost(checked, driver, struck):
    errors = []

    def once(broker, shop):
        engine = shop.opened()
        while messages := broker.receive(3):
            try:
                connection = engine.connect()
                take(connection, messages[0])
                connection.commit()
                connection.close()
            except Exception as error:
                errors.append(error)
                raise
            broker.acknowledge(messages)

    async def once_in_a_loop(broker, shop):
        engine = await shop.async_opened(driver.partition(" ")[0])
        while messages := await broker.receive(3):
            try:
                async with engine.connect() as connection:
                    await connection.run_sync(take, messages[0])
                    await connection.commit()
            except Exception as error:
                errors.append(error)
                raise
            await broker.acknowledge(messages)

    checked(once if driver in {"pysqlite", "psycopg"} else once_in_a_loop, messages=1, max_examples=1)
    assert {type(error) for error in errors} == {OperationalError}
    assert all(error.connection_invalidated for error in errors)
    lost = {(strike.when, strike.call.partition(" ")[0]) for strike in struck if strike.kind == "loss"}
    assert lost == {(when, call) for when in ("before", "after") for call in ("connect", "CREATE", "INSERT", "COMMIT")}
