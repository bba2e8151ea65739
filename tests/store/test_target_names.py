"""Migration 0004: targets lose their users, so that any user gets the waiting messages."""

import pytest
from sqlalchemy import text

from receiver.store.databases import store_url as url_of
from receiver.store.schema import migrate
from receiver.store.tables import REVISION
from receiver.store.upkeep import parked_rows, target_rows
from tests.durable.checks import assert_sound
from tests.durable.opened import opened
from tests.store.waiting import inbox_of, receive, waiting_in
from tests.stores import engine_of


def names(url):
    return {row.number: row.name for row in target_rows(url)}


def there_and_back(url):
    """Migrate to the version before, and back to the newest."""
    migrate(url_of(url), "0003")
    migrate(url_of(url), REVISION)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("amqp://bridge@h:5672/queue/a", "amqp://h:5672/queue/a"),
        ("amqps://b%40c@[::1]:5671/topic/a%40b", "amqps://[::1]:5671/topic/a%40b"),
        ("stomp://@h:61613/queue/a/b@c", "stomp://h:61613/queue/a/b@c"),
        ("stomps://ü@h:61613/queue/ü", "stomps://h:61613/queue/ü"),
        ("amqp://h:5672/queue/a", "amqp://h:5672/queue/a"),
        ("amqp://h:5672/queue/a@b", "amqp://h:5672/queue/a@b"),
        ("file:/amqp://user@host", "file:/amqp://user@host"),
        ("python:pay:book", "python:pay:book"),
        ("-", "-"),
    ],
)
def test_the_user_is_left_out_and_nothing_else(sqlite_url, before, after):
    with opened(sqlite_url) as receiver, inbox_of(receiver, sqlite_url, before) as inbox:
        rows = receive(receiver, inbox, b"0")
    there_and_back(sqlite_url)
    assert list(names(sqlite_url).values()) == [after]
    with opened(sqlite_url) as receiver, inbox_of(receiver, sqlite_url, after) as inbox:
        assert waiting_in(inbox) == rows


@pytest.mark.thinned(2)
@pytest.mark.parametrize(
    ("users", "kept"), [(["a", "b", "c"], 2), (["a", None, "b"], 1), ([None, "a"], 0), (["a", None], 1)]
)
def test_targets_that_differ_by_user_become_one(store_url, users, kept):
    """Messages stay in order, and parked ones come along. Another domain's targets stay its own. The targets left
    over are empty, for a bridge of the version before."""
    named = [f"amqp://{'' if user is None else f'{user}@'}h:5672/queue/out" for user in users]
    rows = []
    with opened(store_url) as receiver, opened(store_url, destination="queue://other") as other:
        inboxes = [inbox_of(receiver, store_url, name) for name in named]
        beside = inbox_of(other, store_url, named[0])
        for inbox in inboxes * 2:
            rows += receive(receiver, inbox, b"body")
        receive(other, beside, b"other")
        for inbox, row in zip(inboxes, rows, strict=False):
            with inbox.lease() as lease:
                lease.park(row, "refused")
        numbers = [inbox.target_id for inbox in inboxes]
        for inbox in (*inboxes, beside):
            inbox.close()
    there_and_back(store_url)
    after = names(store_url)
    assert [after[number] for number in numbers] == [
        "amqp://h:5672/queue/out" if index == kept else name for index, name in enumerate(named)
    ]
    with opened(store_url) as receiver, inbox_of(receiver, store_url, "amqp://h:5672/queue/out") as inbox:
        assert inbox.target_id == numbers[kept]
        assert waiting_in(inbox) == rows[len(users) :]
        assert inbox.elsewhere() == {}
    assert {row.target for row in parked_rows(store_url)} == {"amqp://h:5672/queue/out"}
    with (
        opened(store_url, destination="queue://other") as other,
        inbox_of(other, store_url, "amqp://h:5672/queue/out") as inbox,
    ):
        assert len(waiting_in(inbox)) == 1
    assert_sound(store_url)


def test_messages_of_one_number_stay_where_they_are(store_url):
    """No store should have such messages, but none of them may be lost."""
    with opened(store_url) as receiver:
        for user in ("a", "b"):
            with inbox_of(receiver, store_url, f"stomp://{user}@h:61613/queue/out") as inbox:
                receive(receiver, inbox, b"0")
    migrate(url_of(store_url), "0003")
    with engine_of(store_url).begin() as connection:
        connection.execute(text("UPDATE receiver_inbox SET place = 0"))
    migrate(url_of(store_url), REVISION)
    assert [(row.name, row.waiting) for row in target_rows(store_url)] == [
        ("stomp://a@h:61613/queue/out", 1),
        ("stomp://h:61613/queue/out", 1),
    ]
