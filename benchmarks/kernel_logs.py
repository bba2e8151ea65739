"""Logs for the kernel beside the usual one. Each has something that is hard for the kernel, and that real logs have."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.workload import BEGIN_US, RECEIPTS_PER_SEC, SOURCES, Trace, trace
from receiver.logs import ReadOptions, read_logs

_SEED = 20_240_301
_GAP_US = 1_000_000 // RECEIPTS_PER_SEC
_BURST_RECEIPTS = 500
_GAP_IN_BURST_US = 10
_RECORDED = Path(__file__).parents[1] / "examples" / "artemis-receipts.csv.gz"


def _constant_gaps(count: int) -> Trace:
    """The usual receipts, one each millisecond."""
    return trace(count)._replace(received_at_us=BEGIN_US + _GAP_US * np.arange(1, count + 1, dtype=np.int64))


def _zipf(count: int) -> Trace:
    """The usual messages, from sources whose rates are in the ratio 1 : 1/2 : 1/3 and so on."""
    receipts = trace(count)
    shares = 1 / np.arange(1, SOURCES + 1)
    of_message = np.random.default_rng(_SEED).choice(SOURCES, count, p=shares / shares.sum()).astype(np.int32)
    return receipts._replace(source=of_message[receipts.message])


def _bursts(count: int) -> Trace:
    """The usual messages in bursts of 500. Each burst is of one source and takes 5 ms. The overall rate is the usual
    one."""
    receipts = trace(count)
    burst = np.arange(count) // _BURST_RECEIPTS
    of_burst = np.random.default_rng(_SEED).integers(SOURCES, size=count // _BURST_RECEIPTS + 1, dtype=np.int32)
    _messages, first = np.unique(receipts.message, return_index=True)
    in_burst_us = _GAP_IN_BURST_US * (np.arange(count, dtype=np.int64) % _BURST_RECEIPTS)
    times_us = BEGIN_US + _BURST_RECEIPTS * _GAP_US * burst + in_burst_us
    return Trace(times_us, of_burst[burst][first][receipts.message], receipts.message)


def _recorded(count: int) -> Trace:
    """This repository's sample log, over and over: each repetition has other ids and begins when the one before
    ends."""
    batches = list(read_logs([str(_RECORDED)], ReadOptions()))
    times_us = np.concatenate([batch.received_at_us for batch in batches])
    source, message = (
        _numbers([text for batch in batches for text in getattr(batch, column).tolist()])
        for column in ("message_source_id", "unique_message_id")
    )
    rows = np.arange(count)
    turn, row = rows // len(times_us), rows % len(times_us)
    lasted_us = int(times_us.max() - times_us[0]) + _GAP_US
    again = message[row] + turn * (int(message.max()) + 1)
    return Trace(times_us[row] + turn * lasted_us, source[row], again.astype(np.int32))


def _numbers(texts: list[str]) -> npt.NDArray[np.int32]:
    """The ids as numbers from 0, in order of their first receipts."""
    known: dict[str, int] = {}
    return np.array([known.setdefault(text, len(known)) for text in texts], np.int32)


KERNEL_LOGS: dict[str, Callable[[int], Trace]] = {
    "constant": _constant_gaps,
    "zipf": _zipf,
    "bursts": _bursts,
    "recorded": _recorded,
}
"""The logs, by the name of the benchmark's row."""
