"""The entry of the command: `receiver`, or `python -m receiver`."""

from __future__ import annotations

import os
import signal
import sys
import time
from threading import Timer
from traceback import walk_stack
from types import FrameType

_INTERRUPTED = 128 + signal.SIGINT
_SOON_SECS = 0.05
_LONGEST_IMPORT_SECS = 5.0


def main() -> None:
    """Run the command and exit with its status. SIGTERM ends it as Ctrl-C does, so that nothing is left half done."""
    ended_by = signal.SIGINT
    first_at: float | None = None

    def end(number: int, frame: FrameType | None) -> None:
        nonlocal ended_by, first_at
        first_at = first_at or time.monotonic()
        # A user's module may wait for something as it is imported, maybe for ever.
        if _is_importing(frame) and time.monotonic() < first_at + _LONGEST_IMPORT_SECS:
            Timer(_SOON_SECS, os.kill, (os.getpid(), number)).start()
            return
        ended_by = signal.Signals(number)
        raise KeyboardInterrupt

    ends = [each for each in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(each) is not signal.SIG_IGN]
    for each in ends:
        signal.signal(each, end)
    try:
        from receiver.cli import run

        status = run()
    except KeyboardInterrupt:
        status = _INTERRUPTED
    for each in ends:
        signal.signal(each, signal.SIG_DFL)  # nothing is under way any more
    if status == _INTERRUPTED:
        status = 128 + ended_by
        if "numba" in sys.modules:
            os._exit(status)  # threads may still compile, and LLVM crashes if the process ends around them
    sys.exit(status)


def _is_importing(frame: FrameType | None) -> bool:
    """Whether a module is being imported. Libraries such as Numba then catch whatever is raised, and go on."""
    return any(each.f_code.co_filename.startswith("<frozen importlib") for each, _ in walk_stack(frame))


if __name__ == "__main__":
    main()
