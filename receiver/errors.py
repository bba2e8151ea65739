"""Every exception of the package, by who can mend its cause.

| class | culprit | usual remedy |
|---|---|---|
| `SettingsError` | the caller's or the command's settings | change the argument that is named |
| `IdFormatError` | a message whose id the policy can't judge | send ids of its form, or choose another policy |
| `NotComparableError` | two ids of different origin | take the message for a new one |
| `BatchRejectedError` | a message that came before, in a batch that must be new as a whole | send the rest without it |
| `LogFormatError` | a log of receipts | mend the row that is named, or `--on-error skip` |
| `OutputError` | the target of a result | another path, more space, other permissions |
| `MissingExtraError` | the installation | install the extra that is named |
| `MissingProgramError` | the machine | install the program that is named |
| `StoreError` | the database, or the way to it | as the hint says; a batch that raised it may be sent again |
| `StoreBusyError` | whoever holds the domain's lock | try again, or wait longer |
| `StoreCorruptError` | a damaged database, or one whose rows contradict each other | restore a copy |
| `StoreVersionError` | a database of another version than this package's | upgrade the package, or the database |
| `BrokerError` | the broker, or the way to it | connect again; `BrokerRefusedError` says that this alone won't help |
| `PositionMovedError` | another process that took over | connect again, and go on where it is |
| `MessagesLostError` | a broker that no longer has what wasn't taken | say how to go on, as the hint says |
| `MessageRefusedError` | one message that can't be taken or sent as it is | take or send the others without it |
| `MessageUnfitError` | one message that its target can't have, however often it is sent | send it elsewhere, or otherwise |
| `SparkError` | the installation of Spark and Java, or the cluster | as the hint says |
| `ClosedError` | the caller | use the receiver before it is closed, in the process that opened it |

The root is never raised itself: every error has a culprit.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Sequence
from errno import EACCES, EISDIR, EMFILE, ENOENT, ENOSPC, ENOTDIR, EROFS
from typing import Any

__all__ = [
    "BatchRejectedError",
    "BrokerError",
    "BrokerRefusedError",
    "ClosedError",
    "IdFormatError",
    "LogFormatError",
    "MessageRefusedError",
    "MessageUnfitError",
    "MessagesLostError",
    "MissingExtraError",
    "MissingProgramError",
    "NotComparableError",
    "OutputError",
    "PositionMovedError",
    "ReceiverError",
    "SettingsError",
    "SparkError",
    "StoreBusyError",
    "StoreCorruptError",
    "StoreError",
    "StoreVersionError",
    "detects_nothing",
    "needs_open",
    "unwritable",
]

LONGEST_ERROR = 10_000
"""How many characters of an error are logged and kept: that of a user's function may have a whole message in it."""

_DISTRIBUTION = "reliable-receiver"
_EXTRA = re.compile(r"extra == ['\"]([\w-]+)")
_OTHER_EXTRAS = re.compile(rf"{_DISTRIBUTION}\[(.+)\]")


class ReceiverError(Exception):
    """The root of the package's errors; never raised itself.

    `hint` says how to mend the cause, or is None if the message says it already.
    """

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        if type(self) is ReceiverError:
            raise TypeError("raise the subclass that names the culprit, not ReceiverError")
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __reduce__(self) -> tuple[Any, ...]:
        # By default an exception is pickled as a call of its class with `args`, which may differ from the class's arguments.
        return _remade, (type(self), self.args), vars(self)

    def __str__(self) -> str:
        return self.message if self.hint is None else f"{self.message} ({self.hint})"


def _remade(kind: type[ReceiverError], args: tuple[Any, ...]) -> ReceiverError:
    return kind.__new__(kind, *args)


class SettingsError(ReceiverError, ValueError):
    """An invalid argument or setting: negative, not a number, contradictory, unknown."""


def detects_nothing() -> SettingsError:
    """The error for a window of 0 with an expiry of 0."""
    return SettingsError(
        "a window of 0 with an expiry of 0 would detect nothing",
        hint="raise one of them; a bridge that is to detect nothing has the mode AT_LEAST_ONCE",
    )


def needs_open(name: str, arguments: str) -> SettingsError:
    """The error for calling a class instead of its method `open` with these arguments."""
    return SettingsError(f"{name}(...) opens nothing", hint=f"call {name}.open(URL, {arguments})")


class IdFormatError(ReceiverError, ValueError):
    """A message's id isn't of the form that the policy judges by, such as `rmid1:…` or `seqNo:messageSourceId`."""


class NotComparableError(ReceiverError, ValueError):
    """Two replication group message ids come from different brokers or sites, so neither is the newer."""


class BatchRejectedError(ReceiverError):
    """A batch that must be accepted as a whole has a duplicate, so none of it is recorded.

    `duplicates` are the ids that came before.
    """

    def __init__(self, duplicates: tuple[str, ...]) -> None:
        shown = first_few(list(map(repr, duplicates)), 3)
        super().__init__(
            f"the whole batch is rejected, because it holds duplicates: {shown}", hint="send the rest without them"
        )
        self.duplicates = duplicates


