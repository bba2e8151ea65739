"""The entry of the command: `receiver`, or `python -m receiver`."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Run the command and exit with its status."""
    try:
        from receiver.cli import run

        status = run()
    except KeyboardInterrupt:  # during the import
        status = 130
    if status == 130 and "numba" in sys.modules:  # noqa: PLR2004
        os._exit(status)  # threads may still compile, and LLVM crashes if the process ends around them
    sys.exit(status)


if __name__ == "__main__":
    main()
