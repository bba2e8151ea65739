"""The durable receiver: the detector's verdicts, kept in a store through restarts and shared by many processes.

| file | what is in it |
|---|---|
| `receiver.py` | `Receiver`: open, batch, status, close |
| `async_receiver.py`, `async_batch.py` | `AsyncReceiver`, `AsyncBatch`: a `Receiver` for an event loop, and how tasks share it |
| `opening.py` | how a domain is opened, made or resized when a receiver opens |
| `batch.py` | `Batch`: decides receipt by receipt, in memory alone |
| `session.py` | what the batches of one receiver share; each batch's transaction: lock, catch up, record, commit; looking up unknown outcomes |
| `holds.py` | which thread or task has which lock, and waiting for callers' transactions |
| `concurrent.py` | many transactions at once: ids are claimed, receipts are folded in by one process |
| `cache.py` | the detector in step with the log |
| `retirement.py` | when sources are retired |
| `status.py` | what batches and receivers count |
| `duplicates.py` | duplicates, reported; the W and E that they needed |
| `forgetting.py` | by hand: the commands `receiver retire`, `receiver lookup` and `receiver forget` |
| `metrics.py` | Prometheus |
| `audit.py` | `receiver status` and `receiver check`: a whole store from outside |

The path of a batch: `batch.py` asks for the domain, decides and ends; `session.py` locks, records and commits;
`cache.py` catches up before the batch and advances after it; the statements are in `receiver/store`.
"""
