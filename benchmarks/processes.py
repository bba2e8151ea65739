"""A command as a process of its own, measured from its start to its end."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import dataclass, field

# Without kept bytecode each run would compile the libraries, which takes longer than many commands do.
_ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


@dataclass(slots=True)
class Process:
    """A command, its last output, and the peak memory of each of its runs."""

    command: list[str]
    printed: str = ""
    peaks_gb: list[float] = field(default_factory=list)

    def seconds(self) -> float:
        start = time.perf_counter()
        with subprocess.Popen(self.command, stdout=subprocess.PIPE, text=True, env=_ENVIRONMENT) as process:
            self.printed = process.stdout.read() if process.stdout else ""
            _, status, usage = os.wait4(process.pid, 0)  # wait() doesn't give the memory
            process.returncode = os.waitstatus_to_exitcode(status)
        took = time.perf_counter() - start
        if process.returncode:
            raise subprocess.CalledProcessError(process.returncode, self.command)
        per_gb = 1_000_000_000 if sys.platform == "darwin" else 1_000_000_000 / 1_024
        self.peaks_gb.append(usage.ru_maxrss / per_gb)
        return took
