"""The HTML report in a real browser: it draws, it answers the pointer, and it asks nothing of anybody."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from analyses import empty, hostile, large, realistic

from receiver.report.pages import analysis_page

pytestmark = pytest.mark.browser

COLORS = ("color", "backgroundColor")


def brightness(rgb):
    return sum(map(int, re.findall(r"\d+", rgb)))


@pytest.mark.parametrize(
    ("analysis", "charts"),
    [(realistic(), 8), (hostile(), 8), (empty(), 1), (large(), 8)],
    ids=["realistic", "hostile", "empty", "large"],
)
def test_every_chart_draws_its_marks(opened, analysis, charts):
    page = opened(analysis_page(analysis))
    marks = page.eval_on_selector_all(
        ".chart", "charts => charts.map(chart => chart.querySelectorAll('svg .role-mark path').length)"
    )
    assert len(marks) == charts
    assert all(marks)


def test_the_heat_map_has_a_cell_for_each_setting_and_tells_its_figures(opened):
    analysis = realistic()
    page = opened(analysis_page(analysis))
    cells = page.locator("#missed .mark-rect.layer_0_marks path")
    assert cells.count() == len(analysis.settings) + 1
    cells.nth(1).scroll_into_view_if_needed()
    box = cells.nth(1).bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    tooltip = page.locator("#vg-tooltip-element.visible")
    tooltip.wait_for()
    setting = analysis.settings[1]
    rows = dict(row.split("\t") for row in tooltip.locator("tr").all_inner_texts())
    assert {name.rstrip(":"): value.strip() for name, value in rows.items()} == {
        "window W": f"{setting.window:,}",
        "expiry E": f"{setting.expiry_us / 1e6:g} s",
        "missed": f"{setting.missed:,}",
        "caught": f"{setting.caught:,}",
        "most ids kept": f"{setting.peak_ids:,}",
        "memory": "896 kB",
    }


def test_the_recommended_setting_is_framed_and_ringed(opened):
    page = opened(analysis_page(realistic()))
    assert page.locator("#missed .layer_2_marks path").count() == 1
    assert page.locator("#frontier text", has_text="W = 200, E = 5 s").count() == 1


@pytest.mark.parametrize("analysis", [realistic(), hostile()], ids=["realistic", "hostile"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_shows_it_without_scrolling_sideways(opened, analysis, scheme):
    page = opened(analysis_page(analysis), viewport={"width": 390, "height": 800}, color_scheme=scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    ink, paper = (page.eval_on_selector("body", f"body => getComputedStyle(body).{name}") for name in COLORS)
    assert (brightness(ink) < brightness(paper)) == (scheme == "light")


def test_without_scripts_the_answer_and_the_tables_stand(browser, tmp_path):
    file = Path(tmp_path, "report.html")
    file.write_text(analysis_page(realistic()), encoding="utf-8")
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(file.as_uri())
    assert "Take these settings" in page.inner_text("main")
    assert page.locator("table").count() >= 3
    context.close()
