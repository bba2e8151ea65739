"""Stores that are broken on purpose: how each sound store is damaged, and what an audit must say of it."""

from typing import Any, NamedTuple

FF, EMPTY = b"\xff", b""
ORDERS = "domain_id = 1"
"""The domain to break. It has received 46 receipts and keeps 13 of them, of which several are of known ids."""
OLDEST = "(SELECT min(seq) FROM receiver_receipt WHERE domain_id = 1)"
NEWEST = "(SELECT max(seq) FROM receiver_receipt WHERE domain_id = 1)"
REPEATED = f"{ORDERS} AND first_received_at_us IS NOT NULL"

MESSAGES = ("receiver_inbox", "receiver_parked")
"""Each has one message of that domain, beside a row with ten waiting messages and a row with one that was tried."""
TEN = "messages = 10"
TRIED = "messages = 1"


class Case(NamedTuple):
    kind: str
    statement: str
    values: dict[str, Any] = {}  # noqa: RUF012 - nobody changes it


def domain(kind: str, change: str, **values: Any) -> Case:
    return Case(kind, f"UPDATE receiver_domain SET {change} WHERE {ORDERS}", values)


def receipt(kind: str, change: str, which: str = f"{ORDERS} AND seq = {NEWEST}", **values: Any) -> Case:
    return Case(kind, f"UPDATE receiver_receipt SET {change} WHERE {which}", values)


NUMBERS = [
    "incarnation",
    "generation",
    "last_seq",
    "last_writer",
    "latest_us",
    "receipts",
    "unchecked",
    "duplicates",
    "reused_ids",
    "redelivered",
    "clock_clamped",
    "max_delivery_us",
    "retired_sources",
]

