"""The entry of the command: `receiver`, or `python -m receiver`."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command and exit with its status."""
    try:
        from receiver.cli import run

        status = run()
    except KeyboardInterrupt:  # during the import
        status = 130
    sys.exit(status)


if __name__ == "__main__":
    main()
