"""A bridge looks every second for messages that others have left: on one connection, and without counting all of
them."""

import pytest
from sqlalchemy import text

from receiver.store.inbox import Inbox
from receiver.store.sql_rows import driver_of
from tests.bridge.bridged import Route, send
from tests.patience import until
from tests.postgres import needs_counts_at_once
from tests.store.waiting import opened_inbox, receive
from tests.stores import engine_of


def backends(url):
    """The numbers of the server processes that serve others."""
    with engine_of(url).connect() as connection:
        others = "datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()"
        return set(connection.scalars(text(f"SELECT pid FROM pg_stat_activity WHERE {others}")))  # noqa: S608


def end_backends(url, pids):
    with engine_of(url).begin() as connection:
        ended = "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE pid = ANY(:pids)"
        connection.execute(text(ended), {"pids": list(pids)})


def test_it_makes_no_connection_each_time(fresh_postgres_url, tmp_path):
    route = Route(fresh_postgres_url, tmp_path, "call")
    bridge = route.open()
    bridge._flow.prepare()
    before = backends(fresh_postgres_url)
    with engine_of(fresh_postgres_url).connect() as connection:
        needs_counts_at_once(connection)
        sessions = text(
            "SELECT pg_stat_force_next_flush(), sessions FROM pg_stat_database WHERE datname = current_database()"
        )
        connection.execute(sessions)  # by then the process has counted itself
        connection.rollback()
        began = connection.execute(sessions).one().sessions
        for _ in range(20):
            bridge._flow.tend()
        connection.rollback()
        assert connection.execute(sessions).one().sessions == began
    until(lambda: backends(fresh_postgres_url) <= before)  # a server process ends a moment after its client
    bridge.close()


def test_a_connection_that_broke_is_replaced(fresh_postgres_url):
    with opened_inbox(fresh_postgres_url) as (receiver, inbox):
        receive(receiver, inbox, b"0")
        assert inbox.has_waiting()
        before = backends(fresh_postgres_url)
        end_backends(fresh_postgres_url, before)
        assert inbox.has_waiting()
        assert inbox.waiting() == 1
        assert backends(fresh_postgres_url).isdisjoint(before)


def test_it_leaves_no_transaction_open(store_url):
    """An open transaction would keep PostgreSQL from vacuuming, and SQLite from beginning its log anew."""
    with opened_inbox(store_url) as (_, inbox):
        assert not inbox.has_waiting()
        with inbox._reader._used() as connection:
            driver = driver_of(connection)
            is_open = driver.in_transaction if store_url.startswith("sqlite") else driver.info.transaction_status
            assert not is_open


def test_it_waits_for_no_lease(store_url):
    with opened_inbox(store_url) as (receiver, inbox):
        receive(receiver, inbox, b"0")
        with inbox.lease():
            assert inbox.has_waiting()
            assert inbox.waiting() == 1


@pytest.mark.parametrize("ids", [[], ["1"], ["1", "2", "3"]])
def test_what_waits_is_counted_once_it_is_seen_and_then_seldom(sqlite_url, tmp_path, monkeypatch, ids):
    counted, count = [], Inbox.waiting

    def counting(inbox):
        counted.append(count(inbox))
        return counted[-1]

    monkeypatch.setattr(Inbox, "waiting", counting)
    route = Route(sqlite_url, tmp_path, "call")
    first, second = route.open(), route.open()
    send(route, *ids)
    if ids:
        route.run(dies="committed").close()
        counted.clear()
    for _ in range(5):
        second._flow.tend()
        assert second.figures.waiting == len(ids)
    assert counted == ([len(ids)] if ids else [])
    first.run(stop_when_idle_secs=0)
    second._flow.tend()
    assert second.figures.waiting == 0
    second.close()


def test_idle_bridges_give_the_rest_of_the_space_back(sqlite_url, tmp_path, monkeypatch):
    """Each time they look, they give a little back."""
    left = [True, True, False]
    monkeypatch.setattr(Inbox, "give_back_space", lambda _inbox: left.pop(0))
    route = Route(sqlite_url, tmp_path, "call")
    bridge = route.open()
    flow = bridge._flow
    flow.prepare()
    send(route, "1")
    route.run(dies="committed").close()
    flow.tend()
    while flow.deliver_waiting():
        pass
    flow.tend()
    for expected in ([True, False], [False], [], []):
        flow.tend()
        assert left == expected
    bridge.close()
