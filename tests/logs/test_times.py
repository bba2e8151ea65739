"""Times: the meaning of each text. Whole columns mean the same as their values one by one."""

import math
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from receiver.logs import times
from receiver.message import LATEST_US
from tests.choosing import cases

UTC_ZONE = ZoneInfo("UTC")
ZONES = [
    ZoneInfo(name)
    for name in (
        "UTC",
        "Europe/Paris",
        "America/New_York",
        "Australia/Lord_Howe",
        "Africa/Monrovia",
        "America/St_Johns",
    )
]
MS = 1795225068711
US = MS * 1000


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-11-21T01:37:48.711Z", US),
        ("2026-11-21T01:37:48.711509Z", US + 509),
        ("2026-11-21T01:37:48.7115099Z", US + 509),  # cut, not rounded
        ("2026-11-21T01:37:48.711509999999999999Z", US + 509),
        ("2026-11-21 02:37:48,711+01:00", US),
        ("2026-11-20T20:07:48.711-0530", US),
        ("2026-11-21T03:37:48.711+02", US),
        ("2026-11-21t01:37:48.711z", US),
        ("2026-11-21T01:37:48.711", US),
        ("2026-11-21T01:37Z", 1795225020_000000),
        ("2026-11-21", 1795219200_000000),
        ("1970-01-01T00:00:00Z", 0),
        ("9999-12-31T23:59:59.999999Z", LATEST_US),
        ("0", 0),
        ("-0", 0),
        ("00", 0),
        ("12.5", 12_500_000),
        ("12.", 12_000_000),
        (".5", 500_000),
        ("1.5e3", 1_500_000_000),
        ("0.0000019", 1),
        ("99999999999", 99999999999_000000),
        ("99999999999.9999999", 99999999999_999999),
        ("100000000000", 100000000000_000),
        (str(MS), US),
        (f"{MS}.509999", US + 509),
        ("99999999999999", 99999999999999_000),
        ("100000000000000", 100000000000000),
        (str(US), US),
        (f"{US}.9", US),
        ("1e-99999", 0),
    ],
)
def test_what_a_time_means(text, expected):
    assert times.exact(text, None, UTC_ZONE)[0] == expected
    assert times.read_times(pa.array([text]), None, UTC_ZONE).us.tolist() == [expected]


@pytest.mark.parametrize(
    "text",
    [
        "", " ", "now", "nan", "NaN", "inf", "-inf", "Infinity", "-1", "-0.0000001", "1e999", "1e99999999999", "0x10",
        "1_000", "١٢", "12 ", " 12", "1.2.3", "1e", "--1", ".", "2026-02-30T00:00:00Z", "2026-13-01T00:00:00Z",
        "2026-11-21T24:00:00Z", "2026-11-21T01:37:60Z", "2026-11-21T01:37:48+24:00", "1969-12-31T23:59:59Z",
        "0000-01-01T00:00:00Z", "9999-12-31T23:59:59-01:00", "10000-01-01T00:00:00Z", "2026-11-21T01:37:48.Z",
        "2026-11-21T01:37:48Z ", "253402300800000000", "2026-11-21T01:37:48Z\n", "2026-11-21T01:37:48Z\0", "1\0",
    ],
)  # fmt: skip
def test_what_is_no_time(text):
    with pytest.raises(ValueError, match="expected ISO 8601"):
        times.exact(text, None, UTC_ZONE)
    assert times.read_times(pa.array([text]), None, UTC_ZONE).us.tolist() == [-1]


@pytest.mark.parametrize(("unit", "expected"), [("s", 5_000_000), ("ms", 5_000), ("us", 5)])
def test_a_forced_unit_concerns_numbers_only(unit, expected):
    read = times.read_times(pa.array(["5", "1970-01-01T00:00:05Z"]), unit, UTC_ZONE)
    assert read.us.tolist() == [expected, 5_000_000]


