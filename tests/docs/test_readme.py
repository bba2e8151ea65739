"""What the README shows works as it stands there. Its commands are run by the continuous integration."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

README = Path(__file__).resolve().parents[2] / "README.md"


def test_the_library_in_a_few_lines():
    blocks = re.findall(r"^```python\n(.*?)^```", README.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    assert blocks
    for block in blocks:
        exec(compile(block, str(README), "exec"), {})  # noqa: S102 - our own text


def test_the_output_of_the_main_command():
    text = README.read_text(encoding="utf-8")
    (command,) = re.findall(r"^sh bin/receiver (simulate .*) --report report\.html$", text, re.MULTILINE)
    ran = subprocess.run(
        [sys.executable, "-m", "receiver", *shlex.split(command)],
        cwd=README.parent,
        env={**os.environ, "COLUMNS": "80"},
        check=True,
        capture_output=True,
        encoding="utf-8",
    )
    printed = "\n".join(line.rstrip() for line in ran.stdout.splitlines())
    (shown,) = re.findall(r"^```text\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    for part in shown.split("…\n"):
        assert part in printed + "\n"
