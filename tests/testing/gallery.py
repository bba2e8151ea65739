"""The shop's consumers: right ones, and wrong ones. Each wrong one has one fault that people make, and no other."""

from contextlib import suppress

from sqlalchemy import bindparam, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from tests.testing.shop import ORDER, Shop, is_known, is_new, number_of, order

ALL_BUT_FOUR = text("DELETE FROM inbox WHERE id NOT IN (SELECT id FROM inbox ORDER BY sent_ms DESC LIMIT 4)")
OLDER_THAN = text("DELETE FROM inbox WHERE sent_ms < :ms")
HIGHEST = text("SELECT max(number) FROM inbox WHERE replace(id, :end, '') <> id")
KNOWN_OF = text("SELECT id FROM inbox WHERE id IN :ids").bindparams(bindparam("ids", expanding=True))


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
    """After a lost connection nobody knows what was committed, but the inbox does."""
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


def that_forgets_after_a_month(broker, shop):
    """It forgets by the story's clock, after longer than any redelivery takes."""
    engine = shop.opened()
    while messages := broker.receive(5):
        with engine.begin() as connection:
            connection.execute(OLDER_THAN, {"ms": broker.now_ms - 100 * 30 * 86_400_000})
            for message in messages:
                take(connection, message)
        broker.acknowledge(messages)


RIGHT = [
    with_an_inbox,
    with_savepoints,
    with_orders_that_are_unique,
    that_looks_before_it_tries_again,
    that_has_the_broker_recover,
    that_cleans_up_behind_itself,
    that_forgets_after_a_month,
]


# Wrong: acknowledged at the wrong time.


def acknowledges_before_the_commit(broker, shop):
    engine = shop.opened()
    while messages := broker.receive(5):
        with engine.begin() as connection:
            for message in messages:
                take(connection, message)
            broker.acknowledge(messages)


def acknowledges_all_after_the_first(broker, shop):
    engine = shop.opened()
    while messages := broker.receive(5):
        for message in messages:
            with engine.begin() as connection:
                take(connection, message)
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


def acts_once_it_has_acknowledged(broker, shop):
    shop.opened()
    orders = shop.file("orders")
    while messages := broker.receive(1):
        is_known = messages[0].unique_message_id in orders
        broker.acknowledge(messages)
        if not is_known:
            orders.add(messages[0].unique_message_id)


def swallows_errors_and_acknowledges(broker, shop):
    engine = shop.opened()
    while messages := broker.receive(5):
        with suppress(Exception), engine.begin() as connection:
            for message in messages:
                take(connection, message)
        broker.acknowledge(messages)


def takes_a_commit_that_failed_for_one_that_was_not_answered(broker, shop):
    engine = shop.opened()
    while messages := broker.receive(5):
        with engine.connect() as connection:
            for message in messages:
                take(connection, message)
            with suppress(OperationalError):
                connection.commit()
        broker.acknowledge(messages)


# Wrong: the id and the effect aren't committed together.


def acts_after_the_commit(broker, shop):
    """The effect is a line of a file. If the commit fails, the consumer acts again to be sure."""
    engine, orders = shop.opened(), shop.file("orders")
    while messages := broker.receive(1):
        id_, new = messages[0].unique_message_id, True
        with suppress(OperationalError), engine.begin() as connection:
            new = is_new(connection, messages[0])
        if new and id_ not in orders:
            orders.add(id_)
        broker.acknowledge(messages)


def acts_before_the_commit(broker, shop):
    """If the commit fails, the consumer tries only the commit again."""
    engine, orders = shop.opened(), shop.file("orders")
    while messages := broker.receive(1):
        acted = False
        for _ in range(9):
            with suppress(OperationalError):
                with engine.begin() as connection:
                    if is_new(connection, messages[0]) and not acted:
                        orders.add(messages[0].unique_message_id)
                        acted = True
                break
        broker.acknowledge(messages)


