"""A store without the package: an engine on it, statements in its database's own SQL, and the files in its folder."""

from pathlib import Path

from sqlalchemy import URL, Engine, text

from receiver.settings import StoreSettings
from receiver.store.databases import database_of, store_url


def engine_of(address: str | URL) -> Engine:
    url = store_url(address)
    return database_of(url).writable(url, StoreSettings())


def execute(address: str | URL, *statements: str, **values: object) -> None:
    """Execute these statements in one transaction."""
    with engine_of(address).begin() as connection:
        for statement in statements:
            connection.execute(text(statement), values)


def contents(folder: Path) -> dict[str, bytes]:
    """The files in a folder, by name."""
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def rows_of(address: str | URL, table: str) -> int:
    with engine_of(address).connect() as connection:
        return connection.execute(text(f"SELECT count(*) FROM {table}")).scalar_one()  # noqa: S608
