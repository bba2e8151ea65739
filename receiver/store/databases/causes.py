"""What can be wrong with a database, whatever its kind, and how to mend it."""

from __future__ import annotations

from typing import NamedTuple

from receiver.errors import StoreBusyError, StoreCorruptError, StoreError

__all__ = ["BUSY", "CORRUPT", "FULL", "INPUT_OUTPUT", "MEMORY", "OUTRUN", "READ_ONLY", "UNKNOWN", "Cause"]


class Cause(NamedTuple):
    problem: str
    hint: str | None
    kind: type[StoreError] = StoreError


BUSY = Cause("others hold it", "try again, or raise lock_timeout_secs", StoreBusyError)
OUTRUN = Cause(
    "others committed since this transaction began", "roll it back, then try again in a new one", StoreBusyError
)
CORRUPT = Cause("it is damaged", "restore a copy", StoreCorruptError)
FULL = Cause("the disk is full", "make room: the store goes on by itself")
MEMORY = Cause("there is no memory left", "give the database more memory")
READ_ONLY = Cause("it is read-only", "make it writable, or name the server or the file that is")
INPUT_OUTPUT = Cause("the disk can't be read or written", "look for its fault in the log of the system")
UNKNOWN = Cause("the database failed", None)