EITHER = [
    *(domain("negative", f"{name} = -1") for name in NUMBERS),
    Case("strays", "INSERT INTO receiver_receipt VALUES (1, 2, NULL, 99, NULL, :id, NULL, NULL)", {"id": b"a"}),
    Case("strays", "INSERT INTO receiver_joined VALUES (99, 2, 3, 4)"),
    Case("strays", "INSERT INTO receiver_claim VALUES (99, :id, NULL, FALSE, TRUE)", {"id": b"a"}),
    Case("claims", "INSERT INTO receiver_claim VALUES (1, :id, NULL, FALSE, TRUE)", {"id": b"a"}),
    Case("strays", f"DELETE FROM receiver_domain WHERE {ORDERS}"),
    Case("same-domain", "UPDATE receiver_domain SET incarnation = 7"),
    domain("name", "domain_key = 'letter'"),
    domain("name", "domain_key = 'name:letter'"),
    domain("name", "domain_key = 'name', domain_name = :empty", empty=EMPTY),
    domain("name", "domain_name = :ff", ff=FF),
    domain("settings", "window_size = 0, expiry_us = 0"),
    domain("settings", "window_size = -1"),
    domain("settings", "expiry_us = -1"),
    domain("settings", "window_size = 1000000000001"),
    domain("counters", "receipts = receipts + 1"),
    domain("counters", "unchecked = unchecked + 1"),
    domain("counters", "unchecked = receipts + 1"),
    domain("counters", "duplicates = last_seq"),
    domain("counters", "duplicates = 0, reused_ids = 0"),
    domain("counters", "clock_clamped = last_seq"),
    domain("counters", "reused_ids = duplicates + 1"),
    domain("counters", "redelivered = receipts + 1"),
    domain("counters", "redelivered = 0"),
    domain("clocks", "clock_us = latest_us + 1"),
    domain("clocks", "clock_us = -1"),
    domain("clocks", "expiry_us = 0"),
    Case("clocks", "UPDATE receiver_domain SET latest_us = 1 WHERE last_seq = 0"),
    Case("clocks", "UPDATE receiver_domain SET clock_us = 0 WHERE last_seq = 0"),
    *(
        domain("needs", "needs_by_hour = :needs", needs=needs)
        for needs in (
            "x",
            "",
            "{}",
            "null",
            "[]",
            "[0]",
            "[[0,1,false]]",
            "[[0,1,0,1]]",
            "[[-1,1,false,1]]",
            "[[0,0,false,1]]",
            "[[0,1,false,0]]",
            "[[0,1,false,0.5]]",
            "[[1,1,false,1]]",
            "[[0,1,false,1],[0,1,false,1]]",
            "[" * 100_000,
        )
    ),
    domain("needs", "latest_us = 90000000000, needs_by_hour = '[[1,1,false,1],[0,1,false,1]]'"),
    domain("needs", "latest_us = 90000000000, needs_by_hour = '[[0,1,false,1],[25,1,false,1]]'"),
    Case("needs", "UPDATE receiver_domain SET needs_by_hour = '[[0,1,false,1]]' WHERE last_seq = 0"),
    domain("needs", "policy = 'perfect'"),
    Case("marks", "INSERT INTO receiver_joined VALUES (1, 2, 3, 47)"),
    Case("marks", "INSERT INTO receiver_joined VALUES (1, 2, 3, -1)"),
    Case("marks", "INSERT INTO receiver_joined VALUES (1, 2, 0, 1)"),
    Case("marks", "INSERT INTO receiver_joined VALUES (1, -2, 3, 1)"),
    receipt("numbers", "seq = seq + 1"),
    receipt("numbers", "seq = 0", f"{ORDERS} AND seq = {OLDEST}"),
    receipt("numbers", "seq = -1", f"{ORDERS} AND seq = {OLDEST}"),
    receipt("order", "received_at_us = received_at_us + 100000000", f"{ORDERS} AND seq = {OLDEST}"),
    receipt("order", "received_at_us = 0"),
    receipt("ids", "unique_message_id = :empty", empty=EMPTY),
    receipt("ids", "unique_message_id = :ff", ff=FF),
    receipt("ids", "message_source_id = :empty", empty=EMPTY),
    receipt("ids", "message_source_id = :ff", ff=FF),
    receipt("first-times", "first_received_at_us = received_at_us + 1", REPEATED),
    receipt("first-times", "first_received_at_us = -1", REPEATED),
    *(
        receipt("digests", "body_digests = :digests", digests=digests)
        for digests in (
            "x",
            "",
            "{}",
            "null",
            "[]",
            "[1]",
            '["a", "a"]',
            '["a", null]',
            r'["\\d"]',
            '["é"]',
            '[""]',
            "[" * 100_000,
        )
    ),
    receipt("retired", "policy_mark = 3"),
    receipt("retired", "policy_mark = 1"),
    domain("newest", "latest_us = latest_us + 1"),
    domain("newest", "last_seq = last_seq + 1, receipts = receipts + 1"),
    Case("newest", f"DELETE FROM receiver_receipt WHERE {ORDERS} AND seq = {NEWEST}"),
    Case("newest", f"DELETE FROM receiver_receipt WHERE {ORDERS}"),
    Case("strays", "INSERT INTO receiver_target (domain_id, target) VALUES (99, :name)", {"name": b"file:a"}),
    Case("strays", "DELETE FROM receiver_target"),
    Case("strays", "INSERT INTO receiver_position VALUES (99, :name, :name, :name)", {"name": b"a"}),
    Case("strays", "INSERT INTO receiver_node VALUES (99, :name, :name, 1)", {"name": b"a"}),
    Case("nodes", "INSERT INTO receiver_node VALUES (1, :name, :empty, 1)", {"name": b"a", "empty": EMPTY}),
    Case("nodes", "INSERT INTO receiver_node VALUES (1, :ff, :name, 1)", {"name": b"a", "ff": FF}),
    Case("positions", "INSERT INTO receiver_position VALUES (1, :name, :name, :empty)", {"name": b"a", "empty": EMPTY}),
    Case("positions", "INSERT INTO receiver_position VALUES (1, :name, :ff, :name)", {"name": b"a", "ff": FF}),
    *(Case("strays", f"UPDATE {table} SET target_id = 99") for table in (*MESSAGES, "receiver_bundle")),
    *(
        Case("targets", f"UPDATE receiver_target SET {change}", {"text": text} if ":text" in change else {})
        for change, text in (
            ("target = :text", EMPTY),
            ("target = :text", FF),
            ("confirmed_bytes = NULL", EMPTY),
            ("confirmed_bytes = -1", EMPTY),
            ("tail_digest = NULL", EMPTY),
        )
    ),
    *(
        Case("messages", f"UPDATE {table} SET {change}", {"text": FF} if ":text" in change else {})
        for table in MESSAGES
        for change in (
            "place = -1",
            "place = 48",
            "tries = -1",
            "received_at_us = -1",
            "unique_message_id = :text",
            "message_source_id = :text",
            "destination = :text",
            "message_id = :text",
            "properties = 'x'",
            "properties = '[]'",
            "headers = '[]'",
        )
    ),
    *(
        Case("messages", f"UPDATE receiver_bundle SET {change} WHERE {TEN}", {"text": FF} if ":text" in change else {})
        for change in (
            "first_sequence = 19",
            "last_sequence = 30",
            "received_at_us = 1",
            "body_bytes = body_bytes + 1",
            "messages = 9",
            "runs = 'x'",
            "runs = '[[20,28]]'",
            "runs = '[[20,28],[20,20]]'",
            "runs = '[[20,1000000000000]]'",
            "first_sequence = 40, last_sequence = 49, runs = '[[40,49]]'",
            "packed = :text",
            "tries = 1",
            "sources = :text",
        )
    ),
    Case("messages", f"UPDATE receiver_bundle SET tries = -1 WHERE {TRIED}"),
    Case(
        "messages",
        f"UPDATE receiver_bundle SET first_sequence = 21, last_sequence = 21, runs = '[[21,21]]' WHERE {TRIED}",
    ),
    *(Case("messages", f"UPDATE {table} SET place = 25") for table in MESSAGES),
    *(
        Case(
            "recorded",
            f"UPDATE receiver_recorded SET {change} WHERE number = {number}",
            {"ff": FF} if ":ff" in change else {},
        )
        for number in (1, 2)
        for change in (
            "receipts = 0",
            "size_bytes = 0",
            "recorded_at_us = -1",
            "packed = :ff",
            "recording = :ff",
            "host = :ff",
        )
    ),
    Case("recorded", "UPDATE receiver_recorded SET receipts = 3 WHERE number = 1"),
    domain("rebuilt", "clock_us = NULL"),
    domain("rebuilt", "clock_us = 0"),
    domain("rebuilt", "window_size = 1000, clock_us = NULL"),
    domain("rebuilt", "duplicates = last_seq - 1"),
]
"""Damages that either database allows."""

