"""Whether a bridge works, for a supervisor such as Kubernetes: the two pages `/livez` and `/readyz`.

A bridge is *ready* while its source, its target and its store can be reached. It is *live* while its thread goes on, also
where nothing comes, or where a broker is away and tried again: restarting it would bring no broker back.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from receiver.errors import ReceiverError


class Health:
    """The state of a bridge: its thread alone writes it, and any thread reads it."""

    def __init__(self, stuck_after_secs: float) -> None:
        self._stuck_after_secs = stuck_after_secs
        self._moved_at = time.monotonic()
        self._troubles = {"source": "it hasn't connected yet"}
        """Why something doesn't work now, by what it is, such as `source`."""

    def moves(self) -> None:
        """Note that the bridge goes on: it has done a step, or has failed to and will try again."""
        self._moved_at = time.monotonic()

    def works(self, what: str) -> None:
        self._troubles.pop(what, None)

    def fails(self, what: str, error: ReceiverError) -> None:
        self._troubles[what] = error.message

    def why_unready(self) -> str | None:
        """None if it is ready."""
        return "; ".join(list(self._troubles.values())) or None  # listed in one step, for another thread may change it

    def why_dead(self) -> str | None:
        """None if it is live."""
        still_secs = time.monotonic() - self._moved_at
        if still_secs < (self._stuck_after_secs or math.inf):
            return None
        return f"it has been stuck for {still_secs:.0f} s"


def pages(health: Health, otherwise: WSGIApplication | None = None) -> WSGIApplication:
    """Both pages, each 200 or 503 with the reason in a line of text; any other path is `otherwise`'s."""
    asked: dict[str, Callable[[], str | None]] = {"/livez": health.why_dead, "/readyz": health.why_unready}

    def answer(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        if path not in asked and otherwise is not None:
            return otherwise(environ, start_response)
        if path not in asked:
            status, text = "404 Not Found", f"there are {' and '.join(asked)}"
        else:
            why = asked[path]()
            status, text = ("200 OK", "ok") if why is None else ("503 Service Unavailable", why)
        body = f"{text}\n".encode(errors="backslashreplace")
        start_response(status, [("Content-Type", "text/plain; charset=utf-8"), ("Content-Length", str(len(body)))])
        return [body]

    return answer
