"""The durable receiver: the detector's verdicts, kept in a store through restarts and shared by many processes.

| file | what is in it |
|---|---|
| `receiver.py` | `Receiver`: open, batch, status, close |
| `async_receiver.py` | `AsyncReceiver`: the same for an event loop |
| `opening.py` | how a domain is opened, made or resized when a receiver opens |
| `batch.py` | `Batch`: decides receipt by receipt, in memory alone |
| `session.py`, `outcomes.py` | a batch's transaction: lock, catch up, record, commit; and what became of it |
| `cache.py` | the detector in step with the log; what a resize makes of a domain; when sources are retired |
| `retiring.py` | sources retired by hand |
| `status.py`, `events.py`, `metrics.py` | what batches and receivers count, and how it is shown; duplicates reported; Prometheus |
| `audit.py` | `receiver status` and `receiver check`: a whole store from outside |
"""
