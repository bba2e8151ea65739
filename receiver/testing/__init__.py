"""Tests your own consumer: each message must have its effect once, whatever crashes, fails or comes again.

| file | what is in it |
|---|---|
| `checking.py` | `check_exactly_once`: which stories are tried, and the report of the smallest that fails |
| `story.py` | a story, as a value: the moves of senders and broker, and the faults |
| `world.py` | plays a story: the broker, its senders, the faults; keeps a journal |
| `broker.py` | the broker that a program is given, for threads or an event loop |
| `crash_points.py` | one run of a program: its crash points, by SQLAlchemy's events; a crash cuts its connections |
| `playing.py` | plays a story with a program, run after run; checks the effects at the end |
| `running.py` | a run: in this process, an event loop or a process that is killed |
| `words.py` | a journal in plain words |
| `rule.py` | `traces`, `TwoTierModel`: the two-tier rule for other implementations, and worked cases of it as data |
"""

from receiver.errors import MissingExtraError

try:
    import hypothesis as _  # noqa: F401
except ModuleNotFoundError:
    raise MissingExtraError("testing", "receiver.testing") from None

from receiver.testing.broker import AsyncFlakyBroker, FlakyBroker
from receiver.testing.checking import NoDatabaseWarning, check_exactly_once
from receiver.testing.rule import TwoTierModel, traces
from receiver.testing.world import Message

__all__ = [
    "AsyncFlakyBroker",
    "FlakyBroker",
    "Message",
    "NoDatabaseWarning",
    "TwoTierModel",
    "check_exactly_once",
    "traces",
]
