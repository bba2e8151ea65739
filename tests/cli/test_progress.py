"""A progress bar, on a terminal and nowhere else."""

import io
import sys
import time

from receiver.cli import output as module
from receiver.cli.output import progress, stages


class Terminal(io.StringIO):
    def isatty(self):
        return True

    def shows(self, text: str) -> bool:
        """Whether the text is shown within 30 s."""
        give_up = time.monotonic() + 30
        while text not in self.getvalue() and time.monotonic() < give_up:
            time.sleep(0.01)
        return text in self.getvalue()


def on_terminal(monkeypatch, patience_secs: float) -> Terminal:
    terminal = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(module, "_PATIENCE_SECS", patience_secs)
    return terminal


def test_work_that_takes_long_shows(monkeypatch):
    terminal = on_terminal(monkeypatch, patience_secs=0.0)
    with progress("Generating", 100) as advance:
        advance(10)
        assert terminal.shows("Generating")
        assert terminal.shows("10/100")


def test_bytes_read_of_bytes_in_all(monkeypatch):
    terminal = on_terminal(monkeypatch, patience_secs=0.0)
    with progress("Reading receipts", 3_000_000, in_bytes=True) as advance:
        advance(1_500_000)
        assert terminal.shows("1.5/3.0 MB")


def test_short_work_does_not(monkeypatch):
    terminal = on_terminal(monkeypatch, patience_secs=3600.0)
    with progress("Generating", 100) as advance:
        advance(10)
    assert terminal.getvalue() == ""


def test_stages_tell_what_goes_on(monkeypatch):
    terminal = on_terminal(monkeypatch, patience_secs=0.0)
    with stages("Starting") as tell:
        assert terminal.shows("Starting")
        tell("Reading", 3, 7)
        assert terminal.shows("Reading")
        assert terminal.shows("3/7")
        tell("Linking", 0, 0)
        assert terminal.shows("0/?")


def test_all_is_silent_where_there_is_no_terminal(monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    monkeypatch.setattr(module, "_PATIENCE_SECS", 0.0)
    with progress("Generating", 100) as advance, stages("Starting") as tell:
        advance(100)
        tell("Reading", 3, 7)
    assert sys.stderr.getvalue() == ""
