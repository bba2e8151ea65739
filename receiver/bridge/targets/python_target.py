"""Messages given to a function of the application's: exactly once where it writes by the connection that it is given."""

from __future__ import annotations

import importlib
import inspect
import logging
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from receiver.bridge.received import Received
from receiver.bridge.targets.target import Outcome
from receiver.errors import SettingsError, StoreError
from receiver.store.inbox import Turn

__all__ = ["PythonTarget", "imported"]

_LOGGER = logging.getLogger("receiver.bridge")
_WITH_CONNECTION = 2
_LONG_SECS = 1.0
"""After so long it is time to commit: meanwhile others wait for the database, and what is done isn't known to be."""
_SAVEPOINT = "receiver_message"


class PythonTarget:
    """Calls `function(message, connection)`, or `function(message)` if it takes one argument.

    The connection is SQLAlchemy's, in the transaction that makes the inbox forget the message: what is written by it is
    committed if and when that is. A message for which the function raises an exception leaves nothing behind there.
    """

    def __init__(self, name: str, function: Callable[..., object]) -> None:
        self.name = name
        self._function = function
        self.takes_part = _takes_two(name, function)
        """Whether it has a connection."""

    def connect(self) -> None:
        """It was imported."""

    def ready(self, turn: Turn) -> bool:
        del turn
        return True

    def release(self) -> None:
        """Nothing is locked."""

    def deliver(self, messages: Sequence[Received], turn: Turn | None) -> Outcome:
        outcome, failing = Outcome(), set()
        until = time.monotonic() + _LONG_SECS
        for index, message in enumerate(messages):
            if index and time.monotonic() > until:
                break
            if message.message_source_id in failing:
                continue
            if turn is None or not self.takes_part:
                why = self._call(message)
            else:
                why = self._call_inside(turn.connection, message)
            if why is None:
                outcome.delivered.append(index)
            else:
                outcome.failed[index] = why
                failing.add(message.message_source_id)
        return outcome

    def close(self) -> None:
        """Nothing is open."""

    def _call_inside(self, connection: Connection, message: Received) -> str | None:
        """As `_call`; where that fails, nothing it wrote stays."""
        transaction = connection.get_transaction()
        connection.exec_driver_sql(f"SAVEPOINT {_SAVEPOINT}")
        why = self._call(message, connection)
        if connection.invalidated:
            raise StoreError(f"the connection was lost while {self.name} had it", hint="all of it is tried again")
        if connection.get_transaction() is not transaction:
            raise self._has_ended_it()
        # PostgreSQL takes nothing more after an error, also one that the function has caught.
        spoilt = _failure(connection, f"RELEASE SAVEPOINT {_SAVEPOINT}") if why is None else None
        if why is None and spoilt is None:
            return None
        lost = _failure(connection, f"ROLLBACK TO SAVEPOINT {_SAVEPOINT}", f"RELEASE SAVEPOINT {_SAVEPOINT}")
        if lost is not None:
            raise lost if spoilt is None else self._has_ended_it() from lost
        return why or f"{type(spoilt).__name__}: {spoilt}"

    def _call(self, message: Received, *connection: Connection) -> str | None:
        """Why the function failed; None if it didn't."""
        try:
            self._function(message, *connection)
        except (Exception, SystemExit) as error:
            _LOGGER.warning("%s failed on %r: %r", self.name, message.unique_message_id, error)
            _LOGGER.debug("where it failed", exc_info=True)
            return f"{type(error).__name__}: {error}"
        return None

    def _has_ended_it(self) -> SettingsError:
        return SettingsError(
            f"{self.name} ended the transaction that it was given",
            hint="leave committing and rolling back to the bridge",
        )


def _failure(connection: Connection, *statements: str) -> DBAPIError | None:
    try:
        for statement in statements:
            connection.exec_driver_sql(statement)
    except DBAPIError as error:
        if error.connection_invalidated:
            raise
        return error
    return None


def imported(text: str) -> PythonTarget:
    """From `MODULE:FUNCTION`; a module is looked for in the current folder, too."""
    module_name, colon, path = text.partition(":")
    if not (module_name and colon and path):
        raise SettingsError(f"python:{text} names no function", hint="write python:MODULE:FUNCTION")
    if (here := os.getcwd()) not in sys.path:  # noqa: PTH109 - text, as it stands there
        sys.path.insert(0, here)
    try:
        found: Any = importlib.import_module(module_name)
        for part in path.split("."):
            found = getattr(found, part)
    except (Exception, SystemExit) as error:
        raise SettingsError(
            f"python:{text} can't be imported: {type(error).__name__}: {error}",
            hint="the module must be importable from the current folder, and have the function",
        ) from error
    if not callable(found):
        raise SettingsError(f"python:{text} is no function but {type(found).__name__}")
    return PythonTarget(f"python:{text}", found)


def _takes_two(name: str, function: Callable[..., object]) -> bool:
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        raise SettingsError(f"{name} does nothing when it is called", hint="name a function without async and yield")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some that are written in C have none
        return False
    for count in (_WITH_CONNECTION, 1):
        try:
            signature.bind(*[None] * count)
        except TypeError:
            continue
        return count == _WITH_CONNECTION
    raise SettingsError(f"{name} takes neither (message, connection) nor (message): {signature}")
