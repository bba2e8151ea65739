"""`receiver migrate`: what it prints, and how it refuses."""

from functools import partial

import pytest
from running import Ran, at_a_terminal, complaint

from receiver import Receiver, Verdict
from receiver.senders import SequenceIdMaker
from receiver.store.tables import REVISION
from tests.store.waiting import opened_inbox, receive


@pytest.fixture
def migrate(command):
    return partial(command, "migrate")


def test_there_and_back(migrate, tmp_path):
    address = f"sqlite:///{tmp_path}/receiver.db"
    for arguments, said in (
        ([], f"from no tables to version {REVISION}"),
        ([], f"version {REVISION} already"),
        (["--revision", "base"], f"from version {REVISION} to no tables"),
        (["--revision", "base"], "no tables already"),
        (["--revision", REVISION], f"from no tables to version {REVISION}"),
    ):
        assert migrate(address, *arguments) == Ran(0, f"{address}: {said}\n", "")


def remember(address, receipts=1_000):
    with Receiver.open(address, connection_id="a", destination="orders") as receiver, receiver.batch() as batch:
        for number in range(receipts):
            batch.receive(str(number), "s")


def park_one(address):
    with opened_inbox(address) as (receiver, inbox):
        rows = receive(receiver, inbox, b"x", b"y")
        with inbox.lease() as turn:
            turn.park(rows[0], "refused")


def last_number(address):
    with SequenceIdMaker.open(address, message_source_id="s") as ids:
        ids.next()


KEPT = {
    "1,000 receipts by which ids are remembered, 1 domain with settings and counts": remember,
    "1 message waiting in the inbox, 1 parked message": park_one,
    "the last sequence number of 1 source": last_number,
}


@pytest.mark.parametrize("lost", KEPT)
def test_what_would_be_lost_is_said_and_needs_a_yes(migrate, store_url, lost):
    migrate(store_url)
    KEPT[lost](store_url)
    said = complaint(migrate(store_url, "--revision", "base"))
    assert "this drops " in said
    assert lost in said
    assert "hint: add --yes" in said
    assert migrate(store_url).out.endswith(f": version {REVISION} already\n")
    ran = migrate(store_url, "--revision", "base", "--yes")
    assert ran.status == 0
    assert f": from version {REVISION} to no tables, without {lost}" in ran.out


def test_what_an_older_version_has_no_place_for_is_refused_whatever_is_said(migrate, tmp_path):
    address = f"sqlite:///{tmp_path}/receiver.db"
    park_one(address)
    for yes in ([], ["--yes"]):
        said = complaint(migrate(address, "--revision", "0002", *yes))
        assert "version 0002 can't hold 1 message waiting in the inbox" in said
    assert migrate(address).out == f"{address}: version {REVISION} already\n"


def test_a_step_back_that_loses_nothing_needs_no_yes(migrate, tmp_path):
    address = f"sqlite:///{tmp_path}/receiver.db"
    remember(address, receipts=3)
    assert migrate(address, "--revision", "0002") == Ran(0, f"{address}: from version {REVISION} to version 0002\n", "")
    assert migrate(address, "--revision", "0001").status == 0
    assert migrate(address).status == 0
    with Receiver.open(address, connection_id="a", destination="orders") as receiver, receiver.batch() as batch:
        assert batch.receive("2", "s").verdict is Verdict.DUPLICATE


@pytest.mark.thinned(2)
@pytest.mark.parametrize(("answer", "status"), [("y", 0), ("n", 2)])
def test_who_sits_at_a_terminal_is_asked(migrate, tmp_path, answer, status):
    address = f"sqlite:///{tmp_path}/receiver.db"
    remember(address, receipts=2)
    ran_status, said = at_a_terminal("migrate", address, "--revision", "base", answer=answer)
    assert "this drops 2 receipts by which ids are remembered" in said
    assert ran_status == status
    assert migrate(address).out.endswith(f"from no tables to version {REVISION}\n" if status == 0 else "already\n")


@pytest.mark.parametrize(
    ("address", "arguments", "problem"),
    [
        ("memory://", [], "isn't a store's address"),
        ("sqlite:///no/such/receiver.db", [], "there is no folder"),
        ("sqlite:///receiver.db", ["--revision", "0999"], "there is no version '0999'"),
        ("postgresql://u:secret@127.0.0.1:1/d", [], "the server can't be reached"),
    ],
)
def test_refusals(migrate, address, arguments, problem, tmp_path):
    said = complaint(migrate(address, *arguments))
    assert problem in said
    assert "hint: " in said
    assert "secret" not in said
    assert not any(tmp_path.iterdir())
