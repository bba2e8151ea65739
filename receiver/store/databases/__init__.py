"""What each kind of database does in its own way. No module outside knows which kinds there are; another is another object.

| file | what is in it |
|---|---|
| `database.py` | `Database`: what each kind says of itself and does in its own way; addresses, and what can be wrong |
| `sqlite.py`, `sqlite_files.py` | SQLite: the object and a domain's rows; how its files are opened, also after a fork |
| `postgres.py`, `postgres_rows.py` | PostgreSQL: the object; a domain's rows |
| `claims.py` | the claims of concurrent receivers, which PostgreSQL alone has |

Which of them an address or a connection means is said by `database_of` in `store/engine.py`. The tables' options of one
kind stand with the tables, in SQLAlchemy's own words.
"""
