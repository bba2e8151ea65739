"""Messages given to a function of the application: exactly once if it writes by the connection that it gets."""

from __future__ import annotations

import importlib
import inspect
import logging
import os
import sys
import time
from asyncio import CancelledError
from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from receiver.bridge.options import described, not_done
from receiver.bridge.received import Identity, Received, identity_of
from receiver.bridge.targets import Outcome, Target, one_by_one
from receiver.errors import BrokerError, MessageRefusedError, OutputError, SettingsError, StoreBusyError, StoreError
from receiver.masking import masked
from receiver.store.databases import database_of, no_fault_of_its_statement
from receiver.store.inbox import Lease
from receiver.store.log import EndedByHandError

_LOGGER = logging.getLogger("receiver.bridge")
_LONG_SECS = 1.0
"""After so long the finished calls are committed: until then others wait for the database, and a crash repeats them."""
_NOT_NOW = (BrokerError, OutputError, StoreError)
"""A function raises one of these if it can't handle any message now."""
_SAVEPOINT = "receiver_turn"
_MANY = "messages"
"""The name of the first parameter of a function that takes many messages at once."""
_Why = str | StoreBusyError | None
"""Why a message failed, or by which error others hold what it needs; None if neither."""


class PythonTarget(Target):
    """Calls `function(message, connection)` if the function requires two arguments or has a parameter `connection`, otherwise
    `function(message)`. A function whose first parameter is named `messages` gets a list of messages there.

    The connection is SQLAlchemy's, in the transaction that deletes the messages from the inbox, or in APP_CONTROLLED records
    their receipts: rows written by it are committed with that. If the function raises an exception for a message, its rows are
    rolled back, and the message is tried again before it is parked. A `BrokerError`, `OutputError` or `StoreError` says that no
    message can be handled now, and so does a full disk: this isn't counted as a failed try of the message. Nor is a lock that
    others hold. For a lock only the message's source waits, or in APP_CONTROLLED its batch.

    Messages that are delivered together are a *turn*, with one savepoint, because one for each message would cost two round
    trips to a server. If a message fails, its turn is rolled back, and each of its messages becomes a turn of its own.
    """

    def __init__(self, name: str, function: Callable[..., object]) -> None:
        self.name = name
        self._function = function
        self.takes_many, self.takes_part = _form_of(name, function)
        """Whether the function takes a list of messages, and whether it takes the connection."""
        self._lost_transaction = False
        """Whether the database took back all of the last turn's transaction."""
        self._first: Identity | None = None
        """The first message of this lease; None before it, and after a failure."""
        self._first_before: Identity | None = None
        """The `_first` of the last lease."""
        self._failed_at_commit = False
        """Whether the last lease failed only at its commit: a deferred constraint may reject one of its messages."""
        self.on_progress: Callable[[], object] = lambda: None
        """Called before each call of the function."""

    def deliver(self, messages: Sequence[Received], lease: Lease | None) -> Outcome:
        first = self._first or identity_of(messages[0])
        # If the last lease began with the same message, and nothing in it failed, its commit did.
        self._first, self._failed_at_commit = None, first == self._first_before
        outcome = self._delivered(messages, lease)
        if not (outcome.failed or outcome.held):
            self._first = first
        return outcome

    def release(self) -> None:
        self._first_before, self._first = self._first, None

    def _delivered(self, messages: Sequence[Received], lease: Lease | None) -> Outcome:
        connection = lease.connection if lease is not None and self.takes_part else None
        outcome = Outcome(is_lasting=connection is None)
        gains = len(messages) > 1 and (connection is not None or self.takes_many)
        is_together = gains and not self._lost_transaction and not self._failed_at_commit
        self._lost_transaction = False
        if is_together:
            count, why = self._turn(messages, connection)
            if why is None:
                outcome.delivered += range(count)
                return outcome
            _LOGGER.info("%s failed on %d messages, and gets them one by one: %s", self.name, len(messages), why)
        return one_by_one(
            messages,
            lambda message: self._turn([message], connection)[1],
            outcome=outcome,
            ends_by=_NOT_NOW if connection is None else (),  # with a connection, that takes back all of the lease
            long_secs=_LONG_SECS,
        )

    def _turn(self, messages: Sequence[Received], connection: Connection | None) -> tuple[int, _Why]:
        """Hand over messages, and roll all of them back if one fails.

        Returns how many were handed over, fewer than all if they take long; and why one failed, or None.
        """
        if connection is None:
            return self._handed_over(messages, None)
        connection.exec_driver_sql(f"SAVEPOINT {_SAVEPOINT}")
        count, why = self._handed_over(messages, connection)
        has_failed = why is not None
        if not has_failed:
            # After an error, even one that the function has caught, PostgreSQL refuses further statements.
            checks = database_of(connection).checks_of_constraints if self._failed_at_commit else ()
            spoilt = _failure(connection, *checks, f"RELEASE SAVEPOINT {_SAVEPOINT}")
            if spoilt is None:
                return count, None
            why = _described(spoilt, connection)
        lost = _failure(connection, f"ROLLBACK TO SAVEPOINT {_SAVEPOINT}", f"RELEASE SAVEPOINT {_SAVEPOINT}")
        if lost is None:
            return count, why
        if not has_failed:
            raise self._ended_error() from lost
        # SQLite itself does so if a disk is full. Or an earlier message ended the transaction: trying them one by one will show
        # which.
        self._lost_transaction = True
        raise StoreError(f"the database took back all of the transaction while {self.name} had it: {why}") from lost

    def _handed_over(self, messages: Sequence[Received], connection: Connection | None) -> tuple[int, _Why]:
        """As `_turn`, but without a rollback if one fails."""
        if self.takes_many:
            return len(messages), self._call(list(messages), connection)
        count, why = 0, None
        until = time.monotonic() + _LONG_SECS
        while why is None and count < len(messages) and (not count or time.monotonic() <= until):
            why = self._call(messages[count], connection)
            count += 1
        return count, why

    def _call(self, what: Received | list[Received], connection: Connection | None) -> _Why:
        """Call the function. Returns why it failed; None if it didn't."""
        process = os.getpid()
        transaction = None if connection is None else connection.get_transaction()
        self.on_progress()
        try:
            result = self._function(what) if connection is None else self._function(what, connection)
            why: _Why = None if result is None else not_done(result)
        except MessageRefusedError as error:
            why = described(error)
        except EndedByHandError as error:
            raise self._ended_error() from error
        except _NOT_NOW:
            raise
        except (Exception, SystemExit, CancelledError, GeneratorExit) as error:
            _LOGGER.debug("%s failed", self.name, exc_info=True)
            why = described(error) if connection is None else _described(error, connection)
        finally:
            if os.getpid() != process:  # a child that the function has forked: connections are its parent's
                os._exit(1)
        if connection is not None and connection.invalidated:
            raise StoreError(f"the connection was lost while {self.name} had it", hint="all of it is tried again")
        is_ended = transaction is not None and not transaction.is_active
        if is_ended or (connection is not None and connection.get_transaction() is not transaction):
            raise self._ended_error()
        return why

    def _ended_error(self) -> SettingsError:
        return SettingsError(
            f"{self.name} ended the transaction that it was given",
            hint="leave committing and rolling back to the bridge",
        )


