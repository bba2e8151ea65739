"""What ends a program from outside, such as Ctrl-C: it is to leave no process behind."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["interruptible", "uninterrupted"]

_ENDINGS = [signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])]


@contextmanager
def interruptible() -> Iterator[None]:
    """Ctrl-C, a closed terminal and a plain kill raise `KeyboardInterrupt` in the block, once: what cleans up goes on."""

    def interrupt(_number: int, _frame: Any) -> None:
        for ending in _ENDINGS:
            signal.signal(ending, signal.SIG_IGN)
        raise KeyboardInterrupt

    with _handled_by(interrupt):
        yield


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Keep such signals waiting for the end of the block, in which a process is started and noted down."""
    if threading.current_thread() is not threading.main_thread():  # where no signal interrupts
        yield
        return
    came: list[int] = []
    try:
        with _handled_by(lambda number, _frame: came.append(number)):
            yield
    finally:
        if came:
            signal.raise_signal(came[0])


@contextmanager
def _handled_by(handler: Callable[[int, Any], None]) -> Iterator[None]:
    before = {ending: signal.signal(ending, handler) for ending in _ENDINGS}
    try:
        yield
    finally:
        for ending, handler_before in before.items():
            signal.signal(ending, handler_before)
