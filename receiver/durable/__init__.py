"""The durable receiver: the detector's verdicts, kept in a store through restarts and shared by many processes.

| file | what is in it |
|---|---|
| `receiver.py` | `Receiver`: open, batch, status, close |
| `async_receiver.py` | `AsyncReceiver`: the same for an event loop |
| `opening.py` | how a domain is opened, made or resized when a receiver opens |
| `batch.py` | `Batch`: decides receipt by receipt, in memory alone |
| `transaction.py` | a batch's transaction: lock, catch up, record, commit |
| `session.py` | what the batches of one receiver share |
| `outcomes.py` | what became of batches whose outcome isn't known at once |
| `holds.py`, `turns.py` | who holds which lock in this process; who lets other processes go on |
| `cache.py` | the detector in step with the log; what a resize makes of a domain |
| `retirement.py`, `retiring_by_hand.py` | when sources are retired, and what their rows say then; the command `receiver retire` |
| `status.py`, `needs.py` | what batches and receivers count; the W and E that duplicates needed |
| `forgetting.py` | one id: the commands `receiver lookup` and `receiver forget` |
| `events.py`, `metrics.py` | duplicates reported; Prometheus |
| `audit.py` | `receiver status` and `receiver check`: a whole store from outside |
"""
