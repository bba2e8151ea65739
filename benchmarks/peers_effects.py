"""The application of the peers' benchmark, as functions for `receiver bridge`: a row for each message."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, text

if TYPE_CHECKING:
    from receiver.bridge.received import Received

TABLES = (
    "CREATE TABLE effect (id TEXT NOT NULL, body TEXT NOT NULL)",
    """CREATE TABLE camel_messageprocessed (processorname VARCHAR(255), messageid VARCHAR(100), createdat TIMESTAMP,
    PRIMARY KEY (processorname, messageid))""",
    "CREATE TABLE claimed (id TEXT PRIMARY KEY)",
)
COUNT = "SELECT count(*), count(DISTINCT id) FROM effect"
INSERT = text("INSERT INTO effect (id, body) VALUES (:id, :body)")


def insert(message: Received, connection: Connection) -> None:
    connection.execute(INSERT, _row(message))


def insert_all(messages: Sequence[Received], connection: Connection) -> None:
    connection.execute(INSERT, [_row(message) for message in messages])


def _row(message: Received) -> dict[str, Any]:
    return {"id": message.unique_message_id, "body": message.body.decode()}
