"""What a sender must remember so that what it sends again can be distinguished from what it sends anew.

`makers.py` has both: `DedupKeyMaker`, a key for each message, kept until its send is confirmed, as TDMQ CMQ asks of
producers; and `SequenceIdMaker`, numbered ids, as Apama's senders give them.
"""

from receiver.senders.makers import DedupKeyMaker, Pending, SequenceIdMaker

__all__ = ["DedupKeyMaker", "Pending", "SequenceIdMaker"]
