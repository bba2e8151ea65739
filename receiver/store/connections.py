"""Connections of SQLAlchemy: the driver's own beneath one, and its end."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from sqlalchemy import Connection

__all__ = ["discard", "driver_of"]


def driver_of(connection: Connection) -> Any:
    """The driver's own connection."""
    return connection.connection.dbapi_connection


def discard(connection: Connection) -> None:
    """End a connection, whatever state it is in."""
    with suppress(Exception):
        connection.invalidate()
    with suppress(Exception):
        connection.close()
