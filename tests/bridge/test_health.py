"""What a bridge answers to a supervisor: ready while everything is connected, live while its thread goes on."""

import socket
import struct
import threading
import time
from contextlib import contextmanager
from types import SimpleNamespace
from urllib.request import urlopen

import pytest

from examples.demo.processes import HOST, free_ports
from receiver.bridge import bridge as bridge_module
from receiver.bridge.bridge import Health
from receiver.bridge.opening import open_bridge
from receiver.bridge.options import IdRule, Mode
from receiver.bridge.targets.broker_target import BrokerTarget
from receiver.cli.serving import Listening, pages, serve
from receiver.errors import BrokerError, StoreError
from receiver.retrying import Backoff
from receiver.settings import BridgeSettings
from tests.bridge.bridged import TEN, Route, open_from, send
from tests.patience import PATIENCE_SECS, until

pytestmark = pytest.mark.usefixtures("hasty")


@contextmanager
def running(bridge, **options):
    """Run a bridge in a thread, and stop it at the end of the block."""
    thread = threading.Thread(target=bridge.run, kwargs=options, daemon=True)
    thread.start()
    try:
        yield bridge.health
    finally:
        bridge.stop()
        thread.join(PATIENCE_SECS)
        assert not thread.is_alive()


class Breaking:
    """A call that fails while `error` is set."""

    def __init__(self, behind):
        self._behind = behind
        self.error = None

    def __call__(self, *arguments, **keywords):
        if self.error is not None:
            raise self.error
        return self._behind(*arguments, **keywords)


def test_a_broker_that_comes_and_goes_makes_it_ready_and_unready(route):
    connect, sources = Breaking(lambda: sources.append(route.broker.source("orders")) or sources[-1]), []
    connect.error = BrokerError("nobody is there")
    bridge = open_from(route, connect)
    assert "connected" in bridge.health.why_unready()
    with running(bridge, waits_at_start=True) as health:
        until(lambda: "nobody is there" in health.why_unready())
        assert not bridge.has_started
        connect.error = None
        until(lambda: health.why_unready() is None)
        connect.error = BrokerError("it is gone")
        sources[-1].close()
        until(lambda: "it is gone" in (health.why_unready() or ""))
        assert health.why_dead() is None
        connect.error = None
        until(lambda: health.why_unready() is None)
    send(route, "1")
    assert bridge.figures.connection_errors > 2


def test_a_long_pause_does_not_make_it_dead(route, monkeypatch):
    monkeypatch.setattr(bridge_module, "_BACKOFF", Backoff(60, 60))
    monkeypatch.setattr(bridge_module, "_PROGRESS_SECS", 0.01)
    connect = Breaking(None)
    connect.error = BrokerError("nobody is there")
    bridge = open_from(route, connect, settings=BridgeSettings(stuck_after_secs=0.3))
    with running(bridge, waits_at_start=True) as health:
        until(lambda: "nobody is there" in health.why_unready())
        time.sleep(0.6)
        assert health.why_dead() is None


def test_a_stop_ends_the_wait_for_the_first_connection(route):
    connect = Breaking(None)
    connect.error = BrokerError("nobody is there")
    with running(open_from(route, connect), waits_at_start=True) as health:
        until(lambda: "nobody is there" in health.why_unready())


def test_a_store_that_is_away_makes_it_unready(route, monkeypatch):
    """It becomes unready even if no message comes."""
    bridge = route.open()
    has_waiting = Breaking(bridge._flow._dispatcher.inbox.has_waiting)
    monkeypatch.setattr(bridge._flow._dispatcher.inbox, "has_waiting", has_waiting)
    with running(bridge) as health:
        until(lambda: health.why_unready() is None)
        has_waiting.error = StoreError("the server is away")
        until(lambda: health.why_unready() == "the server is away")
        has_waiting.error = None
        until(lambda: health.why_unready() is None)


class Sink:
    """The sink of a target that may break while nothing is sent to it."""

    is_broken = False

    def check(self):
        if self.is_broken:
            raise BrokerError("the connection has ended")

    def close(self):
        pass


def test_a_target_that_is_away_makes_it_unready_while_nothing_comes(route):
    connect, sinks = Breaking(lambda: sinks.append(Sink()) or sinks[-1]), []
    target = BrokerTarget("queue", connect, IdRule(), adds_duplicate_ids=False)
    with running(open_bridge(route.origin, target, route.store)) as health:
        until(lambda: health.why_unready() is None)
        connect.error = BrokerError("it can't be reached")
        sinks[-1].is_broken = True
        until(lambda: health.why_unready() == "it can't be reached")
        connect.error = None
        until(lambda: health.why_unready() is None)
        assert len(sinks) == 2


@pytest.mark.parametrize("mode", [Mode.BEST_EFFORT, Mode.EXACTLY_ONCE, Mode.APP_CONTROLLED])
def test_a_function_that_blocks_makes_it_dead_and_one_that_is_slow_does_not(sqlite_url, tmp_path, mode, monkeypatch):
    route, now_secs, deaths = Route(sqlite_url, tmp_path, "function"), 0, []
    monkeypatch.setattr(bridge_module, "time", SimpleNamespace(monotonic=lambda: now_secs))

    def see(message):
        nonlocal now_secs
        now_secs += 200 if message.text != "9" else 300
        deaths.append(bridge.health.why_dead())

    route._see = see
    bridge = route.open(mode=mode, stuck_after_secs=300)
    send(route, *TEN)
    bridge.run(stop_when_idle_secs=0)
    assert deaths == [None] * 9 + ["it has been stuck for 300 s"]


def test_it_may_be_allowed_to_take_for_ever():
    health = Health(0)
    health._progress_at -= 1e9
    assert health.why_dead() is None


def asked(app, path):
    said = []
    body = b"".join(app({"PATH_INFO": path}, lambda status, _headers: said.append(status)))
    return said[0], body


def test_the_pages():
    health = Health(0.0001)
    app = pages(health)
    assert asked(app, "/readyz") == ("503 Service Unavailable", b"it hasn't connected yet\n")
    health.works("source")
    assert asked(app, "/readyz") == ("200 OK", b"ok\n")
    health.fails("step", StoreError("\udcff is away"))
    assert asked(app, "/readyz") == ("503 Service Unavailable", b"\\udcff is away\n")
    until(lambda: asked(app, "/livez")[0] == "503 Service Unavailable")
    health.note_progress()
    assert asked(pages(Health(9)), "/livez") == ("200 OK", b"ok\n")
    assert asked(app, "/")[0] == "404 Not Found"
    assert asked(pages(health, lambda *_: [b"other"]), "/readyz")[0].startswith("503")


def test_who_asks_nothing_is_no_error(monkeypatch, capfd):
    """A load balancer's probe connects, and ends or resets the connection."""
    monkeypatch.setattr("receiver.cli.serving._QuietHandler.timeout", 0.1)
    (port,) = free_ports(8080)
    serve(SimpleNamespace(health=Health(0)), None, Listening(HOST, port))
    for is_reset in (True, False):
        with socket.create_connection((HOST, port)) as probe:
            if is_reset:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            else:
                assert probe.recv(1) == b""
    with urlopen(f"http://{HOST}:{port}/livez") as answer:
        assert answer.read() == b"ok\n"
    until(lambda: not any("process_request" in thread.name for thread in threading.enumerate()))
    assert capfd.readouterr().err == ""
