"""Times of receipt as whole microseconds since their origin, from text, numbers and Arrow timestamps.

Arrow and NumPy convert whole columns if they provably give the results of `exact`; `exact` converts all other columns, value by
value. Digits beyond microseconds are cut, never rounded: a rounded time may lie after a receipt that really came later.
"""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta, tzinfo
from decimal import ROUND_FLOOR, Context, Decimal
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from receiver.logs.columns import bytes_of
from receiver.message import LATEST_US
from receiver.quantities import HOUR_US

UNITS = ("s", "ms", "us")
_SCALES = np.array([1_000_000, 1_000, 1], dtype=np.int64)
_LIMITS = np.array([10**11, 10**14], dtype=np.int64)
"""From the first value on, a number counts as milliseconds; from the second on, as microseconds."""
_DOUBLES_BELOW = np.array([2.0**32, 2.0**42, 2.0**52])
NO_UNIT = 255
"""The unit of a time that isn't a number."""

_EXPECTED = "expected ISO 8601 such as 2026-11-21T01:37:48.711509Z, or a number of seconds, ms or us"
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - arithmetic on local times, which have no zone
_MICROSECOND = timedelta(microseconds=1)
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,6})?", re.ASCII)
_ISO = re.compile(
    r"(?P<year>\d{4})-(?P<month>\d\d)-(?P<day>\d\d)"
    r"(?:[Tt ](?P<hour>[01]\d|2[0-3])(?::(?P<minute>[0-5]\d)(?::(?P<second>[0-5]\d)(?:[.,](?P<fraction>\d+))?)?)?"
    r"(?P<zone>[Zz]|(?P<sign>[+-])(?P<zone_hour>[01]\d|2[0-3])(?::?(?P<zone_minute>[0-5]\d))?)?)?",
    re.ASCII,
)
_CUT = Context(prec=40, rounding=ROUND_FLOOR)


class Times(NamedTuple):
    us: npt.NDArray[np.int64]
    """The times; -1 for an unreadable one."""
    units: npt.NDArray[np.uint8]
    """The index in `UNITS` of the unit that a number was taken for, or `NO_UNIT`."""


def exact(text: str, unit: str | None, zone: tzinfo) -> tuple[int, int]:
    """One time, and its unit as in `Times`; `ValueError` with the problem and the expected form."""
    if not text:
        raise ValueError(f"no time; {_EXPECTED}")
    if _NUMBER.fullmatch(text):
        return _exact_number(text, unit)
    iso = _ISO.fullmatch(text)
    if iso is None:
        raise ValueError(f"not a time: {text!r:.80}; {_EXPECTED}")
    return _in_range(_exact_iso(iso, zone), text), NO_UNIT


def _in_range(us: int, text: str) -> int:
    if us < 0:
        raise ValueError(f"the time {text!r:.80} is negative, before the epoch; {_EXPECTED}")
    if us > LATEST_US:
        raise ValueError(f"the time {text!r:.80} lies beyond the year 9999; {_EXPECTED}")
    return us


def _exact_number(text: str, unit: str | None) -> tuple[int, int]:
    number = Decimal(text)
    if not 0 <= number <= LATEST_US:  # first, so that no exponent, however large, is multiplied out
        _in_range(-1 if number < 0 else LATEST_US + 1, text)
    index = UNITS.index(unit) if unit else sum(number >= limit for limit in _LIMITS.tolist())
    return _in_range(int(_CUT.multiply(number, int(_SCALES[index]))), text), index


def _exact_iso(iso: re.Match[str], zone: tzinfo) -> int:
    part = {name: int(iso[name] or 0) for name in ("hour", "minute", "second", "zone_hour", "zone_minute")}
    try:
        days = date(int(iso["year"]), int(iso["month"]), int(iso["day"])).toordinal() - _EPOCH.toordinal()
    except ValueError as error:
        raise ValueError(f"not a time: {iso[0]!r}: {error}; {_EXPECTED}") from None
    secs = days * 86_400 + part["hour"] * 3_600 + part["minute"] * 60 + part["second"]
    us = secs * 1_000_000 + int((iso["fraction"] or "")[:6].ljust(6, "0"))
    if iso["zone"]:
        offset_secs = part["zone_hour"] * 3_600 + part["zone_minute"] * 60
        return us - (-offset_secs if iso["sign"] == "-" else offset_secs) * 1_000_000
    instant = _utc_of_local_one(us, zone)
    if instant is None:
        raise ValueError(f"the local time {iso[0]!r} doesn't exist in the zone {zone}; {_EXPECTED}")
    return instant


