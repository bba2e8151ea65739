"""The two-tier rule for other implementations, in any language: a naive model, traces to try, and worked cases as data."""

from __future__ import annotations

from typing import Any, NamedTuple

import hypothesis
from hypothesis import Phase
from hypothesis import strategies as st

from receiver.detector import TwoTierDetector
from receiver.errors import SettingsError
from receiver.message import Receipt, Verdict, check_receipt

_BEGIN_US = 1_767_600_000_000_000
_MOST_WINDOW, _EXPIRIES_SECS = 6, (0, 10, 1, 0.000001)
_FIELDS = Receipt._fields[:3]


class _Entry(NamedTuple):
    id: str
    received_at_us: int


class TwoTierModel:
    """The rule of `docs/semantics.md`, written as directly as possible: slow, and without cleverness.

    Compare another implementation with it, receipt by receipt. `TwoTierDetector` is the fast implementation.

    Args:
        window: W, a count of ids; 0 for no per-source tier.
        expiry_secs: E in seconds, to a microsecond; 0 for no time tier.

    Raises:
        SettingsError: Both are 0, or a value is negative or not finite.
    """

    def __init__(self, window: int, expiry_secs: float) -> None:
        TwoTierDetector(window, expiry_secs)  # refuses what can't be
        self._window = window
        self._expiry_us = round(expiry_secs * 1_000_000)
        self._latest_us = 0
        self._queues: dict[str, list[_Entry]] = {}
        self._time_queue: list[_Entry] = []

    def __repr__(self) -> str:
        return f"TwoTierModel(window={self._window}, expiry_secs={self._expiry_us / 1_000_000})"

    @property
    def remembered_ids(self) -> set[str]:
        """The ids whose next receipt would be a duplicate."""
        return {entry.id for queue in [*self._queues.values(), self._time_queue] for entry in queue}

    def receive(self, unique_message_id: str | None, message_source_id: str | None, received_at_us: int) -> Verdict:
        """Decide on one receipt and record it. Arguments and errors are those of `TwoTierDetector.receive`."""
        if unique_message_id is None or unique_message_id == "":
            return Verdict.UNCHECKED
        check_receipt(unique_message_id, message_source_id, received_at_us, first=not self._queues)
        verdict = Verdict.DUPLICATE if unique_message_id in self.remembered_ids else Verdict.NEW
        self._latest_us = max(self._latest_us, received_at_us)
        queue = self._queues.get(message_source_id or "", [])
        replaced = [entry for entry in queue if entry.id == unique_message_id]
        queue = [entry for entry in queue if entry.id != unique_message_id]
        queue.append(_Entry(unique_message_id, self._latest_us))
        beyond = max(0, len(queue) - self._window)
        self._queues[message_source_id or ""] = queue[beyond:]
        self._spill([*replaced, *queue[:beyond]])
        return verdict

    def _spill(self, leaving: list[_Entry]) -> None:
        """Entries that leave a source's queue enter the time queue, which forgets by its newest entry."""
        if self._expiry_us:
            entries = self._time_queue + leaving
            newest_us = max((entry.received_at_us for entry in entries), default=0)
            self._time_queue = [entry for entry in entries if newest_us - entry.received_at_us <= self._expiry_us]


def traces(
    *, receipts: int = 40, ids: int = 8, sources: int = 3, expiry_secs: float = 10
) -> st.SearchStrategy[list[Receipt]]:
    """A Hypothesis strategy: lists of receipts as receivers see them.

    Ids come again, from the same and other sources, or are missing. Clocks stand still, run backwards, and jump by about the expiry.

    Args:
        receipts: How many receipts a trace may have.
        ids: How many different ids there are. Take more than the window, or the window doesn't matter.
        sources: How many named sources there are, beside the anonymous one.
        expiry_secs: The expiry that the traces should test.
    """
    for name, number in (("receipts", receipts), ("ids", ids), ("sources", sources)):
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            raise SettingsError(f"{name} must be a whole number, 1 or more, not {number!r:.80}")
    TwoTierDetector(1, expiry_secs)  # refuses what can't be
    expiry_us = round(expiry_secs * 1_000_000)
    edges_us = st.sampled_from([0, 1, -1, expiry_us // 2, expiry_us, expiry_us + 1, -expiry_us])
    gaps_us = edges_us | st.integers(0, 2 * expiry_us)
    id_ = st.integers(1, ids).map(str) | st.sampled_from(["1", "2", None, ""])
    source = st.sampled_from([*(f"source-{number}" for number in range(1, sources + 1)), None, ""])
    receipt = st.tuples(id_, source, gaps_us, st.booleans())
    long = st.lists(receipt, min_size=receipts // 2, max_size=receipts)
    return (st.lists(receipt, max_size=receipts) | long).map(_timed)  # the first alone would mostly give short lists


def _timed(drawn: list[tuple[str | None, str | None, int, bool]]) -> list[Receipt]:
    now_us, trace = _BEGIN_US, []
    for id_, source, gap_us, redelivered in drawn:
        now_us = max(0, now_us + gap_us)
        trace.append(Receipt(id_, source, now_us, redelivered))
    return trace


def worked_cases(number: int, seed: int) -> list[dict[str, Any]]:
    """`number` traces with their settings and verdicts, as values for JSON.

    The same seed gives the same cases, with the same version of Hypothesis.
    """
    cases: list[dict[str, Any]] = []

    @hypothesis.seed(seed)
    @hypothesis.settings(max_examples=number, database=None, deadline=None, phases=[Phase.generate])
    @hypothesis.given(st.data(), st.integers(0, _MOST_WINDOW), st.sampled_from(_EXPIRIES_SECS))
    def collect(data: st.DataObject, window: int, expiry_secs: float) -> None:
        hypothesis.assume(window or expiry_secs)
        trace = [receipt[:3] for receipt in data.draw(traces(expiry_secs=expiry_secs))]
        model = TwoTierModel(window, expiry_secs)
        verdicts = [model.receive(id_, source, time_us or 0) for id_, source, time_us in trace]
        receipts = [dict(zip(_FIELDS, receipt, strict=True)) for receipt in trace]
        cases.append({"window": window, "expiry_secs": expiry_secs, "receipts": receipts, "verdicts": verdicts})

    collect()
    return cases
