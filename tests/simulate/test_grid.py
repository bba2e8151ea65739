"""Lists of settings, as users write them and as they are chosen."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_logs import Receipt, ingested

from receiver.errors import SettingsError
from receiver.simulate.analysis import grid_of
from receiver.simulate.facts import ValueCounts
from receiver.simulate.question import (
    MAX_SETTINGS,
    Question,
    check_grid,
    parse_expiries_us,
    parse_present,
    parse_setting,
    parse_windows,
)
from receiver.simulate.whole import WholeLog


@pytest.mark.parametrize(
    ("text", "windows"),
    [
        ("2000", [2000]),
        ("0,100,2000", [0, 100, 2000]),
        ("2000, 0 ,100,100", [0, 100, 2000]),
        ("1:1000:4", [1, 10, 100, 1000]),
        ("1:8:4", [1, 2, 4, 8]),
        ("1:3:9", [1, 2, 3]),
        ("5:5:2", [5]),
        ("0,10:20:2,15", [0, 10, 15, 20]),
        ("2.4", [2]),
        ("1e3", [1000]),
        ("0.1:10:3", [0, 1, 10]),
    ],
)
def test_windows(text, windows):
    assert parse_windows(text) == windows


@pytest.mark.parametrize("window", [2.5, "2.5", "1:3:2"])
def test_a_single_window_is_not_rounded(window):
    with pytest.raises(SettingsError, match=r"^window: "):
        parse_setting(window, 120, named=("window", "expiry_secs"))
    assert parse_setting(np.int64(2), 1.5, named=("window", "expiry_secs")) == (2, 1_500_000)


@pytest.mark.parametrize(
    ("text", "expiries_us"),
    [
        ("120", [120_000_000]),
        ("0,0.5,2", [0, 500_000, 2_000_000]),
        ("0.0000004,0.0000006", [0, 1]),
        ("0.1", [100_000]),
        ("1.2345678", [1_234_568]),
        ("1:100:3", [1_000_000, 10_000_000, 100_000_000]),
        ("1:2:4", [1_000_000, 1_260_000, 1_590_000, 2_000_000]),
        ("1.2345:100:2", [1_230_000, 100_000_000]),
    ],
)
def test_expiries_have_fractions_and_ranges_three_digits(text, expiries_us):
    assert parse_expiries_us(text) == expiries_us


def test_a_range_is_evenly_spaced_on_a_log_scale():
    windows = parse_windows("100:20000:16")
    assert windows == [round(100 * 200 ** (step / 15)) for step in range(16)]


@given(st.integers(1, 10**6), st.integers(0, 10**6), st.integers(2, 200))
def test_a_range_holds_both_ends_and_grows(first, more, count):
    windows = parse_windows(f"{first}:{first + more}:{count}")
    assert (windows[0], windows[-1]) == (first, first + more)
    assert windows == sorted(set(windows))
    assert len(windows) <= count


BAD_LISTS = [
    *("", " ", ",", "1,", ",1", "1,,2", "x", "1;2", "0x10"),
    *("-1", "1,-2", "nan", "NaN", "inf", "-inf", "sNaN", "1e99", "1e999999999"),
    *("1:2", "1:2:3:4", "::", "1::3", "a:b:c"),
    *("0:10:3", "-1:10:3", "20:10:3", "1:10:1", "1:10:0", "1:10:-2", "1:10:2.5", "1:10:10001", "1:inf:3", "nan:2:2"),
]


@pytest.mark.parametrize("parse", [parse_windows, parse_expiries_us])
@pytest.mark.parametrize("text", BAD_LISTS)
def test_a_list_that_cannot_be_meant_is_refused_by_the_name_of_its_option(parse, text):
    with pytest.raises(SettingsError, match="--window" if parse is parse_windows else "--expiry"):
        parse(text)


@pytest.mark.parametrize("text", ["", ",", "5", "5,6,7", "x,y", "5,nan", "-1,5", "1.5,2", "5,1e30"])
def test_a_present_setting_that_cannot_be_meant_is_refused_with_how_to_write_one(text):
    with pytest.raises(SettingsError, match="--current") as refused:
        parse_present(text)
    assert refused.value.hint == "write W,E, such as 2000,120"


def test_a_grid_has_a_limit():
    check_grid(list(range(100)), list(range(100)))
    with pytest.raises(SettingsError, match="10,100 settings"):
        check_grid(list(range(101)), list(range(100)))
    with pytest.raises(SettingsError, match="10,000"):
        parse_windows("1:100000:9000,1:200000:9000")
    assert MAX_SETTINGS == 10_000


def test_what_detects_nothing_is_refused_only_where_it_is_alone():
    with pytest.raises(SettingsError) as refused:
        check_grid([0], [0])
    assert "AT_LEAST_ONCE" in refused.value.hint
    check_grid([0, 1], [0])
    check_grid([0], [0, 1])


def chosen_for(window_need, expiry_need_us, also):
    facts = WholeLog(ingested([Receipt(1, "a")])).facts
    needed = replace(facts.whole, windows=ValueCounts.of(np.array([window_need])))
    return grid_of(Question("default"), replace(facts, whole=needed, most_expiry_need_us=expiry_need_us), also)


def test_chosen_lists_by_hand():
    windows, expiries_us = chosen_for(300, 0, (620, 7))
    assert windows == [0, 10, 20, 50, 200, 500, 620, 1000, 2000]
    assert expiries_us == [0, 7, *(n * 100_000 for n in (1, 2, 10, 20, 100, 200, 1200))]
    windows, expiries_us = chosen_for(0, 3_000_000_000, (7, 7))
    assert windows == [0, 7, 10, 20, 50, 100, 200, 2000]
    assert expiries_us == [0, 7, *(n * 100_000 for n in (1, 10, 100, 1000, 1200, 10_000, 100_000))]


@given(st.integers(0, 10**13), st.integers(1, 10**13))
def test_a_chosen_list_reaches_twice_the_need_and_holds_none_the_default_and_the_setting_beside_it(need, also):
    chosen = chosen_for(need, need, (also, also))
    for values, default in zip(chosen, (2000, 120_000_000), strict=True):
        assert values == sorted(set(values))
        assert values[0] == 0
        assert {default, also} <= set(values)
        assert values[-1] >= 2 * need
        assert 3 <= len(values) <= 9
        assert all(math.log10(value) < 19 for value in values[1:])


def test_a_list_that_was_given_stays_as_it_is():
    facts = WholeLog(ingested([Receipt(1, "a")])).facts
    assert grid_of(Question("default", [5], [7, 9]), facts, (3, 3)) == ([5], [7, 9])
    windows, expiries_us = grid_of(Question("default", [5]), facts, (3, 3))
    assert windows == [5]
    assert 3 in expiries_us
