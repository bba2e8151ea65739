"""What the consumers of RabbitMQ beside this file share: their database, their tables, and what they make of a message.

psql "$DATABASE" -c 'CREATE TABLE payment (reference TEXT, cents BIGINT); CREATE TABLE aside (id TEXT, body BYTEA)'
rabbitmqadmin declare queue name=orders queue_type=quorum arguments='{"x-delivery-limit": -1}'

Without that argument a quorum queue drops a message that came 20 times, as when the database is away for a while.
"""

import json
from typing import Any

from sqlalchemy import TextClause, text

BROKER = "amqp://guest:guest@localhost/"
STORE = "postgresql://bridge@db.example.com/bridge"
ENGINE = "postgresql+asyncpg://bridge@db.example.com/bridge"  # the same database, for an event loop

_PAY = text("INSERT INTO payment (reference, cents) VALUES (:reference, :cents)")
_ASIDE = text("INSERT INTO aside (id, body) VALUES (:id, :body)")


def payment(id_: str, body: bytes) -> tuple[TextClause, dict[str, Any]]:
    """The statement and the values that make a payment; those that put aside what is none, for no retry would mend it."""
    try:
        return _PAY, {"reference": id_, "cents": int(json.loads(body)["cents"])}
    except (ValueError, KeyError, TypeError):
        return aside(id_, body)


def aside(id_: str | None, body: bytes) -> tuple[TextClause, dict[str, Any]]:
    """Puts a message aside, for a person to look at: also one without an id, which nobody could know when it comes again."""
    return _ASIDE, {"id": id_, "body": body}
