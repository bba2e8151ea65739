"""The question to a log: its domains, the grid of settings, the present setting; and how to read these from text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal, DecimalException
from itertools import product

import numpy as np

from receiver.domains import domain_key
from receiver.errors import SettingsError, detects_nothing
from receiver.settings import ReceiverSettings, SimulateSettings
from receiver.simulate.figures import Pair

MAX_SETTINGS = 10_000
_LARGEST = 10**12
_WINDOWS_HINT = "in ids, such as 2000, 0,100,2000 or 100:20000:16"
_EXPIRIES_HINT = "in seconds, such as 120, 0,1.5,120 or 1:600:12"
_PRESENT_HINT = "write W,E, such as 2000,120"


@dataclass(frozen=True, slots=True)
class Question:
    """The question to an analysis; `SettingsError` if it can't be answered."""

    key: str
    """The KEY of the domains."""
    windows: list[int] | None = None
    """The windows of the grid. If this list, or that of the expiries, is None, it is chosen from the log."""
    expiries_us: list[int] | None = None
    settings: SimulateSettings = field(default_factory=SimulateSettings)
    present: Pair = field(default_factory=lambda: ReceiverSettings().sizes)
    """The present setting."""

    def __post_init__(self) -> None:
        domain_key(self.key)
        if self.windows is not None and self.expiries_us is not None:
            check_grid(self.windows, self.expiries_us)

    @property
    def single(self) -> Pair | None:
        """The pair that is asked about, if the grid has a single one. 0 with 0 doesn't count."""
        pairs = [pair for pair in product(self.windows or (), self.expiries_us or ()) if pair != (0, 0)]
        return pairs[0] if len(pairs) == 1 else None


def parse_windows(values: Sequence[object] | str, name: str = "--window") -> list[int]:
    """Windows as whole numbers, ascending, without repeats, from numbers or a LIST. Errors name the option `name`."""
    return sorted({int(value.to_integral_value()) for value in _values(name, values, _WINDOWS_HINT)})


def parse_expiries_us(values: Sequence[object] | str, name: str = "--expiry") -> list[int]:
    """Expiries in whole microseconds, from seconds, otherwise like `parse_windows`."""
    numbers = _values(name, values, _EXPIRIES_HINT, significant_digits=3)
    return sorted({int((number * 1_000_000).to_integral_value()) for number in numbers})


def parse_present(text: str) -> tuple[int, int]:
    """The setting in use, from `W,E`: the window, and the expiry in whole microseconds (E is in seconds)."""
    values = text.split(",")
    if len(values) != 2 or not all(value.strip() for value in values):  # noqa: PLR2004
        raise SettingsError(f"--current: {text!r:.80} isn't a window and an expiry", hint=_PRESENT_HINT)
    window, secs = values
    return parse_setting(window, secs, named=("--current", "--current"), hint=_PRESENT_HINT)


def parse_setting(window: object, expiry_secs: object, named: tuple[str, str], hint: str | None = None) -> Pair:
    """One setting, from a window and an expiry in seconds. Unlike in a list, a window with a fraction is refused."""
    number = _number(named[0], str(window), hint or _WINDOWS_HINT)
    secs = _number(named[1], str(expiry_secs), hint or _EXPIRIES_HINT)
    if number != number.to_integral_value():
        raise SettingsError(f"{named[0]}: the window {number} isn't a whole number", hint=hint)
    setting = int(number), int((secs * 1_000_000).to_integral_value())
    check_grid([setting[0]], [setting[1]])
    return setting


_BUDGET = re.compile(r"\s*([0-9][0-9_]*(?:\.[0-9]+)?(?:e[0-9]{1,2})?)\s*(|k|M|G|T)(i?)B?\s*", re.IGNORECASE)


def parse_budget_bytes(text: str) -> int:
    """The bytes of a size such as `500MB`, `2GB`, `1.5 GiB` or `1e9`."""
    match = _BUDGET.fullmatch(text)
    if match is not None:
        number, prefix, binary = match.groups()
        unit = (1024 if binary else 1000) ** " kmgt".index(prefix.lower() or " ")
        size_bytes = int(Decimal(number) * unit)
        if 0 < size_bytes <= _LARGEST * 1000:
            return size_bytes
    raise SettingsError(f"--budget: {text.strip()!r:.80} isn't a size of memory", hint="such as 500MB, 2GB or 1e9")


def _values(
    option: str, given: Sequence[object] | str, hint: str, significant_digits: int | None = None
) -> list[Decimal]:
    values: list[Decimal] = []
    for item in given.split(",") if isinstance(given, str) else map(str, given):
        if ":" in item:
            values += _range(option, item, hint, significant_digits)
        else:
            values.append(_number(option, item, hint))
        if len(values) > MAX_SETTINGS:
            raise SettingsError(f"{option}: more than {MAX_SETTINGS:,} values")
    return values


def _number(option: str, text: str, hint: str) -> Decimal:
    try:
        value = Decimal(text.strip())
    except DecimalException:
        value = Decimal("NaN")
    if not value.is_finite() or value < 0 or value > _LARGEST:
        raise SettingsError(f"{option}: {text.strip()!r} isn't a number from 0 to {_LARGEST:,}", hint=hint)
    return value


def _range(option: str, text: str, hint: str, significant_digits: int | None) -> list[Decimal]:
    parts = text.split(":")
    if len(parts) != 3:  # noqa: PLR2004
        raise SettingsError(f"{option}: {text!r} isn't a range", hint="FIRST:LAST:COUNT, such as 100:20000:16")
    first, last, count = (_number(option, part, hint) for part in parts)
    if first <= 0:
        raise SettingsError(f"{option}: the range {text!r} must start above 0", hint="add 0 as a value of its own")
    if last < first:
        raise SettingsError(f"{option}: the range {text!r} runs backwards", hint=f"write {last}:{first}:{count}")
    if count != count.to_integral_value() or not 2 <= count <= MAX_SETTINGS:  # noqa: PLR2004
        raise SettingsError(f"{option}: the range {text!r} needs a whole COUNT from 2 to {MAX_SETTINGS:,}")
    spaced = [Decimal(float(value)) for value in np.geomspace(float(first), float(last), int(count))]
    spaced[0], spaced[-1] = first, last  # exactly as written; powers of floats are inexact
    if significant_digits is not None:
        spaced = [Decimal(f"{value:.{significant_digits - 1}e}") for value in spaced]
    return spaced


def check_grid(windows: list[int], expiries_us: list[int]) -> None:
    """Refuse a grid that can't be replayed. In a larger grid, the replay itself leaves out the pair 0, 0."""
    settings = len(windows) * len(expiries_us)
    if settings > MAX_SETTINGS:
        raise SettingsError(
            f"{len(windows):,} windows x {len(expiries_us):,} expiries are {settings:,} settings, over {MAX_SETTINGS:,}",
            hint="ask for fewer values: a range ends in how many",
        )
    if windows == [0] and expiries_us == [0]:
        raise detects_nothing()
