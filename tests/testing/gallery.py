"""Consumers of the shop's, right ones and wrong ones: each has a fault that people make, and nothing else."""

from contextlib import suppress

from sqlalchemy import text
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from tests.testing.shop import KNOWN, ORDER, is_new, number_of, order, sender_of

ALL_BUT_FOUR = text("DELETE FROM inbox WHERE id NOT IN (SELECT id FROM inbox ORDER BY sent_ms DESC LIMIT 4)")


def take(connection, message, key=None):
    if is_new(connection, message, key):
        order(connection, message)


# Right.


def with_an_inbox(broker, shop):
    engine = shop.opened()
    while messages := broker.receive(5):
        with engine.begin() as connection:
            for message in messages:
                take(connection, message)
        broker.acknowledge(messages)


def with_savepoints(broker, shop):
    engine = shop.opened()
    while messages := broker.receive(3):
        with Session(engine) as session, session.begin():
            for message in messages:
                with session.begin_nested():
                    take(session, message)
        broker.acknowledge(messages)


def with_orders_that_are_unique(broker, shop):
    """The effect itself can't stand twice."""
    engine = shop.opened()
    with engine.begin() as connection:
        connection.execute(text("CREATE UNIQUE INDEX IF NOT EXISTS once ON orders (id)"))
    while messages := broker.receive(5):
        with engine.begin() as connection:
            for message in messages:
                connection.execute(text(f"{ORDER} ON CONFLICT DO NOTHING"), {"id": message.unique_message_id})
        broker.acknowledge(messages)


def that_looks_before_it_tries_again(broker, shop):
    """Nobody knows what a lost connection has committed; the inbox does."""
    engine = shop.opened()
    while messages := broker.receive(1):
        with suppress(OperationalError), engine.begin() as connection:
            take(connection, messages[0])
        with engine.begin() as connection:
            take(connection, messages[0])
        broker.acknowledge(messages)


def that_has_the_broker_recover(broker, shop):
    engine = shop.opened()
    while messages := broker.receive(5):
        try:
            with engine.begin() as connection:
                for message in messages:
                    take(connection, message)
        except OperationalError:
            broker.recover()
        else:
            broker.acknowledge(messages)


def that_cleans_up_behind_itself(broker, shop):
    engine = shop.opened()
    try:
        while messages := broker.receive(5):
            with engine.begin() as connection:
                for message in messages:
                    take(connection, message)
            broker.acknowledge(messages)
    finally:
        with suppress(Exception):
            broker.recover()
        engine.dispose()


RIGHT = [
    with_an_inbox,
    with_savepoints,
    with_orders_that_are_unique,
    that_looks_before_it_tries_again,
    that_has_the_broker_recover,
    that_cleans_up_behind_itself,
]


# Wrong.


def acknowledges_before_the_commit(broker, shop):
    engine = shop.opened()
    while messages := broker.receive(5):
        with engine.begin() as connection:
            for message in messages:
                take(connection, message)
            broker.acknowledge(messages)


def acts_after_the_commit(broker, shop):
    """The effect is a line of a file."""
    engine = shop.opened()
    while messages := broker.receive(1):
        with engine.begin() as connection:
            new = is_new(connection, messages[0])
        if new:
            shop.file("orders").add(messages[0].unique_message_id)
        broker.acknowledge(messages)


def acts_before_the_commit(broker, shop):
    engine = shop.opened()
    while messages := broker.receive(1):
        with engine.begin() as connection:
            if is_new(connection, messages[0]):
                shop.file("orders").add(messages[0].unique_message_id)
        broker.acknowledge(messages)


def remembers_in_memory_only(broker, shop):
    engine, seen = shop.opened(), set()
    while messages := broker.receive(5):
        with engine.begin() as connection:
            for message in messages:
                if message.unique_message_id not in seen:
                    seen.add(message.unique_message_id)
                    order(connection, message)
        broker.acknowledge(messages)


def remembers_first_and_acts_in_another_transaction(broker, shop):
    engine = shop.opened()
    while messages := broker.receive(1):
        with engine.begin() as connection:
            new = is_new(connection, messages[0])
        if new:
            with engine.begin() as connection:
                order(connection, messages[0])
        broker.acknowledge(messages)


def acts_first_and_remembers_in_another_transaction(broker, shop):
    engine = shop.opened()
    while messages := broker.receive(1):
        with engine.begin() as connection:
            known = connection.scalar(KNOWN, {"id": messages[0].unique_message_id})
            if not known:
                order(connection, messages[0])
        with engine.begin() as connection:
            is_new(connection, messages[0])
        broker.acknowledge(messages)


def keeps_too_small_a_window(broker, shop):
    engine = shop.opened()
    while messages := broker.receive(5):
        with engine.begin() as connection:
            for message in messages:
                take(connection, message)
                connection.execute(ALL_BUT_FOUR)
        broker.acknowledge(messages)


