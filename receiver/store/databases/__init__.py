"""What each kind of database does in its own way. No module outside knows which kinds there are; another is another object.

| file | what is in it |
|---|---|
| `database.py` | `Database`: what each kind says of itself and does in its own way; addresses, and what can be wrong |
| `sqlite.py`, `sqlite_files.py` | SQLite: the object and its log of receipts; how its files are opened, also after a fork |
| `postgres.py`, `postgres_log.py` | PostgreSQL: the object; its log of receipts |
| `psycopg_messages.py` | statements sent together, by what is borrowed from inside psycopg |

Which of them an address or a connection means is said by `database_of` in `store/engine.py`. The tables' options of one
kind stand with the tables, in SQLAlchemy's own words.
"""
