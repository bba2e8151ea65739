"""A test's own server dies, and comes back with all that was committed."""

import psycopg
import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import OperationalError

from tests.durable.server import mortal_server


def test_dies_by_kill_9_and_comes_back_with_what_was_committed():
    with mortal_server() as server:
        engine = create_engine(server.url)
        for n in range(2):
            with engine.begin() as connection:
                connection.execute(text("CREATE TABLE IF NOT EXISTS effects (n int)"))
                connection.execute(text("INSERT INTO effects VALUES (:n)"), {"n": n})
            with engine.connect() as connection:
                connection.execute(text("INSERT INTO effects VALUES (-1)"))
                server.kill()
                with pytest.raises(OperationalError) as lost:
                    connection.commit()
                assert isinstance(lost.value.orig, psycopg.OperationalError)
                with pytest.raises(psycopg.OperationalError):
                    psycopg.connect(server.url.replace("+psycopg", ""))
            server.start()
            with engine.connect() as connection:
                assert connection.scalars(text("SELECT n FROM effects ORDER BY n")).all() == list(range(n + 1))
        engine.dispose()
