"""A log replayed in chunks that fit a task, to the same figures as one that is held whole.

| file | what is in it |
|---|---|
| `log.py` | what the units say together; all steps in order, with an example that is followed through them |
| `arrow_rows.py`, `schemas.py` | `RowFlow` and its rows; what the steps hand to each other, a dataclass for each kind of row |
| `read.py`, `digests.py` | units are read and checked; ids become digests |
| `plan.py` | where domains are cut into chunks, and which chunks share a task |
| `link.py` | which receipts repeat an id, and which ones later chunks refer to |
| `chunks.py` | each chunk put in order |
| `measuring.py` | what each duplicate needs, also over chunks between |
| `replaying.py` | `ChunkedLog`: what chunks hand to later ones; each chunk replayed from its true starting state |
"""
