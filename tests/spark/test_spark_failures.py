"""Failures on Spark are reported with a remedy, without a line of Java's."""

import os
import signal
import subprocess
import time
from contextlib import contextmanager

import pytest
from programs import run_program

from receiver.errors import SparkError
from receiver.spark.compacting import BadRows
from receiver.spark.flow import start
from receiver.spark.session import session
from receiver.steps.arrow_rows import Row

ROWS = [Row(key, BadRows(key, "")) for key in range(4)]


@contextmanager
def failing(match: str):
    """Check that the block fails with an error that names this, and that Spark's exception is its cause."""
    with pytest.raises(SparkError, match=match) as caught, session(None) as spark:
        yield spark
    assert caught.value.__cause__ is not None
    assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("spark")
def test_a_fault_in_a_task():
    def faulty(rows):
        return [Row(1 // len(row.value.lines), row.value) for row in rows]

    with failing("ZeroDivisionError: .*--verbose") as spark:
        start(spark, ROWS, 2, BadRows).map(faulty, BadRows).kept("divide")


@pytest.mark.usefixtures("spark")
def test_a_module_that_executors_lack():
    def importing(_rows):
        import no_such_module

        return no_such_module

    with failing("no module no_such_module.*--archives") as spark:
        start(spark, ROWS, 2, BadRows).map(importing, BadRows).collect("import")


@pytest.mark.usefixtures("spark")
def test_a_worker_without_memory():
    def greedy(_rows):
        raise MemoryError

    with failing("out of memory.*SPARK_DRIVER_MEMORY") as spark:
        start(spark, ROWS, 2, BadRows).map(greedy, BadRows).kept("take all")


@pytest.mark.usefixtures("spark")
def test_a_worker_that_is_killed():
    def killed(rows):
        os.kill(os.getpid(), 9)
        return rows

    with failing("Python worker .* was killed.*memoryOverhead") as spark:
        start(spark, ROWS, 2, BadRows).map(killed, BadRows).kept("die")


@pytest.mark.usefixtures("spark")
def test_ctrl_c_while_tasks_run():
    driver = os.getpid()

    def interrupting(rows):
        if next(rows).key == 0:
            os.kill(driver, signal.SIGINT)
        time.sleep(30)
        return rows

    with pytest.raises(KeyboardInterrupt), session(None) as spark:
        start(spark, ROWS, 2, BadRows).map(interrupting, BadRows).collect("wait")


def test_a_python_that_is_not_there(spark, monkeypatch):
    monkeypatch.setattr(spark.sparkContext, "pythonExec", "/no/such/python")
    with failing("can't start /no/such/python.*PYSPARK_PYTHON") as child:
        start(child, ROWS, 2, BadRows).map(list, BadRows).kept("start")


def test_a_python_of_another_version(spark, monkeypatch):
    monkeypatch.setattr(spark.sparkContext, "pythonVer", "3.99")
    with failing(r"workers run Python 3\.\d+, and this is Python 3\.99 .*PYSPARK_PYTHON") as child:
        start(child, ROWS, 2, BadRows).map(list, BadRows).kept("start")


STEPS = """
import os, signal
from receiver.spark.flow import start
from receiver.steps.arrow_rows import Row
from receiver.spark.compacting import BadRows

def filled(rows):
    for row in rows:
        yield Row(row.key, BadRows(row.key, os.urandom(1 << 19).hex()))

def passed(key, rows):
    return rows

def killed(rows):
    os.kill(JAVA, signal.SIGKILL)
    return rows

def work(spark):
    global JAVA
    JAVA = spark._sc._gateway.proc.pid
    flow = start(spark, [Row(key, BadRows(key, "")) for key in range(8)], 8, BadRows).map(filled, BadRows)
    {step}
"""


@pytest.fixture
def small_disk(tmp_path):
    """A folder on a disk of 2 MB."""
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", tmp_path], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("only root can mount a small disk")
    yield tmp_path
    # Java ends a moment after the program that started it.
    subprocess.run(["umount", "--lazy", tmp_path], check=True)


def last_words(ran) -> str:
    assert ran.returncode == 1
    assert ran.stdout == ""
    assert ran.stderr.startswith("SparkError: ")
    assert ran.stderr.count("\n") == 1, ran.stderr
    return ran.stderr


@pytest.mark.slow
@pytest.mark.usefixtures("java")
@pytest.mark.parametrize("step", ['flow.kept("keep")', 'flow.grouped(passed, 8, BadRows).collect("shuffle")'])
def test_a_full_disk(small_disk, step):
    reported = last_words(run_program(STEPS.format(step=step), SPARK_LOCAL_DIRS=str(small_disk)))
    assert "is full" in reported
    assert "SPARK_LOCAL_DIRS" in reported


@pytest.mark.slow
@pytest.mark.usefixtures("java")
def test_a_folder_that_can_not_be_written():
    """Java ends while Spark begins."""
    reported = last_words(run_program(STEPS.format(step=""), SPARK_LOCAL_DIRS="/proc/no"))
    assert "can't write to /proc/no" in reported
    assert "SPARK_LOCAL_DIRS" in reported


@pytest.mark.slow
@pytest.mark.usefixtures("java")
def test_java_that_ends():
    assert "Java ended" in last_words(run_program(STEPS.format(step='flow.map(killed, BadRows).kept("die")')))


@pytest.mark.slow
@pytest.mark.usefixtures("java")
def test_a_master_that_spark_refuses():
    reported = last_words(run_program(STEPS.format(step=""), master="local-cluster[1,1,10]"))
    assert "Asked to launch cluster with 10 MiB" in reported


@pytest.mark.slow
@pytest.mark.usefixtures("java")
def test_java_that_does_not_even_start():
    reported = last_words(run_program(STEPS.format(step=""), SPARK_DRIVER_MEMORY="1k"))
    assert "Too small" in reported
    assert "SPARK_DRIVER_MEMORY" in reported
