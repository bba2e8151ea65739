"""The page of a sizing as text. `test_report_browser.py` opens it."""

from __future__ import annotations

import re
from dataclasses import replace

import pages
import pytest
import vl_convert
from analyses import advised, empty, large, of_kind, realistic, setting_at
from pages import analysis_page

from receiver.message import LATEST_US
from receiver.quantities import DAY_US, count, seconds
from receiver.report.charts import curve_chart, marks_of, timeline_chart
from receiver.report.html import page_text
from receiver.report.sizing import analysis_document
from receiver.simulate.figures import Finding, Grade, Kind, SettingFigures, Timeline

QUESTIONS = [
    "What should I set?",
    "Why believe it?",
    "What does it cost?",
    "What would my present setting have done?",
    "What sets the price?",
]


def text_of(analysis, provenance=""):
    return pages.text_of(analysis_page(analysis, provenance))


def answers(analysis):
    """The text under each question."""
    text = text_of(analysis)
    assert [question for question in QUESTIONS if text.count(question) == 1] == QUESTIONS
    starts = [text.index(question) for question in QUESTIONS]
    assert starts == sorted(starts)
    ends = [*starts[1:], text.index("The words")]
    return [
        text[start + len(question) : end].strip() for question, start, end in zip(QUESTIONS, starts, ends, strict=True)
    ]


def test_the_five_questions_are_answered_in_their_order():
    set_, believe, cost, present, price = answers(realistic())
    for part in (
        (
            "Keep W = 500 ids per source and E = 30 s. The log itself supports W = 200 and E = 5 s. Lowering to that would save "
            "5.63 MB of 7.3 MB: do it only where memory is short. Evidence: fair. Enough disturbances"
        ),
        "What is set today, raised where the log needs more.",
        "A repeat within 30 s is caught, however busy it was.",
        (
            "A repeat within its source's last 500 ids is caught, however late. (At its peak the busiest source sends that many "
            "in 2 s.)"
        ),
        '<property name="dupDetectionPerSourceExpiryWindowSize" value="500"/>',
        '<property name="dupDetectionExpiryTimeSecs" value="30"/>',
    ):
        assert part in set_
    for part in (
        "It misses none of 941 duplicates here. They need W = 97 or E = 2.4 s, and came in 19 bursts in 5 min 3 s.",
        "W and E sized on either half of the log miss none in the other.",
        "The log is 126 times as long as its longest repeat needs, 2.4 s.",
    ):
        assert part in believe
    for part in (
        (
            "It keeps at most 28,500 ids. They take this package 7.3 MB of memory and 4.56 MB in its database; a correlator's "
            "memory isn't measured."
        ),
        "both 200 5 s 0 0 6,500 1.66 MB 1.04 MB",
        "lean 110 1 s 2 273 2,350 602 kB",
        "> keep, yours 500 30 s 0 - 28,500 7.3 MB 4.56 MB",
        "Memory: this package's, 256 bytes an id, more for long ids.",
    ):
        assert part in cost
    assert "Your setting, W = 500 and E = 30 s, is kept." in present
    assert "window W 500 500 97 expiry E 30 s 30 s 2.4 s duplicates missed 0 0" in present
    assert "gateway-0.eu:51001:S00 needs the largest window, 97; the next needs 91." in price
    assert "475 of 941 duplicates came over another connection" in price


@pytest.mark.thinned(3)
@pytest.mark.parametrize("grade", Grade)
def test_the_grade_is_in_words_and_has_its_colour(grade):
    analysis = realistic()
    html = analysis_page(replace(analysis, evidence=replace(analysis.evidence, grade=grade)))
    assert f'<strong class="grade {grade}">Evidence: {grade}.</strong>' in html
    assert f".grade.{grade} {{ color:" in html


@pytest.mark.slow
@pytest.mark.parametrize(("span_us", "times"), [(249_000_000, "249,000,000 times "), (1, "")])
def test_a_repeat_that_needs_next_to_nothing(span_us, times):
    """For example, a repeat comes a year later, with no id in between."""
    evidence = replace(realistic().evidence, expiry_need_us=1, span_us=span_us)
    said = f"The log is {times}as long as its longest repeat needs, 1 µs."
    assert said in answers(replace(realistic(), evidence=evidence))[1]