def test_a_local_time_that_comes_twice_is_the_earlier_and_one_that_never_was_is_unreadable():
    paris = ZoneInfo("Europe/Paris")
    twice, never = "2026-10-25T02:30:00", "2026-03-29T02:30:00"
    earlier = int(datetime(2026, 10, 25, 0, 30, tzinfo=UTC).timestamp()) * 1_000_000
    assert times.exact(twice, None, paris)[0] == earlier
    with pytest.raises(ValueError, match="exist in the zone Europe/Paris"):
        times.exact(never, None, paris)
    assert times.read_times(pa.array([twice, never]), None, paris).us.tolist() == [earlier, -1]
    assert times.exact("1969-12-31T20:00:00", None, ZoneInfo("America/New_York"))[0] == 3_600_000_000


digits = st.text("0123456789", min_size=1, max_size=18)
numbers = st.one_of(
    st.integers(0, 10**17).map(str),
    digits,
    st.builds("{}.{}".format, digits, st.text("0123456789", max_size=9)),
    st.floats(allow_nan=True).map(repr),
    st.sampled_from(["", "0x1F", "+5", "-5", ".5", "5.", "1e3", "99999999999", "100000000000", "99999999999.9999999"]),
)
moments = st.datetimes(datetime(1969, 12, 30), datetime(9999, 12, 31))  # noqa: DTZ001
zones_written = st.sampled_from(["", "Z", "z", "+00:00", "+01:00", "-0530", "+14", "-23:59", "+24:00"])


@st.composite
def iso_texts(draw):
    text = draw(moments).isoformat(draw(st.sampled_from(["T", " ", "t"])), "seconds")
    fraction = draw(st.text("0123456789", max_size=10))
    return text + ("." + fraction if fraction else "") + draw(zones_written)


@st.composite
def alike(draw):
    """Columns as in real logs: one form throughout, and now and then an odd value."""
    form = draw(st.sampled_from([iso_texts(), numbers, digits, moments.map(lambda moment: moment.isoformat() + "Z")]))
    values = draw(st.lists(form, min_size=1, max_size=8))
    return values + draw(st.lists(st.one_of(iso_texts(), numbers, st.text(max_size=5)), max_size=1))


@cases()
@given(alike(), st.sampled_from([None, "s", "ms", "us"]), st.sampled_from(ZONES))
@example(["253402300799.999999"], "s", ZONES[0])
@example(["9223372036854.775808", "1.0"], None, ZONES[0])
@example(["0000-01-01T00:00:00Z"], None, ZONES[0])
def test_a_column_of_text_means_what_its_values_mean(texts, unit, zone):
    expected = []
    for text in texts:
        try:
            expected.append(times.exact(text, unit, zone))
        except ValueError:
            expected.append((-1, None))
    read = times.read_times(pa.array(texts), unit, zone)
    assert read.us.tolist() == [us for us, _unit in expected]
    for unit_read, (us, wanted) in zip(read.units.tolist(), expected, strict=True):
        assert us < 0 or unit_read == wanted


@given(
    st.lists(
        st.one_of(
            st.floats(),
            st.floats(0, 1e10),
            st.floats(1e9, 2e9),
            st.floats(4e9, 5e9),
            st.floats(4e12, 5e12),
            st.floats(4e15, 5e15),
            st.floats(1e12, 2e12),
            st.floats(1e15, 2e15),
            st.integers(0, 2 * 10**15).map(lambda us: us / 1e6),
            st.integers(0, 2 * 10**15).map(lambda us: us / 1e3),
        ),
        min_size=1,
    ),
    st.sampled_from([None, "s", "ms", "us"]),
)
@example([4294967296.858887], None)
@example([0.0, -0.0, 5e-324, 1795225068.7115092, 8589934591.9999999, math.nan, math.inf, 2.0**33, 2.0**43], None)
def test_a_double_counts_as_its_shortest_decimal_form_cut(values, unit):
    expected = []
    for value in values:
        try:
            expected.append(times.exact(repr(value), unit, UTC_ZONE)[0])
        except ValueError:
            expected.append(-1)
    assert times.read_times(pa.array(values, pa.float64()), unit, UTC_ZONE).us.tolist() == expected


