"""The durable receiver: the detector's verdicts, kept in a store through restarts and shared by many processes.

| file | what is in it |
|---|---|
| `receiver.py` | `Receiver`: open, batch, status, close |
| `opening.py` | how a domain is found, made or resized when a receiver opens |
| `batch.py` | `Batch`: decides receipt by receipt, in memory alone |
| `session.py` | a batch's transaction: lock, catch up, record, commit, and find out what became of it |
| `cache.py` | the detector in step with the log; what a resize makes of a domain |
| `holds.py` | refuses at once what would wait for itself |
| `tally.py`, `counters.py`, `status.py` | what one batch counts, what a receiver has counted, and how it is shown |
| `events.py`, `headroom.py`, `metrics.py` | duplicates reported; how close they came; Prometheus |
| `audit.py` | `receiver status` and `receiver check`: a whole store from outside |
"""
