"""Functions compiled to machine code, their threads, and the limit of the 32-bit numbers that they use."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from threading import Thread
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np.arrayobj import make_array

from receiver.errors import LogFormatError

MOST_NUMBERED = 2**31 - 2
"""The most receipts, ids or names. Two numbers are reserved: the missing id's, and the largest, for "after all rows"."""
Int64s = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]
Flags = npt.NDArray[np.bool_]
_ROWS_WORTH_THREADS = 20_000
_Function = TypeVar("_Function", bound=Callable[..., Any])
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def compiled(**options: Any) -> Callable[[_Function], _Function]:
    """Compile with Numba, to run without the GIL. The machine code is cached beside its source or in the user's cache."""

    def compile_(function: _Function) -> _Function:
        machine_code: _Function
        try:
            machine_code = njit(cache=True, nogil=True, **options)(function)
        except RuntimeError:  # neither folder is writable, as in many containers: then each run compiles
            machine_code = njit(nogil=True, **options)(function)
        return machine_code

    return compile_


def in_threads(
    work: Callable[[_Item], _Result], items: Iterable[_Item], *, rows: int, threads: int | None = None
) -> list[_Result]:
    """The results of `work`, which runs compiled code on that many rows, on each item. Uses so many threads, by default one for
    each processor; for few rows only the caller's.

    Unlike a pool's, the threads hold up neither an interrupt nor the end of the process.
    """
    if threads == 1 or rows < _ROWS_WORTH_THREADS:
        return list(map(work, items))
    futures: list[tuple[Future[_Result], _Item]] = [(Future(), item) for item in items]
    coming = iter(futures)

    def run() -> None:
        for future, item in coming:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(work(item))
                except BaseException as error:  # noqa: BLE001 - raised where the result is awaited
                    future.set_exception(error)

    for _ in range(min(threads or os.cpu_count() or 1, len(futures))):
        Thread(target=run, daemon=True).start()
    try:
        return [future.result() for future, _ in futures]
    finally:
        for future, _ in futures:
            future.cancel()


# Numba lacks the two functions that follow. Without `prefetch`, numbering ids takes 1.6 times as long, and a replay of many
# sources 1.15 times. `ones` is one instruction of the processor.
def _prefetch(_typing: Any, column: Any, _index: Any) -> Any:
    def instruction(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        array = make_array(column)(context, builder, arguments[0])  # type: ignore[no-untyped-call]
        address = builder.gep(array.data, [arguments[1]])
        number = ir.IntType(32)
        parameters = [cgutils.voidptr_t, number, number, number]
        kind = ir.FunctionType(ir.VoidType(), parameters)
        function = builder.module.declare_intrinsic("llvm.prefetch", parameters[:1], kind)
        to_read, into_all_caches, of_data = number(0), number(3), number(1)
        builder.call(function, [builder.bitcast(address, cgutils.voidptr_t), to_read, into_all_caches, of_data])
        return context.get_dummy_value()

    return types.void(column, types.intp), instruction


prefetch: Callable[[Any, Any], None] = cast("Any", intrinsic(_prefetch))
"""In compiled functions, `prefetch(column, index)` fetches a value into the processor's cache without waiting for it. An index
behind the column's end does no harm."""


def _ones(_typing: Any, word: Any) -> Any:
    def instruction(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.ctpop(arguments[0])

    return word(word), instruction


ones: Callable[[int], int] = cast("Any", intrinsic(_ones))
"""In compiled functions, the number of set bits in a word."""


_CUT_BY_SPARK = "receiver simulate --engine spark cuts a log of any size into chunks; or take a part of it"


def check_numbered(count: int, what: str, hint: str = _CUT_BY_SPARK) -> None:
    """Raise `LogFormatError` if the `count` of `what` is more than can be numbered. Call it before numbering."""
    if count > MOST_NUMBERED:
        raise LogFormatError(
            "the log", f"more than {MOST_NUMBERED:,} {what}, which is all that one process can number", hint=hint
        )
