"""How a log is cut: into chunks of about equal size, as many for a task as fit it. No result depends on the cuts."""

import numpy as np
import pytest
from cut_logs import Cutting, File, assemble, cuttings, files, written
from hypothesis import given

from receiver.domains import domain_key
from receiver.simulate.shares import Measures
from receiver.steps.log import seen_of
from tests.choosing import cases
from tests.logs.reading import Row


def log_with(domains: dict[str, int], per_file: int = 1000) -> list[File]:
    """A log with so many receipts of each domain, by turns."""
    names = [name for name, count in domains.items() for _ in range(count)]
    names = np.random.default_rng(1).permutation(names).tolist()
    rows = [
        Row(index, f"{index}", connection_id="c", destination=f"queue://{name}") for index, name in enumerate(names)
    ]
    return [File("parquet", rows[start : start + per_file]) for start in range(0, len(rows), per_file)]


def assembled_from(log: list[File], **sizes):
    with written(log) as paths:
        return assemble(paths, Cutting(rows_per_unit=100, piece_rows=50, **sizes), "destination")


@given(files(), cuttings)
@cases(100)
def test_chunks_are_numbered_domain_by_domain_in_order(log, cutting):
    with written(log) as paths:
        plan = assemble(paths, cutting).plan
    assert plan.domains == sorted(set(plan.domains))
    assert (np.diff(plan.chunk_domain) >= 0).all()
    assert set(plan.chunk_domain.tolist()) == set(range(len(plan.domains)))
    assert (np.diff(plan.chunk_task) >= 0).all()
    assert set(plan.chunk_task.tolist()) == set(range(plan.tasks))
    for domain in range(len(plan.domains)):
        chunks = plan.of_domain(domain)
        cuts = [(int(plan.cut_key_us[c]), int(plan.cut_unit[c]), int(plan.cut_row[c])) for c in chunks]
        assert cuts[0][0] == -1
        assert cuts == sorted(set(cuts))
        if cutting.chunks_per_domain:
            assert len(chunks) <= cutting.chunks_per_domain


@pytest.mark.parametrize("sample_rows", [1, 10])
def test_a_large_domain_is_cut_into_about_equal_chunks(sample_rows):
    made = assembled_from(log_with({"hot": 900, "cold": 50}), chunk_rows=100, sample_rows=sample_rows)
    receipts = {state.chunk: len(state.source) for state in made.chunks()}
    hot = [receipts[chunk] for chunk in made.plan.of_domain(1)]
    assert len(hot) == 9
    assert max(abs(count - 100) for count in hot) <= 2 * sample_rows
    assert [receipts[chunk] for chunk in made.plan.of_domain(0)] == [50]


def test_small_chunks_are_worked_on_together():
    made = assembled_from(log_with({f"{number:02}": 10 for number in range(40)} | {"hot": 300}), chunk_rows=100)
    receipts = {state.chunk: len(state.source) for state in made.chunks()}
    held = np.bincount(made.plan.chunk_task, [receipts[chunk] for chunk in range(made.plan.chunks)])
    assert held.tolist() == [100] * 7


def test_parts_are_as_many_as_the_ids_and_the_cores_need():
    log = log_with({"a": 100})
    assert assembled_from(log, partition_rows=30).plan.partitions == 4
    assert assembled_from(log, partition_rows=30, cores=8).plan.partitions == 8


def test_the_timeline_spans_the_log():
    made = assembled_from([File("csv", [Row(5, "a"), Row(1_000_000, "b"), Row(7, "c")])])
    measures = Measures.of(seen_of(made.reports, domain_key("destination")).log, max_missed=0)
    assert measures.start_us == 5
    assert (measures.slice_us, measures.slices) == (5_000, 200)


def test_a_clock_that_stepped_back_is_carried_over_the_units_of_its_file():
    rows = [Row(time, f"{time}", connection_id="c", destination="q") for time in (9, 1, 2, 3)]
    with written([File("parquet", rows, 1), File("csv", rows[:1])]) as paths:
        plan = assemble(paths, Cutting()).plan
    assert plan.carry_us.tolist() == [-1, 9, 9, 9, -1]
