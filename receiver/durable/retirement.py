"""When sources are retired.

A messageSourceId often holds a process id or a start time, so each restart of a sender is a new source, and the newest W
ids of every source would be kept for ever. `receiver.detector` says how retiring changes verdicts. The batch that retires a
source marks all of the source's rows: otherwise, once the source sends again, its rows wouldn't show which belong to its new
queue. The domain's row counts retired sources, so that other processes notice and read the log anew.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Sequence
from operator import itemgetter

from receiver.detector import TwoTierDetector
from receiver.message import LATEST_US
from receiver.quantities import DAY_US
from receiver.settings import ReceiverSettings

_LOGGER = logging.getLogger("receiver")
_LOOKS_PER_TIME_ALLOWED = 30
"""After a retirement, the next silent sources wait for up to retire_sources_after_days / 30, because each retirement makes
every other process read the whole log again."""
_SHARE_RETIRED = 10
"""If there are more than max_sources, the surplus and a tenth of max_sources are retired."""


class Retirement:
    """Chooses the sources to retire at the end of a batch. Costs next to nothing while none can be due."""

    def __init__(self, settings: ReceiverSettings) -> None:
        self._max_sources = settings.max_sources
        self._after_us = round(settings.retire_sources_after_days * DAY_US)
        self._next_look_us = 0
        self._has_warned = False

    def look_later(self, latest_us: int) -> None:
        """Don't look for silent sources for a while: call it after sources were retired, here or elsewhere."""
        self._next_look_us = latest_us + self._after_us // _LOOKS_PER_TIME_ALLOWED

    def look_soon(self) -> None:
        """Look at the end of the next batch: call it after the log was read for another reason."""
        self._next_look_us = 0

    def due(self, detector: TwoTierDetector, domain: str) -> list[str | None]:
        """The sources to retire now, the longest silent first. Warns once if there are too many sources."""
        most, latest_us = self._max_sources, detector.latest_us
        has_too_many = bool(most) and detector.sources > most
        if not has_too_many and not (self._after_us and latest_us >= self._next_look_us):
            return []
        by_silence = detector.sources_by_silence()
        silent = _silent_since(latest_us - self._after_us, by_silence) if self._after_us else 0
        # A tenth more than needed, so that the next new source doesn't start this again.
        surplus = len(by_silence) - most + most // _SHARE_RETIRED if has_too_many else 0
        number = max(silent, surplus)
        if surplus > silent and not self._has_warned:
            self._has_warned = True
            _LOGGER.warning(
                "%s has %d sources, and max_sources is %d: those silent for longest are retired, so W no longer holds their ids. "
                "If messageSourceId changes with each start or message of a sender, name the sender there; else raise max_sources",
                domain,
                len(by_silence),
                most,
            )
        if silent:
            self.look_later(latest_us)
        elif by_silence[number:]:  # until then none of the others can be due
            self._next_look_us = by_silence[number][0] + self._after_us
        return [source for _, source in by_silence[:number]]


def longer_silent_than(detector: TwoTierDetector, days: float) -> list[str | None]:
    """The sources that haven't sent for more than `days`, by the domain's own time."""
    by_silence = detector.sources_by_silence()
    silent = _silent_since(detector.latest_us - round(min(days * DAY_US, LATEST_US)), by_silence)
    return [source for _, source in by_silence[:silent]]


def _silent_since(since_us: int, by_silence: Sequence[tuple[int, str | None]]) -> int:
    return bisect_left(by_silence, since_us, key=itemgetter(0))