SQLITE = [
    *(Case("types", f"UPDATE receiver_bundle SET {name} = 'text'") for name in ("messages", "packed")),
    *(Case("types", f"UPDATE receiver_bundle SET {name} = CAST({name} AS BLOB)") for name in ("runs", "tries")),
    Case("types", "UPDATE receiver_bundle SET sources = 'text'"),
    Case("messages", "UPDATE receiver_bundle SET packed = CAST(replace(packed, '[0]', '[null]') AS BLOB)"),
    Case("messages", "UPDATE receiver_bundle SET packed = CAST(replace(packed, '[false]', '[2.5]') AS BLOB)"),
    domain("types", "receipts = 'many'"),
    domain("types", "domain_name = 'orders'"),
    domain("types", "domain_key = :ff", ff=FF),
    domain("types", "window_size = 0.5"),
    domain("types", "needs_by_hour = CAST('[[0,1,false,1]]' AS BLOB)"),
    receipt("types", "unique_message_id = 'text'"),
    receipt("types", "received_at_us = 'noon'"),
    receipt("types", "first_received_at_us = 0.5"),
    receipt("types", "message_source_id = 7"),
    receipt("types", "body_digests = :ff", ff=FF),
    receipt("types", "seq = 'first'"),
    receipt("digests", "body_digests = CAST(:digests AS TEXT)", digests=b'["\xff"]'),
    Case("types", "INSERT INTO receiver_joined VALUES (1, 2, 3, 'last')"),
    *(Case("types", f"UPDATE receiver_target SET {name} = 'text'") for name in ("target", "confirmed_bytes")),
    Case("types", "INSERT INTO receiver_node VALUES (1, :name, :name, 'noon')", {"name": b"a"}),
    Case("types", "INSERT INTO receiver_position VALUES (1, :name, :name, '12')", {"name": b"a"}),
    *(Case("types", f"UPDATE receiver_recorded SET {name} = 'text'") for name in ("recording", "receipts", "packed")),
    *(
        Case("types", f"UPDATE {table} SET {name} = 'text'")
        for table in MESSAGES
        for name in ("place", "tries", "is_text", "unique_message_id", "destination", "body")
    ),
    *(
        Case("types", f"UPDATE {table} SET {name} = CAST('{{}}' AS BLOB)")
        for table in MESSAGES
        for name in ("headers", "properties")
    ),
    Case("strays", "INSERT INTO receiver_receipt VALUES (1, 2, NULL, 'orders', NULL, :id, NULL, NULL)", {"id": b"a"}),
]
"""Damages that only SQLite allows: values of other types than their columns'."""

