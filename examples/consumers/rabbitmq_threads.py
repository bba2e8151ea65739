"""RabbitMQ by pika, 16 threads, each message with a transaction of its own. `payments.py` says what it needs."""

import logging
import time
from threading import Thread

import pika
from payments import BROKER, STORE, aside, payment

from receiver import Receiver


def consume(orders: Receiver) -> None:
    with pika.BlockingConnection(pika.URLParameters(f"{BROKER}%2F")) as connection:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=20)
        for method, properties, body in channel.consume("orders"):
            id_ = properties.message_id
            with orders.batch() as batch:
                if not id_:
                    batch.connection.execute(*aside(id_, body))
                elif batch.receive(id_, redelivered=method.redelivered).deliver:
                    batch.connection.execute(*payment(id_, body))
            channel.basic_ack(method.delivery_tag)  # only now: the batch is committed


def keep_consuming(orders: Receiver) -> None:
    while True:
        try:
            consume(orders)
        except Exception:  # the broker has what wasn't acknowledged, and sends it again
            logging.getLogger("consumer").exception("a consumer begins anew")
            time.sleep(1)


with Receiver.open(STORE, connection_id="rabbit", destination="queue://orders", concurrent=True) as orders:
    consumers = [Thread(target=keep_consuming, args=[orders], daemon=True) for _ in range(16)]
    for consumer in consumers:
        consumer.start()
    for consumer in consumers:
        consumer.join()