@pytest.mark.costly
def test_a_present_setting_that_one_tier_barely_makes_is_told_so():
    short = "wouldn't do alone"
    of_both = of_kind(realistic(), Kind.PRESENT, SettingFigures(96, 2_399_999, 941, 0, 100))
    assert "Neither tier would do alone: that takes W = 97 or E = 2.4 s." in answers(of_both)[3]
    of_expiry = of_kind(realistic(), Kind.PRESENT, SettingFigures(97, 1_000_000, 941, 0, 100))
    assert f"The expiry {short}: that takes E = 2.4 s." in answers(of_expiry)[3]
    assert "alone" not in answers(of_kind(realistic(), Kind.PRESENT, SettingFigures(97, 2_400_000, 941, 0, 100)))[3]
    barely = of_kind(realistic(), Kind.PRESENT, SettingFigures(97, 2_403_000, 941, 0, 100))
    barely = replace(barely, evidence=replace(barely.evidence, expiry_need_us=2_403_111))
    assert f"The expiry {short}: that takes E = 2.403111 s." in answers(barely)[3]


def test_what_changes_stands_beside_what_is_set():
    _, _, cost, present, _ = answers(advised(Kind.BOTH))
    assert "> both 200 5 s" in cost
    assert "misses none of 941 duplicates and takes 7.3 MB instead of 1.66 MB." in present
    assert "window W 500 200 97 expiry E 30 s 5 s 2.4 s duplicates missed 0 0" in present


def test_another_setting_is_asked_for_where_the_defaults_are_taken():
    default = setting_at(2_000, 120_000_000)
    assert (
        "Is something else set today? Name it: --current W,E."
        in answers(of_kind(realistic(), Kind.PRESENT, default))[3]
    )
    assert "--current" not in answers(realistic())[3]


def test_the_question_that_was_asked_is_answered_before_the_advice():
    asked = replace(realistic(), settings=(setting_at(10, 500_000),))
    text = pages.text_of(page_text(analysis_document(asked, allowed_missed=0)))
    asked_first = (
        "W = 10 and E = 0.5 s would miss 691 of 941 duplicates (73.4 %). This fails: --fail-on-missed allows 0."
    )
    assert 0 < text.index(asked_first) < text.index("Keep W = 500")


def test_what_makes_the_log_doubtful_stands_beside_the_decision():
    doubt = Finding("ids-alike", "The ids are nearly all alike.")
    text = text_of(replace(realistic(), findings=(doubt, *realistic().findings)))
    assert text.count("The ids are nearly all alike.") == 1
    assert "ids per source and E = 30 s. The ids are nearly all alike. The log itself supports" in text


def test_a_log_without_duplicates_promises_nothing():
    set_, believe, _, present, price = answers(empty())
    assert "The log itself asks for nothing. Evidence: weak. Too few disturbances, or halves of the log" in set_
    assert believe == ("The evidence is weak: 0 bursts, where fair takes 10. The log holds no duplicate in 0 s.")
    assert "window W 2,000 2,000 - expiry E 120 s 120 s -" in present
    assert price.startswith("No source sent a duplicate, so no source decides about W and E.")


def points_of(spec, layer):
    """The sizes in a layer of a curve, and how many each misses."""
    data = spec["layer"][layer].get("data") or spec["data"]
    return [(row["size"], row["missed"]) for row in spec["datasets"][data["name"]]]


def test_a_curve_shows_the_one_duplicate_that_decides():
    curve = ((0, 941), (5, 100), (97, 1), (176, 0))
    marks = marks_of((176, "176"), {"recommended": 2_000, "yours": 2_000, "supported": 360, "off": 0}, count)
    assert [(mark.value, mark.label) for mark in marks] == [
        (176, "need 176"),
        (360, "supported 360"),
        (2_000, "recommended, yours 2,000"),
    ]
    spec = curve_chart(curve, marks, count, "window W")
    assert points_of(spec, 0) == [(1, 941), (5, 100), (97, 1), (176, 0), (3_001, 0)]
    assert points_of(spec, -2) == [(176, 1)]


