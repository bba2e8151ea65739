"""Figures, times and hostile text in words, and the choice of settings to show."""

from __future__ import annotations

import pytest
from analyses import HOSTILE_TEXTS, large, realistic
from hypothesis import given
from hypothesis import strategies as st

from receiver.quantities import count, duration, moment, percent, seconds
from receiver.report.sizing import frontier, shown_grid, thinned
from receiver.report.words import compact, of_duplicates, sanitised, size
from receiver.simulate.figures import SettingFigures


@pytest.mark.parametrize(
    ("us", "text"),
    [
        (0, "0 s"),
        (999, "999 µs"),
        (1_500, "1.5 ms"),
        (999_499, "999 ms"),
        (999_500, "1.00 s"),
        (20_003_211, "20.0 s"),
        (12_500_000, "12.5 s"),
        (120_000_000, "2 min"),
        (303_250_000, "5 min 3 s"),
        (3_599_600_000, "1 h"),
        (3_600_000_000 + 59_000_000, "1 h"),
        (2 * 86_400_000_000 + 4 * 3_600_000_000, "2 d 4 h"),
    ],
)
def test_durations_take_the_unit_a_person_would(us, text):
    assert duration(us) == text


def test_settings_are_written_exactly():
    assert [seconds(us) for us in (0, 1, 500_000, 5_000_000, 3_600_000_000)] == [
        "0 s",
        "0.000001 s",
        "0.5 s",
        "5 s",
        "3,600 s",
    ]


def test_sizes_and_counts():
    assert [size(n) for n in (0, 999, 1_000, 999_499, 999_500, 1_480_000)] == [
        "0 B",
        "999 B",
        "1 kB",
        "999 kB",
        "1 MB",
        "1.48 MB",
    ]
    assert [compact(n) for n in (9_999, 10_000, 104_598, 999_999)] == ["9,999", "10k", "105k", "1M"]
    assert [count(1, "receipt"), count(1_234, "receipt")] == ["1 receipt", "1,234 receipts"]
    assert of_duplicates(0, 941) == "none of 941 duplicates"
    assert of_duplicates(3, 941) == "3 of 941 duplicates (0.32 %)"
    shares = [percent(part, 100_000) for part in (0, 4, 5, 99_949, 99_999, 100_000)]
    assert shares == ["0 %", "under 0.01 %", "0.01 %", "99.9 %", "over 99.9 %", "100 %"]


@given(st.integers(0, 10**17))
def test_compact_counts_fit_a_narrow_cell(number):
    assert len(compact(number)) <= 5


def test_moments_have_six_digits_up_to_the_last_that_can_be_written():
    assert moment(0) == "1970-01-01T00:00:00.000000Z"
    assert moment(253_402_300_799_999_999) == "9999-12-31T23:59:59.999999Z"


@given(st.text() | st.sampled_from(HOSTILE_TEXTS), st.integers(12, 200))
def test_sanitised_text_is_printable_and_short(text, most):
    shown = sanitised(text, most)
    assert shown.isprintable()
    assert len(shown) <= most


def test_sanitised_text_keeps_both_ends():
    assert sanitised("abc\x1b[0m\n") == "abc\\x1b[0m\\n"
    assert sanitised("a" * 100 + "z", 9) == "aaaa…aaaz"


settings_lists = st.lists(
    st.builds(
        SettingFigures,
        st.integers(0, 5),
        st.integers(0, 5),
        caught=st.just(0),
        missed=st.integers(0, 9),
        peak_ids=st.integers(0, 9),
    )
)


@given(settings_lists)
def test_the_frontier_is_what_no_other_setting_beats(settings):
    def beats(a, b):
        return a.missed <= b.missed and a.peak_ids <= b.peak_ids and (a.missed, a.peak_ids) != (b.missed, b.peak_ids)

    best = {(s.missed, s.peak_ids) for s in settings if not any(beats(other, s) for other in settings)}
    assert [(s.missed, s.peak_ids) for s in frontier(settings)] == sorted(best, key=lambda pair: pair[1])


@given(st.lists(st.integers(), max_size=50, unique=True), st.integers(2, 60))
def test_thinning_keeps_the_ends_and_the_order(items, most):
    shown = thinned(items, most)
    assert len(shown) == min(len(items), most)
    assert shown == [item for item in items if item in set(shown)]
    if items:
        assert (shown[0], shown[-1]) == (items[0], items[-1])


def test_a_thinned_grid_keeps_the_recommended_setting():
    analysis = large()
    grid = shown_grid(analysis, 10)
    assert len(grid.windows) == len(grid.expiries_us) == 10
    setting = analysis.recommendation.setting
    assert grid.cells[setting.pair] == setting
    assert grid.left_out + len(grid.cells) == 10_001


def test_a_small_grid_is_shown_whole():
    grid = shown_grid(realistic())
    assert grid.left_out == 0
    assert (0, 0) not in grid.cells
