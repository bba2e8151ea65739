"""The duplicates in a log cut into chunks are those of the log read whole, however either is cut."""

from itertools import accumulate

import pytest
from cut_logs import US, Cutting, File, assemble, cuttings, files, in_order, written
from hypothesis import given
from hypothesis import strategies as st
from test_chunked import KEYS, hot_domains

from receiver.domains import domain_key
from receiver.logs import read_logs
from receiver.simulate.ingest import ingest
from receiver.simulate.whole import WholeLog
from receiver.steps.log import cut_log
from tests.choosing import cases

SETTINGS = st.tuples(st.integers(0, 6), st.sampled_from([0, 1, 3, 10, 40, 1000])).filter(any)


def duplicates_of_whole(log, paths, key, setting):
    """The numbers of the duplicates, in the order of reading."""
    receipts = ingest(read_logs(paths, US), domain_key(key))
    rows = [row for batch in WholeLog(receipts).verdict_batches(*setting) for row in batch.to_pylist()]
    begins = [0, *accumulate(len(file.rows) for file in log)]
    return sorted(
        begins[file] + row
        for (file, row), judged in zip(in_order(log), rows, strict=True)
        if judged["verdict"] == "duplicate"
    )


def duplicates_in_chunks(paths, key, cutting, setting):
    """The numbers of the duplicates: the same before a replay that keeps longer tails, and after it."""
    made = assemble(paths, cutting, key)
    log = cut_log(made.pieces, made.reports, made.plan)
    before = numbers_of(log.caught(*setting))
    log.replay([setting[0] + 1], [2 * setting[1]], [setting])
    assert numbers_of(log.caught(*setting)) == before
    return before


def numbers_of(caught):
    return sorted(number for each in caught.collect("Judging receipts") for number in each.number.tolist())


@pytest.mark.costly
@given(files(), cuttings, KEYS, SETTINGS)
@cases(30)
def test_no_cut_changes_a_verdict(log, cutting, key, setting):
    with written(log) as paths:
        duplicates = duplicates_in_chunks(paths, key, cutting, setting)
        assert duplicates == duplicates_of_whole(log, paths, key, setting)


@given(hot_domains(), st.sampled_from([1, 2, 7, 64]), SETTINGS, st.integers(0, 2**32))
@cases(30)
def test_a_hot_domain_may_be_cut_into_any_number_of_chunks(rows, chunks, setting, seed):
    cutting = Cutting(rows_per_unit=1000, piece_rows=50, chunks_per_domain=chunks, seed=seed)
    log = [File("csv", rows)]
    with written(log) as paths:
        duplicates = duplicates_in_chunks(paths, "default", cutting, setting)
        assert duplicates == duplicates_of_whole(log, paths, "default", setting)
