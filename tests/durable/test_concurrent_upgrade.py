"""Consumers are replaced one by one: by consumers of the other kind, or of a version with claims where the one
before had none."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy import make_url
from sqlalchemy.exc import DBAPIError

from receiver.durable.audit import audit, look
from receiver.errors import StoreError
from receiver.store.schema import losses, migrate
from tests.before import package_of, python_of
from tests.durable.opened import DUPLICATE, NEW, opened, send
from tests.durable.test_concurrent import WAITING_FOR_A_LOCK
from tests.patience import until
from tests.postgres import fresh_database
from tests.stores import execute, rows_of

ROOT = Path(__file__).resolve().parents[2]
BEFORE = "46c346d8ea60c831f47cf520840a8c7c1feca3cc"
"""A version without claims."""
CONSUMER = """
import sys
from receiver import Receiver

with Receiver.open(sys.argv[1], connection_id="broker", destination="queue://orders") as orders:
    print("open", flush=True)
    for line in sys.stdin:
        try:
            with orders.batch() as batch:
                verdict = batch.receive(line.strip(), received_at_us=0).verdict
            print(verdict, flush=True)
        except Exception as error:
            print("refused:", error, flush=True)
"""


class OlderConsumer:
    """A process of the version before, with an open receiver."""

    def __init__(self, package, url):
        self._process = subprocess.Popen(
            [*python_of(package), "-c", CONSUMER, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._said() == "open"

    def _said(self):
        return self._process.stdout.readline().strip()

    def receive(self, id_):
        self._process.stdin.write(f"{id_}\n")
        self._process.stdin.flush()
        return self._said()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.stdin.close()
        assert self._process.wait() == 0
        self._process.stdout.close()


@pytest.mark.costly
def test_one_of_the_version_before_goes_on_until_the_domain_is_concurrent(postgres_url, tmp_path):
    """Then it is refused: the ids that it records would not be claimed, and it wouldn't know those that wait to be
    folded in."""
    package = package_of(BEFORE, tmp_path)
    with fresh_database(postgres_url) as url, OlderConsumer(package, url) as older:
        assert older.receive("a") == "new"
        migrate(make_url(url))
        assert older.receive("b") == "new"
        with opened(url, concurrent=True) as orders:
            assert "refused" in older.receive("c")
            assert send(orders, "a", "b", "c") == [DUPLICATE, DUPLICATE, NEW]
            assert "refused" in older.receive("c")
            assert send(orders, "c") == [DUPLICATE]
        assert "refused" in older.receive("d")
        with opened(url) as orders:
            assert send(orders, "c", "d") == [DUPLICATE, NEW]
            assert older.receive("d") == "duplicate"
        assert rows_of(url, "receiver_claim") == 0


def test_consumers_are_replaced_one_by_one(fresh_postgres_url):
    """A new consumer converts the domain for all. Consumers of the other kind fail, lose nothing, and are opened
    again."""
    url = fresh_postgres_url
    with opened(url) as exclusive:
        assert send(exclusive, "a") == [NEW]
        with opened(url, concurrent=True) as orders:
            with pytest.raises(StoreError, match="open it again"):
                send(exclusive, "b")
            assert send(orders, "a", "b") == [DUPLICATE, NEW]
            with opened(url) as back:
                with pytest.raises(StoreError, match="open it again"):
                    send(orders, "c")
                assert send(back, "b", "c") == [DUPLICATE, NEW]


@pytest.fixture
def receipts_before_0014(fresh_postgres_url):
    """A store of version 0013. Its domain has receipts to be folded in, each in a row of its own."""
    url = fresh_postgres_url
    with opened(url, concurrent=True) as orders:
        domain_id = orders.domain_id
    migrate(make_url(url), "0013")
    for number, id_ in enumerate([b"a", b"\xed\xa0\x80", b"a", None], start=7):
        execute(
            url,
            "INSERT INTO receiver_arrival (domain_id, arrival, received_at_us, unique_message_id, redelivered, is_repeated)"
            " VALUES (:domain, :number, :number, :id, false, false)",
            domain=domain_id,
            number=number,
            id=id_,
        )
    execute(
        url,
        "INSERT INTO receiver_claim (domain_id, unique_message_id, is_repeated, is_single)"
        " SELECT DISTINCT domain_id, unique_message_id, true, false FROM receiver_arrival WHERE unique_message_id IS NOT NULL",
    )
    return url


def test_receipts_that_wait_are_packed_by_an_upgrade(receipts_before_0014):
    url = receipts_before_0014
    migrate(make_url(url))
    assert not audit(url).findings
    assert look(url).domains[0].unfolded_receipts == 4
    execute(url, "UPDATE receiver_arrival SET receipts = 17 WHERE arrival = 7")
    with pytest.raises(StoreError, match="20 receipts to be folded in"):
        migrate(make_url(url), "0013")
    folded_in = [lost for lost in losses(make_url(url), "base") if "folded in" in lost]
    assert folded_in == ["20 receipts to be folded in"]
    execute(url, "UPDATE receiver_arrival SET receipts = 1 WHERE arrival = 7")
    with opened(url, concurrent=True) as orders:
        assert send(orders, "a", "\ud800", "b") == [DUPLICATE, DUPLICATE, NEW]
    (domain,) = look(url).domains
    assert (domain.state.receipts, domain.state.unchecked, domain.state.last_seq) == (7, 1, 6)


def test_what_comes_while_going_back_waits_is_kept(fresh_postgres_url):
    """A consumer's transaction is open, so no receipt waits yet. It is committed before the tables can be dropped."""
    url = fresh_postgres_url
    with opened(url, concurrent=True) as orders:
        orders._folding.close()
        with ThreadPoolExecutor() as threads, orders.batch() as batch:
            batch.receive("a", received_at_us=0)
            going_back = threads.submit(migrate, make_url(url), "0013")
            until(lambda: rows_of(url, WAITING_FOR_A_LOCK) == 1)
            batch.__exit__(None, None, None)
            with pytest.raises(StoreError, match="can't hold 1 "):
                going_back.result()
    assert not audit(url).findings
    assert look(url).domains[0].unfolded_receipts == 1


def test_a_script_upgrades_no_store_where_receipts_wait(receipts_before_0014):
    """Only the command can pack the receipts."""
    command = [sys.executable, "-m", "alembic", "-x", "url=postgresql://", "upgrade", "0013:0014", "--sql"]
    script = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    with pytest.raises(DBAPIError, match="receipts wait to be folded in"):
        execute(receipts_before_0014, *script.split(";\n\n"))
    assert rows_of(receipts_before_0014, "receiver_arrival") == 4
