"""The documents' columns of a log are the declared ones."""

import re
import shlex

import pytest

from receiver.domains import domain_key
from receiver.logs import COLUMNS, ReadOptions, read_logs
from tests.docs.markdown import blocks, sections


def test_the_page_has_the_columns_as_they_are_declared():
    rows = re.findall(r"^\| `(\w+)` \| (?:`(\w+)` )?\| (.*) \|$", sections("docs/simulate.md")["Logs"], re.MULTILINE)
    assert rows == [(name, column.jms_name or "", column.meaning) for name, column in COLUMNS.items()]


@pytest.mark.parametrize("key", ["default", "destination", "connection", "receiver"])
def test_a_column_names_the_domain_keys_that_need_it(key):
    needed_by = {name: column.meaning.partition("needed by `--domain ")[2] for name, column in COLUMNS.items()}
    naming = [name for name, keys in needed_by.items() if key in re.findall(r"\w+", keys)]
    assert naming == list(domain_key(key).needs)


@pytest.mark.parametrize(("mapped", "id_"), [(False, "1:gateway-1"), (True, "A-17")])
def test_a_correlators_log_is_as_shown(tmp_path, mapped, id_):
    (text,), (*_, command) = (blocks("docs/simulate.md", language, "Logs") for language in ("log", "sh"))
    log, column_map = tmp_path / "correlator.log", {}
    log.write_text(text)
    if mapped:
        column, _, field = shlex.split(command)[-1].partition("=")
        column_map = {column: field}
    batches = list(read_logs([str(log)], ReadOptions(column_map=column_map)))
    (batch,) = [batch for batch in batches if len(batch)]
    assert batch.unique_message_id.to_pylist() == [id_]
    assert batch.destination.to_pylist() == ["Queue<orders>"]
    assert batch.receiver_id.to_pylist() == ["orders"]
    assert batch.received_at_us.tolist() == [1_795_256_256_091_000]
