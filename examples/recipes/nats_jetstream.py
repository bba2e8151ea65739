"""NATS JetStream. What a dead consumer held comes again after `ack_wait` seconds: ids have to be remembered for longer.

Don't use `AckPolicy.ALL`, which loses messages: the next process's acknowledgement covers what a dead one held. `keep` blocks the
event loop: if that hurts, call it by `asyncio.to_thread`.
"""

import asyncio

import nats
from nats.js.api import AckPolicy, ConsumerConfig
from rows import keep, open_orders


async def consume():
    client = await nats.connect("nats://localhost:4222")
    config = ConsumerConfig(ack_policy=AckPolicy.EXPLICIT, ack_wait=30, max_ack_pending=10_000)
    subscription = await client.jetstream().pull_subscribe("orders", durable="orders", config=config)
    with open_orders("nats") as orders:
        while True:
            try:
                messages = await subscription.fetch(500, timeout=1)
            except TimeoutError:
                continue
            keep(orders, [(message.headers["uniqueMessageId"], message.data.decode()) for message in messages])
            await asyncio.gather(*(message.ack_sync(timeout=10) for message in messages))


asyncio.run(consume())
