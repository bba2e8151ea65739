"""The programs in `examples/recipes/`: each is killed at work, and has each row once at the end."""

import asyncio
import random
import shutil
import sqlite3
import subprocess
import sys
import time
from contextlib import closing, contextmanager

import boto3
import pika
import pytest
import redis
from confluent_kafka import OFFSET_END, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from examples.demo.processes import HOST, JAVA_ARGS, Server, free_ports
from tests.campaigns import survived
from tests.docs.markdown import ROOT, replaced

pytestmark = [pytest.mark.broker, pytest.mark.slow]

PROGRAMS = ROOT / "examples" / "recipes"
KILLS = {"quick": 1, "small": 3, "long": 100}
DYING = """
import os, signal, sys

if sys.argv[1:]:
    when, calls, keep_whole = sys.argv[1], int(sys.argv[2]), keep

    def keep(*arguments):
        global calls
        calls -= 1
        if not calls and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        keep_whole(*arguments)
        if not calls and when == "after":
            os.kill(os.getpid(), signal.SIGKILL)
"""
PIKA, KAFKA, NATS, SQS, REDIS = (
    "rabbitmq_pika.py",
    "kafka_confluent.py",
    "nats_jetstream.py",
    "sqs_boto3.py",
    "redis_streams.py",
)
WAITS_SECS = 180
SENT_AT_ONCE = 20
WAIT_AT_MOST = 1_000
"""The most messages that may wait. With more than the window of 2,000 ids, a duplicate would come after its id is
forgotten."""


class Consumer:
    """A recipe in a folder of its own. `send` takes the ids to send."""

    def __init__(self, folder, recipe, real, send):
        self.folder, self.send, self.sent = folder, send, 0
        rows, script = ((PROGRAMS / name).read_text(encoding="utf-8") for name in ("rows.py", recipe))
        (folder / "rows.py").write_text(rows + DYING, encoding="utf-8")
        (folder / "consumer.py").write_text(replaced(script, real), encoding="utf-8")
        with closing(sqlite3.connect(folder / "orders.db")) as database:
            database.execute("CREATE TABLE orders (id TEXT, body TEXT)")

    def send_more(self):
        """Send new ids, and a few of them once more, like a sender without an answer. If many wait, send none."""
        if self.sent - len(set(self.rows())) > WAIT_AT_MOST:
            return
        ids = [str(n) for n in range(self.sent, self.sent + SENT_AT_ONCE)]
        self.sent += SENT_AT_ONCE
        self.send(ids + ids[::4])

    @contextmanager
    def started(self, *dying):
        command = [sys.executable, "consumer.py", *dying]
        with subprocess.Popen(command, cwd=self.folder, stderr=subprocess.PIPE, text=True) as process:
            try:
                yield process
            finally:
                process.kill()

    def killed(self, when, draw):
        """Run it until it dies, on command or at random, with messages to take."""
        self.send_more()
        if when == "random":
            with self.started() as process:
                time.sleep(draw.uniform(0.3, 1.5))
        else:
            with self.started(when, str(draw.randint(1, 2))) as process:
                self.wait(process, lambda: process.poll() is not None, meanwhile=self.send_more)
        assert process.returncode == -9

    def wait(self, process, done, meanwhile=lambda: None):
        give_up = time.monotonic() + WAITS_SECS
        while not done() and time.monotonic() < give_up:
            if process.poll() not in {None, -9}:
                pytest.fail(process.stderr.read())
            meanwhile()
            time.sleep(0.1)
        if not done():
            process.kill()
            pytest.fail(f"not done in {WAITS_SECS} s: {len(self.rows())} rows of {self.sent}; {process.stderr.read()}")

    def rows(self):
        with closing(sqlite3.connect(self.folder / "orders.db", timeout=30)) as database:
            return [id_ for (id_,) in database.execute("SELECT id FROM orders")]


@pytest.fixture
def draw(seed):
    return random.Random(seed)


@pytest.fixture
def each_row_once(tmp_path, draw, request):
    def check(recipe, real, send, redelivers_after_secs=0.0):
        consumer = Consumer(tmp_path, recipe, real, send)
        kills = KILLS[request.config.getoption("--campaign")]
        for number in range(kills):
            consumer.killed(("before", "after", "random")[number % 3], draw)
        with consumer.started() as process:
            consumer.wait(process, lambda: len(set(consumer.rows())) == consumer.sent)
            time.sleep(redelivers_after_secs + 0.5)  # messages that a dead consumer held come again by then
        assert sorted(consumer.rows(), key=int) == [str(n) for n in range(consumer.sent)]
        survived({"kills": kills}, consumer.sent)

    return check


@pytest.mark.scaled
def test_pika(rabbitmq, each_row_once, tmp_path):
    queue = f"orders-{tmp_path.name}"
    with rabbitmq.connect() as connection:
        channel = connection.channel()
        channel.queue_declare(queue, durable=True)
        channel.confirm_delivery()

        def send(ids):
            for id_ in ids:
                properties = pika.BasicProperties(delivery_mode=2, headers={"uniqueMessageId": id_})
                channel.basic_publish("", queue, b"10 EUR", properties)

        real = {"localhost:5672": f"{HOST}:{rabbitmq.amqp_port}", 'consume("orders"': f'consume("{queue}"'}
        each_row_once(PIKA, real, send)


@pytest.fixture
def topic(kafka, tmp_path):
    """A topic's name, the real values for the recipe, and a function that sends to the topic."""
    name = f"orders-{tmp_path.name}"
    kafka.declare(name, partitions=2)
    producer = Producer({"bootstrap.servers": kafka.servers})

    def send(ids):
        for id_ in ids:
            producer.produce(name, b"10 EUR", headers={"uniqueMessageId": id_})
        assert producer.flush(30) == 0

    real = {
        "localhost:9092": kafka.servers,
        '["orders"]': f'["{name}"]',
        '"group.id": "orders"': f'"group.id": "{name}", "session.timeout.ms": 2000, "heartbeat.interval.ms": 300',
    }
    return name, real, send


