"""Every receipt of a log with the verdict of each policy compared, as rows for a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from receiver.message import Verdict
from receiver.simulate.verdicts import VERDICTS, receipt_batches, verdict_schema

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt
    import pyarrow as pa

    from receiver.compare.engine import Compared
    from receiver.simulate.ingest import Receipts

__all__ = ["verdict_batches", "verdict_schema"]


def verdict_batches(receipts: Receipts, compared: Compared) -> Iterator[pa.RecordBatch]:
    """One row per receipt, in the order of the log; a column per policy, named by its text (see `verdict_schema`).

    The comparison was made `with_verdicts`.
    """
    is_duplicate = compared.is_duplicate
    assert is_duplicate is not None  # noqa: S101 - whoever asks for verdicts has said so before

    def verdicts(rows: slice) -> list[npt.NDArray[np.int32]]:
        unchecked = receipts.id_number[rows] == 0
        return [_places(judged[rows], unchecked) for judged in is_duplicate]

    return receipt_batches(receipts, verdicts, verdict_schema([p.policy for p in compared.comparison.policies]))


def _places(is_duplicate: npt.NDArray[np.bool_], unchecked: npt.NDArray[np.bool_]) -> npt.NDArray[np.int32]:
    places = np.where(is_duplicate, VERDICTS.index(Verdict.DUPLICATE), VERDICTS.index(Verdict.NEW))
    places[unchecked] = VERDICTS.index(Verdict.UNCHECKED)
    return places.astype(np.int32)
