"""A page, as a parser reads it."""

from __future__ import annotations

from html.parser import HTMLParser

from receiver.report.comparing import comparison_document
from receiver.report.html import page_text
from receiver.report.sizing import analysis_document

VOID = {"meta", "link", "br", "img", "input", "hr"}


class Page(HTMLParser):
    """A page's elements, scripts and text."""

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


def text_of(html):
    return " ".join("".join(Page(html).text).split())


def analysis_page(analysis, provenance=""):
    return page_text(analysis_document(analysis), provenance)


def comparison_page(comparison, provenance=""):
    return page_text(comparison_document(comparison), provenance)
