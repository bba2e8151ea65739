"""How much one process can number: numbers of receipts, ids and sources have 32 bits, and a wrapped one is another's."""

from __future__ import annotations

from receiver.errors import LogFormatError

__all__ = ["MOST_NUMBERED", "check_numbered"]

MOST_NUMBERED = 2**31 - 2
"""Of a kind. Two numbers are taken: that of the missing id, and the largest, which stands for "after all rows"."""


def check_numbered(count: int, what: str) -> None:
    """`LogFormatError` where there are, or may be with what comes next, more than can be numbered; asked before they are."""
    if count > MOST_NUMBERED:
        raise LogFormatError(
            "the log",
            f"more than {MOST_NUMBERED:,} {what}, which is all that one process can number",
            hint="receiver simulate --engine spark cuts a log of any size into chunks; or take a part of it",
        )
