"""Messages given to a function of the application's: exactly once where it writes by the connection that it is given."""

from __future__ import annotations

import importlib
import inspect
import logging
import os
import sys
from asyncio import CancelledError
from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from receiver.bridge.connectors.address import masked
from receiver.bridge.options import described, not_done
from receiver.bridge.received import Received
from receiver.bridge.targets import Outcome, Target, one_by_one
from receiver.errors import BrokerError, MessageRefusedError, OutputError, SettingsError, StoreError
from receiver.store.inbox import Lease

__all__ = ["PythonTarget", "check_takes_message", "function_named", "imported"]

_LOGGER = logging.getLogger("receiver.bridge")
_WITH_CONNECTION = 2
_LONG_SECS = 1.0
"""After so long what is done gets committed: until then others wait for the database, and a crash has it done again."""
_SAVEPOINT = "receiver_message"


class PythonTarget(Target):
    """Calls `function(message, connection)` if it requires two arguments, else `function(message)`.

    The connection is SQLAlchemy's, in the transaction that makes the inbox forget the message: what is written by it is
    committed if and when that is. A message for which the function raises an exception leaves nothing behind there, and
    is tried again before it is parked. A `BrokerError`, `OutputError` or `StoreError` says that no message could be
    handled now: that isn't counted against this one.
    """

    def __init__(self, name: str, function: Callable[..., object]) -> None:
        self.name = name
        self._function = function
        self.takes_part = _takes_two(name, function)
        """Whether the function takes the connection."""
        self.moves: Callable[[], object] = lambda: None
        """Called before each message."""

    def deliver(self, messages: Sequence[Received], lease: Lease | None) -> Outcome:
        if lease is None or not self.takes_part:
            return one_by_one(messages, self._call, long_secs=_LONG_SECS)
        connection = lease.connection
        return one_by_one(messages, lambda message: self._call_inside(connection, message), long_secs=_LONG_SECS)

    def _call_inside(self, connection: Connection, message: Received) -> str | None:
        """Call the function inside a savepoint, so that nothing it wrote stays if it fails; why it failed, or None."""
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
        if lost is not None and why is not None:  # SQLite does so by itself where a disk is full
            raise StoreError(f"the database took back all of the transaction while {self.name} had it: {why}") from lost
        if lost is not None:
            raise self._has_ended_it() from lost
        return why if spoilt is None else described(spoilt)

    def _call(self, message: Received, *connection: Connection) -> str | None:
        """Why the function failed; None if it didn't."""
        process = os.getpid()
        self.moves()
        try:
            result = self._function(message, *connection)
        except MessageRefusedError as error:
            return described(error)
        except (BrokerError, OutputError, StoreError):  # not the message's fault: all of it is tried again
            raise
        except (Exception, SystemExit, CancelledError, GeneratorExit) as error:
            _LOGGER.debug("%s failed on %r", self.name, message.unique_message_id, exc_info=True)
            return described(error)
        finally:
            if os.getpid() != process:  # a child that the function has forked off: connections are its parent's
                os._exit(1)
        return None if result is None else not_done(result)

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
    """From `MODULE:FUNCTION`; a module that isn't installed is looked for in the current folder."""
    return PythonTarget(f"python:{text}", function_named(text, "python:"))


def function_named(text: str, before: str) -> Callable[..., Any]:
    """The function of `MODULE:FUNCTION`, imported as `imported` does; `before`, for errors, is what stands before that."""
    module_name, colon, path = text.partition(":")
    if not (module_name and colon and path) or "@" in text:  # before which a password may stand
        raise SettingsError(f"{masked(f'{before}{text}')} names no function", hint=f"write {before}MODULE:FUNCTION")
    if (here := os.getcwd()) not in sys.path:  # noqa: PTH109 - text, as it stands there
        sys.path.append(here)  # at the end, so that no file there is loaded instead of a library
    try:
        function: object = importlib.import_module(module_name)
        for part in path.split("."):
            function = getattr(function, part)
    except (Exception, SystemExit) as error:
        raise SettingsError(
            f"{before}{text} can't be imported: {type(error).__name__}: {error}",
            hint="the module must be importable from the current folder, and have the function",
        ) from error
    if not callable(function):
        raise SettingsError(
            f"{before}{text} isn't a function but {type(function).__name__}", hint=f"write {before}MODULE:FUNCTION"
        )
    return function


def check_takes_message(name: str, function: Callable[..., object]) -> None:
    """`SettingsError` unless it can be called with a message alone, as far as that can be seen."""
    signature = _signature(name, function)
    if signature is not None and not _binds(signature, 1):
        raise SettingsError(f"{name} can't be called with the message alone: {signature}")


def _signature(name: str, function: Callable[..., object]) -> inspect.Signature | None:
    """What it takes; None of a function that is written in C and doesn't say."""
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        raise SettingsError(
            f"{name} is async or a generator, so calling it does nothing",
            hint="name a function without async and yield",
        )
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        return None


def _takes_two(name: str, function: Callable[..., object]) -> bool:
    signature = _signature(name, function)
    if signature is None:
        return False
    takes_one, takes_two = (_binds(signature, count) for count in (1, _WITH_CONNECTION))
    if not (takes_one or takes_two):
        raise SettingsError(f"{name} takes neither (message) nor (message, connection): {signature}")
    # One that could do without it is given it only if it says what for.
    return takes_two and (not takes_one or "connection" in signature.parameters)


def _binds(signature: inspect.Signature, count: int) -> bool:
    try:
        signature.bind(*[None] * count)
    except TypeError:
        return False
    return True
