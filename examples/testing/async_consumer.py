"""The consumer of `consumer.py` in an event loop."""

from typing import Any

from consumer import PAY
from sqlalchemy.ext.asyncio import create_async_engine

from receiver import AsyncReceiver


async def consume(broker: Any, url: str, engine_url: str) -> None:
    """Take messages until there are none. Both addresses name the same database."""
    engine = create_async_engine(engine_url)
    async with await AsyncReceiver.open(url, connection_id="shop", destination="queue://payments") as payments:
        while messages := await broker.receive(10):
            async with engine.begin() as connection, payments.batch(connection) as batch:
                for message in messages:
                    if (await batch.receive(message.unique_message_id, message.message_source_id)).deliver:
                        await connection.execute(PAY, {"reference": message.unique_message_id})
            await broker.acknowledge(messages)
    await engine.dispose()
