"""The HTML report in a real browser: it draws, reacts to the pointer, and requests nothing."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from analyses import advised, empty, hostile, large, of_kind, realistic
from pages import analysis_page

from receiver.simulate.figures import Kind, SettingFigures

pytestmark = pytest.mark.browser

COLORS = ("color", "backgroundColor")


def brightness(rgb):
    return sum(map(int, re.findall(r"\d+", rgb)))


@pytest.mark.thinned(2)
@pytest.mark.parametrize(
    ("analysis_of", "charts"),
    [(realistic, 5), (hostile, 5), (empty, 1), (large, 5)],
    ids=["realistic", "hostile", "empty", "large"],
)
def test_every_chart_draws_its_marks(opened, analysis_of, charts):
    page = opened(analysis_page(analysis_of()))
    marks = page.eval_on_selector_all(
        ".chart", "charts => charts.map(chart => chart.querySelectorAll('svg .role-mark path').length)"
    )
    assert len(marks) == charts
    assert all(marks)


@pytest.mark.slow
def test_the_heat_map_has_a_cell_for_each_setting_and_tells_its_figures(opened):
    analysis = advised(Kind.BOTH)
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


def test_the_recommended_setting_and_the_present_one_are_framed(opened):
    off_the_grid = SettingFigures(450, 31_000_000, 941, 0, 9_000)
    page = opened(analysis_page(of_kind(realistic(), Kind.PRESENT, off_the_grid)))
    dashes = [
        page.locator(f"#missed .layer_{layer}_marks path").evaluate_all(
            "frames => frames.map(frame => [frame.getAttribute('aria-label'), frame.getAttribute('stroke-dasharray')])"
        )
        for layer in (2, 3)
    ]
    assert [[dash for _, dash in frames] for frames in dashes] == [["1,0"], ["5,4"]]
    assert "expiry E: 30 s; window W: 500" in dashes[0][0][0]
    assert "expiry E: 31 s; window W: 450" in dashes[1][0][0]


@pytest.mark.slow
@pytest.mark.parametrize("curve", ["by-window", "by-expiry"])
def test_the_marks_of_a_curve_are_written_apart(opened, curve):
    raised = of_kind(realistic(), Kind.PRESENT, SettingFigures(300, 10_000_000, 941, 0, 9_000))
    page = opened(analysis_page(raised), viewport={"width": 1440, "height": 900})
    labels = page.locator(f"#{curve} .role-mark text")
    need, supported, yours, recommended = labels.all_text_contents()
    assert [need[:5], supported[:10], yours[:6]] == ["need ", "supported ", "yours "]
    assert recommended.startswith("recommended ")
    boxes = [labels.nth(index).bounding_box() for index in range(4)]
    assert all(upper["y"] + 13 <= lower["y"] for lower, upper in pairwise(boxes))
    around = page.locator(".believe").bounding_box()
    assert all(box["x"] > around["x"] and box["y"] > around["y"] for box in boxes)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_desktop_shows_all_five_answers_at_once(opened, scheme):
    page = opened(analysis_page(realistic()), viewport={"width": 1440, "height": 900}, color_scheme=scheme)
    bottoms = page.eval_on_selector_all(
        ".answer, .believe, .cost, .present, .price",
        "sections => sections.map(section => section.getBoundingClientRect().bottom)",
    )
    assert len(bottoms) == 5
    assert max(bottoms) <= 900
    wide = page.eval_on_selector_all(
        ".answer .scroll, .believe .scroll, .cost .scroll, .present .scroll, .price .scroll",
        "all => all.filter(one => one.scrollWidth > one.clientWidth).map(one => one.ariaLabel)",
    )
    assert wide == []


@pytest.mark.slow
def test_paper_cuts_no_table(opened):
    page = opened(analysis_page(realistic()), viewport={"width": 1440, "height": 900})
    page.emulate_media(media="print")
    page.add_style_tag(content="body { width: 700px; }")  # A4; charts stay as wide as on the screen
    right = page.eval_on_selector_all(
        ".cost table, .present table, .chart svg", "all => all.map(one => one.getBoundingClientRect().right)"
    )
    assert max(right) <= page.locator("body").bounding_box()["x"] + 700


@pytest.mark.thinned(4)
@pytest.mark.parametrize("analysis", [realistic, hostile])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_shows_it_without_scrolling_sideways(opened, analysis, scheme):
    page = opened(analysis_page(analysis()), viewport={"width": 390, "height": 800}, color_scheme=scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    ink, paper = (page.eval_on_selector("body", f"body => getComputedStyle(body).{name}") for name in COLORS)
    assert (brightness(ink) < brightness(paper)) == (scheme == "light")


def test_a_need_of_almost_nothing_stays_on_its_curve(opened):
    analysis = realistic()
    at_once = replace(
        analysis,
        evidence=replace(analysis.evidence, expiry_need_us=1),
        missed_by_expiry_us=((0, analysis.log.duplicates), (1, 0)),
    )
    page = opened(analysis_page(at_once), viewport={"width": 1440, "height": 900})
    chart = page.locator("#by-expiry")
    svg = chart.locator("svg").bounding_box()
    right = chart.locator("svg text").evaluate_all(
        "all => Math.max(...all.map(one => one.getBoundingClientRect().right))"
    )
    assert svg["height"] < 300
    assert right <= page.locator("body").bounding_box()["x"] + 1440


@pytest.mark.slow
def test_without_scripts_the_answer_and_the_tables_stand(browser, tmp_path):
    file = Path(tmp_path, "report.html")
    file.write_text(analysis_page(realistic()), encoding="utf-8")
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(file.as_uri())
    assert "What should I set?" in page.inner_text("main")
    assert page.locator("table").count() >= 3
    context.close()
