"""Replays a log in chunks that fit a task, to exactly the figures of a log that is held whole.

| file | what is in it |
|---|---|
| `log.py` | joins the reports of units; runs all steps in order, and follows an example through them |
| `arrow_rows.py`, `schemas.py` | `RowFlow` and its rows; a dataclass for each kind of row that steps exchange |
| `read.py`, `digests.py` | read and check units; turn ids into digests |
| `plan.py` | where domains are cut into chunks, and which chunks share a task |
| `link.py` | which receipts repeat an id, and to which receipts later chunks refer |
| `chunks.py` | puts each chunk in order |
| `measuring.py` | the needs of each duplicate, across chunks too |
| `replaying.py` | `ChunkedLog`: chunks hand tails to later ones; each chunk is replayed from its true starting state |
"""
