"""What a driver's exception means and how to mend it: the one place where they become errors of this package."""

from __future__ import annotations

from types import TracebackType

from sqlalchemy import URL
from sqlalchemy.exc import DBAPIError

from receiver.errors import StoreError
from receiver.store.databases.addresses import shown
from receiver.store.databases.causes import UNKNOWN, Cause
from receiver.store.engine import DATABASES

__all__ = ["NONSENSE", "store_error", "translated"]

NONSENSE = (ValueError, TypeError, AttributeError, LookupError, RecursionError)
"""What a database holds where it shouldn't be is of any type, and breaks whatever it comes to first, by one of these."""


class translated:  # noqa: N801 - it reads as a verb; and a generator would cost a batch of one more than its decision
    """Within it, what SQLAlchemy or a driver raises becomes a `StoreError` caused by it; the rest passes through."""

    __slots__ = ("_address",)

    def __init__(self, address: str | URL) -> None:
        self._address = address

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        # A driver raises its own where it is used directly.
        if error is not None and (isinstance(error, DBAPIError) or _cause(error) is not None):
            raise store_error(error, self._address) from error


def store_error(error: BaseException, address: str | URL) -> StoreError:
    """The error of this package for one of SQLAlchemy or of a driver, with a hint on the remedy."""
    raw = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    cause = _cause(raw) or UNKNOWN
    words = " ".join(str(raw).split())
    return cause.kind(f"{shown(address)}: {cause.problem}: {words}", hint=cause.hint)


def _cause(raw: BaseException) -> Cause | None:
    """None for what no driver raises."""
    causes = (database.cause_of(raw) for database in DATABASES)
    return next((cause for cause in causes if cause is not None), None)