def _utc_of_local_one(local_us: int, zone: tzinfo) -> int | None:
    """The instant of a local time: the earlier one if it came twice, None if it doesn't exist."""
    local = _EPOCH + timedelta(microseconds=local_us)
    offset = local.replace(tzinfo=zone, fold=0).utcoffset()
    assert offset is not None  # noqa: S101 - zones of the IANA database always know
    instant_us = local_us - offset // _MICROSECOND
    try:
        back = (local - offset).replace(tzinfo=UTC).astimezone(zone).replace(tzinfo=None)
    except OverflowError:
        return instant_us  # outside the years 1 to 9999, which the caller refuses
    return instant_us if back == local else None


def utc_of_local(local_us: npt.NDArray[np.int64], zone: tzinfo) -> npt.NDArray[np.int64]:
    """The instants of local times; -1 for one that doesn't exist or is out of range.

    Offsets are looked up per hour. Hours in which the offset changes are looked up value by value.
    """
    in_range = (local_us > -2 * 24 * HOUR_US) & (local_us <= LATEST_US)
    hours, inverse = np.unique(np.where(in_range, local_us, 0) // HOUR_US, return_inverse=True)
    offsets = np.zeros(len(hours), dtype=np.int64)
    steady = np.zeros(len(hours), dtype=bool)
    for index, hour in enumerate((hours * HOUR_US).tolist()):
        first, last = _utc_of_local_one(hour, zone), _utc_of_local_one(hour + HOUR_US - 1, zone)
        if first is not None and last is not None and last - first == HOUR_US - 1:
            offsets[index], steady[index] = hour - first, True
    instants = local_us - offsets[inverse]
    for row in np.flatnonzero(in_range & ~steady[inverse]).tolist():
        instant = _utc_of_local_one(int(local_us[row]), zone)
        instants[row] = -1 if instant is None else instant
    return np.where(in_range & (instants >= 0) & (instants <= LATEST_US), instants, -1)


def read_times(values: pa.Array, unit: str | None, zone: tzinfo) -> Times | None:
    """The times of a column of text, integers, doubles, decimals or timestamps. Nulls are unreadable. None for other types.

    Narrower floats are another type: with 32 bits, today's seconds are rounded to multiples of 128.
    """
    kind = values.type
    if pa.types.is_timestamp(kind):
        return _without_unit(_of_timestamps(values, zone))
    if pa.types.is_decimal(kind):
        values, kind = values.cast(pa.string()), pa.string()
    if pa.types.is_null(kind):
        return _without_unit(np.full(len(values), -1, dtype=np.int64))
    if pa.types.is_integer(kind):
        known = values.cast(pa.uint64() if pa.types.is_uint64(kind) else pa.int64()).fill_null(0).to_numpy()
        numbers = np.minimum(known, np.iinfo(np.int64).max).astype(np.int64)
        times = _of_integers(numbers, unit)
    elif pa.types.is_float64(kind):
        times = _of_doubles(values.fill_null(0).to_numpy(), unit)
    elif pa.types.is_string(kind):
        return _of_text(values.fill_null("") if values.null_count else values, unit, zone)
    else:
        return None
    if values.null_count:
        times.us[values.is_null().to_numpy(zero_copy_only=False)] = -1
    return times


def _without_unit(us: npt.NDArray[np.int64]) -> Times:
    return Times(us, np.full(len(us), NO_UNIT, dtype=np.uint8))


def _of_timestamps(values: pa.Array, zone: tzinfo) -> npt.NDArray[np.int64]:
    raw = values.view(pa.int64()).fill_null(-1).to_numpy()
    if values.type.unit == "ns":
        us = raw // 1_000
    else:
        scale = int(_SCALES[UNITS.index(values.type.unit)])
        least, most = -LATEST_US // scale, LATEST_US // scale
        us = np.where((raw >= least) & (raw <= most), np.clip(raw, least, most) * scale, -LATEST_US)
    if values.type.tz is None:
        us = utc_of_local(us, zone)
        if values.null_count:
            us = np.where(values.is_null().to_numpy(zero_copy_only=False), -1, us)
    return np.where((us >= 0) & (us <= LATEST_US), us, -1)


def _units_of(numbers: npt.NDArray[np.int64 | np.float64], unit: str | None) -> npt.NDArray[np.uint8]:
    if unit is not None:
        return np.full(len(numbers), UNITS.index(unit), dtype=np.uint8)
    return np.searchsorted(_LIMITS, numbers, side="right").astype(np.uint8)


def _of_integers(numbers: npt.NDArray[np.int64], unit: str | None) -> Times:
    units = _units_of(numbers, unit)
    scales = _SCALES[units]
    readable = (numbers >= 0) & (numbers <= LATEST_US // scales)
    return Times(np.where(readable, numbers, -1) * np.where(readable, scales, 1), units)


def _of_doubles(numbers: npt.NDArray[np.float64], unit: str | None) -> Times:
    """The times of doubles by their shortest decimal forms, cut to microseconds, without writing these forms out.

    Let k be the product of v and the scale, rounded to a whole number of microseconds. Below `_DOUBLES_BELOW` two
    doubles lie at most 0.5 us apart and the product is off by at most 0.25 us. So a whole microsecond that rounds to
    v, if there is one, is k, and k is the shortest form. If there is none, the shortest form is finer, and lies on the
    same side of k as v itself: were k between the two, k would round to v. That side is given by k / scale, which is
    correctly rounded, hence monotone.
    """
    finite = np.isfinite(numbers)
    numbers = np.where(finite, numbers, -1.0)
    units = _units_of(numbers, unit)
    scales = _SCALES[units].astype(np.float64)
    safe = (numbers >= 0) & (numbers < _DOUBLES_BELOW[units])
    nearest = np.rint(np.where(safe, numbers, 0.0) * scales)
    us = nearest.astype(np.int64) - (nearest / scales > np.where(safe, numbers, 0.0))
    us[~safe] = -1
    for row in np.flatnonzero(~safe & (numbers > 0)).tolist():
        us[row] = _readable_or_minus_one(repr(float(numbers[row])), unit)
    return Times(us, units)


def _readable_or_minus_one(text: str, unit: str | None) -> int:
    try:
        return _exact_number(text, unit)[0]
    except ValueError:
        return -1


def all_digits(text: pa.Array) -> bool:
    """Whether a text column has only ASCII digits and empty texts."""
    return bool(((bytes_of(text) - np.uint8(ord("0"))) <= 9).all())  # noqa: PLR2004


def _of_text(text: pa.Array, unit: str | None, zone: tzinfo) -> Times:
    times = _of_plain_text(text, unit, zone)
    if times is None:  # Arrow reads six digits behind a point
        times = _of_plain_text(pc.replace_substring_regex(text, r"([.]\d{6})\d+", r"\1"), unit, zone)
    if times is not None:
        return times
    us = np.full(len(text), -1, dtype=np.int64)
    units = np.full(len(text), NO_UNIT, dtype=np.uint8)
    for row, value in enumerate(text.to_pylist()):
        try:
            us[row], units[row] = exact(value, unit, zone)
        except ValueError:
            continue  # stays -1; the error for the row gets its reason from `exact`
    return Times(us, units)


def _of_plain_text(text: pa.Array, unit: str | None, zone: tzinfo) -> Times | None:
    """The times of a column that is in one common form throughout; None for other columns."""
    letters = bytes_of(text)
    if len(letters) == 0:
        return None
    try:
        if (letters >= ord(":")).any():  # ":", "T", "Z": not a number
            return _without_unit(_of_iso(text, zone))
        if all_digits(text):
            return _of_integers(text.cast(pa.int64()).to_numpy(), unit)
        return _of_decimals(text, letters, unit)
    except pa.ArrowInvalid:
        return None


def _of_iso(text: pa.Array, zone: tzinfo) -> npt.NDArray[np.int64]:
    first = text[0].as_py()
    if first.endswith("Z") or "+" in first or "-" in first[10:]:
        us = text.cast(pa.timestamp("us", "UTC")).view(pa.int64()).to_numpy()
        return np.where((us >= 0) & (us <= LATEST_US), us, -1)
    return utc_of_local(text.cast(pa.timestamp("us")).view(pa.int64()).to_numpy(), zone)


def _of_decimals(text: pa.Array, letters: npt.NDArray[np.uint8], unit: str | None) -> Times | None:
    """The times of numbers with digits and one dot, such as 1795225068.711: in whole millionths, which fit 64 bits up to 9e12."""
    if not (((letters - np.uint8(ord("0"))) <= 9) | (letters == ord("."))).all():  # noqa: PLR2004
        return None
    words = np.frombuffer(text.cast(pa.decimal128(38, 6)).buffers()[1], dtype=np.int64).reshape(-1, 2)[: len(text)]
    millionths, above = words[:, 0], words[:, 1]
    if (above != 0).any() or (millionths < 0).any():
        return None
    units = _units_of(millionths // 1_000_000, unit)
    us = millionths // (1_000_000 // _SCALES[units])
    return Times(np.where(us <= LATEST_US, us, -1), units)