def _described(error: BaseException, connection: Connection) -> str | StoreBusyError:
    """Why a message failed, or that others hold what it needs. Raises `StoreError` if the disk is full or the connection lost."""
    excuse = no_fault_of_its_statement(error, connection)
    if isinstance(excuse, StoreBusyError):
        return excuse
    if excuse is not None:
        raise excuse from error
    return described(error)


def _failure(connection: Connection, *statements: str) -> DBAPIError | None:
    """Execute the statements. Returns the error of the first that fails, or None; raises it if the connection is lost."""
    try:
        for statement in statements:
            connection.exec_driver_sql(statement)
    except DBAPIError as error:
        if error.connection_invalidated:
            raise
        return error
    return None


def function_named(text: str, before: str) -> Callable[..., Any]:
    """The function of `MODULE:FUNCTION`. The module may be in the current folder. Errors show `before` and the text."""
    module_name, colon, path = text.partition(":")
    if not (module_name and colon and path) or "@" in text:  # a password may stand before an @
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
    """Raise `SettingsError` if the signature shows that the function can't be called with only a message."""
    signature = _signature(name, function)
    if signature is not None and not _binds(signature, 1):
        raise SettingsError(f"{name} can't be called with the message alone: {signature}")


def _signature(name: str, function: Callable[..., object]) -> inspect.Signature | None:
    """The function's signature; None for a function in C without one."""
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        raise SettingsError(
            f"{name} is async or a generator, so calling it does nothing",
            hint="name a function without async and yield",
        )
    if isinstance(function, type):
        raise SettingsError(
            f"{name} is a class, so calling it only makes an object", hint="give a function, or an object of the class"
        )
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        return None


def _form_of(name: str, function: Callable[..., object]) -> tuple[bool, bool]:
    """Whether the function takes many messages, and whether it takes the connection."""
    signature = _signature(name, function)
    if signature is None:
        return False, False
    parameters = list(signature.parameters.values())
    takes_one, takes_two = (_binds(signature, count) for count in (1, 2))
    if not (takes_one or takes_two) or (not takes_one and parameters[1].name == _MANY):
        raise SettingsError(
            f"{name} takes neither (message) nor (message, connection), (messages) or (messages, connection): {signature}",
            hint="write def FUNCTION(message), with further parameters only if they have defaults",
        )
    takes_many = parameters[0].name == _MANY and parameters[0].kind is not parameters[0].VAR_POSITIONAL
    # A function that can do without the connection only gets it if it has a parameter `connection`.
    return takes_many, takes_two and (not takes_one or "connection" in signature.parameters)


def _binds(signature: inspect.Signature, count: int) -> bool:
    try:
        signature.bind(*[None] * count)
    except TypeError:
        return False
    return True
