"""A domain's log of receipts, its inboxes and its sources' positions in SQLite or PostgreSQL; a log in memory too.

Nothing here knows what counts as a duplicate.

| file | what is in it |
|---|---|
| `tables.py` | the records and tables: each field declared once |
| `codec.py` | how values and records are stored: text as bytes, objects as JSON, a record's fields as columns |
| `log.py` | `DomainLog`: what can be done with a log, whatever keeps it: memory, or a database in transactions of our own, or in one of the caller's |
| `sql_rows.py` | a domain's rows through one connection: the statements that all kinds of databases have in common; what stands for a caller's asynchronous driver |
| `databases/` | from an address to its kind and an engine; drivers' errors become ours; what SQLite and PostgreSQL do in their own ways, an object each |
| `connections.py` | a connection kept open for many short transactions; which thread or task has which lock |
| `schema.py` | whether the tables in a database are ours, and current; migrating them |
| `messages.py` | a message, and what is kept of it: each field declared once |
| `inbox.py`, `packed.py` | messages that wait for their target; how they are packed into rows |
| `recorded.py` | batches that wait to be written to the files of a recording |
| `positions.py` | how far a domain's sources have come, for brokers that don't forget what was taken |
| `upkeep.py` | what a person does to a store: inboxes, parked messages and domains listed, moved, dropped |
| `snapshot.py`, `invariants.py` | a whole store read as it is, and what is broken in it; what must hold |
"""
