"""The proxy cuts exactly when it says, so the durable tests may rely on it."""

import psycopg
import pytest
from sqlalchemy import make_url

from tests.durable.proxy import Cut, proxied


def plain(url: str) -> str:
    """The address in psycopg's own form."""
    return make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)


@pytest.fixture
def proxy(fresh_postgres_url):
    with psycopg.connect(plain(fresh_postgres_url)) as connection:
        connection.execute("CREATE TABLE effects (n int)")
    with proxied(fresh_postgres_url) as proxy:
        yield proxy


@pytest.fixture
def effects(fresh_postgres_url):
    """Waits for all writers, then reads the committed rows without the proxy."""

    def read() -> list[int]:
        with psycopg.connect(plain(fresh_postgres_url)) as connection:
            connection.execute("LOCK TABLE effects IN SHARE MODE")
            return [n for (n,) in connection.execute("SELECT n FROM effects ORDER BY n")]

    return read


def insert(proxy, n, *, extended=False):
    with psycopg.connect(plain(proxy.url)) as connection:
        connection.execute("INSERT INTO effects VALUES (%s)", [n])
        if extended:
            connection.pgconn.exec_params(b"COMMIT", [])
            assert connection.pgconn.status == psycopg.pq.ConnStatus.OK, "the link is cut"
        else:
            connection.commit()


def test_lets_everything_pass_until_armed(proxy, effects):
    insert(proxy, 1)
    insert(proxy, 2, extended=True)
    with psycopg.connect(plain(proxy.url)) as connection, connection.cursor() as cursor:
        with cursor.copy("COPY effects FROM STDIN") as copy:
            for n in range(3, 10_000):
                copy.write_row([n])
        connection.commit()
    assert effects() == list(range(1, 10_000))


@pytest.mark.parametrize("extended", [False, True])
@pytest.mark.parametrize(("cut", "kept"), [(Cut.BEFORE_COMMIT, []), (Cut.BEFORE_REPLY, [1])])
def test_cuts_the_link_on_either_side_of_the_commit(proxy, effects, cut, kept, extended):
    proxy.arm(cut)
    with pytest.raises((psycopg.OperationalError, AssertionError)):
        insert(proxy, 1, extended=extended)
    assert not proxy.armed
    assert effects() == kept
    insert(proxy, 2)
    assert effects() == [*kept, 2]


def test_a_late_commit_comes_after_the_client_has_lost_the_link(proxy, effects):
    proxy.arm(Cut.LATE_COMMIT)
    with pytest.raises(psycopg.OperationalError):
        insert(proxy, 1)
    # The commit holds its lock until it is done. A reader that waits for the lock sees it.
    assert effects() == [1]


def test_cuts_on_demand(proxy, effects):
    with psycopg.connect(plain(proxy.url)) as connection:
        connection.execute("INSERT INTO effects VALUES (1)")
        proxy.cut()
        with pytest.raises(psycopg.OperationalError):
            connection.commit()
    assert effects() == []


def test_stays_unreachable_when_asked_to(proxy, effects):
    proxy.arm(Cut.BEFORE_REPLY, then_unreachable=True)
    with pytest.raises(psycopg.OperationalError):
        insert(proxy, 1)
    with pytest.raises(psycopg.OperationalError):
        insert(proxy, 2)
    proxy.reachable = True
    insert(proxy, 3)
    assert effects() == [1, 3]
