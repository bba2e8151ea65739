"""Only one package knows the ways of a kind of database. So another kind is another object there."""

import ast
import re
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "receiver"
ROOM = PACKAGE / "store" / "databases"
NAMES_KINDS = {
    PACKAGE / "store" / "tables.py": "a table's options of one kind are SQLAlchemy's own, as in migrations/",
    PACKAGE / "settings.py": "one setting is of one kind alone, and named so",
}
KIND = re.compile(r"sqlite|postgres|psycopg|dialects|\bPRAGMA\b|pg_", re.IGNORECASE)
EXAMPLE_OF_AN_ADDRESS = re.compile(r"(sqlite|postgresql)(\+\w+)?://")


def named_kinds(source):
    """The names and texts in the code that name a kind of database. Prose and example addresses don't count."""
    tree = ast.parse(source)
    prose = {
        id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant):
            said = [EXAMPLE_OF_AN_ADDRESS.sub("", node.value)] if isinstance(node.value, str) else []
        else:
            said = [value for _, value in ast.iter_fields(node) if isinstance(value, str)]
        for text in said:
            if id(node) not in prose and KIND.search(text):
                yield f"{getattr(node, 'lineno', 0)}: {text:.60}"


def test_no_other_module_names_a_kind_of_database():
    strays = {
        str(file.relative_to(PACKAGE)): kinds
        for file in sorted(PACKAGE.rglob("*.py"))
        if ROOM not in file.parents
        and file not in NAMES_KINDS
        and (kinds := list(named_kinds(file.read_text("utf-8"))))
    }
    assert strays == {}


def test_no_other_module_asks_a_dialect_for_its_name():
    """They don't ask SQLAlchemy for it either, and branch on the answer."""
    asking = re.compile(r"dialect\.name\b|get_backend_name|drivername")
    askers = {
        str(file.relative_to(PACKAGE))
        for file in PACKAGE.rglob("*.py")
        if ROOM not in file.parents and asking.search(file.read_text("utf-8"))
    }
    assert askers == set()


@pytest.mark.parametrize(
    "code",
    [
        "import sqlite3",
        "from sqlalchemy.dialects import postgresql",
        "from receiver.store.databases.postgres import PostgresRows",
        "if is_sqlite(url): pass",
        "name == 'sqlite'",
        "f'PRAGMA {pragma}'",
        "execute_if(dialect='postgresql')",
        "table(sqlite_with_rowid=False)",
    ],
)
def test_such_code_would_be_noticed(code):
    assert list(named_kinds(code))


def test_prose_and_addresses_may_name_them():
    assert not list(
        named_kinds('"""SQLite"""\nx = 1\n"""PostgreSQL"""\nhint = "open a sqlite:/// or postgresql:// store"')
    )
