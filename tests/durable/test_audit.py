"""An audit reports whatever is broken in a store, and nothing else."""

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from broken import EITHER, POSTGRESQL_KEYS, SQLITE, SQLITE_KEYS, Case
from sqlalchemy import delete, insert, select, text

from receiver.domains import Channel
from receiver.durable.audit import audit, look
from receiver.durable.forgetting import retire_sources
from receiver.durable.receiver import Receiver
from receiver.errors import ReceiverError, StoreCorruptError, StoreError
from receiver.logs.packing import packed
from receiver.message import Receipt
from receiver.settings import ReceiverSettings
from receiver.store.inbox import Inbox
from receiver.store.snapshot import PROBLEMS
from receiver.store.tables import METADATA, RecordedRow, recorded, recorded_codec
from tests.durable.server import mortal_server
from tests.postgres import fresh_database
from tests.store.waiting import add, message, unpack_all
from tests.stores import engine_of, execute

pytestmark = pytest.mark.thinned(3)

ORDERS = {"connection_id": "a", "destination": "orders"}
WAITING = message(47, "source 0", unique_message_id="clamped", received_at_us=0)


def settings(window: int, expiry_secs: float) -> ReceiverSettings:
    return ReceiverSettings(
        dup_detection_per_source_expiry_window_size=window, dup_detection_expiry_time_secs=expiry_secs
    )


def make(address: str) -> None:
    """Make two domains. All counters of orders are above 0. It has waiting messages and a parked one; one waits as
    an older process has left it, and one has been tried. Its recorded batches wait too, and are cut to a file. The
    other domain has no receipt."""
    with Receiver.open(address, **ORDERS, settings=settings(3, 10)) as orders:
        for numbers in range(16), range(16, 40):
            with orders.batch() as batch:
                batch.receive(None)
                for number in numbers:
                    now_us = number * 1_000_000
                    batch.receive(f"id {number}", f"source {number % 2}", received_at_us=now_us)
                for digest in "xy":
                    batch.receive(
                        "again", received_at_us=now_us, body_digest=digest, redelivered=True, jms_timestamp_ms=1
                    )
                batch.receive("clamped", "source 0", received_at_us=0)
        with (
            Inbox(address, domain_id=orders.domain_id, target="file:orders.jsonl") as inbox,
            inbox.lease() as lease,
        ):
            add(inbox, lease.connection, [WAITING])
            unpack_all(lease.connection)
            add(inbox, lease.connection, [WAITING._replace(sequence=31, tries=2)])
            add(inbox, lease.connection, [WAITING._replace(sequence=number) for number in range(20, 30)])
            lease.park(WAITING._replace(sequence=46, tries=3), "refused")
            lease.save_file(17, b"digest")
    retire_sources(address, sources=["source 1"])
    batch = packed([], [(0, Receipt("a", None, 5))], Channel())
    left = RecordedRow("/receipts.parquet", "host", 5, None, *batch)
    cut = left._replace(file="receipts-20260101T000000.000000Z-1.parquet", packed=b"[[1,1]]")
    with engine_of(address).begin() as connection:
        for row in (left, cut):
            connection.execute(insert(recorded).values(dict(zip(row._fields, recorded_codec.stored(row), strict=True))))
    Receiver.open(address, connection_id="b", destination="orders").close()


def kinds(address: str) -> set[str]:
    return {finding.kind for finding in audit(address).findings}


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def sound_store(request, tmp_path_factory):
    """The address of a sound store of either kind."""
    if request.param == "sqlite":
        address = f"sqlite:///{tmp_path_factory.mktemp('audit') / 'receiver.db'}"
        make(address)
        yield address
        return
    with fresh_database(request.getfixturevalue("postgres_url")) as address:
        make(address)
        yield address


@pytest.fixture
def store(sound_store):
    """The address of the same store. A test may break it: it is restored at the end."""
    with engine_of(sound_store).connect() as connection:
        rows = {table: connection.execute(select(table)).all() for table in METADATA.tables.values()}
    yield sound_store
    with engine_of(sound_store).begin() as connection:
        for table, held in rows.items():
            connection.execute(delete(table))
            if held:
                connection.execute(insert(table), [dict(zip(table.c.keys(), row, strict=True)) for row in held])


def test_a_sound_store(store):
    audited = audit(store)
    assert audited.findings == ()
    orders, empty = audited.domains
    assert (orders.state.last_seq, orders.rows, orders.remembered_ids) == (46, 13, 13)
    counted = [value for value in orders.state if isinstance(value, int) and not isinstance(value, bool)]
    assert min(counted) >= 0
    assert counted.count(0) == 1, "all but `generation` are above 0, so that breaking one is no accident"
    assert (empty.rows, empty.remembered_ids, empty.waiting_rows) == (0, 0, 0)
    assert (orders.inbox, orders.parked, empty.inbox, empty.parked) == (12, 1, 0, 0)
    assert look(store) == audited


