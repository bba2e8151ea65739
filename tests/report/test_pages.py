"""What holds for every page: its size, its policy, what it refers to."""

from __future__ import annotations

import base64
import hashlib
import json
import re

import analyses
import comparisons
import pytest
from pages import Page, analysis_page, comparison_page

from receiver.report.words import sanitised

PAGES = [
    *((analysis_page, build) for build in (analyses.realistic, analyses.hostile, analyses.empty, analyses.large)),
    *((comparison_page, build) for build in comparisons.ALL),
]


@pytest.fixture(scope="module", params=PAGES, ids=lambda page: f"{page[0].__name__}.{page[1].__name__}")
def built(request):
    page_of, figures = request.param
    return page_of(figures())


@pytest.mark.thinned(3)
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


@pytest.mark.parametrize(
    ("page_of", "figures"),
    [(analysis_page, analyses.hostile), (comparison_page, comparisons.hostile)],
    ids=["simulate", "compare"],
)
def test_no_hostile_text_becomes_an_element(page_of, figures):
    page = Page(page_of(figures(), analyses.HOSTILE_TEXTS[2]))
    assert [attrs for tag, attrs in page.elements if tag == "script"] == [
        {"type": "application/json", "id": "charts"},
        {},
        {},
    ]
    text = "".join(page.text)
    for hostile_text in analyses.HOSTILE_TEXTS:
        assert sanitised(hostile_text, 120) in text
    assert not set("\0\x1b\x9b\x07\u202e\u2028") & set(text)


def test_charts_name_no_address(built):
    drawing = json.loads(Page(built).scripts[0])
    # A policy's hostile name may, but it is only text.
    assert "http" not in json.dumps(drawing).replace("http://evil.example", "")
    assert drawing["charts"]
