import pytest
from sqlalchemy import NullPool, create_engine, text

from tests.docs.bridge import Base


@pytest.fixture
def payments(store_url):
    """The application's own table, and a function that reads it."""
    engine = create_engine(store_url, poolclass=NullPool)
    Base.metadata.create_all(engine)

    def read() -> list[str]:
        with engine.connect() as connection:
            return list(connection.scalars(text("SELECT reference FROM payment ORDER BY number")))

    return read
