"""A flow on Spark does the same as one in memory, hands on large values in little memory, and brings errors home."""

from __future__ import annotations

import os
import sys
from collections import Counter
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from programs import run_program
from pyspark.cloudpickle import register_pickle_by_value

from receiver.errors import LogFormatError, SettingsError
from receiver.simulate.compiled import Flags, Int32s, Int64s
from receiver.spark.flow import start
from receiver.steps.arrow_rows import Row
from tests.choosing import cases
from tests.steps.plain_flow import PlainFlow

# Executors can't import it.
register_pickle_by_value(sys.modules[__name__])


@dataclass(frozen=True)
class Note:
    """A row with every type of column."""

    text: str
    number: int
    data: bytes
    texts: list[str]
    words: pa.Array
    longs: Int64s
    hashes: npt.NDArray[np.uint64]
    ints: Int32s
    doubles: npt.NDArray[np.float64]
    flags: Flags


@dataclass(frozen=True)
class Sum:
    """A row of another kind."""

    text: str


def note(text: str) -> Note:
    size = len(text)
    return Note(
        text,
        size,
        text.encode(),
        list(text),
        pa.array([*text, ""], pa.string()),
        np.arange(size) - 2**62,
        np.arange(size).astype(np.uint64) + np.uint64(2**63),
        np.arange(size, dtype=np.int32),
        np.arange(size) / 3,
        np.arange(size) % 2 == 0,
    )


def plain(value):
    """The row as comparable values."""
    if isinstance(value, Sum):
        return value
    cells = {field.name: getattr(value, field.name) for field in fields(value)}
    return str({name: cell.tolist() if hasattr(cell, "tolist") else cell for name, cell in cells.items()})


ROWS = st.lists(
    st.builds(Row, st.integers(0, 9), st.text(st.sampled_from("ab\0\u00e9"), max_size=9).map(note)), max_size=30
)


def doubled(rows):
    for row in rows:
        yield row
        if isinstance(row.value, Note):
            yield Row((row.key + 1) % 10, note(row.value.text * 2))


def summed(key, rows):
    texts = sorted(row.value.text for row in rows)
    return [Row(key, note(",".join(texts))), Row(key // 2, Sum(str(len(texts))))]


@given(ROWS, st.integers(1, 4))
@cases(3)
def test_it_gives_what_a_flow_in_memory_gives(spark, rows, tasks):
    def asked(flow):
        made = flow.map(doubled, Note)
        sums, (counts,) = made.only(Note).grouped(summed, 10, Note, Sum).kept("sums", Sum)
        rows_collected = sums.map(doubled, Note, Sum).plus(made).collect("all")
        sums.forget()
        return Counter(map(plain, rows_collected)), Counter(map(plain, counts))

    assert asked(start(spark, rows, tasks, Note)) == asked(PlainFlow(rows))


def sums(*keys: int) -> list[Row]:
    return [Row(key, Sum(str(key))) for key in keys]


def test_what_is_kept_is_worked_out_once(spark):
    def drawn(rows):
        return [Row(row.key, Sum(os.urandom(16).hex())) for row in rows]

    kept, (reported,) = start(spark, sums(0, 1, 2, 3), 2, Sum).map(drawn, Sum).kept("draw", Sum)
    assert len(reported) == 4
    assert Counter(reported) == Counter(kept.collect("once")) == Counter(kept.collect("twice"))
    kept.forget()


def test_what_is_kept_is_of_one_flow_only(spark, tmp_path):
    """Otherwise a session that goes on would use a file's old content."""
    file = tmp_path / "file"

    def reading(_rows):
        return [Row(0, Sum(file.read_text()))]

    for text in ("before", "after"):
        file.write_text(text)
        assert start(spark, sums(0), 1, Sum).map(reading, Sum).kept("read", Sum)[1] == ([Sum(text)],)


def test_work_may_carry_megabytes_along(spark):
    table = np.arange(2_000_000)

    def looked_up(rows):
        return [Row(0, Sum(str(table[int(row.value.text)]))) for row in rows]

    flow = start(spark, sums(3, 1_999_999), 2, Sum)
    assert sorted(value.text for value in flow.map(looked_up, Sum).collect("look up")) == ["1999999", "3"]


def test_a_task_has_one_core_and_this_very_python(spark):
    def reported(_rows):
        return [Row(0, Sum(f"{pa.cpu_count()} {sys.executable}"))]

    assert start(spark, sums(0), 1, Sum).map(reported, Sum).collect("ask") == [Sum(f"1 {sys.executable}")]


@pytest.mark.slow
@pytest.mark.parametrize("error", [LogFormatError("a.csv:3", "no time", hint="mend it"), SettingsError("can't be")])
@pytest.mark.parametrize("ask", ["kept", "collect"])
def test_an_error_comes_out_as_it_was_raised(spark, error, ask):
    def failing(rows):
        for row in rows:
            if row.key == 5:
                raise error
            yield row

    def reading_one(_key, rows):
        yield next(rows)

    flow = start(spark, sums(*range(10)), 3, Sum).map(failing, Sum)
    for asked in (flow, flow.only(), flow.grouped(reading_one, 10, Sum).map(doubled, Sum)):
        with pytest.raises(type(error)) as caught:
            getattr(asked, ask)("fail")
        assert str(caught.value) == str(error)
        assert vars(caught.value) == vars(error)


def test_each_step_is_told(spark):
    def slow(rows):
        import time

        for row in rows:
            time.sleep(0.8)
            yield row

    reported = []
    flow = start(spark, sums(*range(8)), 8, Sum, lambda *now: reported.append(now)).map(slow, Sum)
    flow.kept("waiting")[0].forget()
    assert {what for what, _, _ in reported} == {"waiting"}
    assert all(0 <= done <= total <= 8 for _, done, total in reported)
    assert max(done for _, done, _ in reported) > 0


LARGE = """
import numpy as np
from receiver.spark.flow import start
from receiver.steps.arrow_rows import Row
from receiver.steps.schemas import Caught

def empty(key):
    return Caught(np.array([key]), np.zeros(0, np.bool_))

def grown(rows):
    for row in rows:
        yield Row(row.key % 2, Caught(np.arange(50 << 17) + row.key, np.zeros(0, np.bool_)))

def checked(key, rows):
    values = [row.value.number for row in rows]
    assert all((np.diff(value) == 1).all() for value in values)
    return [Row(key, empty(sum(len(value) for value in values) >> 17))]

def work(spark):
    large, _ = start(spark, [Row(key, empty(key)) for key in range(8)], 8, Caught).map(grown, Caught).kept("grow")
    again, _ = large.grouped(lambda key, rows: rows, 2, Caught).kept("bring together")
    print(sorted(int(value.number[0]) for value in again.each_key(checked, Caught).collect("measure")))
"""


@pytest.mark.slow
@pytest.mark.usefixtures("java")
def test_values_of_50_mb_pass_in_1_gb_of_java():
    ran = run_program(LARGE, brief=False, SPARK_DRIVER_MEMORY="1g")
    assert (ran.stdout, ran.stderr) == ("[200, 200]\n", "")
