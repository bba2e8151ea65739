"""A log replayed in chunks that fit a task, to the same figures as one that is held whole.

| file | what is in it |
|---|---|
| `log.py` | `ChunkedLog`: all steps in order, and what they add up to |
| `rows.py`, `schemas.py` | `RowFlow` and its rows; what the steps hand to each other, a dataclass for each kind of row |
| `read.py`, `digests.py` | units are read and checked; ids become digests |
| `plan.py` | where domains are cut into chunks, and which chunks are worked on together |
| `link.py` | which receipts repeat an id, and which ones later chunks look back to |
| `chunks.py` | each chunk put in order and counted |
| `lookback.py`, `standings.py` | what each duplicate needs, also over chunks between; how far each source has come by each chunk |
| `replaying.py` | each chunk replayed from its true starting state |
"""
