"""The HTML report as text: its size, its escapes, its policy. `test_report_browser.py` opens it."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser

import pytest
from analyses import HOSTILE_TEXTS, empty, hostile, large, realistic

from receiver.report.html import html_text
from receiver.report.words import tamed

VOID = {"meta", "link", "br", "img", "input", "hr"}


class Page(HTMLParser):
    """What a parser makes of the page: its elements, its scripts, its text."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.scripts, self.text, self.open = [], [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, f"</{tag}> closes nothing"

    def handle_data(self, data):
        (self.scripts if self.open[-1:] == ["script"] else self.text).append(data)


@pytest.fixture(scope="module", params=[realistic, hostile, empty, large], ids=lambda build: build.__name__)
def built(request):
    return html_text(request.param())


def test_the_file_is_small_whatever_the_log(built):
    assert len(built.encode()) < 2_000_000


def test_every_element_is_closed_and_refers_to_nothing_outside(built):
    page = Page(built)
    assert page.open == []
    assert not {"link", "img", "iframe", "object", "embed", "base", "a"} & {tag for tag, _ in page.elements}
    assert not any(
        {"src", "href", "srcset", "onerror", "onload"} & attributes.keys() for _, attributes in page.elements
    )
    style = built[built.index("<style>") : built.index("</style>")]
    assert "url(" not in style
    assert "@import" not in style


def test_the_policy_allows_these_scripts_alone(built):
    policy = next(attrs["content"] for _, attrs in Page(built).elements if attrs.get("http-equiv"))
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    scripts = re.findall(r"<script>(.*?)</script>", built, flags=re.DOTALL)
    hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    assert re.findall(r"'sha256-([^']+)'", policy) == hashes
    assert len(hashes) == 2
    assert "unsafe-eval" not in policy
    assert "script-src 'unsafe-inline'" not in policy


def test_no_hostile_text_becomes_an_element():
    page = Page(html_text(hostile()))
    assert [attrs for tag, attrs in page.elements if tag == "script"] == [
        {"type": "application/json", "id": "charts"},
        {},
        {},
    ]
    text = "".join(page.text)
    for hostile_text in HOSTILE_TEXTS:
        assert tamed(hostile_text, 120) in text
    assert not set("\0\x1b\x9b\x07\u202e\u2028") & set(text)


def test_the_answer_is_in_words_without_any_script():
    text = " ".join("".join(Page(html_text(realistic())).text).split())
    for part in ("Take these settings", "200", "5 s", "none of 941 duplicates", "6,500 ids", "1.66 MB", "1.04 MB"):
        assert part in text
    assert "dupDetectionPerSourceExpiryWindowSize=200 dupDetectionExpiryTimeSecs=5" in text


def test_charts_name_no_address_and_hold_the_grid(built):
    drawing = json.loads(Page(built).scripts[0])
    assert "http" not in json.dumps(drawing)
    assert "missed" in drawing["charts"]


def test_many_domains_are_cut_and_counted():
    text = html_text(large())
    assert "Domains, most duplicates first; 2,950 more are not shown" in text
    assert "8,518 of the 10,000 settings tried are left out here." in text


def test_the_same_analysis_makes_the_same_file():
    assert html_text(realistic()) == html_text(realistic())