POSTGRESQL_KEYS = {
    "ALTER TABLE receiver_domain DROP CONSTRAINT receiver_domain_name_key": {"keys"},
    "ALTER TABLE receiver_domain DROP CONSTRAINT receiver_domain_pkey": {"keys"},
    "ALTER TABLE receiver_receipt DROP CONSTRAINT receiver_receipt_pkey": {"keys"},
    "ALTER TABLE receiver_joined DROP CONSTRAINT receiver_joined_pkey": {"keys"},
    "ALTER TABLE receiver_target DROP CONSTRAINT receiver_target_name_key": {"keys"},
    "ALTER TABLE receiver_inbox DROP CONSTRAINT receiver_inbox_pkey": {"keys"},
    "ALTER TABLE receiver_bundle DROP CONSTRAINT receiver_bundle_pkey": {"keys"},
    "ALTER TABLE receiver_parked DROP CONSTRAINT receiver_parked_place_key": {"keys"},
    "ALTER TABLE receiver_domain ALTER COLUMN incarnation DROP NOT NULL": {"keys"},
    "ALTER TABLE receiver_domain DROP CONSTRAINT receiver_domain_name_key;"
    "UPDATE receiver_domain SET domain_key = 'name', domain_name = 'a'": {"keys", "same-domain"},
    "ALTER TABLE receiver_receipt DROP CONSTRAINT receiver_receipt_pkey;"
    "INSERT INTO receiver_receipt SELECT * FROM receiver_receipt": {"keys", "numbers"},
    "ALTER TABLE receiver_domain ALTER COLUMN latest_us DROP NOT NULL;UPDATE receiver_domain SET latest_us = NULL": {
        "keys",
        "types",
    },
}
SQLITE_KEYS = {
    "ALTER TABLE receiver_joined RENAME TO old; CREATE TABLE receiver_joined"
    " (domain_id INTEGER NOT NULL, writer BIGINT NOT NULL, batch BIGINT NOT NULL, last_seq BIGINT NOT NULL)": {"keys"},
    "ALTER TABLE receiver_joined RENAME TO old; CREATE TABLE receiver_joined (domain_id INTEGER NOT NULL,"
    " writer BIGINT NOT NULL, batch BIGINT, last_seq BIGINT NOT NULL, PRIMARY KEY (domain_id, writer))": {"keys"},
}
