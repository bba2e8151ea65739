"""The page of a comparison as text, and in a real browser. `test_pages.py` tests what holds for all pages."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
from comparisons import NAMES, agreeing, alone, comparison, hostile, without_duplicates
from pages import comparison_page, text_of

from receiver.report.charts import memory_chart


def test_the_table_and_the_words_stand_without_any_script():
    text = text_of(comparison_page(comparison()))
    for number, name in enumerate(NAMES, 1):
        assert f" {number} {name} " in text
    for part in (
        "Policy 8 is the two-tier setting recommended for this log, W = 200 with E = 5 s. This log needed W = 97.",
        "7 sequence Pulsar, RabbitMQ streams 941 0 1,204",
        "3 artemis:id_cache_size=100 ActiveMQ Artemis 904 37",
        "6 ttl:expiry=2 - 540 401",
        "artemis:id_cache_size=100 misses 37 of 941 duplicates (3.93 %): 25 not refreshed, 12 evicted.",
        "The policies disagree on 1,642 receipts, of which these 10 show how.",
        "2.21 s 1-2, 4-5, 7-9 3 evicted, 6 expired 2026-01-01 00:00:01",
        "solace-last is left out",
        "Made by receiver compare.",
    ):
        assert part in text


def test_the_answer_comes_first_and_names_the_best_with_whose_it_is():
    text = text_of(comparison_page(comparison(), "receiver compare a.csv (version 1.2.3, 2026-01-02 UTC)"))
    answer = text[text.index("Whose rules should I take?") : text.index("The policies side by side")]
    for part in (
        "Apama: apama:window=200,expiry=5",
        "6 of 9 policies catch every duplicate",
        "Policy 8 is the two-tier setting recommended",
    ):
        assert part in answer
    assert text.count("6 of 9 policies catch every duplicate") == 1
    assert "Made by receiver compare a.csv (version 1.2.3, 2026-01-02 UTC)." in text
    nobody = text_of(comparison_page(without_duplicates()))
    assert "Whose rules should I take? The log holds no duplicate" in nobody


def test_the_best_row_stands_out():
    html = comparison_page(comparison())
    assert html.count('class="marked"') == 1
    assert '<tr class="marked">' in html[: html.index("&gt;*  8")][-80:]
    assert 'class="marked"' not in comparison_page(without_duplicates())


def test_what_is_not_there_has_no_section():
    text = text_of(comparison_page(agreeing()))
    assert "All 3 policies say the same of every receipt." in text
    for part in ("Why duplicates are missed", "Why new messages", "is left out", "recommended"):
        assert part not in text


def test_numbers_of_neighbours_are_not_written_over_each_other():
    peaks = (10, 95_000, 100_000, 100_000, 240_000)
    policies = [replace(comparison().policies[0], peak_ids=ids) for ids in peaks]
    policies.append(replace(policies[1], missed=3))
    labels = re.findall('"numbers": "([^"]*)"', json.dumps(memory_chart(policies)))
    assert labels == ["1", "2, 3, 4", "", "5", "6"]
    labels = re.findall('"numbers": "([^"]*)"', json.dumps(memory_chart(policies[:1])))
    assert labels == ["1"]


@pytest.mark.thinned(5)
@pytest.mark.browser
@pytest.mark.parametrize(
    ("build", "charts"),
    [(comparison, 3), (hostile, 3), (agreeing, 1), (alone, 3), (without_duplicates, 1)],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_every_chart_draws_its_marks(opened, build, charts):
    page = opened(comparison_page(build()), viewport={"width": 390, "height": 800})
    marks = page.eval_on_selector_all(
        ".chart", "charts => charts.map(chart => chart.querySelectorAll('svg .role-mark path').length)"
    )
    assert len(marks) == charts
    assert all(marks)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


@pytest.mark.slow
@pytest.mark.browser
def test_a_point_tells_its_policies(opened):
    page = opened(comparison_page(comparison()))
    labels = page.locator("#memory-missed .layer_1_marks text").all_text_contents()
    assert labels == ["1", "2", "3", "4, 5, 9", "6", "7", "8"]
    point = page.locator("#memory-missed .layer_0_marks path").nth(3)
    point.scroll_into_view_if_needed()
    box = point.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    tooltip = page.locator("#vg-tooltip-element.visible")
    tooltip.wait_for()
    rows = dict(row.split("\t") for row in tooltip.locator("tr").all_inner_texts())
    assert {name.rstrip(":"): value.strip() for name, value in rows.items()} == {
        "policy": "4. solace-lookup, 5. cmq:retention=345600,retry=43200,network=60, 9. perfect",
        "missed": "0",
        "false duplicates": "0",
        "most ids kept": "214,340",
        "memory": "43.9 MB",
    }
