"""What the kinds of database do each in their own way. No other room knows which kinds there are; another is another object.

| file | what is in it |
|---|---|
| `database.py` | `Database`: what each kind says of itself and does in its own way |
| `sqlite.py`, `sqlite_file.py`, `sqlite_log.py` | SQLite: the object, how its files are opened, its log of receipts |
| `postgres.py`, `postgres_log.py` | PostgreSQL: the object, its log of receipts |
| `addresses.py`, `causes.py`, `space.py` | addresses shown and refused; what can be wrong; space of deleted rows |
| `bulk.py`, `forks.py` | SQLite's alone: many rows at a time; its files in a process forked off |

Which of them an address or a connection means is said by `database_of` in `store/engine.py`. The tables' options of one
kind stand with the tables, in SQLAlchemy's own words.
"""
