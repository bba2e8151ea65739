"""The documents' code blocks, to be run exactly as printed."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

_SECS = 300


def sections(page: str) -> dict[str, str]:
    """The text under each of a page's second-level headings."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return dict(part.split("\n", 1) for part in re.split(r"^## ", text, flags=re.MULTILINE)[1:])


def blocks(page: str, language: str, heading: str | None = None) -> list[str]:
    """The blocks of one language in a page, or in one of its sections."""
    text = (ROOT / page).read_text(encoding="utf-8") if heading is None else sections(page)[heading]
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def replaced(text: str, real: dict[str, str]) -> str:
    """The text with each shown value replaced by a real one. Every shown value must occur."""
    for shown, instead in real.items():
        assert shown in text
        text = text.replace(shown, instead)
    return text


def commands(block: str) -> list[list[str]]:
    """The lines of a shell block as arguments for this Python, which has the package: `receiver` becomes `python -m
    receiver`."""
    programs = {"receiver": ["-m", "receiver"], "python": []}
    lines = [shlex.split(line, comments=True) for line in block.splitlines()]
    return [[sys.executable, *programs[program], *arguments] for program, *arguments in lines]


def run(arguments: list[str], folder: Path, **given: str) -> subprocess.CompletedProcess:
    ran = subprocess.run(
        arguments, cwd=folder, check=False, capture_output=True, encoding="utf-8", timeout=_SECS, **given
    )
    assert ran.returncode == 0, ran.stderr
    return ran
