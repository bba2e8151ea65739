"""A consumer that needs nothing but the package: it makes its table, and takes two deliveries, the second after a restart."""

from collections.abc import Iterable

from sqlalchemy import create_engine, text

from receiver import Receiver

STORE = "sqlite:///pay.db"
PAY = text("INSERT INTO payment (reference, cents) VALUES (:reference, :cents)")

with create_engine(STORE).begin() as connection:
    connection.execute(text("CREATE TABLE IF NOT EXISTS payment (reference TEXT, cents INTEGER)"))


def take(payments: Iterable[tuple[int, int]]) -> None:
    with Receiver.open(STORE, connection_id="shop", destination="queue://payments") as receiver:
        with receiver.batch() as batch:  # ids and rows are committed together
            for number, cents in payments:
                if batch.receive(str(number)).deliver:  # an id is text
                    batch.connection.execute(PAY, {"reference": str(number), "cents": cents})
                else:
                    print("seen before:", number)


take([(17, 250), (18, 900)])
take([(18, 900), (19, 120)])  # as after a crash: 18 comes again
