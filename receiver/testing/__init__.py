"""Prove that your own consumer is right: each message has its effect once, whatever crashes, fails or comes again.

| file | what is in it |
|---|---|
| `checking.py` | `check_exactly_once`: which stories are tried, and what is said of the smallest that goes wrong |
| `story.py` | a story, as a value: what senders and broker do, and the faults |
| `world.py` | plays a story: the broker, its senders, when a fault strikes; keeps a journal |
| `broker.py` | the broker that a program is given, for threads or an event loop |
| `crash_points.py` | one run of a program: where it may crash, by SQLAlchemy's events; its connections, cut where it does |
| `running.py` | a story with a program: run after run, in this process, an event loop or a process that is killed; what is wrong at the end |
| `words.py` | a journal in plain words |
| `rule.py` | `traces`, `TwoTierModel`: the two-tier rule for those who write it again, and worked cases of it as data |
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