@pytest.mark.thinned(6)
@pytest.mark.parametrize("case", EITHER, ids=lambda case: f"{case.kind}: {case.statement}"[:120])
def test_whatever_is_broken_is_found(case: Case, store):
    execute(store, case.statement, **case.values)
    problems = {finding.kind: finding for finding in audit(store).findings}
    assert case.kind in problems
    assert problems[case.kind].count >= 1
    assert problems[case.kind].example
    assert set(problems) <= set(PROBLEMS)


@pytest.mark.thinned(4)
@pytest.mark.parametrize("case", SQLITE, ids=lambda case: f"{case.kind}: {case.statement}"[:120])
def test_values_of_other_types_are_found(case: Case, sqlite_url):
    make(sqlite_url)
    execute(sqlite_url, case.statement, **case.values)
    assert case.kind in kinds(sqlite_url)


@pytest.mark.thinned(8)
@pytest.mark.parametrize("case", [*EITHER, *SQLITE], ids=lambda case: f"{case.kind}: {case.statement}"[:120])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of digests in no escape that there is
def test_a_receiver_of_what_is_broken_says_so_or_goes_on(case: Case, sqlite_url):
    make(sqlite_url)
    execute(sqlite_url, case.statement, **case.values)
    for options in ({}, {"settings": settings(4, 11)}):
        with suppress(ReceiverError), Receiver.open(sqlite_url, **ORDERS, **options) as orders, orders.batch() as batch:
            batch.receive("again", received_at_us=60_000_000, body_digest="z")


@pytest.mark.parametrize("mark", ["'text'", "x'00'"])
@pytest.mark.parametrize("text", ["artemis:id_cache_size=3", "cmq:retry=1,network=1"])
def test_a_mark_of_another_type(text, mark, sqlite_url):
    with Receiver.open(sqlite_url, **ORDERS, policy=text) as orders, orders.batch() as batch:
        batch.receive_many([("a", None, 0), ("b", None, 0), ("c", None, 0)])
    execute(sqlite_url, f"UPDATE receiver_receipt SET policy_mark = {mark} WHERE seq = 2")  # noqa: S608
    assert kinds(sqlite_url) == {"types"}
    for resized in (text, text.replace("=1", "=2").replace("=3", "=2")):
        with pytest.raises(StoreCorruptError):
            Receiver.open(sqlite_url, **ORDERS, policy=resized)


@pytest.mark.parametrize("kind", ["sequence", "solace-last"])
def test_ids_that_the_policy_cannot_judge(kind, store_url):
    with Receiver.open(store_url, **ORDERS, policy="perfect") as orders, orders.batch() as batch:
        batch.receive("order-17", received_at_us=0)
    execute(store_url, "UPDATE receiver_domain SET policy = :kind", kind=kind)
    assert kinds(store_url) == {"ids"}
    assert look(store_url).domains[0].remembered_ids is None
    with pytest.raises(StoreCorruptError):
        Receiver.open(store_url, **ORDERS)


def test_a_minimum_told_before_any_receipt_is_sound(store_url):
    with Receiver.open(store_url, **ORDERS, policy="cmq:retry=0,network=0") as orders, orders.batch() as batch:
        batch.advance(min_msg_time_us=5)
    assert kinds(store_url) == set()


def test_resizes_by_those_who_are_killed_are_sound(store_url):
    """Each resize makes the newest receipt's row look like a duplicate's, and none deletes that row."""
    for size in (1_000, 0, 1_000, 0):
        with closing_roughly(Receiver.open(store_url, **ORDERS, policy=f"artemis:id_cache_size={size}")) as orders:
            if size:
                with orders.batch() as batch:
                    batch.receive_many((f"{number}", None, 0) for number in range(size))
    assert kinds(store_url) == set()


@contextmanager
def closing_roughly(orders: Receiver) -> Iterator[Receiver]:
    """Close as a kill does: the connection ends, and nothing is tidied up before."""
    yield orders
    orders.session.log.close()


@pytest.mark.parametrize("statement", SQLITE_KEYS)
def test_lost_constraints_in_sqlite(statement, sqlite_url):
    make(sqlite_url)
    execute(sqlite_url, *statement.split(";"))
    assert kinds(sqlite_url) == SQLITE_KEYS[statement]


@pytest.mark.slow
def test_lost_constraints_in_postgresql(postgres_url, made_database):
    for statement, expected in POSTGRESQL_KEYS.items():
        with fresh_database(postgres_url, made_database) as address:
            make(address)
            execute(address, *statement.split(";"))
            assert kinds(address) == expected, statement


def test_each_kind_has_a_case():
    cases = {case.kind for case in [*EITHER, *SQLITE]} | set().union(*POSTGRESQL_KEYS.values())
    assert set(PROBLEMS) - cases == {"damaged", "unreadable"}, "which have tests of their own, below"


