"""The consumers in the documents, run by `receiver.testing`: they crash at each of their calls.

`test_consumer_programs.py` kills the RabbitMQ consumers with a real broker. Here their clients take from a
`FlakyBroker`.
"""

import asyncio
import importlib.util
import shutil
import sys
from contextlib import asynccontextmanager, suppress
from types import SimpleNamespace

import pytest
from sqlalchemy import NullPool, create_engine, make_url, text

from receiver.testing import check_exactly_once
from tests.docs.bridge import Base, orders_of
from tests.docs.markdown import ROOT, blocks, replaced

PROGRAMS = ROOT / "examples" / "consumers"
PAY = text("INSERT INTO payment (reference, cents) VALUES (:reference, 100)")


def loaded(name):
    spec = importlib.util.spec_from_file_location(name, PROGRAMS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def body(_):
    return b'{"cents": 100}'


def paid(url):
    with create_engine(url, poolclass=NullPool).connect() as connection:
        return list(connection.scalars(text("SELECT reference FROM payment")))


@pytest.fixture
def url_of(tmp_path):
    """Makes each story's own SQLite database, by copying one that has the tables."""
    made = tmp_path / "made.db"
    Base.metadata.create_all(create_engine(f"sqlite:///{made}", poolclass=NullPool))
    with orders_of(f"sqlite:///{made}"):
        pass

    def copied(story):
        path = tmp_path / f"{story}.db"
        if not path.exists():
            shutil.copy(made, path)
        return f"sqlite:///{path}"

    return copied


@pytest.fixture
def schema_of(fresh_postgres_url):
    """Makes each story's own schema in PostgreSQL, with an application's tables."""
    engine, made = create_engine(fresh_postgres_url, poolclass=NullPool), set()

    def url_of(story):
        url = make_url(fresh_postgres_url).update_query_dict({"options": f"-csearch_path={story}"})
        if story not in made:
            made.add(story)
            with engine.begin() as connection:
                connection.execute(text(f"CREATE SCHEMA {story}"))
            Base.metadata.create_all(create_engine(url, poolclass=NullPool))
        return url.render_as_string(hide_password=False)

    return url_of


def by_driver(url, driver):
    return url.replace("://", f"+{driver}://", 1).replace("+psycopg+", "+")


@pytest.mark.costly
@pytest.mark.parametrize("examples", [3, pytest.param(100, marks=pytest.mark.slow)])
def test_the_loop_of_the_documents(url_of, examples):
    """Its effect of a message is a row in the batch's transaction."""
    (loop,) = blocks("docs/embedding.md", "python", "The loop")

    def consume(broker, story):
        program = replaced(loop, {'"sqlite:///receiver.db"': repr(url_of(story)), "time.sleep(1)": ""})
        names = {"broker": broker, "deliver": lambda message: deliver(names["batch"].connection, message)}
        exec(compile(program, "docs/embedding.md", "exec"), names)  # noqa: S102 - our own text

    def deliver(connection, message):
        connection.execute(PAY, {"reference": message.unique_message_id})

    check_exactly_once(consume, lambda story: paid(url_of(story)), max_examples=examples)


@pytest.mark.slow
def test_the_webhook(url_of):
    """Its caller takes orders from the broker, and repeats requests that weren't answered."""
    pytest.importorskip("fastapi")
    httpx, webhook = pytest.importorskip("httpx"), loaded("fastapi_webhook")

    async def consume(broker, story):
        webhook.STORE, webhook.ENGINE = url_of(story), by_driver(url_of(story), "aiosqlite")
        there = httpx.ASGITransport(webhook.app, raise_app_exceptions=False)
        async with webhook.lifespan(webhook.app), httpx.AsyncClient(transport=there, base_url="http://shop") as caller:
            while messages := await broker.receive(1):
                key = {"Idempotency-Key": messages[0].unique_message_id}
                answer = await caller.post("/payments", params={"cents": 100}, headers=key)
                await (broker.acknowledge(messages) if answer.is_success else broker.recover())

    check_exactly_once(consume, lambda story: paid(url_of(story)), max_examples=30)


class AioPika:
    """A connection of aio-pika with its channel and queue. It closes once the broker has no message left."""

    def __init__(self, broker):
        self._broker = broker
        self._open = {}
        self._settled = asyncio.Event()
        self.close_callbacks = set()

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        pass

    async def channel(self):
        return self

    async def set_qos(self, prefetch_count):
        pass

    async def get_queue(self, _):
        return self

    async def consume(self, take):
        self._giving = asyncio.create_task(self._give(take))

    async def _give(self, take):
        while messages := await self._broker.receive(10):
            self._open = {message.delivery: message for message in messages}
            self._settled.clear()
            await asyncio.gather(*[take(Delivery(self, message)) for message in messages], return_exceptions=True)
            await self._settled.wait()
        for close in self.close_callbacks:
            close()

    async def acknowledge(self, delivery, multiple):
        done = [each for each in self._open if each == delivery or (multiple and each < delivery)]
        await self._broker.acknowledge([self._open[each] for each in done])
        self._settle(done)

    async def requeue(self, delivery):
        await self._broker.recover()
        self._settle([delivery])

    def _settle(self, deliveries):
        for delivery in deliveries:
            del self._open[delivery]
        if not self._open:
            self._settled.set()


class Delivery:
    """A message as aio-pika gives it to a program."""

    def __init__(self, connection, message):
        self.message_id, self.body, self.redelivered = message.unique_message_id, message.body, message.redelivered
        self._connection, self._delivery = connection, message.delivery

    async def ack(self, multiple=False):
        await self._connection.acknowledge(self._delivery, multiple)

    @asynccontextmanager
    async def process(self, requeue):
        try:
            yield
        except Exception:
            assert requeue
            await self._connection.requeue(self._delivery)
            raise
        await self.ack()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "places", "driver"), [("batches", "url_of", "aiosqlite"), ("tasks", "schema_of", "psycopg")]
)
def test_in_an_event_loop(request, monkeypatch, name, places, driver):
    aio_pika, url_of = pytest.importorskip("aio_pika"), request.getfixturevalue(places)
    program = replaced((PROGRAMS / f"rabbitmq_{name}.py").read_text(encoding="utf-8"), {"asyncio.run(main())": ""})
    monkeypatch.setitem(sys.modules, "payments", payments := loaded("payments"))

    async def consume(broker, story):
        async def connect(_):
            return AioPika(broker)

        monkeypatch.setattr(aio_pika, "connect", connect)
        payments.STORE, payments.ENGINE = url_of(story), by_driver(url_of(story), driver)
        exec(compile(program, f"rabbitmq_{name}.py", "exec"), names := {})  # noqa: S102 - our own text
        with suppress(asyncio.CancelledError):  # the broker has closed the connection
            await names["main"]()

    check_exactly_once(consume, lambda story: paid(url_of(story)), max_examples=10, body=body)


