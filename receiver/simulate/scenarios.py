"""Synthetic logs of receipts: scenarios in which messages come twice, seeded and of any length.

This file has only the names of scenarios, so that the command's help needs nothing but the base install.
"""

from __future__ import annotations

import difflib
import math
from dataclasses import dataclass
from datetime import UTC, datetime

from receiver.errors import SettingsError

SCENARIOS = {
    "steady": "Poisson arrivals over many sources, now and then a redelivery",
    "sender-crash": "sources crash and send again everything since their last checkpoint",
    "redelivery-storm": "consumers die before acknowledging; a run of receipts comes again, flagged as redelivered",
    "outage": "hours of silence, then everything unacknowledged comes again",
    "two-bridges": "two connections compete for one queue; a resend often comes over the other one",
    "quiet-source": "a source that seldom sends sends old ids again, long after the clock moved on",
    "mixed": "all of these, one after the other",
}
"""Name -> what happens; `synthetic.SCENARIO_FUNCTIONS` has the function that makes it happen."""

_MOST_SOURCES = 1_000_000
_MOST_DUPLICATES = 0.9
_DAY_SECS = 86_400.0
_LAST_SECS = datetime(9999, 12, 31, tzinfo=UTC).timestamp() - 366 * _DAY_SECS
"""The latest end of a log: the last year that can be written, less a year of room for outages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioPlan:
    """What to generate; equal plans give equal logs. `SettingsError` for an invalid value."""

    scenario: str
    receipts: int
    seed: int = 0
    sources: int = 15
    rate: float = 100.0
    """First receipts per second, over all sources."""
    duplicates: float = 0.01
    """Share of the receipts that are duplicates, roughly."""
    start: datetime = datetime(2026, 1, 5, 8, tzinfo=UTC)

    def __post_init__(self) -> None:
        if self.scenario not in SCENARIOS:
            near = difflib.get_close_matches(self.scenario, SCENARIOS, 1)
            hint = f"did you mean {near[0]}?" if near else f"one of {', '.join(SCENARIOS)}"
            raise SettingsError(f"unknown scenario {self.scenario!r}", hint=hint)
        _demand("receipts must be at least 1", self.receipts, met=self.receipts >= 1)
        _demand("the seed must be at least 0", self.seed, met=self.seed >= 0)
        _demand(f"sources must be 1 to {_MOST_SOURCES}", self.sources, met=1 <= self.sources <= _MOST_SOURCES)
        _demand("the rate must be above 0 and finite", self.rate, met=0 < self.rate < math.inf)
        _demand(
            f"duplicates must be 0 to {_MOST_DUPLICATES}", self.duplicates, met=0 <= self.duplicates <= _MOST_DUPLICATES
        )
        start_secs = self.start.timestamp()
        _demand("the start must be after the first day of 1970", self.start, met=start_secs >= _DAY_SECS)
        if 2 * self.receipts > (_LAST_SECS - start_secs) * self.rate:  # a product, because a quotient may overflow
            raise SettingsError("such a log would end after the year 9998", hint="a higher rate or an earlier start")


def _demand(rule: str, value: object, *, met: bool) -> None:
    if not met:
        raise SettingsError(f"{rule}, not {value}")
