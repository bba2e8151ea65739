"""The application of the campaign: it books each message in a table of its own."""

from typing import Any

from sqlalchemy import Connection, text

FUNCTION = f"python:{__name__}:book"
TABLE = "CREATE TABLE booked (unique_message_id text NOT NULL, body text NOT NULL)"
BOOKED = "SELECT unique_message_id, body FROM booked"
_INSERT = text("INSERT INTO booked VALUES (:id, :body)")


def book(message: Any, connection: Connection) -> None:
    connection.execute(_INSERT, {"id": message.unique_message_id, "body": message.body.decode()})
