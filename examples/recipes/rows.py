"""What the recipes beside this file share: the ids and the rows of a batch, in one transaction.

Make the table first: sqlite3 orders.db 'CREATE TABLE orders (id TEXT, body TEXT)'; and in the broker the queue or topic `orders`, for
JetStream a stream of that subject. A message without `uniqueMessageId` is an error in all of them and ends the loop: decide what
yours does. Let systemd or the like restart it.
"""

from sqlalchemy import text

from receiver import Receiver

ROW = text("INSERT INTO orders (id, body) VALUES (:id, :body)")


def open_orders(connection_id):
    return Receiver.open("sqlite:///orders.db", connection_id=connection_id, destination="queue://orders")


def keep(orders, messages, also=lambda connection: None):
    """Messages are (id, body); `also` is done in the same transaction."""
    with orders.batch() as batch:
        for id_, body in messages:
            if batch.receive(id_).deliver:
                batch.connection.execute(ROW, {"id": id_, "body": body})
        also(batch.connection)
