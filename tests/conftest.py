"""Hypothesis profiles: `default` at a desk, `ci` with the same cases every time, `thorough` for a search of hours.

Choose one with `--hypothesis-profile=NAME`. This file also decides which tests run, which of them share a process, and
what a failure prints. Its fixtures are the databases and brokers of the tests.
"""

import gc
import logging
import os
import random
import signal
import tempfile
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest
from hypothesis import settings

from examples.demo import processes
from examples.demo.artemis import check_programs, fetch, new_broker
from receiver.errors import MissingProgramError
from tests import choosing
from tests.postgres import folder_in_memory, fresh_database, running_server

# No deadlines: `benchmarks/` measures times, and a busy machine is no failure.
settings.register_profile("default", deadline=None, print_blob=True)
settings.register_profile("ci", parent=settings.get_profile("default"), derandomize=True, database=None)
settings.register_profile("thorough", parent=settings.get_profile("default"), max_examples=5_000)
settings.load_profile("ci" if os.environ.get("CI") else "default")
# Nor do tests check how fast the demo's programs start and stop.
processes._STARTS_SECS = processes._STOPS_SECS = 300

pytest_plugins = ["tests.campaigns"]
TOGETHER = ("/spark/", "mark.artemis", "mark.broker")
"""Tests whose path or text has one of these share a process, so that it starts what takes long only once."""
SLOWEST_FIRST = ("spark", "bridge", "demo", "artemis", "brokers")
"""Folders whose tests come first, because they take longest."""


def pytest_xdist_auto_num_workers(config):
    """More than processors, since tests wait for what they have started: a database, a process, or a broker, for which
    the costly and slow ones wait most of the time. Each process collects all tests, so too many take longer."""
    option = config.option
    waits_most = option.costly or option.slow or option.all or option.campaign
    return (os.cpu_count() or 1) + (2 if waits_most else 1)


def pytest_configure(config):
    choosing.choose_size(config)
    # Also if it was ignored, as by nohup and `&`: otherwise programs that tests start would ignore it too.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config, items):
    choosing.leave_out_others(config, items)

    def rank(item):
        folder = item.path.parent.name
        return SLOWEST_FIRST.index(folder) if folder in SLOWEST_FIRST else len(SLOWEST_FIRST)

    items.sort(key=rank)


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Keep the garbage collector from searching the million objects of the collected tests, which stay anyway."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


@cache
def scope_of(path):
    said = path.as_posix() + path.read_text(encoding="utf-8")
    return next((shared for shared in TOGETHER if shared in said), str(path))


def pytest_xdist_make_scheduler(config, log):
    """If several processes run tests, each file runs in one of them. So do all tests on Spark, and all on the same
    brokers."""
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            return scope_of(self.config.rootpath / nodeid.partition("::")[0])

    return ByFile(config, log)


def pytest_terminal_summary(terminalreporter, config):
    if text := choosing.what_was_left_out(config):
        terminalreporter.write_line(text)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    """Show with a failure the command that repeats it.

    A test's output goes to another process as UTF-8, which has no lone surrogates: so they are escaped.

    PySpark's loggers don't propagate. So pytest would add its handler to them, and they would give it their own format.
    """
    for logger in logging.root.manager.loggerDict.values():
        if isinstance(logger, logging.Logger) and type(logger).__name__ == "PySparkLogger":
            logger.propagate = True
    report = yield
    if report.failed:
        report.sections.append(("to repeat it", choosing.repeated_by(item)))
    report.sections = [(name, text.encode("utf-8", "backslashreplace").decode()) for name, text in report.sections]
    return report


def pytest_addoption(parser):
    choosing.add_options(parser)
    parser.addoption("--seed", type=int, help="what tests that kill draw from: at a desk another each time, 1 in CI")


@pytest.fixture
def seed(request):
    """The seed of a test's random choices. A failure shows it in the command that repeats it."""
    given = request.config.getoption("--seed")
    if given is None:
        given = 1 if os.environ.get("CI") else random.randrange(1_000_000)
    return given


