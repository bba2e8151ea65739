"""Functions compiled to machine code, which only the first run waits for where the code can be kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from numba import njit

__all__ = ["compiled"]

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
