"""The JSON object of a sizing. Programs rely on its names, their order and its text."""

from __future__ import annotations

import json

from analyses import HOSTILE_TEXTS, advised, empty, hostile, realistic

from receiver.report.json_object import analysis_object, dumped
from receiver.simulate.figures import Kind, LogFigures

SETTING = ["window", "expiry_secs", "caught", "missed", "peak_ids"]
LOG = [
    "receipts",
    "unchecked",
    "skipped",
    "duplicates",
    "domains",
    "sources",
    "first_received_at",
    "last_received_at",
    "clock_clamped",
    "redelivered",
    "max_delivery_secs",
]


def test_names_and_their_order():
    shown = json.loads(dumped(analysis_object(realistic())))
    assert list(shown) == [
        "log",
        "settings",
        "domains",
        "recommendation",
        "kinds",
        "evidence",
        "elsewhere",
        "findings",
    ]
    assert list(shown["log"]) == LOG
    assert list(shown["settings"][0]) == SETTING
    assert list(shown["domains"][0]) == [
        "domain",
        "receipts",
        "duplicates",
        "sources",
        "window_need",
        "expiry_need_secs",
        "elsewhere",
        "settings",
    ]
    assert list(shown["domains"][0]["settings"][0]) == SETTING
    assert list(shown["recommendation"]) == [*SETTING, "memory_bytes", "database_bytes", "kind", "moves", "why"]
    assert list(shown["recommendation"]["moves"]) == ["window", "expiry"]
    assert list(shown["kinds"]) == ["both", "window", "lean", "keep", "present"]
    assert list(shown["kinds"]["both"]) == [*SETTING, "memory_bytes", "database_bytes", "unseen"]
    assert list(shown["kinds"]["both"]["unseen"]) == ["duplicates", "missed"]
    assert shown["kinds"]["keep"]["unseen"] is shown["kinds"]["present"]["unseen"] is None
    assert list(shown["evidence"]) == ["grade", "bursts", "window_need", "expiry_need_secs", "span_secs"]
    assert list(shown["elsewhere"]) == ["artemis_id_cache_size", "lru_size", "ttl_secs"]
    assert [list(domain["elsewhere"]) for domain in shown["domains"]] == [list(shown["elsewhere"])] * 2
    assert list(shown["findings"][0]) == ["id", "text"]


def test_every_figure_of_a_log_is_shown():
    assert [name.removesuffix("_us") for name in LogFigures.__dataclass_fields__] == LOG


def test_figures_are_those_of_the_analysis():
    analysis = realistic()
    shown = json.loads(dumped(analysis_object(analysis)))
    assert shown["log"]["first_received_at"] == "2026-01-01T00:00:00.000000Z"
    assert shown["log"]["last_received_at"] == "2026-01-01T00:05:03.250000Z"
    assert shown["log"]["max_delivery_secs"] == 2.25
    assert len(shown["settings"]) == len(analysis.settings)
    for setting, figures in zip(shown["settings"], analysis.settings, strict=True):
        assert setting == {
            "window": figures.window,
            "expiry_secs": figures.expiry_us / 1e6,
            "caught": figures.caught,
            "missed": figures.missed,
            "peak_ids": figures.peak_ids,
        }
        assert isinstance(setting["expiry_secs"], float)
    assert shown["recommendation"]["memory_bytes"] == analysis.recommendation.sized.memory_bytes


def test_the_recommendation_says_all_that_the_decision_says():
    shown = json.loads(
        dumped(analysis_object(advised(Kind.LEAN, (100, 120_000_000), why="Why.", risk="Risk.", caveat="KEY.")))
    )
    assert shown["recommendation"]["moves"] == {"window": "raise", "expiry": "lower"}
    assert shown["recommendation"]["why"] == "Why. Risk. KEY."


def test_an_empty_log_has_nulls():
    shown = json.loads(dumped(analysis_object(empty())))
    assert (shown["recommendation"]["window"], shown["recommendation"]["expiry_secs"]) == (2_000, 120.0)
    assert shown["log"]["first_received_at"] is None
    assert shown["log"]["last_received_at"] is None
    assert shown["domains"] == []
    assert shown["elsewhere"] is None


def test_hostile_names_come_back_exactly_and_control_no_terminal():
    text = dumped(analysis_object(hostile()))
    assert [domain["domain"] for domain in json.loads(text)["domains"]] == sorted(HOSTILE_TEXTS)
    assert text.count("\n") == 0
    assert not {"\x1b", "\x9b", "\0", "\x07", "\u2028", "\u202e", "\u200f"} & set(text)
    assert "\u6f22\u5b57" in text


def test_the_text_is_the_same_every_time():
    assert dumped(analysis_object(hostile())) == dumped(analysis_object(hostile()))