def swallows_errors_and_acknowledges(broker, shop):
    engine = shop.opened()
    while messages := broker.receive(5):
        with suppress(Exception), engine.begin() as connection:
            for message in messages:
                take(connection, message)
        broker.acknowledge(messages)


def looks_at_the_flag_only(broker, shop):
    engine = shop.opened()
    while messages := broker.receive(5):
        with engine.begin() as connection:
            for message in messages:
                if not message.redelivered:
                    order(connection, message)
        broker.acknowledge(messages)


def looks_only_if_flagged(broker, shop):
    """The first process of a sender, it thinks, sends nothing again."""
    engine = shop.opened()
    while messages := broker.receive(5):
        with engine.begin() as connection:
            for message in messages:
                is_first = not message.redelivered and message.message_source_id.endswith("-1")
                if is_new(connection, message) or is_first:
                    order(connection, message)
        broker.acknowledge(messages)


def cleans_up_after_an_hour(broker, shop):
    engine = shop.opened()
    while messages := broker.receive(5):
        with engine.begin() as connection:
            for message in messages:
                old = {"ms": message.jms_timestamp_ms - 3_600_000}
                connection.execute(text("DELETE FROM inbox WHERE sent_ms < :ms"), old)
                take(connection, message)
        broker.acknowledge(messages)


def cleans_up_once_acknowledged(broker, shop):
    """Who sends again by himself isn't flagged: for that it keeps the highest numbers."""
    engine = shop.opened()
    while messages := broker.receive(1):
        id_ = messages[0].unique_message_id
        with engine.begin() as connection:
            highest = connection.scalar(
                text("SELECT max(number) FROM inbox WHERE id LIKE :sender"),
                {"sender": f"%highest {sender_of(messages[0])}"},
            )
            is_later = number_of(messages[0]) > (highest or 0)
            if is_new(connection, messages[0]) and (messages[0].redelivered or is_later):
                order(connection, messages[0])
            is_new(connection, messages[0], key=f"{id_} highest {sender_of(messages[0])}")
        broker.acknowledge(messages)
        with engine.begin() as connection:
            connection.execute(text("DELETE FROM inbox WHERE id = :id"), {"id": id_})


def commits_twice(broker, shop):
    """It takes a lost connection for a transaction that wasn't committed."""
    engine = shop.opened()
    while messages := broker.receive(1):
        for _ in range(9):
            with suppress(OperationalError):
                with engine.begin() as connection:
                    known = connection.scalar(KNOWN, {"id": messages[0].unique_message_id})
                break
        for _ in range(9):
            with suppress(OperationalError):
                with engine.begin() as connection:
                    if not known:
                        is_new(connection, messages[0])
                        order(connection, messages[0])
                break
        broker.acknowledge(messages)


def remembers_by_process(broker, shop):
    engine = shop.opened()
    while messages := broker.receive(5):
        with engine.begin() as connection:
            for message in messages:
                take(connection, message, key=f"{message.unique_message_id} {message.message_source_id}")
        broker.acknowledge(messages)


def remembers_the_highest_number(broker, shop):
    engine = shop.opened()
    highest = text("SELECT max(number) FROM inbox WHERE id LIKE :sender")
    while messages := broker.receive(5):
        with engine.begin() as connection:
            for message in messages:
                number = connection.scalar(highest, {"sender": f"%:{sender_of(message)}"})
                if number_of(message) > (number or 0):
                    take(connection, message)
        broker.acknowledge(messages)


def remembers_one_number_for_all_senders(broker, shop):
    engine = shop.opened()
    while messages := broker.receive(1):
        with engine.begin() as connection:
            number = connection.scalar(text("SELECT max(number) FROM inbox"))
            if number_of(messages[0]) >= (number or 0):
                take(connection, messages[0])
        broker.acknowledge(messages)


def gives_up_after_two_tries(broker, shop):
    engine, tries = shop.opened(), shop.file("tries")
    while messages := broker.receive(1):
        id_ = messages[0].unique_message_id
        if list(tries).count(id_) < 2:
            tries.add(id_)
            with engine.begin() as connection:
                take(connection, messages[0])
        broker.acknowledge(messages)


def acts_at_the_end(broker, shop):
    engine, new = shop.opened(), []
    try:
        while messages := broker.receive(5):
            broker.acknowledge(messages)
            new += messages
    finally:
        with engine.begin() as connection:
            for message in new:
                take(connection, message)


WRONG_IN_A_DATABASE = [
    acknowledges_before_the_commit,
    remembers_in_memory_only,
    remembers_first_and_acts_in_another_transaction,
    acts_first_and_remembers_in_another_transaction,
    keeps_too_small_a_window,
    swallows_errors_and_acknowledges,
    looks_at_the_flag_only,
    looks_only_if_flagged,
    cleans_up_after_an_hour,
    cleans_up_once_acknowledged,
    commits_twice,
    remembers_by_process,
    remembers_the_highest_number,
    remembers_one_number_for_all_senders,
    gives_up_after_two_tries,
    acts_at_the_end,
]
WRONG_IN_A_FILE = [acts_after_the_commit, acts_before_the_commit]
