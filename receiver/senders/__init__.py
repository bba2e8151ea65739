"""What a sender must remember so that what it sends again can be told from what it sends anew.

| file | what is in it |
|---|---|
| `dedup_keys.py` | `DedupKeyMaker`: a key for each message, kept until its send is confirmed, as TDMQ CMQ asks of producers |
| `sequence_ids.py` | `SequenceIdMaker`: numbered ids, as Apama's senders give them |
| `maker.py` | what the two have in common: a connection of their own, or the caller's transaction |
"""

from receiver.senders.dedup_keys import DedupKeyMaker, Pending
from receiver.senders.sequence_ids import SequenceIdMaker

__all__ = ["DedupKeyMaker", "Pending", "SequenceIdMaker"]
