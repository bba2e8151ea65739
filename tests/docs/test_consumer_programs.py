"""The programs in `examples/consumers/`, killed again and again on a real RabbitMQ; the one in FastAPI, asked twice."""

import importlib.util
import json
import random
import re
import signal
import subprocess
import sys
import time
import uuid

import pika
import pytest
from sqlalchemy import NullPool, create_engine, make_url, text

from examples.demo.processes import HOST
from tests.campaigns import survived
from tests.docs.bridge import Base
from tests.docs.markdown import ROOT, replaced

pytestmark = [pytest.mark.broker, pytest.mark.slow]

PROGRAMS = ROOT / "examples" / "consumers"
KILLS = {"quick": 1, "small": 5, "long": 100}
SENT_PER_KILL = 200
SECS = 180


@pytest.fixture(params=["batches-sqlite", "batches-postgresql", "threads", "tasks", "faststream"])
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
    said = re.search("queue_type=quorum(?: arguments='(.*)')?", (PROGRAMS / "payments.py").read_text(encoding="utf-8"))
    given = json.loads(said[1] or "{}")
    rabbitmq.declare(name, "quorum", **{key.replace("-", "_"): value for key, value in given.items()})
    return name


@pytest.fixture
def consumer(rabbitmq, queue, kind, url, tmp_path):
    """Starts a program, with the test's addresses in it."""
    takes = {"threads": "consume", "faststream": "RabbitQueue"}.get(kind, "get_queue")
    backend = make_url(url).get_backend_name()
    driver = "aiosqlite" if backend == "sqlite" else "asyncpg"
    by_driver = make_url(url).set(drivername=f"{backend}+{driver}").render_as_string(hide_password=False)
    program = f"rabbitmq_{kind.partition('-')[0]}.py"
    real = {
        program: {f'{takes}("orders"': f'{takes}("{queue}"'},
        "payments.py": {
            "amqp://guest:guest@localhost/": f"amqp://guest:guest@{HOST}:{rabbitmq.amqp_port}/",
            "postgresql://bridge@db.example.com/bridge": url,
            "postgresql+asyncpg://bridge@db.example.com/bridge": by_driver,
        },
    }
    for name, replacements in real.items():
        text_of = (PROGRAMS / name).read_text(encoding="utf-8")
        (tmp_path / name).write_text(replaced(text_of, replacements), encoding="utf-8")
    return lambda **more: subprocess.Popen([sys.executable, program], cwd=tmp_path, **more)


@pytest.fixture
def rows(url):
    """Gives the number of rows, or all references if asked for them."""
    engine = create_engine(url, poolclass=NullPool)
    Base.metadata.create_all(engine)

    def read(what="count(*)", table="payment"):
        with engine.connect() as connection:
            found = connection.execute(text(f"SELECT {what} FROM {table}")).all()  # noqa: S608
        return found if "," in what else [value for (value,) in found]

    return read


def until(condition, process):
    deadline = time.monotonic() + SECS
    while not condition():
        assert process.poll() is None, "the consumer has ended by itself"
        if time.monotonic() > deadline:
            process.kill()
            pytest.fail("the consumer takes nothing")
        time.sleep(0.002)


def publish(channel, queue, ids, body=b'{"cents": 100}'):
    for id_ in ids:
        properties = pika.BasicProperties(message_id=id_, delivery_mode=pika.DeliveryMode.Persistent)
        channel.basic_publish("", queue, body, properties)


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
        publish(channel, queue, new + chosen.sample(new, 8))  # a part of them is sent twice
        (before,) = rows()
        with consumer() as process:
            until(lambda before=before: rows() > [before], process)
            time.sleep(chosen.uniform(0, 0.08))
            process.kill()
    with consumer() as process:
        until(lambda: rows() >= [len(sent)], process)
        time.sleep(0.5)  # the rest are duplicates
        process.kill()
    assert sorted(rows("reference")) == sorted(sent)
    survived({"kills": kills}, len(sent))


@pytest.mark.parametrize("kind", ["threads", "tasks", "faststream"])
def test_a_database_that_is_away_costs_no_message(channel, queue, consumer, rows, postgres_url, url):  # noqa: PLR0917
    name = make_url(url).database
    server = create_engine(postgres_url, poolclass=NullPool, isolation_level="AUTOCOMMIT")
    end = text("SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = :name")
    publish(channel, queue, ["1"])
    with consumer() as process, server.connect() as connection:
        until(lambda: rows() == [1], process)
        connection.execute(text(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS false'))
        connection.execute(end, {"name": name})
        publish(channel, queue, ["2", "3"])
        time.sleep(3)  # without a pause between tries a message comes hundreds of times
        connection.execute(text(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS true'))
        until(lambda: rows() == [3], process)
        process.kill()
    assert sorted(rows("reference")) == ["1", "2", "3"]


@pytest.mark.parametrize("poison", [(None, b'{"cents": 100}'), ("", b'{"cents": 100}'), ("3", b'{"cents')])
def test_a_message_that_no_retry_makes_good_is_put_aside(channel, queue, consumer, rows, poison):
    id_, body = poison
    publish(channel, queue, ["1"])
    publish(channel, queue, [id_], body)
    publish(channel, queue, ["2"])
    with consumer() as process:
        until(lambda: rows() == [2] and rows(table="aside") == [1], process)
        process.kill()
    assert sorted(rows("reference")) == ["1", "2"]
    assert [(id_ or None, body)] == [(found or None, bytes(left)) for found, left in rows("id, body", "aside")]


def test_ctrl_c_ends_it(channel, queue, consumer, rows):
    publish(channel, queue, ["1"])
    with consumer() as process:
        until(lambda: rows() == [1], process)
        process.send_signal(signal.SIGINT)
        try:
            process.wait(SECS / 3)
        finally:
            process.kill()


@pytest.mark.parametrize("kind", ["batches-sqlite"])
def test_a_table_that_is_missing_is_what_it_says(channel, queue, consumer):
    publish(channel, queue, ["1"])
    with consumer(stderr=subprocess.PIPE, text=True) as process:
        _, said = process.communicate(timeout=SECS)
    assert "no such table: payment" in said


def test_a_webhook_that_is_called_again_pays_once(tmp_path, monkeypatch):
    pytest.importorskip("fastapi")
    testclient = pytest.importorskip("fastapi.testclient")
    monkeypatch.chdir(tmp_path)
    spec = importlib.util.spec_from_file_location("fastapi_webhook", PROGRAMS / "fastapi_webhook.py")
    webhook = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(webhook)
    for again in (False, True):  # two lives of the application
        with testclient.TestClient(webhook.app) as client:
            answer = client.post("/payments", params={"cents": 100}, headers={"Idempotency-Key": "17"})
            assert answer.json() == {"paid": True, "again": again}
            assert client.post("/payments", params={"cents": 100}).status_code == 422
            assert client.post("/payments", params={"cents": 1}, headers={"Idempotency-Key": ""}).status_code == 422
    with create_engine("sqlite:///pay.db", poolclass=NullPool).connect() as connection:
        assert list(connection.scalars(text("SELECT reference FROM payment"))) == ["17"]
