"""RabbitMQ by AMQP 0-9-1, with pika, up to 500 messages in a transaction. A connection that breaks ends it by an exception.

RabbitMQ closes a channel that leaves a message unacknowledged for 30 minutes. A quorum queue drops a message that was
delivered 20 times (`delivery-limit`): raise it where consumers may die often.
"""

import pika
from rows import keep, open_orders

AT_MOST = 500
connection = pika.BlockingConnection(pika.URLParameters("amqp://guest:guest@localhost:5672/%2F"))
channel = connection.channel()
channel.basic_qos(prefetch_count=AT_MOST)  # else the whole queue is sent ahead
taken = []
with open_orders("rabbitmq") as orders:
    for method, properties, body in channel.consume("orders", inactivity_timeout=0.05):
        if method:
            taken.append((method.delivery_tag, properties.headers["uniqueMessageId"], body.decode()))
        if taken and (not method or len(taken) == AT_MOST):
            keep(orders, [(id_, body) for _, id_, body in taken])
            channel.basic_ack(taken[-1][0], multiple=True)  # all up to this one, and all of them are kept
            taken = []
