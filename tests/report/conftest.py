"""A real browser for the pages."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
PATIENCE_MS = 180_000
ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="module")
def browser():
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install --editable '.[dev]'")
    if CHROMIUM is None:
        pytest.skip("needs Chromium: apt-get install chromium")
    with sync_api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS, timeout=PATIENCE_MS)
        yield opened
        opened.close()


@pytest.fixture
def opened(browser, tmp_path):
    """Opens a report. At the end it fails on every complaint, and on every request other than for the file itself."""
    complaints: list[str] = []
    pages = []

    def open_report(html, **options):
        file = Path(tmp_path, "report.html")
        file.write_text(html, encoding="utf-8")
        page = browser.new_page(**options)
        page.set_default_timeout(PATIENCE_MS)
        pages.append(page)
        page.on("console", lambda message: complaints.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: complaints.append(f"error: {error}"))
        page.on("dialog", lambda dialog: complaints.append(f"dialog: {dialog.message}"))
        page.on("request", lambda request: None if request.url == file.as_uri() else complaints.append(request.url))
        page.goto(file.as_uri())
        page.wait_for_selector("html[data-charts=drawn]")
        return page

    yield open_report
    for page in pages:
        page.close()
    assert complaints == []
