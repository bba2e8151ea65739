"""If there are more receipts, ids or sources than 32 bits can number, they are refused before they are numbered."""

import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from small_logs import Receipt, batches, ingested

from receiver import cli
from receiver.domains import domain_key
from receiver.errors import LogFormatError
from receiver.logs import ReadOptions, read_logs
from receiver.simulate import compiled
from receiver.simulate.domain_rows import link_rows
from receiver.simulate.ingest import ingest
from receiver.simulate.numbering import Channels, Names, TextNumbers, Texts

FIVE = [Receipt(time, f"id{time}", f"s{time}") for time in range(5)]


@pytest.fixture
def few(monkeypatch):
    """Lower the largest number."""
    return lambda most: monkeypatch.setattr(compiled, "MOST_NUMBERED", most)


def test_numbers_of_32_bits_hold_the_most_and_the_two_that_are_taken():
    assert np.iinfo(np.int32).max == compiled.MOST_NUMBERED + 1


def test_the_most_is_taken_and_one_more_is_not(few):
    few(5)
    assert ingested(FIVE).ids.count == 6
    few(4)
    with pytest.raises(LogFormatError, match="the log: more than 4 receipts, which is all") as caught:
        ingested(FIVE)
    assert "--engine spark" in caught.value.hint


def test_a_log_is_refused_at_the_batch_that_passes_the_limit(few):
    """It isn't refused only at its end, which may be hours away."""
    few(20)
    unread = iter(batches([Receipt(time, f"id{time % 3}") for time in range(70)], rows=7))
    with pytest.raises(LogFormatError, match="more than 20 receipts"):
        ingest(unread, domain_key("default"))
    assert len(list(unread)) == 10 - 3


def ids_as_text(count):
    return pa.array([f"id{number}" for number in range(count)])


def link(rows, sources=1, ids=1):
    columns = np.zeros(rows, np.int32)
    return link_rows(np.zeros(rows, np.int64), columns, columns, sources=sources, distinct_ids=ids)


def number_each(names, count):
    for number in range(count):
        names.number(f"n{number}")


@pytest.mark.parametrize(
    "numbering",
    [
        lambda count: TextNumbers().number(ids_as_text(count + 1)),  # beside the missing id
        lambda count: number_each(Names(), count),
        lambda count: Texts().column(ids_as_text(count), count),
        lambda count: number_each(Channels(), count),
        link,
        lambda count: link(2, sources=count),
        lambda count: link(2, ids=count),
    ],
    ids=["ids", "names", "sources", "channels", "rows", "a domain's sources", "a domain's ids"],
)
def test_whatever_numbers_has_the_one_limit(few, numbering):
    few(5)
    numbering(5)
    with pytest.raises(LogFormatError, match="more than 5 "):
        numbering(6)


def parquet_of(path, rows):
    pq.write_table(pa.table({"received_at": list(range(rows)), "unique_message_id": ["a"] * rows}), path)


def test_what_files_say_of_themselves_is_refused_before_it_is_read(few, tmp_path):
    for number in range(3):
        parquet_of(tmp_path / f"{number}.parquet", 4)
    (tmp_path / "3.csv").write_text("received_at,unique_message_id\n1,a\n")
    log = [str(tmp_path)]
    few(13)
    assert len(ingest(read_logs(log, ReadOptions()), domain_key("name:x")).received_at_us) == 13
    few(11)
    unread = read_logs(log, ReadOptions())
    assert unread.known_receipts == 12
    with pytest.raises(LogFormatError, match="more than 11 receipts"):
        ingest(unread, domain_key("name:x"))
    assert unread.receipts == 0
    # Nobody knows how many rows will be skipped.
    assert read_logs(log, ReadOptions(on_error="skip")).known_receipts == 0


@pytest.mark.parametrize("command", ["simulate", "compare"])
def test_the_commands_refuse_with_the_way_out(few, tmp_path, monkeypatch, capsys, command):
    parquet_of(tmp_path / "a.parquet", 4)
    few(3)
    monkeypatch.setattr(sys, "argv", ["receiver", command, str(tmp_path / "a.parquet"), "--domain", "name:x"])
    assert cli.run() == 2
    said = capsys.readouterr().err
    assert said.startswith("error: the log: more than 3 receipts")
    assert "hint: receiver simulate --engine spark" in said