@pytest.mark.scaled
def test_kafka_by_hand(topic, each_row_once):
    _, real, send = topic
    each_row_once(KAFKA, real, send)


def ending(process):
    """The errors of a consumer that ends by itself."""
    return process.communicate(timeout=WAITS_SECS)[1]


def test_kafka_by_hand_writes_nothing_for_a_partition_that_it_has_lost(topic, tmp_path):
    _, real, send = topic
    consumer = Consumer(tmp_path, KAFKA, real, send)
    consumer.send_more()
    with consumer.started() as process:
        consumer.wait(process, lambda: len(consumer.rows()) == consumer.sent)
        with closing(sqlite3.connect(tmp_path / "orders.db", timeout=30, isolation_level=None)) as database:
            database.execute("UPDATE position SET next = next + 1000")  # as the new owner does
        send(["late"])
        assert "another consumer has partition" in ending(process)
    assert "late" not in consumer.rows()


def test_kafka_by_hand_says_what_retention_has_deleted(kafka, topic, tmp_path):
    name, real, send = topic
    consumer = Consumer(tmp_path, KAFKA, real, send)
    send([str(n) for n in range(50)])
    gone = [TopicPartition(name, partition, OFFSET_END) for partition in range(2)]
    admin = AdminClient({"bootstrap.servers": kafka.servers})
    for deleted in admin.delete_records(gone).values():
        deleted.result(WAITS_SECS)
    with consumer.started() as process:
        assert "_AUTO_OFFSET_RESET" in ending(process)
    assert consumer.rows() == []


@pytest.fixture
def launched(tmp_path):
    """Starts servers, which end with the test."""
    server = Server(tmp_path / "server.log")

    def launch(command, is_up):
        if shutil.which(command[0]) is None:
            pytest.skip(f"there is no {command[0]}: apt install {command[0]}")
        server.launch(command, lambda said: is_up in said)

    yield launch
    server.close()


@pytest.mark.slow
@pytest.mark.scaled
def test_nats(launched, each_row_once, tmp_path):
    import nats  # takes long to import

    (port,) = free_ports(4222)
    launched(["nats-server", "-js", "-sd", str(tmp_path), "-a", HOST, "-p", str(port)], "Server is ready")

    async def streamed(ids):
        client = await nats.connect(f"nats://{HOST}:{port}")
        stream = client.jetstream()
        await stream.add_stream(name="orders", subjects=["orders"])
        for id_ in ids:
            await stream.publish("orders", b"10 EUR", headers={"uniqueMessageId": id_})
        await client.close()

    real = {"localhost:4222": f"{HOST}:{port}", "ack_wait=30": "ack_wait=2"}
    each_row_once(NATS, real, lambda ids: asyncio.run(streamed(ids)), redelivers_after_secs=2)


@pytest.mark.scaled
def test_redis_streams(launched, each_row_once, tmp_path):
    (port,) = free_ports(6379)
    keeps = ["--dir", str(tmp_path), "--appendonly", "yes", "--appendfsync", "always"]
    launched(["redis-server", "--bind", HOST, "--port", str(port), *keeps], "Ready to accept connections")
    with redis.Redis(HOST, port) as client:
        client.xgroup_create("orders", "receivers", "0", mkstream=True)

        def send(ids):
            for id_ in ids:
                client.xadd("orders", {"uniqueMessageId": id_, "body": "10 EUR"})

        each_row_once(REDIS, {"redis.Redis(": f'redis.Redis("{HOST}", {port}, '}, send)


@pytest.fixture
def elasticmq(launched, tmp_path):
    """The address of an SQS."""
    cached = pytest.importorskip("tests.brokers.cached", reason="no brokers where there is no fcntl, as on Windows")
    jars = cached.fetched(
        lambda cache: cached.fetch_jars(cache, "elasticmq-1.7.1", ["org.elasticmq:elasticmq-server_2.13:1.7.1"])
    )
    (port,) = free_ports(9324)
    (tmp_path / "elasticmq.conf").write_text(
        f'include classpath("application.conf")\n'
        f'node-address {{ host = "{HOST}", port = {port} }}\n'
        f'rest-sqs {{ bind-port = {port}, bind-hostname = "{HOST}" }}\n'
        "rest-stats { enabled = false }\n"
    )
    java = ["java", "-Xmx128m", *JAVA_ARGS.split(), f"-Dconfig.file={tmp_path / 'elasticmq.conf'}"]
    launched([*java, "-cp", f"{jars}/*", "org.elasticmq.server.Main"], "started in")
    return f"http://{HOST}:{port}"


def test_sqs(elasticmq, each_row_once):
    given = {"endpoint_url": elasticmq, "region_name": "elasticmq"}
    given |= {"aws_access_key_id": "nobody", "aws_secret_access_key": "nothing"}
    sqs = boto3.client("sqs", **given)
    url = sqs.create_queue(QueueName="orders", Attributes={"VisibilityTimeout": "2"})["QueueUrl"]

    def send(ids):
        for id_ in ids:
            attributes = {"uniqueMessageId": {"DataType": "String", "StringValue": id_}}
            sqs.send_message(QueueUrl=url, MessageBody="10 EUR", MessageAttributes=attributes)

    real = {'boto3.client("sqs")': f'boto3.client("sqs", **{given})'}
    each_row_once(SQS, real, send, redelivers_after_secs=2)
