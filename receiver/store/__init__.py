"""A domain's log of receipts in SQLite, PostgreSQL or memory; nothing here knows what counts as a duplicate.

| file | what is in it |
|---|---|
| `log.py` | `DomainLog`: what can be done with a log, whatever keeps it |
| `sqlite_log.py`, `postgres_log.py`, `memory_log.py` | the logs themselves; `sql_log.py` has what the first two share |
| `joined_log.py` | the same through a connection, and in a transaction, of the caller's |
| `tables.py`, `schema.py`, `migration.py` | the tables; whether those in a database are ours, and current; Alembic |
| `forks.py` | SQLite's files in a process forked off |
| `engine.py`, `failures.py` | addresses and connections; what a driver's error means |
| `snapshot.py`, `audit.py`, `findings.py` | a whole store read as it is; what must hold of it; what was found broken |
"""
