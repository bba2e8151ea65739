"""The consumers of `docs/embedding.md`, as they stand there, killed again and again on a real RabbitMQ."""

import json
import random
import subprocess
import sys
import time
import uuid

import pika
import pytest
from sqlalchemy import NullPool, create_engine, make_url, text

from examples.demo.processes import HOST
from tests.docs.bridge import Base
from tests.docs.markdown import blocks, replaced

pytestmark = [pytest.mark.broker, pytest.mark.slow]

PAGE = "docs/embedding.md"
EXCLUSIVE = blocks(PAGE, "python", "In an event loop")[1]
THREADS, TASKS, FASTSTREAM = blocks(PAGE, "python", "Many consumers at once")
CONSUMERS = {"exclusive": EXCLUSIVE, "threads": THREADS, "tasks": TASKS, "faststream": FASTSTREAM}
KILLS = {"quick": 1, "small": 5, "long": 100}
SENT_PER_KILL = 200
SECS = 180


@pytest.mark.quick
@pytest.mark.parametrize("script", CONSUMERS.values(), ids=CONSUMERS)
def test_they_are_short(script):
    assert len(script.splitlines()) <= 45
    assert len(script.partition("async def main")[2].splitlines()) <= 30


@pytest.fixture(params=["exclusive-sqlite", "exclusive-postgresql", "threads", "tasks", "faststream"])
def kind(request):
    if request.param == "faststream":
        pytest.importorskip("faststream")
    return request.param


@pytest.fixture
def url(request, kind):
    return request.getfixturevalue("sqlite_url" if kind.endswith("sqlite") else "fresh_postgres_url")


@pytest.fixture
def queue(rabbitmq):
    name = f"orders-{uuid.uuid4()}"
    rabbitmq.declare(name, "quorum", x_delivery_limit=-1)
    return name


@pytest.fixture
def consumer(rabbitmq, queue, kind, url, tmp_path):
    """Starts the page's script."""
    takes = {"threads": "consume", "faststream": "RabbitQueue"}.get(kind, "get_queue")
    backend = make_url(url).get_backend_name()
    driver = "aiosqlite" if backend == "sqlite" else "asyncpg"
    by_driver = make_url(url).set(drivername=f"{backend}+{driver}").render_as_string(hide_password=False)
    real = {
        "postgresql://bridge@db.example.com/bridge": url,
        "amqp://guest:guest@localhost/": f"amqp://guest:guest@{HOST}:{rabbitmq.amqp_port}/",
        f'{takes}("orders"': f'{takes}("{queue}"',
    }
    if kind != "threads":
        real["postgresql+asyncpg://bridge@db.example.com/bridge"] = by_driver
    script = replaced(CONSUMERS[kind.partition("-")[0]], real)
    (tmp_path / "consumer.py").write_text(script, encoding="utf-8")
    return lambda: subprocess.Popen([sys.executable, "consumer.py"], cwd=tmp_path)


@pytest.fixture
def rows(url):
    """How many rows there are, and the references of all where they are asked for."""
    engine = create_engine(url, poolclass=NullPool)
    Base.metadata.create_all(engine)

    def read(what="count(*)", table="payment"):
        with engine.connect() as connection:
            return list(connection.scalars(text(f"SELECT {what} FROM {table}")))  # noqa: S608

    return read


def until(condition, process):
    deadline = time.monotonic() + SECS
    while not condition():
        assert process.poll() is None, "the consumer has ended by itself"
        assert time.monotonic() < deadline, "the consumer takes nothing"
        time.sleep(0.002)


def publish(channel, queue, ids):
    for id_ in ids:
        properties = pika.BasicProperties(message_id=id_, delivery_mode=pika.DeliveryMode.Persistent)
        channel.basic_publish("", queue, json.dumps({"cents": 100}).encode(), properties)


@pytest.fixture
def kills(request):
    return KILLS[request.config.getoption("--campaign")]


@pytest.fixture
def channel(rabbitmq):
    with rabbitmq.connect() as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        yield channel


@pytest.mark.scaled
def test_each_payment_is_one_row_whatever_is_killed(channel, queue, consumer, rows, kills, seed):  # noqa: PLR0917
    chosen, sent = random.Random(seed), []  # noqa: S311
    for _ in range(kills):
        new = [f"{len(sent) + n}" for n in range(SENT_PER_KILL)]
        sent += new
        publish(channel, queue, new + chosen.sample(new, 8))  # some are sent twice
        (before,) = rows()
        with consumer() as process:
            until(lambda before=before: rows() > [before], process)
            time.sleep(chosen.uniform(0, 0.08))
            process.kill()
    with consumer() as process:
        until(lambda: rows() >= [len(sent)], process)
        time.sleep(0.5)  # what is left are duplicates
        process.kill()
    assert sorted(rows("reference")) == sorted(sent)


@pytest.mark.parametrize("missing", [None, ""])
def test_a_message_without_an_id_is_put_aside(channel, queue, consumer, rows, missing):
    publish(channel, queue, ["1", missing, "2"])
    with consumer() as process:
        until(lambda: rows() == [2], process)
        process.kill()
    assert sorted(rows("reference")) == ["1", "2"]
    assert set(rows("body", "aside")) == {b'{"cents": 100}'}
