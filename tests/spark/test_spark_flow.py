"""A flow on Spark does what one in memory does, hands large values on in little memory, and brings errors home."""

import os
import sys
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import run_program
from pyspark.cloudpickle import register_pickle_by_value
from receiver.chunks.parcels import Parcel
from receiver.spark.flow import start
from tests.chunks.plain_flow import PlainFlow

from receiver.errors import LogFormatError, SettingsError

# Executors can't import it.
register_pickle_by_value(sys.modules[__name__])

PARCELS = st.lists(st.builds(Parcel, st.integers(0, 9), st.sampled_from("ab"), st.binary(max_size=9)), max_size=30)


def doubled(parcels):
    for parcel in parcels:
        yield parcel
        yield Parcel((parcel.key + 1) % 10, "b", parcel.payload * 2)


def summed(key, parcels):
    payloads = sorted(parcel.payload for parcel in parcels)
    return [Parcel(key, "a", b",".join(payloads)), Parcel(key // 2, "c", b"%d" % len(payloads))]


@given(PARCELS, st.integers(1, 4))
@settings(max_examples=4)
def test_it_gives_what_a_flow_in_memory_gives(spark, parcels, tasks):
    def asked(flow):
        made = flow.map(doubled)
        sums = made.only("b").plus(made.only("a", "c")).grouped(summed, 10).kept("sums")
        found = sums.map(doubled).plus(made).collect("all")
        sums.forget()
        return Counter(found)

    assert asked(start(spark, parcels, tasks)) == asked(PlainFlow(parcels))


def test_what_is_kept_is_worked_out_once(spark):
    def drawn(parcels):
        return [Parcel(parcel.key, "drawn", os.urandom(16)) for parcel in parcels]

    kept = start(spark, [Parcel(key, "", b"") for key in range(4)], 2).map(drawn).kept("draw")
    assert len(kept.collect("once")) == 4
    assert Counter(kept.collect("once")) == Counter(kept.collect("twice"))
    kept.forget()


def test_what_is_kept_is_of_one_flow_only(spark, tmp_path):
    """Else a session that goes on would take a file for what it was before."""
    file = tmp_path / "file"

    def reading(_parcels):
        return [Parcel(0, "", file.read_bytes())]

    for text in (b"before", b"after"):
        file.write_bytes(text)
        kept = start(spark, [Parcel(0, "", b"")], 1).map(reading).kept("read")
        assert [parcel.payload for parcel in kept.collect("look")] == [text]


def test_in_order_goes_by_keys_then_as_made(spark):
    def counted(key, _parcels):
        return [Parcel(key, "n", b"%d" % n) for n in range(3)]

    flow = start(spark, [Parcel(key, "", b"") for key in (7, 2, 5)], 3).grouped(counted, 9).kept("count")
    assert [(parcel.key, parcel.payload) for parcel in flow.in_order("look")] == [
        (key, b"%d" % n) for key in (2, 5, 7) for n in range(3)
    ]


def test_work_may_carry_megabytes_along(spark):
    table = np.arange(2_000_000)

    def looked_up(parcels):
        return [Parcel(0, "", b"%d" % table[parcel.key]) for parcel in parcels]

    flow = start(spark, [Parcel(key, "", b"") for key in (3, 1_999_999)], 2)
    assert sorted(parcel.payload for parcel in flow.map(looked_up).collect("look up")) == [b"1999999", b"3"]


def test_a_task_has_one_core(spark):
    def told(_parcels):
        return [Parcel(0, "", b"%d" % pa.cpu_count())]

    assert start(spark, [Parcel(0, "", b"")], 1).map(told).collect("count cores")[0].payload == b"1"


@pytest.mark.parametrize("error", [LogFormatError("a.csv:3", "no time", hint="mend it"), SettingsError("can't be")])
@pytest.mark.parametrize("ask", ["kept", "collect"])
def test_an_error_comes_out_as_it_was_raised(spark, error, ask):
    def failing(parcels):
        for parcel in parcels:
            if parcel.key == 5:
                raise error
            yield parcel

    def reading_one(_key, parcels):
        yield next(parcels)

    flow = start(spark, [Parcel(key, "", b"") for key in range(10)], 3).map(failing)
    for asked in (flow, flow.only("other"), flow.grouped(reading_one, 4).map(doubled)):
        with pytest.raises(type(error)) as caught:
            getattr(asked, ask)("fail")
        assert str(caught.value) == str(error)
        assert vars(caught.value) == vars(error)


def test_each_step_is_told(spark):
    def slow(parcels):
        import time

        for parcel in parcels:
            time.sleep(0.8)
            yield parcel

    told = []
    flow = start(spark, [Parcel(key, "", b"") for key in range(8)], 8, lambda *now: told.append(now)).map(slow)
    flow.kept("waiting").forget()
    assert {what for what, _, _ in told} == {"waiting"}
    assert all(0 <= done <= total <= 8 for _, done, total in told)
    assert max(done for _, done, _ in told) > 0


LARGE = """
from receiver.chunks.parcels import Parcel
from receiver.spark.flow import start

SIZE = 50 << 20

def grown(parcels):
    for parcel in parcels:
        yield Parcel(parcel.key % 2, "large", bytes(SIZE))

def measured(key, parcels):
    return [Parcel(key, "bytes", b"%d" % sum(len(parcel.payload) for parcel in parcels))]

def work(spark):
    assert spark._jvm.java.lang.Runtime.getRuntime().maxMemory() == 1 << 30
    large = start(spark, [Parcel(key, "", b"") for key in range(8)], 8).map(grown).kept("grow")
    again = large.grouped(lambda key, parcels: parcels, 2).kept("bring together")
    print(sorted(int(parcel.payload) >> 20 for parcel in again.grouped(measured, 2).collect("measure")))
"""


@pytest.mark.slow
@pytest.mark.usefixtures("java")
def test_values_of_50_mb_pass_in_1_gb_of_java():
    ran = run_program(LARGE, SPARK_DRIVER_MEMORY="1g")
    assert (ran.stdout, ran.stderr) == ("[200, 200]\n", "")


def test_tasks_run_this_very_python(spark):
    def told(_parcels):
        return [Parcel(0, "", sys.executable.encode())]

    assert start(spark, [Parcel(0, "", b"")], 1).map(told).collect("ask")[0].payload == sys.executable.encode()
