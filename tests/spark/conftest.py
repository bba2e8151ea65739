"""One Spark session for all tests here, as starting one takes seconds."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from receiver.spark.session import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark() -> "Iterator[SparkSession]":
    with session("local[2]") as spark:
        yield spark
