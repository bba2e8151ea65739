"""RabbitMQ by aio-pika, a task for each message, up to 200 at once, on 20 connections to the database.

`payments.py` says what it needs.
"""

import asyncio

import aio_pika
from payments import BROKER, ENGINE, STORE, aside, payment
from sqlalchemy.ext.asyncio import create_async_engine

from receiver import AsyncReceiver


async def main() -> None:
    engine = create_async_engine(ENGINE, pool_size=20, max_overflow=0)
    broker, lost = await aio_pika.connect(BROKER), asyncio.get_running_loop().create_future()
    broker.close_callbacks.add(lambda *_: lost.cancel())
    where = {"connection_id": "rabbit", "destination": "queue://orders"}
    async with broker, await AsyncReceiver.open(STORE, **where, concurrent=True) as orders:

        async def take(message: aio_pika.abc.AbstractIncomingMessage) -> None:
            id_, body = message.message_id, message.body
            async with message.process(requeue=True):  # acknowledged after the commit; sent again if that fails
                try:
                    async with engine.begin() as connection, orders.batch(connection) as batch:
                        if not id_:
                            await connection.execute(*aside(id_, body))
                        elif (await batch.receive(id_, redelivered=bool(message.redelivered))).deliver:
                            await connection.execute(*payment(id_, body))
                except Exception:
                    await asyncio.sleep(1)  # it is sent again at once
                    raise

        channel = await broker.channel()
        await channel.set_qos(prefetch_count=200)
        await (await channel.get_queue("orders")).consume(take)
        await lost  # the broker is: let a supervisor start us again


asyncio.run(main())
