"""A domain's log of receipts in SQLite, PostgreSQL or memory, and its inboxes; nothing here knows what counts as a duplicate.

| file | what is in it |
|---|---|
| `log.py` | `DomainLog`: what can be done with a log, whatever keeps it |
| `sqlite_log.py`, `postgres_log.py`, `memory_log.py` | the logs themselves; `sql_log.py` has what the first two share |
| `joined_log.py` | the same through a connection, and in a transaction, of the caller's |
| `inbox.py`, `inbox_rows.py`, `parking.py` | messages that wait for their target, and those set aside because it refused them |
| `kept.py`, `space.py` | a connection kept open for many short transactions; space of deleted rows given back |
| `tables.py`, `schema.py`, `migration.py` | the tables; whether those in a database are ours, and current; Alembic |
| `forks.py` | SQLite's files in a process forked off |
| `engine.py`, `failures.py` | addresses and connections; what a driver's error means |
| `snapshot.py`, `audit.py`, `inbox_audit.py`, `findings.py` | a whole store read as it is; what must hold of it; what was found broken |
"""
