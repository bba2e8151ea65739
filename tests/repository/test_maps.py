"""The maps of the code are complete: the tables in the packages' docstrings, and those of `docs/architecture.md`."""

import ast
import re
from pathlib import Path

import pytest

from receiver import errors

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "receiver"
ROOMS = sorted(str(file.parent.relative_to(PACKAGE)) for file in PACKAGE.glob("*/**/__init__.py"))


def modules_of(folder: Path) -> list[str]:
    files = {file.name for file in folder.glob("*.py")} - {"__init__.py"}
    return sorted(files | {f"{file.parent.name}/" for file in folder.glob("*/__init__.py")})


def rows_of(table: str) -> list[str]:
    """The names in the first column."""
    firsts = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    return sorted(name for first in firsts for name in re.findall(r"`([^`]+)`", first))


def section(title: str) -> str:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    return text.split(f"\n## {title}\n")[1].split("\n## ")[0]


@pytest.mark.parametrize("room", ROOMS)
def test_each_module_stands_in_its_rooms_table(room):
    text = (PACKAGE / room / "__init__.py").read_text(encoding="utf-8")
    assert rows_of(ast.get_docstring(ast.parse(text)) or "") == modules_of(PACKAGE / room)


def test_each_room_stands_in_the_table_of_rooms():
    assert rows_of(section("Rooms")) == modules_of(PACKAGE)


def test_each_kind_of_error_stands_in_the_paragraph_on_errors():
    kinds = {kind.__name__ for kind in errors.ReceiverError.__subclasses__() if kind.__module__ == errors.__name__}
    assert kinds - set(re.findall(r"`(\w+)`", section("Errors"))) == set()
