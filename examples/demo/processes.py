"""Processes that the demo starts: servers of others, its own senders and bridges; and signals to the demo itself.

A server's program is brought into a cache, where it is whole or not there. It is started until it is up, stopped, killed
and started again on the same ports.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

from receiver.errors import BrokerError, MissingProgramError

Say = Callable[[str, str], None]
"""Takes the name of a process and a line that it has printed. Called by several threads."""

HOST = "127.0.0.1"
JAVA_ARGS = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"""Without the better one of its compilers Java is up in a third of the time."""
_OFFSETS = range(1, 3_900)
"""One of these is added to all ports of a broker. None of the ports then lies among those that the system takes for
connections, so they are still free when the broker is started again."""
_STARTS_SECS = _STOPS_SECS = 60
_FETCHES_SECS = 600
_LEAST_JAVA = 17
_JAVA_ANSWERS_SECS = 30
_LAST_LINES = 5
_MAVEN = ("mvn", "--batch-mode", "--quiet")
_interrupted = threading.Event()
_ENDINGS = [signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])]


def whole(home: Path, bring: Callable[[Path], Path]) -> Path:
    """`home`, and if it isn't there yet, what `bring` makes in a folder given to it; it returns the folder to be `home`.

    It is made beside `home` and then renamed: a process killed on the way leaves no half of a program there, and of
    several who fetch at once each has it.
    """
    if home.is_dir():
        return home
    home.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=home.parent, prefix="fetching-") as folder:
        brought = bring(Path(folder))
        try:
            brought.rename(home)
        except OSError:
            if not home.is_dir():  # else another process was faster
                raise
    return home


def require_java(user: str) -> None:
    """Raise `MissingProgramError` unless the Java that the user's scripts would start is of version 17 or newer."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else "java"
    try:
        ran = subprocess.run(
            [java, "-version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_JAVA_ANSWERS_SECS,
            check=False,
        )
        version = re.search(r'version "(\d+)', ran.stderr)  # 1 for Java 8, which calls itself 1.8
    except (OSError, subprocess.TimeoutExpired):
        version = None
    if version is None or int(version[1]) < _LEAST_JAVA:
        raise MissingProgramError(
            f"{user} needs Java {_LEAST_JAVA} or newer, and {java} isn't that",
            hint=f"install Java {_LEAST_JAVA} or newer (Debian, Ubuntu: apt install openjdk-17-jre-headless; macOS: "
            "brew install openjdk@17; others: https://adoptium.net) and let JAVA_HOME name its folder",
        )


def require_maven() -> None:
    """Raise `MissingProgramError` if there is no Maven."""
    if shutil.which("mvn") is None:
        raise MissingProgramError(
            "Maven fetches the broker, and there is no mvn on the PATH",
            hint="install it (Debian, Ubuntu: apt install maven; macOS: brew install maven; "
            "others: https://maven.apache.org)",
        )


def fetch_by_maven(what: str, arguments: Sequence[str], folder: Path) -> None:
    """Run Maven in the folder to fetch what is named; `MissingProgramError` if it can't."""
    run_to_fetch(
        "Maven",
        what,
        [*_MAVEN, *arguments],
        folder,
        hint="it needs access to Maven Central, or a mirror of it in ~/.m2/settings.xml",
    )


def run_to_fetch(who: str, what: str, command: Sequence[str], folder: Path, *, hint: str) -> None:
    """Run a command that fetches what is named; `MissingProgramError` with what it said, and the hint, if it fails."""
    try:
        ran = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, errors="replace", timeout=_FETCHES_SECS, check=False
        )
    except subprocess.TimeoutExpired:
        raise MissingProgramError(
            f"{who} has not fetched {what} in {_FETCHES_SECS} s", hint="try again with a better connection"
        ) from None
    if ran.returncode:
        raise MissingProgramError(f"{who} can't fetch {what}: {last_lines(ran.stdout + ran.stderr)}", hint=hint)


def last_lines(said: str) -> str:
    """The end of what a program has said, in one line."""
    return " | ".join(line.strip() for line in said.strip().splitlines()[-_LAST_LINES:]) or "it said nothing"


