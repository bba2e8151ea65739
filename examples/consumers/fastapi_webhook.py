"""A webhook in FastAPI whose caller repeats what wasn't answered: each payment is made once.

pip install fastapi uvicorn, and the extra asyncio; then `uvicorn fastapi_webhook:app --workers 4`. With PostgreSQL, open
with concurrent=True, and requests don't wait for each other.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import FastAPI, Header, Request
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from receiver import AsyncReceiver

STORE, ENGINE = "sqlite:///pay.db", "sqlite+aiosqlite:///pay.db"  # one database
TABLE = text("CREATE TABLE IF NOT EXISTS payment (reference TEXT, cents INTEGER)")
PAY = text("INSERT INTO payment (reference, cents) VALUES (:reference, :cents)")


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """In each worker: a receiver mustn't be taken over a fork."""
    app.state.engine = create_async_engine(ENGINE)
    async with app.state.engine.begin() as connection:
        await connection.execute(TABLE)
    async with await AsyncReceiver.open(STORE, connection_id="webhook", destination="queue://payments") as payments:
        app.state.payments = payments
        yield
    await app.state.engine.dispose()


app = FastAPI(lifespan=lifespan)


@app.post("/payments")
async def pay(cents: int, idempotency_key: Annotated[str, Header(min_length=1)], request: Request) -> dict[str, bool]:
    state = request.app.state
    async with state.engine.begin() as connection, state.payments.batch(connection) as batch:
        is_new = (await batch.receive(idempotency_key)).deliver
        if is_new:
            await connection.execute(PAY, {"reference": idempotency_key, "cents": cents})
    return {"paid": True, "again": not is_new}  # only now: the answer is the acknowledgement
