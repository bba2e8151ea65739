"""A domain's log of receipts, its inboxes and its sources' positions in SQLite or PostgreSQL; a log in memory too.

Nothing here knows what counts as a duplicate.

| file | what is in it |
|---|---|
| `tables.py` | the records and tables: each field declared once |
| `codec.py` | how values and records are stored: text as bytes, objects as JSON, numbers as runs, a record's fields as columns |
| `log.py` | `DomainLog`: one domain's log, in memory or in a database; in a database by transactions of our own or in a caller's |
| `sql_rows.py` | a domain's rows through one connection: the statements that all kinds of databases share; an adapter for asynchronous drivers |
| `databases/` | what differs between SQLite and PostgreSQL: addresses, engines, statements, the meaning of drivers' errors |
| `connections.py` | a connection kept open for many short transactions |
| `schema.py` | whether the tables in a database are ours, and current; migrating them |
| `messages.py` | a message, and the fields of it that are kept: each declared once |
| `inbox.py`, `packed.py` | messages that wait for their target; how they are packed into rows |
| `recorded.py` | batches that wait to be written to the files of a recording |
| `positions.py` | how far bridges have read from brokers that keep every message |
| `upkeep.py` | commands for a person: list, move and drop inboxes, parked messages and domains |
| `snapshot.py`, `invariants.py` | one state of a whole store, and what is broken in it; the invariants of every store |
"""