def first_few(texts: Sequence[str], most: int) -> str:
    """At most so many of the texts, separated by commas; `...` stands for any others."""
    return ", ".join(texts[:most]) + (", ..." if len(texts) > most else "")


class LogFormatError(ReceiverError):
    """A log of receipts, or one row of it, can't be read.

    `location` opens the message. For a row it is `FILE:LINE`: the physical line where the row begins, or its number from 1
    in Parquet. For a whole file it is `FILE`.
    """

    def __init__(self, location: str, problem: str, *, hint: str | None = None) -> None:
        super().__init__(f"{location}: {problem}", hint=hint)
        self.location = location
        self.problem = problem


class OutputError(ReceiverError):
    """A result can't be written to its target. The target's earlier content is unchanged.

    A file to which a bridge appends may end with a part of the result. The next try cuts that off.
    """


def unreadable(name: str, error: OSError) -> LogFormatError:
    """The error for an `OSError` while reading a file of a log."""
    hint = "allow more at once by ulimit -n, or read fewer" if error.errno == EMFILE else None
    return LogFormatError(name, f"can't be read: {error.strerror or error}", hint=hint)


def unwritable(path: str, error: OSError, *, what: str = "can't write") -> OutputError:
    """The error for an `OSError` while writing `path`."""
    folder = path.rpartition("/")[0]
    is_url = re.match(r"[A-Za-z][\w+.-]*:/", path)
    missing = f"make the folder first: mkdir -p {shlex.quote(folder)}" if folder else "name a file"
    hints = {
        ENOENT: "this is written to paths only: name one, and copy the file from there" if is_url else missing,
        EACCES: "name another place, or let this user write there",
        EROFS: "name another place: nothing can be written there",
        ENOTDIR: "name another place: a folder of this path is a file",
        EISDIR: "name a file in that folder",
        ENOSPC: "make room, or name another place",
    }
    return OutputError(f"{what} {path}: {error.strerror or error}", hint=hints.get(error.errno or 0))


class MissingExtraError(ReceiverError):
    """A command needs an extra of the package that isn't installed, or several, separated by commas."""

    def __init__(self, extra: str, purpose: str) -> None:
        super().__init__(
            f"{purpose} needs the extra '{extra}', which isn't installed",
            hint=shlex.join([sys.executable or "python3", "-m", "pip", "install", *_needed_by(extra)]),
        )
        self.extra = extra


def _needed_by(extras: str) -> list[str]:
    """The arguments of pip that install extras: their libraries by name, because no index has this package itself.

    A checkout that is only on the path of modules, but not installed, has no list of libraries. It is named by its folder.
    """
    from importlib.metadata import PackageNotFoundError, requires  # here, because the rules import this module
    from importlib.resources import files

    try:
        declared = requires(_DISTRIBUTION) or []
    except PackageNotFoundError:
        declared = []
    needed: list[str] = []
    for line in declared:
        library, _, marker = line.partition(";")
        if {*extras.split(",")} & {*_EXTRA.findall(marker)}:
            others = _OTHER_EXTRAS.fullmatch(library.strip())
            needed += _needed_by(others[1]) if others else [library.strip()]
    checkout = str(files("receiver")).removesuffix("receiver").rstrip("/\\")
    return list(dict.fromkeys(needed)) or ["--editable", f"{checkout}[{extras}]"]


class MissingProgramError(ReceiverError):
    """A command needs another program that isn't on this machine, or can't be fetched."""


class BrokerError(ReceiverError):
    """The broker can't be reached, or isn't known to have done what was asked.

    Messages that were taken and not acknowledged come again; messages that were sent may have arrived or not.
    """


class BrokerRefusedError(BrokerError):
    """The broker refuses: for example a wrong password, or a missing queue. Connecting again won't help."""


class MessageRefusedError(BrokerError):
    """One message can't be taken or sent as it is: it is too large or unreadable, or the protocol can't express it.

    It stays where it was. Connecting again helps the other messages, not this one.
    """


class MessageUnfitError(MessageRefusedError):
    """The target can't take the message as it is: its protocol can't express it, or it is too large for its broker.

    Trying again won't help.
    """


class PositionMovedError(BrokerError):
    """Another process has gone on with the messages that this one took, so nothing of the batch is recorded.

    After connecting again, the source goes on from the store's position.
    """


class MessagesLostError(BrokerError):
    """The broker no longer has messages that weren't taken yet, for example because of its retention.

    Nothing is skipped until a person says so.
    """


class SparkError(ReceiverError):
    """Spark can't start, can't be reached, or failed. The log isn't at fault."""


class StoreError(ReceiverError):
    """The database can't do what was asked, or can't be reached.

    If a batch raises it, the batch isn't proven to be committed. Don't acknowledge its messages: if it was committed after all,
    they are judged duplicates when they come again.
    """


class StoreBusyError(StoreError):
    """Others hold the lock, or the caller's transaction began before their last commit; nothing was recorded."""


class StoreCorruptError(StoreError):
    """The database is damaged, or the file is no database."""


class StoreVersionError(StoreError):
    """The database's tables are of a newer version of this package; or of an older one, and a command that only reads can't
    upgrade them."""


class ClosedError(ReceiverError):
    """A receiver was used after it was closed, or in another process than the one that opened it."""
