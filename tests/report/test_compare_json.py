"""The JSON object of a comparison. Programs rely on its names, their order and its text."""

from __future__ import annotations

import json

import pytest
from analyses import HOSTILE_TEXTS, realistic
from comparisons import NAMES, agreeing, comparison, hostile

from receiver.report.json_object import analysis_object, comparison_object, dumped


def shown(figures):
    return json.loads(dumped(comparison_object(figures)))


def test_the_log_is_what_simulate_says_of_it():
    assert shown(comparison())["log"] == json.loads(dumped(analysis_object(realistic())))["log"]


def test_names_and_their_order():
    answer = shown(comparison())
    assert list(answer)[:2] == ["log", "policies"]
    assert [policy["policy"] for policy in answer["policies"]] == list(NAMES)
    first_four = ["policy", "caught", "missed", "false_duplicates", "peak_ids"]
    assert all(list(policy)[:5] == first_four for policy in answer["policies"])


def test_figures_are_those_of_the_comparison():
    answer = shown(comparison())
    assert answer["policies"][2] == {
        "policy": "artemis:id_cache_size=100",
        "caught": 904,
        "missed": 37,
        "false_duplicates": 0,
        "peak_ids": 200,
        "memory_bytes": 41_000,
        "missed_causes": {"evicted": 12, "not refreshed": 25},
        "false_causes": {},
    }
    assert (answer["disputed"], answer["crossed_domains"]) == (1_642, 475)
    assert answer["left_out"][0]["policy"] == "solace-last"
    assert (answer["recommendation"]["window"], answer["recommendation"]["expiry_secs"]) == (200, 5.0)
    assert answer["doubts"] == [{"id": "old-times", "text": "The times begin at 1970-01-01T00:00:00.000000Z."}]


def test_each_domain_has_figures_of_its_own():
    """They differ, because a broker's cache is sized by the address."""
    orders, payments = shown(comparison())["domains"]
    assert (orders["domain"], payments["domain"]) == ("queue://orders", "queue://payments")
    assert (orders["receipts"], orders["duplicates"]) == (100, 9)
    assert [policy["policy"] for policy in orders["policies"]] == list(NAMES)
    assert orders["policies"][2] == {
        "policy": "artemis:id_cache_size=100",
        "caught": 7,
        "missed": 2,
        "false_duplicates": 2,
        "peak_ids": 200,
    }


def test_a_dispute_says_who_says_what_and_why():
    dispute = shown(comparison())["disputes"][0]
    verdicts = {verdict.pop("policy"): verdict for verdict in dispute.pop("verdicts")}
    assert verdicts["perfect"] == {"verdict": "duplicate", "cause": None}
    assert verdicts["artemis:id_cache_size=100"] == {"verdict": "new", "cause": "not refreshed"}
    assert dispute == {
        "row": 1_234,
        "domain": "queue://orders",
        "unique_message_id": "1234:gateway-2.eu:51001:S02",
        "message_source_id": "gateway-2.eu:51001:S02",
        "received_at": "2026-01-01T00:00:01.727600Z",
        "duplicate": True,
        "earlier_row": 234,
        "age_secs": pytest.approx(2.0978),
    }


def test_what_there_is_not_is_empty_or_null():
    answer = shown(agreeing())
    assert (answer["disputed"], answer["disputes"], answer["left_out"], answer["doubts"]) == (0, [], [], [])
    assert answer["recommendation"] is None


def test_hostile_text_comes_back_exactly_and_controls_no_terminal():
    text = dumped(comparison_object(hostile()))
    answer = json.loads(text)
    assert [dispute["unique_message_id"] for dispute in answer["disputes"]] == list(HOSTILE_TEXTS)
    assert answer["policies"][0]["policy"] == f"artemis:id_cache_size=\n{HOSTILE_TEXTS[0]}"
    assert not {"\n", "\x1b", "\x9b", "\0", "\x07", "\u2028", "\u202e", "\u200f"} & set(text)