def remembers_first_in_autocommit(broker, shop):
    engine, orders = shop.opened(isolation_level="AUTOCOMMIT"), shop.file("orders")
    while messages := broker.receive(1):
        id_, new = messages[0].unique_message_id, True
        with engine.connect() as connection:
            with suppress(OperationalError):
                new = is_new(connection, messages[0])
            if new and id_ not in orders:
                orders.add(id_)
        broker.acknowledge(messages)


def remembers_later_in_autocommit(broker, shop):
    engine, orders = shop.opened(isolation_level="AUTOCOMMIT"), shop.file("orders")
    while messages := broker.receive(1):
        with engine.connect() as connection:
            if not is_known(connection, messages[0]):
                orders.add(messages[0].unique_message_id)
                try:
                    is_new(connection, messages[0])
                except OperationalError:
                    with engine.connect() as another:
                        is_new(another, messages[0])
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
            if not is_known(connection, messages[0]):
                order(connection, messages[0])
        with engine.begin() as connection:
            is_new(connection, messages[0])
        broker.acknowledge(messages)


def commits_twice(broker, shop):
    """It takes a lost connection as proof that the transaction wasn't committed."""
    engine = shop.opened()
    while messages := broker.receive(1):
        for _ in range(9):
            with suppress(OperationalError):
                with engine.begin() as connection:
                    known = is_known(connection, messages[0])
                break
        for _ in range(9):
            with suppress(OperationalError):
                with engine.begin() as connection:
                    if not known:
                        is_new(connection, messages[0])
                        order(connection, messages[0])
                break
        broker.acknowledge(messages)


# Wrong: it remembers too little.


def remembers_in_memory_only(broker, shop):
    engine, seen = shop.opened(), set()
    while messages := broker.receive(5):
        with engine.begin() as connection:
            for message in messages:
                if message.unique_message_id not in seen:
                    seen.add(message.unique_message_id)
                    order(connection, message)
        broker.acknowledge(messages)


def keeps_too_small_a_window(broker, shop):
    engine = shop.opened()
    while messages := broker.receive(5):
        with engine.begin() as connection:
            for message in messages:
                take(connection, message)
                connection.execute(ALL_BUT_FOUR)
        broker.acknowledge(messages)


def cleans_up_after_an_hour(broker, shop):
    engine = shop.opened()
    while messages := broker.receive(5):
        with engine.begin() as connection:
            connection.execute(OLDER_THAN, {"ms": broker.now_ms - 3_600_000})
            for message in messages:
                take(connection, message)
        broker.acknowledge(messages)


def forgets_once_it_has_acknowledged(broker, shop):
    """It believes that afterwards an id comes again only from another process of the sender."""
    engine = shop.opened()
    while messages := broker.receive(1):
        id_, process = messages[0].unique_message_id, messages[0].message_source_id
        done = f"{id_} of {process} is done"
        with engine.begin() as connection:
            known = {each for each in connection.scalars(text("SELECT id FROM inbox")) if each.startswith(id_)}
            if not known - {done}:
                take(connection, messages[0])
        broker.acknowledge(messages)
        with engine.begin() as connection:
            is_new(connection, messages[0], key=done)
            connection.execute(text("DELETE FROM inbox WHERE id = :id"), {"id": id_})


def gives_up_after_three_tries(broker, shop):
    engine, tries = shop.opened(), shop.file("tries")
    while messages := broker.receive(1):
        id_ = messages[0].unique_message_id
        if list(tries).count(id_) < 3:
            tries.add(id_)
            with engine.begin() as connection:
                take(connection, messages[0])
        broker.acknowledge(messages)


# Wrong: it goes by more than the id, or by less.


def looks_at_the_flag_only(broker, shop):
    engine = shop.opened()
    while messages := broker.receive(5):
        with engine.begin() as connection:
            for message in messages:
                if not message.redelivered:
                    order(connection, message)
        broker.acknowledge(messages)


