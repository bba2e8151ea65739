"""How long `import receiver` takes a program that embeds the library, against `import sqlalchemy`."""

from __future__ import annotations

import subprocess
import sys

from benchmarks.pairing import Comparison, Goal, by_turns

_PROGRAM = "import time; start = time.perf_counter(); import {}; print(time.perf_counter() - start)"


def _seconds_to_import(module: str) -> float:
    """The time of an import in a new process, without the start of the interpreter."""
    ran = subprocess.run([sys.executable, "-c", _PROGRAM.format(module)], capture_output=True, text=True, check=True)
    return float(ran.stdout)


def imports(scale: float) -> list[Comparison]:
    for module in ("receiver", "sqlalchemy"):
        _seconds_to_import(module)  # so that the bytecode is compiled
    return [
        by_turns(
            lambda: _seconds_to_import("receiver"),
            lambda: _seconds_to_import("sqlalchemy"),
            turns=max(1, round(21 * scale)),
            name="imports",
            work="import receiver",
            unit="s",
            anchor_name="import sqlalchemy",
            goal=Goal(1.3, aim=1, at_most=True),
        )
    ]
