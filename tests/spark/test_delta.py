"""Real Delta tables, by the library for Spark 4.1. That Spark is fetched beside this environment, since the newest
one has no such library yet."""

import json
import sys
from pathlib import Path

import pytest

from examples.demo.processes import run_to_fetch, whole
from tests.brokers.cached import fetch_jars, fetched
from tests.logs.reading import Row, parquet_bytes
from tests.spark.programs import run_program
from tests.spark.test_spark_frames import receipts, said_here

PYSPARK = "pyspark==4.1.1"
DELTA = "io.delta:delta-spark_4.1_2.13:4.3.1"
SETTINGS = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}

PROGRAM = """
import json, os
from pyspark.sql.functions import monotonically_increasing_id
from receiver.spark import size_windows

def work(spark):
    table = "delta.`" + os.environ["TABLE"] + "`"
    log = spark.read.parquet(os.environ["LOG"]).withColumn("n", monotonically_increasing_id())
    for commit in range(3):
        log.where(f"n % 3 = {commit}").write.format("delta").mode("append").save(os.environ["TABLE"])
    spark.sql(f"OPTIMIZE {table}")
    spark.sql(f"DELETE FROM {table} WHERE n = 7")
    frame = spark.table(table)
    numbers = [row.n for row in frame.select("n").collect()]
    said = {
        "commits": spark.sql(f"DESCRIBE HISTORY {table}").count(),
        "files": len(frame.inputFiles()),
        "moved": numbers != sorted(numbers),
        "ordered": size_windows(frame, domain="destination", order_by="n").as_dict(),
        "by_time": size_windows(frame, domain="destination").as_dict(),
    }
    print(json.dumps(said))
"""
"""A program with three commits. `OPTIMIZE` moves their rows into one file, commit after commit. Number 7 is deleted."""


def fetch_pyspark(cache: Path) -> Path:
    """The folder of that Spark, which goes before this environment's libraries."""

    def bring(folder: Path) -> Path:
        command = [sys.executable, "-m", "pip", "install", "--target", str(folder / "libraries"), PYSPARK]
        hint = "it needs access to PyPI, or a mirror of it in pip's configuration"
        run_to_fetch("pip", PYSPARK, command, folder, hint=hint)
        return folder / "libraries"

    return whole(cache / PYSPARK.replace("==", "-"), bring)


def said_of(rows: list[Row], log: Path) -> dict:
    log.write_bytes(parquet_bytes(rows))
    return said_here([log])


@pytest.mark.slow
@pytest.mark.usefixtures("java")
@pytest.mark.parametrize("deletion_vectors", ["true", "false"])
def test_a_delta_table_has_the_order_of_a_column_or_of_time(tmp_path, deletion_vectors):
    """With deletion vectors, the table's frame shows files and rows, but their order means nothing."""
    pyspark, jars = fetched(fetch_pyspark), fetched(lambda cache: fetch_jars(cache, "delta", [DELTA]))
    settings = SETTINGS | {"spark.databricks.delta.properties.defaults.enableDeletionVectors": deletion_vectors}
    options = [
        f"--jars {','.join(map(str, jars.iterdir()))}",
        *(f"--conf {name}={it}" for name, it in settings.items()),
    ]
    rows = receipts(5)
    (tmp_path / "log.parquet").write_bytes(parquet_bytes(rows))
    ran = run_program(
        PROGRAM,
        LOG=str(tmp_path / "log.parquet"),
        TABLE=str(tmp_path / "table"),
        PYTHONPATH=str(pyspark),
        SPARK_HOME=str(pyspark / "pyspark"),
        PYSPARK_SUBMIT_ARGS=" ".join([*options, "pyspark-shell"]),
    )
    assert ran.returncode == 0, ran.stderr
    said = json.loads(ran.stdout)
    left = rows[:7] + rows[8:]
    assert (said["commits"], said["files"], said["moved"]) == (5, 1, True)
    assert said["ordered"] == said_of(left, tmp_path / "ordered.parquet")
    assert said["by_time"] == said_of(sorted(left), tmp_path / "by_time.parquet")
    assert said["ordered"] != said["by_time"]
