"""RabbitMQ by FastStream 0.7: the receiver lives as long as the application. `payments.py` says what it needs.

FastStream makes an id up for a message that has none, so this asks the raw message.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from faststream import AckPolicy, Context, ContextRepo, FastStream
from faststream.rabbit import Channel, RabbitBroker, RabbitMessage, RabbitQueue
from payments import BROKER, ENGINE, STORE, aside, payment
from sqlalchemy.ext.asyncio import create_async_engine

from receiver import AsyncReceiver

engine = create_async_engine(ENGINE, pool_size=20, max_overflow=0)
broker = RabbitBroker(BROKER, default_channel=Channel(prefetch_count=200))


@asynccontextmanager
async def lifespan(context: ContextRepo) -> AsyncIterator[None]:
    where = {"connection_id": "rabbit", "destination": "queue://orders"}
    async with await AsyncReceiver.open(STORE, **where, concurrent=True) as orders:
        context.set_global("orders", orders)
        yield


@broker.subscriber(RabbitQueue("orders", declare=False), ack_policy=AckPolicy.NACK_ON_ERROR)
async def take(message: RabbitMessage, orders: AsyncReceiver = Context()) -> None:
    raw = message.raw_message
    try:
        async with engine.begin() as connection, orders.batch(connection) as batch:
            if not raw.message_id:
                await connection.execute(*aside(raw.message_id, raw.body))
            elif (await batch.receive(raw.message_id, redelivered=bool(raw.redelivered))).deliver:
                await connection.execute(*payment(raw.message_id, raw.body))
    except Exception:
        await asyncio.sleep(1)  # it is sent again at once
        raise


asyncio.run(FastStream(broker, lifespan=lifespan).run())
