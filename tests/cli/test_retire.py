"""`receiver retire`: which sources it retires, what it says, and how it refuses."""

from functools import partial

import pytest
from running import complaint
from sqlalchemy import NullPool, create_engine

from receiver import Receiver
from receiver.settings import ReceiverSettings
from tests.stores import rows_of

DAY_US = 86_400_000_000
HOSTILE = "\x1b[31mevil"


@pytest.fixture
def retire(command):
    return partial(command, "retire")


def make(address, *names, policy=None):
    settings = None if policy else ReceiverSettings(dup_detection_per_source_expiry_window_size=5)
    for name in names:
        with (
            Receiver.open(
                address,
                connection_id="a",
                destination="orders",
                domain=f"name:{name}",
                settings=settings,
                policy=policy,
            ) as orders,
            orders.batch() as batch,
        ):
            batch.receive_many(
                [("1:old", "old", 0), ("2:old", "old", 0), ("3", None, DAY_US), ("4:s", "s", 3 * DAY_US)]
            )


def test_by_silence(retire, store_url):
    make(store_url, "orders")
    ran = retire(store_url, "--idle", "1e308")  # infinite in microseconds
    assert (ran.status, ran.out) == (0, "orders: 0 sources retired, 0 ids forgotten, 3 sources left\n")
    ran = retire(store_url, "--idle", "2.5")
    assert (ran.status, ran.err) == (0, "")
    assert ran.out == "orders: 1 source retired, 0 ids forgotten, 2 sources left\n"
    ran = retire(store_url, "--idle", "0")
    assert ran.out == "orders: 1 source retired, 2 ids forgotten, 1 source left\n"
    assert rows_of(store_url, "receiver_receipt") == 2


def test_by_name_in_one_domain_or_all(retire, store_url):
    make(store_url, "orders", "prices", HOSTILE)
    ran = retire(store_url, "--source", "old", "--source", "", "--domain", "prices")
    assert (ran.status, ran.out) == (0, "prices: 2 sources retired, 2 ids forgotten, 1 source left\n")
    ran = retire(store_url, "--source", "old")
    assert ran.out.splitlines() == [
        "orders: 1 source retired, 0 ids forgotten, 2 sources left",
        "prices: 0 sources retired, 0 ids forgotten, 1 source left",
        "\\x1b[31mevil: 1 source retired, 0 ids forgotten, 2 sources left",
    ]


def test_what_was_done_is_said_before_a_domain_fails(retire, sqlite_url):
    make(sqlite_url, "orders", "prices")
    with create_engine(sqlite_url, poolclass=NullPool).begin() as connection:
        connection.exec_driver_sql(
            "UPDATE receiver_domain SET policy = 'nonsense' WHERE domain_name = CAST('prices' AS BLOB)"
        )
    ran = retire(sqlite_url, "--source", "old")
    assert (ran.status, ran.out) == (2, "orders: 1 source retired, 0 ids forgotten, 2 sources left\n")


def test_a_policy_without_sources(retire, sqlite_url):
    make(sqlite_url, "orders", policy="perfect")
    ran = retire(sqlite_url, "--idle", "1")
    assert (ran.status, ran.out) == (0, f"{sqlite_url}: no domain keeps ids by source\n")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "say which sources"),
        (("--idle", "-1"), "number of days"),
        (("--idle", "nan"), "number of days"),
        (("--idle", "soon"), "valid number"),
        (("--idle", "1", "--domain", "nobody"), "has no domain"),
    ],
)
def test_what_cannot_be_meant(retire, sqlite_url, arguments, said):
    make(sqlite_url, "orders")
    assert said in complaint(retire(sqlite_url, *arguments))
    assert rows_of(sqlite_url, "receiver_receipt") == 4