class Pika:
    """A connection of pika and its channel. A thread ends once the broker has nothing left for it."""

    def __init__(self, broker):
        self._broker = broker

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind and issubclass(kind, Exception):
            self._broker.recover()

    def channel(self):
        return self

    def basic_qos(self, prefetch_count):
        pass

    def consume(self, _):
        while messages := self._broker.receive(1):
            (message,) = messages
            method = SimpleNamespace(delivery_tag=message, redelivered=message.redelivered)
            yield method, SimpleNamespace(message_id=message.unique_message_id), message.body
        raise SystemExit

    def basic_ack(self, message):
        self._broker.acknowledge([message])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # so threads end here
def test_in_threads(schema_of, monkeypatch):
    pika = pytest.importorskip("pika")
    program = replaced((PROGRAMS / "rabbitmq_threads.py").read_text(encoding="utf-8"), {"time.sleep(1)": ""})
    monkeypatch.setitem(sys.modules, "payments", payments := loaded("payments"))

    def consume(broker, story):
        monkeypatch.setattr(pika, "BlockingConnection", lambda _: Pika(broker))
        payments.STORE = schema_of(story)
        exec(compile(program, "rabbitmq_threads.py", "exec"), {})  # noqa: S102 - our own text

    check_exactly_once(consume, lambda story: paid(schema_of(story)), max_examples=10, body=body)