@pytest.fixture(scope="session")
def artemis_home(tmp_path_factory):
    """The folder of a real broker's program. Each process fetches it only once, since that takes seconds."""
    with tempfile.TemporaryDirectory(prefix="receiver-artemis-") as folder:
        try:
            check_programs(Path(folder))
        except MissingProgramError as error:
            pytest.skip(str(error))
        import fcntl  # Windows has neither this module nor the broker

        # One process after another, since all of them fill Maven's cache.
        with (tmp_path_factory.getbasetemp().parent / "maven.lock").open("w") as turn:
            fcntl.flock(turn, fcntl.LOCK_EX)
            home = fetch(Path(folder))
        yield home


@pytest.fixture(scope="session")
def running_artemis(artemis_home):
    """A real Artemis that runs for the whole session."""
    with new_broker(artemis_home) as broker:
        broker.start()
        yield broker


def real_broker(product):
    """A broker of this module of `tests/brokers/`. It runs for the whole session. A test that kills it starts it
    again."""
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


def real_cluster(product):
    """A cluster of this module of `tests/brokers/`. It runs for the tests of one file. A test leaves its nodes
    running."""
    cached = pytest.importorskip("tests.brokers.cached", reason="no brokers where there is no fcntl, as on Windows")
    module = import_module(f"tests.brokers.{product}")
    with cached.new_broker(module, module.Cluster) as cluster:
        cluster.start()
        yield cluster


@pytest.fixture(scope="module")
def rabbitmq_cluster():
    """Three nodes of RabbitMQ."""
    yield from real_cluster("rabbitmq")


@pytest.fixture(scope="module")
def kafka_cluster():
    """Three nodes of Kafka."""
    yield from real_cluster("kafka")


@pytest.fixture(scope="module")
def artemis_pair(artemis_home):
    """An Artemis primary and its backup, by replication."""
    pair = pytest.importorskip("tests.brokers.artemis_pair", reason="no cluster where there are no processes to freeze")
    with pair.running(artemis_home) as nodes:
        yield nodes


@pytest.fixture(scope="session")
def postgres_url(request):
    """The address of a real PostgreSQL that runs for the whole session. Slow tests fill it more than memory may hold."""
    option = request.config.option
    with running_server(None if option.slow or option.all else folder_in_memory()) as url:
        yield url


@pytest.fixture
def fresh_postgres_url(postgres_url):
    """The address of a new empty PostgreSQL database."""
    with fresh_database(postgres_url) as url:
        yield url


@pytest.fixture
def missing_sqlite_url(tmp_path):
    """The address of an SQLite file that isn't there yet."""
    return f"sqlite:///{tmp_path / 'receiver.db'}"


@pytest.fixture
def sqlite_url(missing_sqlite_url):
    """The address of an SQLite file. Folders whose tests need tables override this fixture."""
    return missing_sqlite_url


@pytest.fixture(params=["sqlite", "postgresql"])
def store_url(request):
    """The address of a new empty database. Each test runs on both kinds."""
    return request.getfixturevalue("sqlite_url" if request.param == "sqlite" else "fresh_postgres_url")


@pytest.fixture(params=["sqlite", "postgresql"])
def unmade_store_url(request):
    """The address of a database without tables, also in folders whose databases have them already."""
    if request.param == "sqlite":
        yield request.getfixturevalue("missing_sqlite_url")
        return
    with fresh_database(request.getfixturevalue("postgres_url")) as url:
        yield url


@pytest.fixture(params=["memory", "sqlite", "postgresql"])
def any_url(request):
    """As `store_url`, or the address of a receiver without a store."""
    databases = {"sqlite": "sqlite_url", "postgresql": "fresh_postgres_url"}
    return request.getfixturevalue(databases[request.param]) if request.param in databases else "memory://"
