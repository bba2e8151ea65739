"""The verdict on every receipt of a log under one setting, as rows for a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from receiver.message import Verdict
from receiver.simulate.kernel import replay_grid
from receiver.simulate.replay import split_domains

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from receiver.simulate.ingest import Receipts

__all__ = ["SCHEMA", "verdict_batches", "verdicts_of"]

_FEW = pa.dictionary(pa.int32(), pa.string())
SCHEMA = pa.schema(
    {
        "row": pa.int64(),
        "domain": _FEW,
        "unique_message_id": pa.string(),
        "message_source_id": _FEW,
        "verdict": _FEW,
    }
)
_VERDICTS = [Verdict.NEW, Verdict.DUPLICATE, Verdict.UNCHECKED]
_BATCH_ROWS = 1 << 17
_BATCH_BYTES = 1 << 25


def verdicts_of(receipts: Receipts, window: int, expiry_us: int) -> npt.NDArray[np.int32]:
    """Per receipt, the place of its verdict among `new`, `duplicate`, `unchecked`."""
    verdicts = np.zeros(len(receipts.received_at_us), np.int32)
    verdicts[receipts.id_number == 0] = _VERDICTS.index(Verdict.UNCHECKED)
    for domain in split_domains(receipts):
        counts = replay_grid(domain.rows, np.array([window]), np.array([expiry_us]), with_needs=True)
        needs_us = counts.needs_us[:, 0]
        caught = (needs_us < 0) | ((needs_us <= expiry_us) & (expiry_us > 0))
        duplicates = domain.log_rows[domain.rows.earlier >= 0]
        verdicts[duplicates[caught]] = _VERDICTS.index(Verdict.DUPLICATE)
    return verdicts


def _cuts(receipts: Receipts) -> Iterator[tuple[int, int]]:
    """Stretches of rows, each bounded in number and, but for a single row, in the bytes of its ids."""
    for start in range(0, len(receipts.id_number), _BATCH_ROWS):
        ends = np.cumsum(receipts.ids.sizes_bytes(receipts.id_number[start : start + _BATCH_ROWS]))
        at = 0
        while at < len(ends):
            room = _BATCH_BYTES + (ends[at - 1] if at else 0)
            following = max(at + 1, int(np.searchsorted(ends, room, side="right")))
            yield start + at, start + following
            at = following


def verdict_batches(receipts: Receipts, window: int, expiry_us: int) -> Iterator[pa.RecordBatch]:
    """Rows of `SCHEMA`, one per receipt, in the order of the log; ids as their exact text."""
    verdicts = verdicts_of(receipts, window, expiry_us)
    domains, sources = pa.array(receipts.domains, pa.string()), pa.array(receipts.sources, pa.string())
    names = pa.array([str(verdict) for verdict in _VERDICTS], pa.string())
    for start, end in _cuts(receipts):
        rows = slice(start, end)
        yield pa.record_batch(
            [
                pa.array(np.arange(start, end)),
                pa.DictionaryArray.from_arrays(
                    pa.array(receipts.domain_of_channel[receipts.channel_number[rows]]), domains
                ),
                receipts.ids.texts(receipts.id_number[rows]),
                pa.DictionaryArray.from_arrays(pa.array(receipts.source_number[rows]), sources),
                pa.DictionaryArray.from_arrays(pa.array(verdicts[rows]), names),
            ],
            schema=SCHEMA,
        )
