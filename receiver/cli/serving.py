"""The HTTP server of `receiver bridge`: metrics for Prometheus, and the bridge's health for a supervisor."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, NamedTuple
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from receiver.errors import SettingsError

if TYPE_CHECKING:
    from receiver.bridge.bridge import Bridge, Health

_LISTENING = re.compile(r"(?:([^\[\]:]+|\[[^\[\]]+\]):)?([0-9]{1,5})")
_LARGEST_PORT = 65_535
_PATIENCE_SECS = 30


class Listening(NamedTuple):
    """Address and port of an HTTP server."""

    address: str
    port: int

    @classmethod
    def of(cls, option: str, text: str, default_address: str) -> Listening:
        """Parse `[ADDRESS:]PORT`, the value of an option; `SettingsError` for another form."""
        parts = _LISTENING.fullmatch(text)
        if parts is None or int(parts[2]) > _LARGEST_PORT:
            raise SettingsError(
                f"{option} must be [ADDRESS:]PORT with a port up to {_LARGEST_PORT}, not {text!r:.80}",
                hint="write 8080, 0.0.0.0:8080 or [::1]:8080",
            )
        return cls((parts[1] or default_address).strip("[]"), int(parts[2]))


def serve(bridge: Bridge, metrics: Listening | None, health: Listening | None) -> None:
    """Serve metrics and health at these addresses until the process ends; None: don't serve. Equal addresses share a server.

    `SettingsError` if an address can't be served on.
    """
    shown = None if metrics is None else _metrics(bridge)
    if health is not None:
        _start("--health-port", "health", health, pages(bridge.health, shown if metrics == health else None))
    if metrics is not None and shown is not None and metrics != health:
        _start("--metrics-port", "metrics", metrics, shown)


def pages(health: Health, otherwise: WSGIApplication | None = None) -> WSGIApplication:
    """Serves `/livez` and `/readyz`, each with 200, or 503 and the reason in a line of text. `otherwise` serves other paths."""
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


def _metrics(bridge: Bridge) -> WSGIApplication:
    from prometheus_client import make_wsgi_app

    from receiver.bridge.metrics import export

    export(bridge)
    app: WSGIApplication = make_wsgi_app()
    return app


def _start(option: str, what: str, listening: Listening, app: WSGIApplication) -> None:
    address, port = listening
    try:
        families = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        server = _Server(families[0][0], (address, port))
    except (OSError, UnicodeError) as error:  # UnicodeError: a name that can't be one of a host
        why = getattr(error, "strerror", None) or error
        raise SettingsError(
            f"{what} can't be served on port {port} of {address}: {why}", hint=f"choose another {option}"
        ) from error
    server.set_app(app)
    threading.Thread(target=server.serve_forever, name=f"receiver {what}", daemon=True).start()


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def __init__(self, family: socket.AddressFamily, where: tuple[str, int]) -> None:
        self.address_family = family
        super().__init__(where, _QuietHandler)


class _QuietHandler(WSGIRequestHandler):
    timeout = _PATIENCE_SECS
    """After this long, connections without a request are closed."""

    def handle(self) -> None:
        with suppress(OSError):  # no request came, or the client left before the answer, as a load balancer's probe
            super().handle()

    def log_message(self, *_: object) -> None:
        """Log nothing: a probe comes every few seconds."""
