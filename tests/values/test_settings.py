"""Settings that make no sense are refused where they are made, whatever the others are."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from receiver import ReceiverSettings, Recording, StoreSettings, settings
from receiver.errors import SettingsError
from receiver.settings import BridgeSettings, CompareSettings, SimulateSettings

PACKAGED = (Path(__file__).resolve().parents[2] / "settings.yaml").read_text(encoding="utf-8")

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
    settings = [ReceiverSettings(dup_detection_expiry_time_secs=secs) for secs in (0, 0.1, 1e-6, 120, 10**12)]
    assert [each.sizes[1] for each in settings] == [0, 100_000, 1, 120_000_000, 10**18]


@pytest.mark.parametrize("setting", ["max_missed", "memory_bytes_per_id", "database_bytes_per_id"])
@pytest.mark.parametrize("value", NO_COUNT)
def test_what_simulate_counts_is_a_count(setting, value):
    with pytest.raises(SettingsError, match=f"{setting} must be a whole number"):
        SimulateSettings(**{setting: value})


@pytest.mark.parametrize("margin", [0.5, *NO_NUMBER])
def test_a_margin_is_at_least_one(margin):
    with pytest.raises(SettingsError, match="margin must be a number from 1 to"):
        SimulateSettings(margin=margin)


@pytest.fixture
def overlay(tmp_path, monkeypatch):
    """Writes the file that RECEIVER_SETTINGS names."""
    file = tmp_path / "mine.yaml"

    def write(text: str | None):
        monkeypatch.setenv("RECEIVER_SETTINGS", str(file))
        if text is not None:
            file.write_text(text, encoding="utf-8")
        settings._sections.cache_clear()
        return file

    yield write
    settings._sections.cache_clear()


MAX_SOURCES = "receiver: {{max_sources: {}}}"
BROKEN_VALUES = ["!!int x", "!!bool x", "!!timestamp x", "2024-13-45", "9" * 5_000, "[" * 5_000]


@pytest.mark.parametrize(
    "text",
    [
        *(None, "[", "- 1", "a", "simulate: 2", "compare: {memory_bytes_per_id: 5}"),
        *("simulate: {margin: 3}\nsimulate: {max_missed: 1}", "simulate: {margin: 3, margin: 4}", "a: &a [*a]"),
        *map(MAX_SOURCES.format, BROKEN_VALUES),
    ],
    ids=lambda text: str(text)[:50],
)
def test_a_settings_file_is_named_when_it_is_no_good(overlay, text):
    file = overlay(text)
    with pytest.raises(SettingsError, match=r"can't read|must hold (sections|settings)|there is no setting") as caught:
        SimulateSettings()
    assert str(file) in str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "mine.yaml: No such file or directory (the variable RECEIVER_SETTINGS names this file"),
        (
            "bridge:\n  max_tries: [1\n b: 2\n",
            "mine.yaml: line 3 isn't YAML: expected ',' or ']', but got ':' (the variable",
        ),
        ("a: \0", "mine.yaml: unacceptable character #x0000"),
        (
            "receiver: {window: 3}",
            "receiver.window (did you mean receiver.dup_detection_per_source_expiry_window_size?)",
        ),
        ("receiver: {expiry: 3}", "expiry_window_size or receiver.dup_detection_expiry_time_secs?)"),
    ],
)
def test_a_settings_file_that_is_no_good_is_told_how_to_mend(overlay, text, said):
    overlay(text)
    with pytest.raises(SettingsError) as caught:
        SimulateSettings()
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text", ["", "# nothing yet", "{}", "simulate:", "simulate: {}", "compare:\n  memory_bytes_per_id:", PACKAGED]
)
def test_a_settings_file_may_leave_out_what_it_likes(overlay, text):
    plain = SimulateSettings(), BridgeSettings(), ReceiverSettings(), CompareSettings(), Recording("r")
    overlay(text)
    assert (SimulateSettings(), BridgeSettings(), ReceiverSettings(), CompareSettings(), Recording("r")) == plain


def test_a_settings_file_overlays_the_defaults(overlay):
    plain, costs = SimulateSettings(), CompareSettings().memory_bytes_per_id
    overlay(
        "simulate: {margin: 3.5}\nrecording: {keep_files: null}\n"
        "compare: {memory_bytes_per_id: {artemis: 7}}\nreceiver:\n"
    )
    assert SimulateSettings() == replace(plain, margin=3.5)
    assert Recording("r").keep_files is None
    assert CompareSettings().memory_bytes_per_id == costs | {"artemis": 7}
    assert CompareSettings().memory_bytes("artemis", 3) == 21
    assert ReceiverSettings().sizes == (2_000, 120_000_000)


@pytest.mark.parametrize(
    ("text", "unknown", "meant"),
    [
        ("bridge: {max_trys: 3}", "bridge.max_trys", "bridge.max_tries"),
        ("simulate: {max_tries: 3}", "simulate.max_tries", "bridge.max_tries"),
        ("brigde: {max_tries: 3}", "brigde", "bridge"),
        ("max_tries: 3", "max_tries", "bridge.max_tries"),
        ("compare: {memory_bytes_per_id: {artmis: 3}}", "memory_bytes_per_id.artmis", "memory_bytes_per_id.artemis"),
        ("store: {17: 3}", "store.17", None),
    ],
)
def test_an_unknown_setting_is_refused_with_the_nearest(overlay, text, unknown, meant):
    file = overlay(text)
    with pytest.raises(SettingsError) as caught:
        ReceiverSettings()
    assert caught.value.message.startswith(f"{file}: there is no setting ")
    assert caught.value.message.endswith(unknown)
    if meant:
        assert caught.value.hint.removesuffix("?").endswith(meant)


@pytest.mark.parametrize(
    ("text", "make"),
    [
        ("simulate: {margin: wide}", SimulateSettings),
        ("simulate: {margin: 1001}", SimulateSettings),
        ("store: {lock_timeout_secs: 86401}", StoreSettings),
        ("bridge: {max_tries: 2.5}", BridgeSettings),
        ("bridge: {status_secs: null}", BridgeSettings),
        ("store: {sqlite_synchronous: off}", StoreSettings),
        ("compare: {memory_bytes_per_id: {ttl: many}}", CompareSettings),
    ],
)
def test_values_of_a_settings_file_are_checked(overlay, text, make):
    file = overlay(text)
    with pytest.raises(SettingsError, match="must be ") as refusal:
        make()
    if make is not CompareSettings:
        assert refusal.value.hint == f"{file} has it so, which the variable RECEIVER_SETTINGS names"


def test_a_value_of_the_programs_own_is_not_the_files(overlay):
    overlay("bridge: {max_tries: 3}")
    with pytest.raises(SettingsError) as refusal:
        BridgeSettings(max_tries=0)
    assert refusal.value.hint is None
