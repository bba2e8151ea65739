"""The advice of `docs/questions.md`, tried."""

from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import NullPool, create_engine

from receiver import Receiver
from receiver.store.tables import METADATA
from tests.docs.bridge import Base
from tests.docs.markdown import blocks

PAGE, ALEMBIC = "docs/questions.md", "Alembic proposes to drop receiver's tables"


def test_an_applications_own_migrations_leave_our_tables_alone(store_url):
    with Receiver.open(store_url, connection_id="broker-a", destination="queue://orders"):
        pass
    engine = create_engine(store_url, poolclass=NullPool)
    Base.metadata.create_all(engine)
    (block,) = blocks(PAGE, "python", ALEMBIC)
    exec(compile(block, PAGE, "exec"), own := {})  # noqa: S102 - our own text

    def proposed(**options):
        with engine.connect() as connection:
            context = MigrationContext.configure(connection, opts={"target_metadata": Base.metadata} | options)
            return [change[0] for change in compare_metadata(context, Base.metadata)]

    assert proposed(include_name=own["include_name"]) == []
    assert proposed().count("remove_table") == len(METADATA.tables) + 1  # and Alembic's version table
