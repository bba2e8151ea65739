"""The documents' own blocks, to be run as they stand there."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

_SECS = 300


def sections(page: str) -> dict[str, str]:
    """What stands under each of a page's headings of the second order."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return dict(part.split("\n", 1) for part in re.split(r"^## ", text, flags=re.MULTILINE)[1:])


def blocks(page: str, language: str, heading: str | None = None) -> list[str]:
    """A page's blocks of a language, of all of it or of one section."""
    text = (ROOT / page).read_text(encoding="utf-8") if heading is None else sections(page)[heading]
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def replaced(text: str, real: dict[str, str]) -> str:
    """The text with what is real instead of what is shown, each of which it has."""
    for shown, instead in real.items():
        assert shown in text
        text = text.replace(shown, instead)
    return text


def commands(block: str) -> list[list[str]]:
    """The lines of a shell's block as arguments for this Python, which has the package and stands for its command."""
    programs = {"receiver": ["-m", "receiver"], "python": []}
    lines = [shlex.split(line, comments=True) for line in block.splitlines()]
    return [[sys.executable, *programs[program], *arguments] for program, *arguments in lines]


def run(arguments: list[str], folder: Path, **given: str) -> subprocess.CompletedProcess:
    ran = subprocess.run(
        arguments, cwd=folder, check=False, capture_output=True, encoding="utf-8", timeout=_SECS, **given
    )
    assert ran.returncode == 0, ran.stderr
    return ran
