"""The page of a sizing as text. `test_report_browser.py` opens it."""

from __future__ import annotations

from analyses import HOSTILE_TEXTS, hostile, large, realistic
from pages import Page

from receiver.report.pages import analysis_page
from receiver.report.words import sanitised


def test_no_hostile_text_becomes_an_element():
    page = Page(analysis_page(hostile()))
    assert [attrs for tag, attrs in page.elements if tag == "script"] == [
        {"type": "application/json", "id": "charts"},
        {},
        {},
    ]
    text = "".join(page.text)
    for hostile_text in HOSTILE_TEXTS:
        assert sanitised(hostile_text, 120) in text
    assert not set("\0\x1b\x9b\x07\u202e\u2028") & set(text)


def test_the_answer_is_in_words_without_any_script():
    text = " ".join("".join(Page(analysis_page(realistic())).text).split())
    for part in ("Take these settings", "200", "5 s", "none of 941 duplicates", "6,500 ids", "1.66 MB", "1.04 MB"):
        assert part in text
    assert "dupDetectionPerSourceExpiryWindowSize=200 dupDetectionExpiryTimeSecs=5" in text


def test_many_domains_are_cut_and_counted():
    text = analysis_page(large())
    assert "Domains, most duplicates first; 2,950 more are not shown" in text
    assert "8,518 of the 10,000 settings tried are left out here." in text


def test_the_same_analysis_makes_the_same_file():
    assert analysis_page(realistic()) == analysis_page(realistic())