def test_a_curve_begins_four_decades_below_its_end():
    marks = marks_of((20_000_000, "20 s"), {"recommended": 41_000_000}, seconds)
    spec = curve_chart(((0, 9), (1, 8), (500, 7), (20_000_000, 0)), marks, seconds, "expiry E")
    assert points_of(spec, 0) == [
        (6_150, 7),
        (20_000_000, 0),
        (61_500_001, 0),
    ]


@pytest.mark.parametrize(("need", "present"), [(1, 120_000_000), (20_000_000_000, 1_000_000)])
def test_a_curve_holds_the_marks_far_below_its_end(need, present):
    marks = marks_of((need, "need"), {"yours": present}, seconds)
    spec = curve_chart(((0, 30), (need, 0)), marks, seconds, "expiry E")
    assert points_of(spec, 0)[0][0] == min(need, present)


def test_a_curve_without_marks():
    """By `--max-missed` a log may ask for nothing. If W isn't set either, it isn't marked."""
    marks = marks_of((0, "0"), {"recommended": 0, "yours": 0}, count)
    assert points_of(curve_chart(((0, 5), (45, 0)), marks, count, "window W"), 0) == [(1, 5), (45, 0), (68, 0)]


@pytest.mark.parametrize(
    ("days", "format_"), [(2, "%m-%d %H:%M"), (179, "%m-%d %H:%M"), (181, "%Y-%m-%d"), (9_999, "%Y-%m-%d")]
)
def test_the_axis_of_a_long_log_tells_the_year(days, format_):
    spec = timeline_chart(Timeline(0, days * 86_400_000_000, (1,), (0,)), (1,), "receipts")
    assert spec["encoding"]["x"]["axis"]["format"] == format_


def test_an_axis_ends_with_the_year_9999():
    century = Timeline(LATEST_US - 36_524 * DAY_US, 36_525 * DAY_US, (1,), (0,))
    drawn = vl_convert.vegalite_to_svg(timeline_chart(century, (1,), "receipts"))
    assert "9980-01-01" in drawn
    assert "0000-01-01" not in drawn


def test_a_curve_of_one_duplicate():
    spec = curve_chart(((0, 1), (1, 0)), marks_of((1, "1"), {"recommended": 2}, count), count, "window W")
    assert points_of(spec, 0) == [(1, 0), (4, 0)]
    analysis = realistic()
    one = replace(
        analysis,
        log=replace(analysis.log, duplicates=1),
        missed_by_window=((0, 1), (1, 0)),
        missed_by_expiry_us=((0, 1), (20_000_000, 0)),
    )
    believe = answers(one)[1]
    assert "It misses nothing here. The one duplicate needs W = 97 or E = 2.4 s." in believe
    assert "The last one needs 1." in believe
    assert "The last one needs 20 s." in believe


@pytest.mark.slow
def test_what_made_the_page_stands_at_its_foot():
    made = "receiver simulate a.csv --report r.html (version 1.2.3, 2026-01-02 UTC)"
    assert f"Made by {made}." in text_of(realistic(), made)
    assert "Made by receiver simulate." in text_of(realistic())


def test_what_other_systems_would_need_is_there():
    text = text_of(realistic())
    assert "What other systems would need" in text
    assert "latest new ids 30,321 61,000 no ActiveMQ Artemis (20,000 ids), Camel" in text
    assert "Set id-cache-size to 61,000." in text
    assert "queue://orders 30,321 ids 29,804 ids 40.5 s 12 producers" in text
    assert "What other systems" not in text_of(empty())


@pytest.mark.slow
def test_many_domains_are_cut_and_counted():
    text = analysis_page(large())
    assert "Domains, most duplicates first; 2,950 more not shown" in text
    assert re.search(r"Left out here: 8,\d{3} of the 10,000 settings tried\.", text)


def test_the_same_analysis_makes_the_same_file():
    assert analysis_page(realistic()) == analysis_page(realistic())
