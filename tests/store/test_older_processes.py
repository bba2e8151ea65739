"""How processes of the version before go on while the first new one upgrades the tables that they have open.

`tests/bridge/test_rolling_upgrade.py` tries it with real processes.
"""

from sqlalchemy import inspect

from receiver.store.databases import store_url as url_of
from receiver.store.schema import migrate
from receiver.store.tables import VERSION_TABLE
from tests.stores import engine_of

OLDEST = "0003"
"""From this version on they may go on. An earlier migration renamed a column."""


def tables_of(address):
    """The tables' columns by name, and everything else that may refuse a row."""
    inspector = inspect(engine_of(address))
    return {
        name: (
            {column["name"]: column for column in inspector.get_columns(name)},
            [
                inspector.get_pk_constraint(name),
                inspector.get_unique_constraints(name),
                inspector.get_check_constraints(name),
                inspector.get_foreign_keys(name),
                [index for index in inspector.get_indexes(name) if index["unique"]],
            ],
        )
        for name in inspector.get_table_names()
        if name != VERSION_TABLE
    }


def shape(column):
    return str(column["type"]), column["nullable"], column["default"]


def test_migrations_leave_statements_of_the_version_before_valid(store_url):
    """Columns are only added. A row that doesn't name them can still be inserted."""
    url = url_of(store_url)
    migrate(url, OLDEST)
    before = tables_of(store_url)
    migrate(url)
    after = tables_of(store_url)
    for table, (columns, constraints) in before.items():
        columns_now, constraints_now = after[table]
        assert constraints_now == constraints, table
        assert columns.keys() <= columns_now.keys(), table
        for name, column in columns.items():
            # In PostgreSQL a prepared statement fails once if the type of its result has changed.
            assert shape(columns_now[name]) == shape(column), f"{table}.{name}"
        for name in columns_now.keys() - columns.keys():
            column = columns_now[name]
            assert column["nullable"] or column["default"] is not None, (
                f"{table}.{name} needs a default in the database"
            )
