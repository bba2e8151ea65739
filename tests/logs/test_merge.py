"""Several logs as one, compared with a naive merge that sorts rows."""

import csv

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reading import Row, csv_bytes, opened, parquet_bytes, read, rows_of

from receiver.logs import LogBatch
from receiver.logs.batches import Waiting, merge


def batch_of(rows, shape):
    """A batch of these rows. The shape says how each column is stored."""
    texts = [row.unique_message_id for row in rows]
    sources = pa.array([row.message_source_id for row in rows], pa.string())
    return LogBatch(
        np.array([row.received_at for row in rows], dtype=np.int64),
        pa.array(texts, pa.string()),
        message_source_id=sources.dictionary_encode() if shape == "words" else sources,
        jms_timestamp_ms=np.array([row.jms_timestamp for row in rows], dtype=np.int64) if shape != "few" else None,
        skipped=len(rows) % 3,
    )


def naive_merge(files):
    keyed = []
    for index, rows in enumerate(files):
        latest = 0
        for number, row in enumerate(rows):
            latest = max(latest, row.received_at)
            keyed.append((latest, index, number, row))
    return [row for *_key, row in sorted(keyed, key=lambda each: each[:3])]


files_of_batches = st.lists(
    st.tuples(
        st.sampled_from(["text", "words", "few"]),
        st.lists(st.lists(st.tuples(st.integers(0, 12), st.sampled_from(["", "s", "t"])), max_size=5), max_size=4),
    ),
    min_size=1,
    max_size=5,
)


@given(files_of_batches, st.sampled_from([0, 3, 9]), st.sampled_from([1, 4, 99]))
def test_against_a_naive_merge(drawn, few_rows, most_rows):
    files, waiting, skipped, opened_places = [], [], 0, []
    for index, (shape, drawn_batches) in enumerate(drawn):
        batches = [
            [
                Row(us, f"{index}:{number}:{row}", source, jms_timestamp=0 if shape == "few" else us + 1)
                for row, (us, source) in enumerate(rows)
            ]
            for number, rows in enumerate(drawn_batches)
        ]
        files.append([row for rows in batches for row in rows])
        skipped += sum(len(rows) % 3 for rows in batches)
        first = files[-1][0].received_at if files[-1] else 0

        def read_batches(index=index, batches=batches, shape=shape):
            opened_places.append(index)
            return iter([batch_of(rows, shape) for rows in batches])

        waiting.append(Waiting(first, index, read_batches))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("receiver.logs.batches._FEW_ROWS", few_rows)
        patch.setattr("receiver.logs.batches._MOST_ROWS", most_rows)
        merged = list(merge(waiting))
    assert list(rows_of(merged)) == naive_merge(files)
    assert sum(batch.skipped for batch in merged) == skipped
    assert sorted(opened_places) == list(range(len(files)))


def test_a_file_is_opened_only_when_its_turn_comes():
    opened_places = []

    def waiting(index, start):
        def read_batches():
            opened_places.append(index)
            yield batch_of([Row(start + us, "a") for us in range(3)], "text")
            yield batch_of([Row(start + us, "b") for us in range(3, 6)], "text")

        return Waiting(start, index, read_batches)

    merged = merge([waiting(0, 100), waiting(1, 0), waiting(2, 200)])
    assert next(merged).received_at_us.tolist() == [0, 1, 2]
    assert opened_places == [1]
    assert len([row for batch in merged for row in rows_of([batch])]) == 15
    assert opened_places == [1, 0, 2]


def test_many_small_files_make_few_batches_and_are_closed_at_once():
    """A compacted log has a file for each domain, all of the same time. A batch for each file would take quadratic time."""
    are_open, most_open = set(), 0

    def waiting(index):
        def read_batches():
            nonlocal most_open
            are_open.add(index)
            most_open = max(most_open, len(are_open))
            yield batch_of([Row(us, f"{index}") for us in range(index, 1_000, 100)], "text")
            are_open.remove(index)

        return Waiting(index, index, read_batches)

    merged = list(merge([waiting(index) for index in range(100)]))
    assert [batch.received_at_us.tolist() for batch in merged] == [list(range(1_000))]
    assert most_open == 1


@pytest.mark.usefixtures("tiny_blocks")
def test_files_of_several_formats_are_merged_by_their_running_maximum(tmp_path):
    """If one file's clock steps back, its rows must not move before rows that came in another file meanwhile."""
    left = [Row(10, "l0"), Row(30, "l1"), Row(5, "l2", "s"), Row(31, "l3")]
    right = [Row(20, "r0", destination="q"), Row(30, "r1"), Row(30, "r2"), Row(40, "r3")]
    (tmp_path / "b.csv").write_bytes(csv_bytes(left))
    (tmp_path / "a.parquet").write_bytes(parquet_bytes(right))
    rows = read(tmp_path, time_unit="us")
    assert [row.unique_message_id for row in rows] == ["l0", "r0", "r1", "r2", "l1", "l2", "l3", "r3"]
    assert rows[1].destination == "q"
    as_given = read(tmp_path / "b.csv", tmp_path / "a.parquet", time_unit="us")
    assert [row.unique_message_id for row in as_given] == ["l0", "r0", "l1", "l2", "r1", "r2", "l3", "r3"]


def test_columns_that_only_some_files_have(tmp_path):
    (tmp_path / "a.csv").write_text("received_at,unique_message_id\n1,a\n3,c\n")
    with (tmp_path / "b.csv").open("w", newline="") as file:
        csv.writer(file).writerows(
            [("received_at", "uniqueMessageId", "messageSourceId", "JMSRedelivered"), (2, "b", "s", "true")]
        )
    batches = opened(tmp_path)
    rows = list(rows_of(batches))
    assert [(row.unique_message_id, row.message_source_id, row.jms_redelivered) for row in rows] == [
        ("a", "", False),
        ("b", "s", True),
        ("c", "", False),
    ]
    assert batches.columns_present == {"message_source_id", "jms_redelivered"}
