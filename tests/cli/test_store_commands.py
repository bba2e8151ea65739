"""What all commands on a store have in common: addresses that lead nowhere, older stores, and passwords."""

import sys

import pytest
from running import complaint

from receiver.store.databases import store_url as url_of
from receiver.store.schema import migrate
from tests.store.waiting import opened_inbox, receive
from tests.stores import contents

WAITING = ["inbox list URL", "inbox move URL 1 2", "inbox drop URL 1 --yes"]
DOMAINS = ["domain list URL", "domain drop URL --domain 1 --yes"]
PARKED = ["parked list URL", "parked retry URL --all", "parked drop URL 1"]
OTHERS = ["status URL", "check URL", "retire URL --idle 1", "lookup URL 1", "forget URL 1 --yes"]


@pytest.fixture
def asked(command):
    """Runs a command line with a store's address in place of URL."""
    return lambda line, address: command(*(address if word == "URL" else word for word in line.split()))


def leave_one_parked(url):
    with opened_inbox(url) as (receiver, inbox):
        rows = receive(receiver, inbox, b"0", b"1")
        with inbox.lease() as turn:
            turn.park(rows[0], "refused")


@pytest.mark.parametrize("line", [*WAITING, *DOMAINS, *PARKED, *OTHERS])
def test_where_there_is_no_store_none_is_made(asked, line, tmp_path, monkeypatch):
    for address, problem in {
        "memory://": "isn't a store's address",
        "sqlite:///no/such/folder/receiver.db": "there is no folder",
        f"sqlite:///{tmp_path}/receiver.db": "there is no store",
        "postgresql://u:secret@127.0.0.1:1/d": "the server can't be reached",
    }.items():
        said = complaint(asked(line, address))
        assert problem in said
        assert "secret" not in said
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setitem(sys.modules, "psycopg", None)
    assert "extra 'postgres'" in complaint(asked(line, "postgresql://127.0.0.1/d"))


@pytest.mark.parametrize("line", [*WAITING, *DOMAINS])
def test_an_older_store_is_refused_and_left(asked, line, sqlite_url, tmp_path):
    leave_one_parked(sqlite_url)
    migrate(url_of(sqlite_url), "0003")
    before = contents(tmp_path)
    assert "older than" in complaint(asked(line, sqlite_url))
    assert contents(tmp_path) == before


def test_a_password_is_not_printed(asked, fresh_postgres_url):
    address = fresh_postgres_url.replace("postgres:@", "postgres:secret@")
    assert "secret" not in asked("migrate URL", address).out
    leave_one_parked(fresh_postgres_url)
    shown = ["status URL", "check URL", "domain list URL", "inbox list URL", "parked list URL"]
    of_parked = ["parked retry URL --all", "parked drop URL --all --yes"]
    for line in (*shown, *(f"{line} --json" for line in shown), *of_parked):
        ran = asked(line, address)
        assert (ran.status, "secret" in ran.out) == (0, False), line
