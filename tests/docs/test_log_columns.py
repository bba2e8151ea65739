"""The columns of a log are documented as they are declared."""

import re

import pytest

from receiver.domains import domain_key
from receiver.logs import COLUMNS
from tests.docs.markdown import sections


def test_the_page_has_the_columns_as_they_are_declared():
    rows = re.findall(r"^\| `(\w+)` \| (?:`(\w+)` )?\| (.*) \|$", sections("docs/simulate.md")["Logs"], re.MULTILINE)
    assert rows == [(name, column.jms_name or "", column.meaning) for name, column in COLUMNS.items()]


@pytest.mark.parametrize("key", ["default", "destination", "connection", "receiver"])
def test_a_column_names_the_domain_keys_that_need_it(key):
    needed_by = {name: column.meaning.partition("needed by `--domain ")[2] for name, column in COLUMNS.items()}
    naming = [name for name, keys in needed_by.items() if key in re.findall(r"\w+", keys)]
    assert naming == list(domain_key(key).needs)