def looks_only_if_flagged(broker, shop):
    """It believes that a sender's first process never sends anything again."""
    engine = shop.opened()
    while messages := broker.receive(5):
        with engine.begin() as connection:
            for message in messages:
                is_first = not message.redelivered and message.message_source_id.endswith("-1")
                if is_new(connection, message) or is_first:
                    order(connection, message)
        broker.acknowledge(messages)


def takes_the_flag_for_a_proof(broker, shop):
    """It believes that it has seen every redelivered message before."""
    shop.opened()
    orders = shop.file("orders")
    while messages := broker.receive(1):
        if not messages[0].redelivered and messages[0].unique_message_id not in orders:
            orders.add(messages[0].unique_message_id)
        broker.acknowledge(messages)


def looks_up_the_whole_batch_first(broker, shop):
    engine = shop.opened()
    while messages := broker.receive(5):
        with engine.begin() as connection:
            ids = [message.unique_message_id for message in messages]
            known = set(connection.scalars(KNOWN_OF, {"ids": ids}))
            for message in messages:
                if message.unique_message_id not in known:
                    is_new(connection, message)
                    order(connection, message)
        broker.acknowledge(messages)


def remembers_by_process(broker, shop):
    engine = shop.opened()
    while messages := broker.receive(5):
        with engine.begin() as connection:
            for message in messages:
                take(connection, message, key=f"{message.unique_message_id} {message.message_source_id}")
        broker.acknowledge(messages)


def expects_order(broker, shop):
    """It believes that messages of one process of a sender come in order."""
    engine = shop.opened()
    while messages := broker.receive(5):
        with engine.begin() as connection:
            for message in messages:
                process = message.message_source_id
                if number_of(message) > (connection.scalar(HIGHEST, {"end": f" by {process}"}) or 0):
                    take(connection, message)
                    is_new(connection, message, key=f"{message.unique_message_id} by {process}")
        broker.acknowledge(messages)


def remembers_numbers_without_their_senders(broker, shop):
    engine = shop.opened()
    while messages := broker.receive(1):
        with engine.begin() as connection:
            take(connection, messages[0], key=str(number_of(messages[0])))
        broker.acknowledge(messages)


def folds_ids(broker, shop):
    engine = shop.opened()
    while messages := broker.receive(1):
        with engine.begin() as connection:
            take(connection, messages[0], key=messages[0].unique_message_id.upper())
        broker.acknowledge(messages)


WRONG = [
    acknowledges_before_the_commit,
    acknowledges_all_after_the_first,
    acts_at_the_end,
    acts_once_it_has_acknowledged,
    swallows_errors_and_acknowledges,
    takes_a_commit_that_failed_for_one_that_was_not_answered,
    acts_after_the_commit,
    acts_before_the_commit,
    remembers_first_in_autocommit,
    remembers_later_in_autocommit,
    remembers_first_and_acts_in_another_transaction,
    acts_first_and_remembers_in_another_transaction,
    commits_twice,
    remembers_in_memory_only,
    keeps_too_small_a_window,
    cleans_up_after_an_hour,
    forgets_once_it_has_acknowledged,
    gives_up_after_three_tries,
    looks_at_the_flag_only,
    looks_only_if_flagged,
    takes_the_flag_for_a_proof,
    looks_up_the_whole_batch_first,
    remembers_by_process,
    expects_order,
    remembers_numbers_without_their_senders,
    folds_ids,
]
IN_A_FILE = {
    acts_once_it_has_acknowledged,
    acts_after_the_commit,
    acts_before_the_commit,
    remembers_first_in_autocommit,
    remembers_later_in_autocommit,
    takes_the_flag_for_a_proof,
}


def effects_of(consume):
    """How a shop knows the effects of a consumer of the gallery."""
    return (lambda shop: shop.file("orders")) if consume in IN_A_FILE else Shop.ordered