def test_problems_are_said_in_the_words_of_the_documents():
    """A few columns keep an older name, and words made from it would show that name."""
    older = {
        part for table in METADATA.tables.values() for c in table.c if c.name != c.key for part in c.name.split("_")
    }
    assert older == {"incarnation", "policy", "mark", "place"}
    said = {word.removesuffix("s") for problem in PROBLEMS.values() for word in problem.split()}
    assert not said & (older - {"policy"})


def test_findings_of_one_kind_are_counted(store):
    execute(store, "UPDATE receiver_receipt SET body_digests = 'x' WHERE domain_id = 1")
    (finding,) = audit(store).findings
    assert (finding.kind, finding.count, finding.domain) == ("digests", 13, ("default", "a:queue://orders"))
    assert "receipt" in finding.example


def test_every_damaged_page_of_a_file_is_found(sqlite_url, tmp_path):
    make(sqlite_url)
    with Receiver.open(sqlite_url, **ORDERS, settings=settings(2_000, 10)) as orders, orders.batch() as batch:
        batch.receive_many((f"an id to fill pages {number}", None, 50_000_000) for number in range(500))
    file = tmp_path / "receiver.db"
    sound = file.read_bytes()
    pages = len(sound) // 4096
    assert pages > 10
    problems = set()
    for page in range(1, pages):
        file.write_bytes(sound[: page * 4096] + b"\xa5" * 4096 + sound[(page + 1) * 4096 :])
        before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
        try:
            problems |= (here := kinds(sqlite_url))
        except StoreError:
            pass  # the first page says which tables there are, so the store can't even be opened
        else:
            assert here, page
        assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert problems == {"damaged", "unreadable"}


def test_a_damaged_page_of_a_server_is_found():
    with mortal_server() as server:
        make(server.url)
        path = "SELECT pg_relation_filepath('receiver_receipt'), current_setting('data_directory')"
        with engine_of(server.url).connect() as connection:
            file, folder = connection.execute(text(path)).one()
        execute(server.url, "CHECKPOINT")
        server.kill()
        Path(folder, file).write_bytes(b"\xa5" * 8192)
        server.start()
        findings = audit(server.url).findings
    assert {finding.kind for finding in findings} == {"unreadable"}
    assert ("default", "a:queue://orders") in {finding.domain for finding in findings}


@pytest.mark.costly
def test_whatever_receivers_do_is_sound(store_url, seed):
    """Two receivers' batches are left by errors, join transactions or are rolled back. Receivers vanish, and resize
    the domain."""
    rng = random.Random(seed)
    now_us = 0
    receivers = [opened_at_random(store_url, rng), opened_at_random(store_url, rng)]
    engine = engine_of(store_url)
    for _ in range(40):
        orders = rng.choice(receivers)
        with engine.connect() as connection, suppress(TimeoutError):
            with orders.batch(rng.choice([None, None, connection])) as batch:
                for _ in range(rng.randrange(12)):
                    now_us = max(0, now_us + rng.randrange(-1_000_000, 2_000_000))
                    receive_at_random(batch, rng, now_us)
            if rng.random() < 0.7:
                connection.commit()
        assert audit(store_url).findings == ()
        if rng.random() < 0.2:
            receivers.remove(orders)
            (orders.close if rng.random() < 0.5 else orders.session.log.close)()
            receivers.append(opened_at_random(store_url, rng))
    newcomer = Receiver.open(store_url, **ORDERS)
    assert audit(store_url).domains[0].remembered_ids == newcomer.status().rDupIds
    for orders in [*receivers, newcomer]:
        orders.close()


def opened_at_random(address, rng):
    sizes = rng.choice([(2, 10), (0, 3), (5, 0), (50, 1)]) if rng.random() < 0.3 else None
    return Receiver.open(address, **ORDERS, settings=sizes and settings(*sizes), id_reuse="deliver")


def receive_at_random(batch, rng, now_us):
    batch.receive(
        rng.choice(["", *"abcdefgh"]),
        rng.choice("st"),
        received_at_us=now_us,
        redelivered=rng.random() < 0.5,
        jms_timestamp_ms=rng.choice([None, 0, 1]),
        body_digest=rng.choice([None, "", "x", "\\d\ud800é"]),
    )
    if rng.random() < 0.01:
        raise TimeoutError


def test_beside_a_receiver_at_work(store_url):
    """Every audit sees the store between two batches, never inside one."""
    make(store_url)
    is_over = threading.Event()

    def work():
        with Receiver.open(store_url, **ORDERS) as orders:
            number = 0
            while not is_over.is_set():
                with orders.batch() as batch:
                    for _ in range(50):
                        number += 1
                        batch.receive(f"at work {number % 700}", received_at_us=50_000_000 + number * 10_000)

    worker = threading.Thread(target=work)
    worker.start()
    try:
        looks = [audit(store_url) for _ in range(12)]
    finally:
        is_over.set()
        worker.join()
    assert [each.findings for each in looks] == [()] * len(looks)
    seen = [each.domains[0].state.last_seq for each in looks]
    assert seen == sorted(seen)
    assert seen[-1] > seen[0]
