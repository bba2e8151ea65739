"""A scenario's log: its rows as columns of text, a batch at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from receiver.logs import columns
from receiver.simulate.scenarios import Plan, stories
from receiver.simulate.scenarios.traffic import BLOCK_ROWS, Receipts, queue_of, traffic

__all__ = ["SCHEMA", "batches"]

_CONNECTIONS = pa.array(["bridge-1", "bridge-2"])
_DESTINATIONS = pa.array(["queue://orders", "queue://payments"])
_RECEIVERS = pa.array(["orders-1", "orders-2", "payments-1", "payments-2"])
_DIGITS = np.frombuffer(b"".join(b"%02x" % byte for byte in range(256)), np.uint8).reshape(256, 2)
_DIGEST_LETTERS = 8


def batches(plan: Plan, block_rows: int = BLOCK_ROWS) -> Iterator[pa.RecordBatch]:
    """The plan's log in order, in batches of `SCHEMA` of about `block_rows` rows, which is all that is held of it."""
    story = getattr(stories, plan.scenario.replace("-", "_"))
    is_payments = queue_of(np.arange(plan.sources, dtype=np.int32))
    sources = pa.array([_source_name(index, bool(pays)) for index, pays in enumerate(is_payments)])
    return (_batch(receipts, sources) for receipts in traffic(plan, story, block_rows))


def _batch(receipts: Receipts, sources: pa.Array) -> pa.RecordBatch:
    source = pa.DictionaryArray.from_arrays(receipts.source, sources)
    return pa.record_batch([values(receipts, source) for values in _COLUMNS.values()], schema=SCHEMA)


def _source_name(index: int, pays: bool) -> str:  # noqa: FBT001 - private
    host, port = (f"pay-{index // 5 + 1}", 51_001) if pays else (f"order-gw-{index + 1:02}", 48_213)
    return f"{host}.eu:{port + index % 1_000}:S{index:02}"


def _words(index: npt.NDArray[np.integer], words: pa.Array) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(index.astype(np.int32), words)


def _digests(receipts: Receipts) -> pa.Array:
    """Eight hexadecimal digits per row that depend on its id alone: the same message has the same body."""
    # The finishing steps of splitmix64, which spread neighbouring numbers over all digits.
    mixed = receipts.seq_no.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) ^ receipts.source.astype(np.uint64)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    digits = _DIGITS[(mixed >> np.uint64(32)).astype(">u4").view(np.uint8)]
    offsets = np.arange(0, digits.size + 1, _DIGEST_LETTERS, dtype=np.int32)
    return pa.StringArray.from_buffers(len(receipts), pa.py_buffer(offsets), pa.py_buffer(digits))


_COLUMNS: dict[str, Callable[[Receipts, pa.DictionaryArray], pa.Array]] = {
    "received_at": lambda receipts, _source: pa.array(receipts.received_at_us, pa.timestamp("us", "UTC")),
    # The default id of Apama's senders: seqNo:messageSourceId.
    "unique_message_id": lambda receipts, source: pc.binary_join_element_wise(
        pa.array(receipts.seq_no).cast(pa.string()), source.dictionary_decode(), ":"
    ),
    "message_source_id": lambda _receipts, source: source,
    "connection_id": lambda receipts, _source: _words(receipts.connection, _CONNECTIONS),
    "destination": lambda receipts, _source: _words(queue_of(receipts.source), _DESTINATIONS),
    "receiver_id": lambda receipts, _source: _words(2 * queue_of(receipts.source) + receipts.connection, _RECEIVERS),
    "jms_redelivered": lambda receipts, _source: pa.array(receipts.redelivered),
    "jms_timestamp": lambda receipts, _source: pa.array(receipts.sent_at_us // 1_000),
    "body_digest": lambda receipts, _source: _digests(receipts),
}
"""How each column is made, of receipts and their sources' names. A log has no other column."""
SCHEMA = pa.schema([columns.SCHEMA.field(name) for name in _COLUMNS])
