"""The README's versions are those that the package requires, and those of the tested brokers."""

import re
import tomllib
from importlib import import_module
from importlib.metadata import version

import pytest
from sqlalchemy import NullPool, create_engine

from examples.demo import artemis
from tests import postgres_versions
from tests.docs.markdown import ROOT, sections

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
VERSIONS = sections("README.md")["Versions"]


def test_what_is_needed_is_what_the_package_asks_for():
    needed = dict(re.findall(r"^\| (\w+).*? \| ([\d.]+) or newer \|", VERSIONS, re.MULTILINE))
    assert needed.pop("Java") == "17"
    asked = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["spark"]]
    least = {name: re.search(rf"{name.lower()}>=([\d.]+)", " ".join(asked))[1] for name in ("SQLAlchemy", "PySpark")}
    assert needed == least | {"Python": PROJECT["requires-python"].removeprefix(">=")}


@pytest.mark.parametrize("name", ["SQLAlchemy", "PySpark"])
def test_the_libraries_are_those_that_are_tested(name):
    (stated,) = re.findall(rf"^\| {name}.* \| ([\d.]+) \|$", VERSIONS, re.MULTILINE)
    assert version(name).startswith(f"{stated}.")


def test_the_postgresql_is_the_one_that_is_tested(postgres_url):
    with create_engine(postgres_url, poolclass=NullPool).connect() as connection:
        major, _ = connection.dialect.server_version_info
    oldest = min(postgres_versions.VERSIONS)
    assert re.search(rf"^\| PostgreSQL.* \| {oldest} to {major} \|$", VERSIONS, re.MULTILINE)


@pytest.mark.parametrize("name", ["ActiveMQ Artemis", "ActiveMQ Classic", "Qpid Broker-J", "Kafka"])
def test_the_brokers_are_those_that_are_tested(name):
    module = name.split()[-1] if "ActiveMQ" in name else name.split()[0]
    tested = artemis if module == "Artemis" else import_module(f"tests.brokers.{module.lower()}")
    (stated,) = re.findall(rf"^\| {name} ([\d.]+)", VERSIONS, re.MULTILINE)
    assert tested.VERSION.startswith(f"{stated}.")
