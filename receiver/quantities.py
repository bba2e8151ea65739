"""Counts and times, written for people in findings, tables, pages and messages."""

from __future__ import annotations

from datetime import datetime, timedelta

_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - all times are UTC, and `Z` is shorter than +00:00
SECOND_US, HOUR_US, DAY_US = 1_000_000, 3_600_000_000, 86_400_000_000
_LARGER_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))
_LONGEST_IN_SECONDS = 120


def count(number: int, noun: str = "") -> str:
    """A count, with its noun if one is given: `1,234`, `1 receipt`, `1,234 receipts`."""
    if not noun:
        return f"{number:,}"
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def percent(part: int, whole: int) -> str:
    """A share as `0.32 %`. One that would round to nothing is `under 0.01 %`, one that would round to all `over 99.9 %`."""
    share = three_digits(100 * part / whole)
    if part and share == "0":
        share = "under 0.01"
    elif part < whole and share == "100":
        share = "over 99.9"
    return f"{share} %"


def three_digits(value: float) -> str:
    """A value with three digits at most, or with all before the point: `1.5`, `12.5`, `999`, `249,000`."""
    text = _to_three_digits(value)
    return text.rstrip("0").rstrip(".") if "." in text else text


def _to_three_digits(value: float) -> str:
    decimals = 2 if value < 9.995 else 1 if value < 99.95 else 0  # noqa: PLR2004 - where rounding adds a digit
    return f"{value:,.{decimals}f}"


def exact_secs(us: int) -> str:
    """Microseconds as seconds, in decimals without trailing zeros: `0.5`, `3600`."""
    secs, rest = divmod(us, SECOND_US)
    return f"{secs}.{rest:06d}".rstrip("0").rstrip(".")


def seconds(us: int) -> str:
    """Microseconds as exact seconds, as a setting is written: `0.5 s`, `3,600 s`."""
    whole, point, decimals = exact_secs(us).partition(".")
    return f"{int(whole):,}{point}{decimals} s"


def duration(us: int) -> str:
    """Microseconds to three digits, in the unit a person would choose: `250 ms`, `20.0 s`, `5 min 3 s`, `2 d 4 h`."""
    if us < 1_000:  # noqa: PLR2004
        return f"{us} µs" if us else "0 s"
    if us < SECOND_US * 0.9995:
        return f"{_rounded(us, 1_000)} ms"
    if us < _LONGEST_IN_SECONDS * SECOND_US:
        return f"{_rounded(us, SECOND_US)} s"
    left = round(us / SECOND_US)
    parts: list[tuple[int, str]] = []
    for secs, unit in _LARGER_UNITS:
        number, left = divmod(left, secs)
        if number or parts:
            parts.append((number, unit))
    return " ".join(f"{number:,} {unit}" for number, unit in parts[:2] if number)


def _rounded(us: int, unit_us: int) -> str:
    # A rounded time keeps its zeros, so that 20.0 s and 20.5 s show the same precision.
    return three_digits(us / unit_us) if us * 100 % unit_us == 0 else _to_three_digits(us / unit_us)


def moment(us: int) -> str:
    """A time in ISO 8601, UTC, with six digits: `2026-05-01T10:00:00.000000Z`."""
    return (_EPOCH + timedelta(microseconds=us)).isoformat(timespec="microseconds") + "Z"
