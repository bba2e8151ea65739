"""Functions compiled to machine code, and how much the numbers of 32 bits that they work on can number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from numba import njit

from receiver.errors import LogFormatError

__all__ = ["MOST_NUMBERED", "check_numbered", "compiled"]

MOST_NUMBERED = 2**31 - 2
"""The most receipts, ids or names. Two numbers are taken: the missing id's, and the largest, for "after all rows"."""


_Function = TypeVar("_Function", bound=Callable[..., Any])


def compiled(**options: Any) -> Callable[[_Function], _Function]:
    """Compile with Numba, to run without Python's lock, and keep the code beside its source or in the user's cache."""

    def compile_(function: _Function) -> _Function:
        machine_code: _Function
        try:
            machine_code = njit(cache=True, nogil=True, **options)(function)
        except RuntimeError:  # neither folder can be written to, as in many a container: then each run compiles
            machine_code = njit(nogil=True, **options)(function)
        return machine_code

    return compile_


def check_numbered(count: int, what: str) -> None:
    """Raise `LogFormatError` for a `count` of `what` that is more than can be numbered, before any of it is numbered."""
    if count > MOST_NUMBERED:
        raise LogFormatError(
            "the log",
            f"more than {MOST_NUMBERED:,} {what}, which is all that one process can number",
            hint="receiver simulate --engine spark cuts a log of any size into chunks; or take a part of it",
        )
