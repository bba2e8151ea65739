"""A log in a database: a query gives the same as a file with the same rows."""

import tracemalloc
import uuid
from datetime import UTC, datetime
from decimal import Decimal

import pytest
from reading import Row, csv_bytes, read, rows_of
from sqlalchemy import create_engine, text
from typer.testing import CliRunner

from receiver.cli import app
from receiver.errors import LogFormatError, ReceiverError, SettingsError, StoreError
from receiver.logs import ReadOptions, read_logs

ROWS = [
    Row(
        1_700_000_000_000_000 + 1_000_000 * second,
        f"id-{second % 7}",
        "s",
        "c",
        "queue://orders",
        "r",
        bool(second % 2),
        5,
    )
    for second in range(40)
]
COLUMNS = ", ".join(Row._fields)
ALL = f"SELECT {COLUMNS} FROM receipts ORDER BY received_at"  # noqa: S608


@pytest.fixture
def filled(store_url):
    """The address of a database with a table of receipts, which are out of order."""
    engine = create_engine(store_url)
    with engine.begin() as connection:
        columns = ", ".join(
            f"{name} {'bigint' if kind is int else 'text'}" for name, kind in Row.__annotations__.items()
        )
        connection.execute(
            text(f"CREATE TABLE receipts ({columns.replace('jms_redelivered text', 'jms_redelivered boolean')})")
        )
        insert = text(f"INSERT INTO receipts ({COLUMNS}) VALUES ({', '.join(f':{name}' for name in Row._fields)})")  # noqa: S608
        connection.execute(insert, [row._asdict() for row in reversed(ROWS)])
    engine.dispose()
    return store_url


def asked(address, sql, **options):
    return list(rows_of(read_logs([address], ReadOptions(**options), sql)))


def test_rows_come_in_the_order_of_the_query(filled, tmp_path):
    (tmp_path / "log.csv").write_bytes(csv_bytes(ROWS))
    assert asked(filled, ALL) == read(tmp_path / "log.csv") == ROWS
    assert asked(filled, f"{ALL} DESC") == ROWS[::-1]


def test_batches_are_one_log(filled, monkeypatch):
    monkeypatch.setattr("receiver.logs.query._ROWS", 7)
    assert asked(filled, ALL) == ROWS


def test_columns_have_the_names_of_logs_or_are_mapped(filled):
    sql = 'SELECT received_at, unique_message_id AS "uniqueMessageId", 7 AS more FROM receipts ORDER BY received_at'
    assert [row.unique_message_id for row in asked(filled, sql)] == [row.unique_message_id for row in ROWS]
    sql = "SELECT received_at AS seen, unique_message_id AS key FROM receipts ORDER BY received_at"
    mapped = asked(filled, sql, column_map={"received_at": "seen", "unique_message_id": "key"})
    assert [row.received_at for row in mapped] == [row.received_at for row in ROWS]


def test_a_query_that_lacks_a_column_says_what_it_gives(filled):
    with pytest.raises(LogFormatError) as caught:
        asked(filled, "SELECT received_at, connection_id AS order_key FROM receipts")
    assert "no column unique_message_id; there is: 'received_at', 'order_key'" in str(caught.value)
    with pytest.raises(LogFormatError, match="--map unique_message_id=FIELD"):
        asked(filled, 'SELECT received_at, connection_id AS "1" FROM receipts')


def test_a_percent_sign_and_a_colon_stand_for_themselves(filled):
    sql = "SELECT received_at, unique_message_id FROM receipts WHERE unique_message_id LIKE 'id-%' AND connection_id <> ':x'"
    assert len(asked(filled, sql)) == len(ROWS)


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("SELECT nothing FROM receipts", "the query fails: "),
        ("SELECT '\udcff' FROM receipts", "the query fails: 'utf-8' codec can't encode"),
        ("SELECT received_at, unique_message_id FROM receipts WHERE 1 = 0", "no receipt in the log"),
        ("nonsense", "SELECT at AS received_at, id AS unique_message_id"),
        ("SELECT 'x' AS received_at, 'a' AS unique_message_id", ":1: received_at"),
        ("DELETE FROM receipts", ""),
    ],
)
def test_what_is_no_log_is_refused(filled, sql, said):
    with pytest.raises(LogFormatError) as caught:
        asked(filled, sql)
    assert said in str(caught.value)
    assert len(asked(filled, ALL)) == len(ROWS)


