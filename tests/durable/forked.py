"""A forked process: its answer, and how it ends."""

import json
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any

from receiver.errors import ReceiverError


def refusal(use: Callable[[], object]) -> str:
    """The name of the error that the use of something raises, as a child can give it."""
    try:
        use()
    except ReceiverError as error:
        return type(error).__name__
    return "no error"


def forked(work: Callable[[], Any]) -> Callable[[], Any]:
    """Fork. The child does the work and ends. Returns a function that waits for the child and gives its answer."""
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.write(theirs, json.dumps(work()).encode())
            status = 0
        except BaseException:  # noqa: BLE001 - it must not go on as a second test run
            traceback.print_exc()
        sys.stdout.flush()
        os._exit(status)

    def answer() -> Any:
        os.close(theirs)
        _, status = os.waitpid(pid, 0)
        with os.fdopen(ours, "rb") as said:
            reported = said.read()
        assert status == 0, "the child failed: its traceback is on standard error"
        return json.loads(reported)

    return answer
