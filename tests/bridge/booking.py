"""The application of the campaign. It books each message in its own table."""

from typing import Any

from sqlalchemy import Connection, text

FUNCTION = f"python:{__name__}:book"
FUNCTION_OF_MANY = f"python:{__name__}:book_all"
TABLE = "CREATE TABLE booked (unique_message_id text NOT NULL, body text NOT NULL)"
BOOKED = "SELECT unique_message_id, body FROM booked"
_INSERT = text("INSERT INTO booked VALUES (:id, :body)")


def book(message: Any, connection: Connection) -> None:
    connection.execute(_INSERT, {"id": message.unique_message_id, "body": message.body.decode()})


def book_all(messages: list[Any], connection: Connection) -> None:
    connection.execute(_INSERT, [{"id": each.unique_message_id, "body": each.body.decode()} for each in messages])
