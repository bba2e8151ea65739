"""Prove your own consumer: each message has its effect once, whatever dies, fails or comes again (extra `testing`).

| file | what is in it |
|---|---|
| `checking.py` | `check_exactly_once`: which stories are tried, and what is said of the smallest that goes wrong |
| `story.py` | a story, as a value: what senders and broker do, and where the program dies |
| `world.py` | plays the part of broker, senders and fate; keeps a journal |
| `broker.py` | the broker that a program is given, for threads or an event loop |
| `life.py` | one life of a program: its crash points, by SQLAlchemy's events; its connections, cut where it dies |
| `playing.py` | a story with a program, life after life, in this process or one to be killed |
| `words.py` | a journal in plain words |
| `traces.py` | for those who write the rule once more: receipts as receivers see them, the naive rule, the two as a file |
"""

from receiver.errors import MissingExtraError

try:
    import hypothesis as _  # noqa: F401
except ModuleNotFoundError:
    raise MissingExtraError("testing", "receiver.testing") from None

from receiver.testing.broker import AsyncFlakyBroker, FlakyBroker
from receiver.testing.checking import NoDatabaseWarning, check_exactly_once
from receiver.testing.world import Message

__all__ = ["AsyncFlakyBroker", "FlakyBroker", "Message", "NoDatabaseWarning", "check_exactly_once"]
