"""RabbitMQ by aio-pika, one consumer, up to 100 messages in a transaction. `payments.py` says what it needs."""

import asyncio

import aio_pika
from payments import BROKER, ENGINE, STORE, aside, payment
from sqlalchemy.ext.asyncio import create_async_engine

from receiver import AsyncReceiver


async def main() -> None:
    broker = await aio_pika.connect(BROKER)
    async with broker, await AsyncReceiver.open(STORE, connection_id="rabbit", destination="queue://orders") as orders:
        consumer = asyncio.create_task(consume(await broker.channel(), orders))
        broker.close_callbacks.add(lambda *_: consumer.cancel())  # once it is lost: let a supervisor start us again
        await consumer


async def consume(channel: aio_pika.abc.AbstractChannel, orders: AsyncReceiver) -> None:
    engine = create_async_engine(ENGINE)
    arrived: asyncio.Queue[aio_pika.abc.AbstractIncomingMessage] = asyncio.Queue()
    await channel.set_qos(prefetch_count=200)
    await (await channel.get_queue("orders")).consume(arrived.put)
    while True:
        messages = [await arrived.get()]
        while not arrived.empty() and len(messages) < 100:
            messages.append(arrived.get_nowait())
        async with engine.begin() as connection, orders.batch(connection) as batch:
            for message in messages:
                id_, body = message.message_id, message.body
                if not id_:
                    await connection.execute(*aside(id_, body))
                elif (await batch.receive(id_, redelivered=bool(message.redelivered))).deliver:
                    await connection.execute(*payment(id_, body))
        await messages[-1].ack(multiple=True)  # and with it all that came before


asyncio.run(main())
