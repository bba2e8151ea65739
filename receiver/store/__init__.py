"""A domain's log of receipts in SQLite, PostgreSQL or memory, and its inboxes; nothing here knows what counts as a duplicate.

| file | what is in it |
|---|---|
| `log.py` | `DomainLog`: what can be done with a log, whatever keeps it |
| `databases/` | what SQLite and PostgreSQL do in their own ways, an object each; no other room knows which kinds there are |
| `sql_log.py`, `memory_log.py` | the log in a database, as far as all kinds have it in common; the log in memory |
| `joined_log.py` | the same through a connection, and in a transaction, of the caller's |
| `inbox.py`, `inbox_rows.py`, `parking.py` | messages that wait for their target, and those set aside because it refused them |
| `kept.py` | a connection kept open for many short transactions |
| `tables.py`, `schema.py`, `migration.py` | the tables; whether those in a database are ours, and current; Alembic |
| `engine.py`, `connections.py`, `failures.py` | from an address to its kind and an engine; drivers; their errors become ours |
| `snapshot.py`, `audit.py`, `inbox_audit.py`, `findings.py` | a whole store read as it is; what must hold of it; what was found broken |
"""