class Server:
    """One program and the log of what it says; not running until `launch`. What it can't do is a `BrokerError`."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """Of its process; None while it isn't running."""
        return None if self._process is None else self._process.pid

    def said(self, since: int = 0) -> str:
        """What it has logged after the first `since` bytes."""
        with self._log.open("rb") as log:
            log.seek(since)
            return log.read().decode(errors="replace")

    def launch(
        self, command: Sequence[str], is_up: Callable[[str], bool], env: Mapping[str, str] | None = None
    ) -> None:
        """Start it, with more in its environment, and wait until what it has said since means that it is up."""
        if self._process is not None:
            raise BrokerError("the broker is running already")
        with self._log.open("ab") as log:
            before = log.tell()
            with uninterrupted():
                self._process = subprocess.Popen(
                    command,
                    cwd=self._log.parent,
                    env=os.environ | (env or {}),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,  # Ctrl-C in the terminal is for the process that started it, which then ends it
                )
        self._wait_until_up(self._process, is_up, before)

    def _wait_until_up(self, process: subprocess.Popen[bytes], is_up: Callable[[str], bool], before: int) -> None:
        give_up = time.monotonic() + _STARTS_SECS
        while not is_up(said := self.said(before)):
            if process.poll() is not None:
                raise BrokerError(f"the broker ended while it started: {last_lines(said)}")
            if time.monotonic() > give_up:
                raise BrokerError(f"the broker isn't up after {_STARTS_SECS} s: {last_lines(said)}")
            time.sleep(0.02)

    def stop(self) -> None:
        """End it by SIGTERM, and wait until it has written its data and ended."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it at once, by kill -9."""
        self._end(signal.SIGKILL)

    def close(self) -> None:
        """End it if it still runs."""
        if self._process is not None:
            self.kill()

    def _end(self, how: signal.Signals) -> None:
        if self._process is None:
            raise BrokerError("the broker isn't running")
        self._process.send_signal(how)
        try:
            self._process.wait(_STOPS_SECS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise BrokerError(f"the broker hasn't stopped in {_STOPS_SECS} s, and was killed") from None
        finally:
            self._process = None


def free_ports(*usual: int) -> list[int]:
    """A free port for each of the usual ones, higher by one number for all of them.

    Nobody else gets them here as long as this process lives, for a broker listens only later, and not while it is down.
    """
    for offset in random.sample(_OFFSETS, len(_OFFSETS)):
        ports = [port + offset for port in usual]
        with ExitStack() as claims:
            try:
                claimed = [claims.enter_context(_claimed(port)) for port in ports]
            except OSError:
                continue
            for claim in claimed:
                claim.detach()  # so that nothing closes it
            return ports
    raise BrokerError("all ports that a broker could listen on are taken")


def _claimed(port: int) -> socket.socket:
    """The UDP port of the same number as a free one, for no broker makes use of it."""
    socket.create_server((HOST, port)).close()
    claim = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        claim.bind((HOST, port))
    except OSError:
        claim.close()
        raise
    return claim


class ChildProcess:
    """One command under a name; not running until `start`.

    A command that reads its input is asked to stop by the end of that input, which comes too if this process dies; any
    other by SIGTERM.
    """

    def __init__(self, name: str, command: Sequence[str], say: Say, *, reads_input: bool = False) -> None:
        self.name = name
        self._command = command
        self._say = say
        self._reads_input = reads_input
        self.started_secs = 0.0
        """The time of its latest start, on the monotonic clock."""
        self._process: subprocess.Popen[str] | None = None
        self._listener: threading.Thread | None = None

    def start(self) -> None:
        self.started_secs = time.monotonic()
        with uninterrupted():
            self._process = subprocess.Popen(
                self._command,
                env=os.environ | {"PYTHONUNBUFFERED": "1"},
                stdin=subprocess.PIPE if self._reads_input else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                encoding="utf-8",
                errors="replace",
                start_new_session=True,  # Ctrl-C in the terminal is for the supervisor, which then ends it
            )
        self._listener = threading.Thread(target=self._pass_on, args=(self._process.stdout,), daemon=True)
        self._listener.start()

    def ended(self) -> int | None:
        """The exit status, the negative number of the signal that ended it, or None while it runs."""
        return None if self._process is None else self._process.poll()

    def kill(self) -> None:
        """End it at once, by kill -9; do nothing if it has ended."""
        self._end(signal.SIGKILL)

    def abort(self) -> None:
        """As `kill`, but by SIGABRT: with `-X faulthandler`, Python prints what each thread is doing."""
        self._end(signal.SIGABRT)

    def _end(self, how: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(how)
            self._wait(self._process)

    def stop(self) -> None:
        """Ask it to stop, and return at once."""
        if self._process is None:
            return
        if self._process.stdin is not None:
            self._process.stdin.close()
        else:
            self._process.terminate()

    def wait_stopped(self) -> int:
        """Wait until it has ended, and return its status as `ended` does; `BrokerError` if it doesn't stop in a minute."""
        if self._process is None:
            return 0
        try:
            return self._wait(self._process)
        except subprocess.TimeoutExpired:
            self.kill()
            raise BrokerError(f"{self.name} hasn't stopped in {_STOPS_SECS:g} s, and was killed") from None

    def _wait(self, process: subprocess.Popen[str]) -> int:
        status = process.wait(_STOPS_SECS)
        if process.stdin is not None:
            process.stdin.close()
        if self._listener is not None:
            self._listener.join()
        self._process = None
        return status

    def _pass_on(self, printed: IO[str]) -> None:
        with printed:
            for line in printed:
                if line.strip():
                    self._say(self.name, line.rstrip())


@contextmanager
def interruptible() -> Iterator[None]:
    """Raise `KeyboardInterrupt` in the block at Ctrl-C, a closed terminal or a plain kill.

    Only the first one counts, so that cleaning up isn't interrupted.
    """

    def interrupt(_number: int, _frame: Any) -> None:
        _interrupted.set()
        for ending in _ENDINGS:
            signal.signal(ending, signal.SIG_IGN)
        raise KeyboardInterrupt

    try:
        with _handled_by(interrupt):
            yield
    finally:
        _interrupted.clear()


def check_interrupted() -> None:
    """Raise `KeyboardInterrupt` again if it was lost: Python ignores one that is raised in a finalizer or a callback."""
    if _interrupted.is_set():
        raise KeyboardInterrupt


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Hold such signals back until the end of the block, in which a process is started and remembered."""
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
