"""Settings that can't be meant are refused where they are made, whatever the others are."""

import math

import pytest

from receiver import ReceiverSettings
from receiver.errors import SettingsError
from receiver.settings import SimulateSettings, expiry_us_of

NO_COUNT = (-1, 1.5, 10**13, "1", None, True)
NO_NUMBER = (-1, math.nan, math.inf, 1e305, 10**400, "1", None, True)


@pytest.mark.parametrize("window", NO_COUNT)
def test_a_window_is_a_count(window):
    with pytest.raises(SettingsError, match="window_size must be a whole number from 0 to"):
        ReceiverSettings(dup_detection_per_source_expiry_window_size=window)


@pytest.mark.parametrize("window", [0, 1])
@pytest.mark.parametrize("secs", NO_NUMBER)
def test_an_expiry_is_a_time_beside_every_window(window, secs):
    with pytest.raises(SettingsError, match="expiry_time_secs must be a number from 0 to"):
        ReceiverSettings(dup_detection_per_source_expiry_window_size=window, dup_detection_expiry_time_secs=secs)


@pytest.mark.parametrize("secs", [0, 0.0000004])
def test_what_would_detect_nothing_is_refused(secs):
    with pytest.raises(SettingsError, match="AT_LEAST_ONCE"):
        ReceiverSettings(dup_detection_per_source_expiry_window_size=0, dup_detection_expiry_time_secs=secs)


def test_an_expiry_is_rounded_to_microseconds():
    assert [expiry_us_of(secs) for secs in (0, 0.1, 1e-6, 120, 10**12)] == [0, 100_000, 1, 120_000_000, 10**18]


@pytest.mark.parametrize("setting", ["max_missed", "memory_bytes_per_id", "database_bytes_per_id"])
@pytest.mark.parametrize("value", NO_COUNT)
def test_what_simulate_counts_is_a_count(setting, value):
    with pytest.raises(SettingsError, match=f"{setting} must be a whole number"):
        SimulateSettings(**{setting: value})


@pytest.mark.parametrize("margin", [0.5, *NO_NUMBER])
def test_a_margin_is_at_least_one(margin):
    with pytest.raises(SettingsError, match="margin must be a number from 1 to"):
        SimulateSettings(margin=margin)


def test_a_settings_file_is_named_when_it_is_no_good(tmp_path, monkeypatch):
    from receiver import settings

    file = tmp_path / "mine.yaml"
    monkeypatch.setenv("RECEIVER_SETTINGS", str(file))
    for text, problem in ((None, "can't read"), ("[", "can't read"), ("a: 1", "sections"), ("simulate: {}", "lacks")):
        if text is not None:
            file.write_text(text, encoding="utf-8")
        settings._sections.cache_clear()
        try:
            with pytest.raises(SettingsError, match=problem) as caught:
                SimulateSettings()
        finally:
            settings._sections.cache_clear()
        assert str(file) in str(caught.value)
