"""The advice of `receiver simulate`, written as directly as possible: replays search for every need.

It shares no code with the package but the names of domains. The naive model does the replays.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import NamedTuple

from model import Model
from small_logs import Receipt, domains_of

SECOND_US = 1_000_000
DEFAULTS = (2000, 120 * SECOND_US)
"""Apama's defaults, which are `lean` if a log asks for nothing."""

Setting = tuple[int, int]
"""W, and E in microseconds."""


class Duplicate(NamedTuple):
    row: int
    domain: str
    time_us: int
    """Its time, as clamped."""


class Replay(NamedTuple):
    caught: frozenset[int]
    """The rows that are called duplicate."""
    peak_ids: int


class Sized(NamedTuple):
    setting: Setting
    missed: int
    peak_ids: int
    unseen: tuple[int, int] | None
    """How many duplicates both halves have, and how many of them the other half's setting misses."""


def least(holds: Callable[[int], bool], low: int, high: int) -> int:
    """The least number from `low` to `high` for which it holds. If it holds for a number, it must hold for all
    above; and it must hold for `high`."""
    while low < high:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle + 1
    return low


def up2(value: Fraction) -> int:
    """The value rounded up to a whole number, and to two significant digits."""
    number = -(-value.numerator // value.denominator)
    while len(str(number).rstrip("0")) > 2:
        unit = 10 ** (len(str(number)) - 2)
        number += unit - number % unit
    return number


class Advice:
    """The advice on one log, under given options."""

    def __init__(self, log: Sequence[Receipt], key: str, *, margin: float, max_missed: int, present: Setting) -> None:
        self.log = log
        self.domains = domains_of(log, key)
        self.margin = Fraction(str(margin))
        self.max_missed = max_missed
        self.present = present
        self._replays: dict[Setting, Replay] = {}

        times = [receipt.received_at_us for receipt in log]
        self.span_us = max(times) - min(times)
        middle_us = (max(times) + min(times)) // 2
        waits = [r.received_at_us - 1000 * r.jms_timestamp_ms for r in log if r.jms_redelivered and r.jms_timestamp_ms]
        self.delivery_us = min(max([0, *waits]), self.span_us)

        self.duplicates = self._duplicates()
        self.first = [each for each in self.duplicates if each.time_us < middle_us]
        self.second = [each for each in self.duplicates if each.time_us >= middle_us]

    def _duplicates(self) -> list[Duplicate]:
        seen, clocks, duplicates = set(), defaultdict(int), []
        for row, (receipt, domain) in enumerate(zip(self.log, self.domains, strict=True)):
            if receipt.unique_message_id:
                clocks[domain] = max(clocks[domain], receipt.received_at_us)
                if (domain, receipt.unique_message_id) in seen:
                    duplicates.append(Duplicate(row, domain, clocks[domain]))
                seen.add((domain, receipt.unique_message_id))
        return duplicates

    def replay(self, setting: Setting) -> Replay:
        if setting not in self._replays:
            models = {domain: Model(*setting) for domain in self.domains}
            verdicts = [
                models[domain].receive(receipt.unique_message_id, receipt.message_source_id, receipt.received_at_us)
                for domain, receipt in zip(self.domains, self.log, strict=True)
            ]
            caught = frozenset(row for row, verdict in enumerate(verdicts) if verdict == "duplicate")
            self._replays[setting] = Replay(caught, sum(model.peak_ids for model in models.values()))
        return self._replays[setting]

    def missed(self, setting: Setting, duplicates: Sequence[Duplicate]) -> int:
        return sum(each.row not in self.replay(setting).caught for each in duplicates)

    # What duplicates need.

    def _enough(self, setting: Setting, duplicates: Sequence[Duplicate]) -> bool:
        return self.missed(setting, duplicates) <= self.max_missed

    def window_need(self, duplicates: Sequence[Duplicate]) -> int:
        return least(lambda window: self._enough((window, 0), duplicates), 0, len(self.log))

    def expiry_need_us(self, duplicates: Sequence[Duplicate], window: int = 0) -> int:
        return least(lambda expiry_us: self._enough((window, expiry_us), duplicates), 0, max(1, self.span_us))

    def _lean_windows(self, duplicates: Sequence[Duplicate]) -> set[int]:
        """The windows to try: 0; the need of the last duplicate that must be caught, or of the first if none must
        be; and quantiles."""
        needs = sorted(
            least(lambda window, row=each.row: row in self.replay((window, 0)).caught, 1, len(self.log))
            for each in duplicates
        )
        last = len(needs) - 1
        ranks = [max(0, last - self.max_missed), *(int(q * last) for q in (0.5, 0.9, 0.99, 0.999))] if needs else []
        return {0, *(needs[rank] for rank in ranks)}

    # What is chosen.

    def least_expiry_us(self) -> int:
        return max(3 * self.delivery_us, SECOND_US)

    def both(self, duplicates: Sequence[Duplicate]) -> Setting:
        expiry_us = max(self.margin * self.expiry_need_us(duplicates), Fraction(self.least_expiry_us()))
        return up2(self.margin * self.window_need(duplicates)), up2(expiry_us)

    def window(self, duplicates: Sequence[Duplicate]) -> Setting:
        return up2(self.margin * self.window_need(duplicates)), up2(Fraction(self.least_expiry_us()))

    def lean(self, duplicates: Sequence[Duplicate]) -> Setting:
        asked = set()
        for window in self._lean_windows(duplicates):
            expiry_us = self.expiry_need_us(duplicates, window)
            with_margin = max(SECOND_US, up2(self.margin * expiry_us)) if expiry_us else 0
            asked.add((up2(self.margin * window), with_margin))
        asked -= {(0, 0)}
        return min(asked or {DEFAULTS}, key=lambda setting: (self.replay(setting).peak_ids, setting))

    def keep(self) -> Setting:
        window, expiry_us = self.both(self.duplicates)
        return max(self.present[0], window), max(self.present[1], expiry_us)

    def kinds(self) -> dict[str, Sized]:
        by_log = {"both": self.both, "window": self.window, "lean": self.lean}
        sized = {kind: self._sized(choose(self.duplicates), self._unseen(choose)) for kind, choose in by_log.items()}
        return sized | {"keep": self._sized(self.keep(), None), "present": self._sized(self.present, None)}

    def _sized(self, setting: Setting, unseen: tuple[int, int] | None) -> Sized:
        return Sized(setting, self.missed(setting, self.duplicates), self.replay(setting).peak_ids, unseen)

    def _unseen(self, choose: Callable[[Sequence[Duplicate]], Setting]) -> tuple[int, int]:
        missed = self.missed(choose(self.first), self.second) + self.missed(choose(self.second), self.first)
        return len(self.duplicates), missed

    # The evidence for it.

    def bursts(self) -> int:
        gap_us = max(SECOND_US, self.delivery_us)
        newest: dict[str, int] = {}
        bursts = 0
        for each in self.duplicates:
            if each.domain not in newest or each.time_us - newest[each.domain] > gap_us:
                bursts += 1
            newest[each.domain] = each.time_us
        return bursts

    def grade(self) -> str:
        _, missed = self._unseen(self.both)
        long_enough = self.span_us >= 10 * self.expiry_need_us(self.duplicates)
        if self.bursts() >= 30 and not missed and long_enough:
            return "strong"
        return "fair" if self.bursts() >= 10 and not missed else "weak"

    def recommended(self, budget_ids: int) -> str:
        kinds = self.kinds()
        for kind in ("keep", "both", "window"):
            if kinds[kind].peak_ids <= budget_ids:
                return kind
        return "lean"

    def moves(self, budget_ids: int) -> list[str]:
        """Whether W is kept, raised or lowered, and whether E is."""
        advised = self.kinds()[self.recommended(budget_ids)].setting
        return [
            "keep" if new == today else "raise" if new > today else "lower"
            for today, new in zip(self.present, advised, strict=True)
        ]
