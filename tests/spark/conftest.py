"""One Spark session for all tests in this folder, since starting one takes seconds."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from receiver.errors import SparkError
from receiver.spark.failures import check_java
from receiver.spark.session import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def need_java() -> None:
    try:
        check_java()
    except SparkError as error:
        pytest.skip(str(error))


@pytest.fixture
def java() -> None:
    """Skip the test if there is no Java that Spark can run in."""
    need_java()


@pytest.fixture(scope="session")
def spark() -> "Iterator[SparkSession]":
    need_java()
    with session("local[2]", brief=True) as spark:
        yield spark
