"""A consumer of payments in SQLite or PostgreSQL. `test_consumer.py` proves that it makes each payment once."""

from typing import Any

from sqlalchemy import NullPool, create_engine, text

from receiver import Receiver

TABLE = text("CREATE TABLE IF NOT EXISTS payment (reference TEXT)")
PAY = text("INSERT INTO payment (reference) VALUES (:reference)")
PAID = text("SELECT reference FROM payment")


def make_table(url: str) -> None:
    with create_engine(url).begin() as connection:
        connection.execute(TABLE)


def consume(broker: Any, url: str) -> None:
    """Take messages until there are none. A supervisor starts it again, also after a crash."""
    with Receiver.open(url, connection_id="shop", destination="queue://payments") as payments:
        while messages := broker.receive(10):
            with payments.batch() as batch:  # ids and payments are committed together
                for message in messages:
                    if batch.receive(message.unique_message_id, message.message_source_id).deliver:
                        batch.connection.execute(PAY, {"reference": message.unique_message_id})
            broker.acknowledge(messages)


def paid(url: str) -> list[str]:
    """The references of all payments that were made."""
    with create_engine(url, poolclass=NullPool).connect() as connection:
        return list(connection.scalars(PAID))