@given(st.decimals(0, 10**11 - 1, allow_nan=False, places=9))
def test_exact_numbers_against_fractions(number):
    assert times.exact(f"{number:f}", None, UTC_ZONE)[0] == math.floor(Fraction(number) * 1_000_000)


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1), st.sampled_from([None, "s", "ms", "us"]))
@example([10**11 - 1, 10**11, 10**14 - 1, 10**14, LATEST_US, LATEST_US + 1], None)
def test_whole_numbers(values, unit):
    expected = []
    for value in values:
        try:
            expected.append(times.exact(str(value), unit, UTC_ZONE)[0])
        except ValueError:
            expected.append(-1)
    assert times.read_times(pa.array(values), unit, UTC_ZONE).us.tolist() == expected


def test_whole_numbers_of_every_width():
    for kind in (pa.int8(), pa.uint8(), pa.int16(), pa.uint16(), pa.int32(), pa.uint32(), pa.int64(), pa.uint64()):
        assert times.read_times(pa.array([7, None], kind), "s", UTC_ZONE).us.tolist() == [7_000_000, -1]
    assert times.read_times(pa.array([2**64 - 1], pa.uint64()), None, UTC_ZONE).us.tolist() == [-1]


@pytest.mark.parametrize(("unit", "one_us"), [("s", None), ("ms", None), ("us", 1), ("ns", 1000)])
def test_arrow_timestamps(unit, one_us):
    moment = datetime(2026, 10, 25, 0, 30, tzinfo=UTC)
    instant = int(moment.timestamp()) * 1_000_000
    raw = int(moment.timestamp()) * {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[unit]
    zoned = pa.array([raw, -1, None], pa.int64()).cast(pa.timestamp(unit, "Asia/Tokyo"))
    assert times.read_times(zoned, None, ZoneInfo("Europe/Paris")).us.tolist() == [instant, -1, -1]
    local = pa.array([raw + 2 * (raw // int(moment.timestamp())) * 3600, None], pa.int64()).cast(pa.timestamp(unit))
    assert times.read_times(local, None, ZoneInfo("Europe/Paris")).us.tolist() == [instant, -1]
    if one_us:
        fine = pa.array([one_us * 5 + one_us - 1], pa.int64()).cast(pa.timestamp(unit, "UTC"))
        assert times.read_times(fine, None, UTC_ZONE).us.tolist() == [5]
    far = pa.array([2**63 - 1, -(2**63)], pa.int64()).cast(pa.timestamp(unit))
    assert times.read_times(far, None, UTC_ZONE).us.tolist() == [
        -1 if unit != "ns" else (2**63 - 1) // 1000,
        -1,
    ]


local_times = st.one_of(
    st.integers(-(10**11), LATEST_US),
    # Near the hours in which clocks are changed.
    st.builds(
        lambda day, us: day * 86_400_000_000 + us,
        st.sampled_from([736, 13_240, 13_450, 20_520, 20_541, 20_548, 20_730, 20_751, 20_758]),
        st.integers(-7_200_000_000, 4 * 3_600_000_000),
    ),
)


@given(st.lists(local_times, min_size=1), st.sampled_from(ZONES))
@example([1_162_080_000_000_000 + minute * 60_000_000 for minute in range(-60, 120)], ZoneInfo("America/St_Johns"))
def test_local_times_against_python(values, zone):
    epoch = datetime(1970, 1, 1)  # noqa: DTZ001
    expected = []
    for value in values:
        local = (epoch + timedelta(microseconds=value)).replace(tzinfo=zone)
        instant = (local - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
        try:
            was = local.astimezone(UTC).astimezone(zone).replace(tzinfo=None) == local.replace(tzinfo=None)
        except OverflowError:
            was = False
        expected.append(instant if was and 0 <= instant <= LATEST_US else -1)
    assert times.utc_of_local(np.array(values, dtype=np.int64), zone).tolist() == expected
