"""The documents as a site. It is built strictly, so a dead link or anchor fails, and without a network."""

import importlib
import inspect
import os
import subprocess
import sys
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from tests.docs.markdown import ROOT

PUBLIC = (
    "receiver",
    "receiver.bridge",
    "receiver.policies",
    "receiver.spark",
    "receiver.senders",
    "receiver.testing",
    "receiver.errors",
)
NOT_SHOWN = {"ArtemisIdCache", "detects_nothing"}
"""Names that only the package uses."""
STRUCTURE = {"h1", "h2", "h3", "ul", "ol", "li", "table", "tr", "pre", "strong", "em", "img"}


class Page(HTMLParser):
    """The elements of a page's article, its anchors, and what it loads."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.anchors: set[str] = set()
        self.loads: list[str] = []
        self._is_article = "<article" not in html
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self._is_article |= tag == "article"
        if "id" in given:
            self.anchors.add(given["id"])
        if tag in {"script", "img", "iframe"} or (tag == "link" and given.get("rel") != "canonical"):
            self.loads.append(given.get("src") or given.get("href") or "")
        if self._is_article and tag in STRUCTURE:
            self.tags[tag] += 1

    def handle_endtag(self, tag):
        self._is_article &= tag != "article"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    ran = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder],
        cwd=ROOT,
        env={
            **os.environ,
            "NO_MKDOCS_2_WARNING": "true",
            "http_proxy": "http://[::1]:1",
            "https_proxy": "http://[::1]:1",
        },
        check=False,
        capture_output=True,
        encoding="utf-8",
        timeout=600,
    )
    assert ran.returncode == 0, ran.stderr
    return folder


def pages_of(folder: Path) -> list[Page]:
    return [Page(file.read_text(encoding="utf-8")) for file in folder.rglob("*.html")]


@pytest.mark.slow
def test_each_page_shows_what_its_file_does(site):
    """Headings, lists, tables and blocks are as CommonMark reads them. The site's Markdown has other rules."""
    forge = MarkdownIt("commonmark").enable("table")
    sources = {"index": ROOT / "README.md", **{file.stem: file for file in (ROOT / "docs").glob("*.md")}}
    shown = {name: Page((site / f"{name}.html").read_text(encoding="utf-8")).tags for name in sources}
    assert shown == {name: Page(forge.render(file.read_text(encoding="utf-8"))).tags for name, file in sources.items()}


@pytest.mark.slow
def test_the_reference_has_every_public_name(site):
    anchors = set().union(*(page.anchors for page in pages_of(site / "api")))
    public = {(room, name) for room in PUBLIC for name in importlib.import_module(room).__all__}
    lacking = {name for room, name in public if not {f"{room}.{name}", qualified(room, name)} & anchors}
    assert lacking == NOT_SHOWN


def qualified(room: str, name: str) -> str:
    value = getattr(importlib.import_module(room), name)
    return f"{getattr(value, '__module__', room)}.{getattr(value, '__qualname__', name)}"


def test_every_public_method_says_what_it_does():
    silent = []
    for room in PUBLIC:
        for name in set(importlib.import_module(room).__all__) - NOT_SHOWN:
            value = getattr(importlib.import_module(room), name)
            if not (inspect.isclass(value) or inspect.isfunction(value)):
                continue
            own = vars(value) if inspect.isclass(value) else {}
            methods = [key for key, member in own.items() if not key.startswith("_") and is_code(member)]
            silent += [f"{name}.{key}" for key in methods if not inspect.getdoc(getattr(value, key))]
            silent += [] if value.__doc__ else [name]
    assert silent == []


def is_code(member: object) -> bool:
    return inspect.isfunction(member) or isinstance(member, property | classmethod | staticmethod)


@pytest.mark.costly
def test_nothing_is_loaded_from_elsewhere(site):
    pages = pages_of(site)
    assert len(pages) > 15
    strays = {link for page in pages for link in page.loads if link.startswith(("http:", "https:", "//"))}
    assert strays == set()