def test_types_of_databases(fresh_postgres_url):
    """Times with and without a zone, numbers without limit, UUIDs, bytes."""
    key = uuid.UUID(int=7)
    sql = (
        f"SELECT timestamptz '2026-05-01 12:00:00+02' AS received_at, uuid '{key}' AS unique_message_id, 18::numeric AS jms_timestamp, "
        "bytea 'body' AS body_digest, 123456789012345678901234567890::numeric AS message_source_id"
    )
    (row,) = asked(fresh_postgres_url, sql)
    at_us = int(datetime(2026, 5, 1, 10, tzinfo=UTC).timestamp() * 1_000_000)
    assert row == Row(
        at_us, str(key), str(Decimal(123456789012345678901234567890)), jms_timestamp=18, body_digest="body"
    )
    (row,) = asked(
        fresh_postgres_url,
        "SELECT timestamp '2026-05-01 12:00' AS received_at, 'a' AS unique_message_id",
        time_zone="Europe/Paris",
    )
    assert row.received_at == at_us


def test_values_of_several_types_in_one_column_are_their_text(tmp_path):
    sql = "SELECT 1700000000 AS received_at, 7 AS unique_message_id UNION ALL SELECT 1700000001, 'seven'"
    (tmp_path / "some.db").touch()
    assert [row.unique_message_id for row in asked(f"sqlite:///{tmp_path}/some.db", sql)] == ["7", "seven"]


def test_what_is_not_there_is_not_made(tmp_path):
    with pytest.raises(StoreError):
        asked(f"sqlite:///{tmp_path}/none.db", "SELECT 1")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "logs", [["a.csv"], [], ["sqlite:///a", "sqlite:///b"], ["nosuch://u:secret@h/d"], ["mysql+nodriver://h/d"]]
)
def test_what_is_no_database_is_refused(logs):
    with pytest.raises(SettingsError) as caught:
        list(read_logs(logs, ReadOptions(), "SELECT 1"))
    assert "secret" not in str(caught.value)


def test_a_password_is_not_shown():
    with pytest.raises(ReceiverError) as caught:
        asked("postgresql://user:secret@127.0.0.1:1/d", "SELECT 1")
    assert "secret" not in str(caught.value)


@pytest.mark.costly
def test_memory_does_not_grow_with_the_rows(tmp_path):
    """A million rows take as much memory as a hundred thousand. All at once would take hundreds of megabytes."""
    (tmp_path / "empty.db").touch()

    def peak_bytes(rows):
        sql = (
            f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {rows}) "  # noqa: S608
            "SELECT 1700000000 + i AS received_at, 'an id of some length ' || i AS unique_message_id FROM n"
        )
        tracemalloc.start()
        assert sum(map(len, read_logs([f"sqlite:///{tmp_path}/empty.db"], ReadOptions(), sql))) == rows
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak

    assert peak_bytes(200_000) < 1.2 * peak_bytes(20_000)


def test_the_command_answers_as_for_a_file(filled, tmp_path):
    (tmp_path / "log.csv").write_bytes(csv_bytes(ROWS))
    run = CliRunner()
    for command in (["simulate", "--json"], ["compare", "--policy=lru:size=3", "--json"]):
        from_file = run.invoke(app, [*command, str(tmp_path / "log.csv")])
        from_query = run.invoke(app, [*command, filled, "--query", ALL])
        assert from_query.output == from_file.output
        assert (from_query.exit_code, from_file.exit_code) == (0, 0)
    refused = run.invoke(app, ["simulate", filled, "--query", ALL, "--engine", "spark"])
    assert refused.exit_code != 0


def test_ids_of_several_types_are_their_exact_text(tmp_path):
    (tmp_path / "some.db").touch()
    ids = "1", "x'6162'", "'ab'", "NULL", "x'c3a9'", "'é'"
    sql = " UNION ALL ".join(f"SELECT {at} AS received_at, {id_} AS unique_message_id" for at, id_ in enumerate(ids))
    assert [row.unique_message_id for row in asked(f"sqlite:///{tmp_path}/some.db", sql)] == [
        "1",
        "ab",
        "ab",
        "",
        "é",
        "é",
    ]
