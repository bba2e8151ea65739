"""Functions compiled to machine code, and how much the numbers of 32 bits that they work on can number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from numba import njit

from receiver.errors import LogFormatError

__all__ = ["MOST_NUMBERED", "check_numbered", "compiled"]

MOST_NUMBERED = 2**31 - 2
"""Of a kind. Two numbers are taken: that of the missing id, and the largest, which stands for "after all rows"."""


_Function = TypeVar("_Function", bound=Callable[..., Any])


def compiled(**options: Any) -> Callable[[_Function], _Function]:
    """Compile with Numba, to run without Python's lock, and keep the code beside its source or in the user's cache."""

    def compile_(function: _Function) -> _Function:
        machine_code: _Function
        try:
            machine_code = njit(cache=True, nogil=True, **options)(function)
        except RuntimeError:  # neither place can be written to, as in many a container: then each run compiles
            machine_code = njit(nogil=True, **options)(function)
        return machine_code

    return compile_


def check_numbered(count: int, what: str) -> None:
    """`LogFormatError` where there are, or may be with what comes next, more than can be numbered; asked before they are."""
    if count > MOST_NUMBERED:
        raise LogFormatError(
            "the log",
            f"more than {MOST_NUMBERED:,} {what}, which is all that one process can number",
            hint="receiver simulate --engine spark cuts a log of any size into chunks; or take a part of it",
        )
