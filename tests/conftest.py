"""How hard Hypothesis searches: `default` at a desk, `ci` the same cases every time, `thorough` by the hour.

Choose with `--hypothesis-profile=NAME`. A failure prints the line that reproduces it. The fixtures are the databases
that stores are tested on.
"""

import logging
import os
import random
import tempfile
from importlib import import_module
from pathlib import Path

import pytest
from hypothesis import settings

from receiver.demo.artemis import check_programs, fetch, new_broker
from receiver.errors import MissingProgramError
from tests.postgres import fresh_database, running_server

# No deadlines: what is measured belongs in `benchmarks/`, and a busy machine is no failure.
settings.register_profile("default", deadline=None, print_blob=True)
settings.register_profile("ci", parent=settings.get_profile("default"), derandomize=True, database=None)
settings.register_profile("thorough", parent=settings.get_profile("default"), max_examples=5_000)
settings.load_profile("ci" if os.environ.get("CI") else "default")


TOGETHER = "spark"
"""The folder whose tests share what takes long to start."""
SLOWEST_FIRST = (TOGETHER, "bridge", "demo", "artemis", "brokers")
"""Folders whose tests aren't to be left for the end."""


def pytest_xdist_auto_num_workers():
    """One more than processors: half of the time a test waits, for a broker, a database or a process that it has started."""
    return (os.cpu_count() or 1) + 1


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Where several processes run tests, each file belongs to one, and so does all of one folder.

    First of all hooks, for that of pytest-xdist reads the marks.
    """

    def place(item):
        folder = item.path.parent.name
        return SLOWEST_FIRST.index(folder) if folder in SLOWEST_FIRST else len(SLOWEST_FIRST)

    items.sort(key=place)
    for item in items:
        is_together = item.path.parent.name == TOGETHER
        item.add_marker(pytest.mark.xdist_group(TOGETHER if is_together else str(item.path)))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport():
    """What a test has printed goes to another process as UTF-8, in which a lone surrogate can't be sent.

    PySpark's loggers of errors don't propagate; pytest would add its handler to them, and they give it their own format.
    """
    for logger in logging.root.manager.loggerDict.values():
        if isinstance(logger, logging.Logger) and type(logger).__name__ == "PySparkLogger":
            logger.propagate = True
    report = yield
    report.sections = [(name, text.encode("utf-8", "backslashreplace").decode()) for name, text in report.sections]
    return report


def pytest_addoption(parser):
    parser.addoption("--campaign", choices=["small", "long"], default="small", help="how often durable tests kill")
    parser.addoption("--seed", type=int, help="what tests that kill draw from: at a desk another each time, 1 in CI")


@pytest.fixture
def seed(request):
    """What a test draws from; pytest shows it with a failure."""
    given = request.config.getoption("--seed")
    if given is None:
        given = 1 if os.environ.get("CI") else random.randrange(1_000_000)
    print(f"to draw the same again: --seed={given}")
    return given


@pytest.fixture(scope="session")
def artemis_home(tmp_path_factory):
    """Where the program of a real broker is; fetched once by each process, as that takes seconds."""
    with tempfile.TemporaryDirectory(prefix="receiver-artemis-") as folder:
        try:
            check_programs(Path(folder))
        except MissingProgramError as error:
            pytest.skip(str(error))
        import fcntl  # which Windows hasn't, nor such a broker

        # By one after the other, for all of them fill Maven's cache.
        with (tmp_path_factory.getbasetemp().parent / "maven.lock").open("w") as turn:
            fcntl.flock(turn, fcntl.LOCK_EX)
            home = fetch(Path(folder))
        yield home


@pytest.fixture(scope="session")
def running_artemis(artemis_home):
    """A real broker that runs for the whole session."""
    with new_broker(artemis_home) as broker:
        broker.start()
        yield broker


def real_broker(product):
    """A broker of that module of `tests/brokers/`, which runs for the whole session; a test that kills it starts it again."""
    cached = pytest.importorskip("tests.brokers.cached", reason="no brokers where there is no fcntl, as on Windows")
    with cached.new_broker(import_module(f"tests.brokers.{product}")) as broker:
        broker.start()
        yield broker


@pytest.fixture(scope="session")
def rabbitmq():
    """A real RabbitMQ 4."""
    yield from real_broker("rabbitmq")


@pytest.fixture(scope="session")
def classic():
    """A real ActiveMQ Classic."""
    yield from real_broker("classic")


@pytest.fixture(scope="session")
def qpid():
    """A real Qpid Broker-J."""
    yield from real_broker("qpid")


@pytest.fixture(scope="session")
def kafka():
    """A real Kafka."""
    yield from real_broker("kafka")


@pytest.fixture(scope="session")
def postgres_url():
    """The address of a real PostgreSQL that runs for the whole session."""
    with running_server() as url:
        yield url


@pytest.fixture
def fresh_postgres_url(postgres_url):
    """The address of a new empty PostgreSQL database."""
    with fresh_database(postgres_url) as url:
        yield url


@pytest.fixture
def sqlite_url(tmp_path):
    """The address of an SQLite file that isn't there yet."""
    return f"sqlite:///{tmp_path / 'receiver.db'}"


@pytest.fixture(params=["sqlite", "postgresql"])
def store_url(request):
    """The address of a new empty database of either kind; each test runs on both."""
    return request.getfixturevalue("sqlite_url" if request.param == "sqlite" else "fresh_postgres_url")


@pytest.fixture(params=["memory", "sqlite", "postgresql"])
def any_url(request):
    """As `store_url`, or the address of a receiver that keeps nothing."""
    databases = {"sqlite": "sqlite_url", "postgresql": "fresh_postgres_url"}
    return request.getfixturevalue(databases[request.param]) if request.param in databases else "memory://"
