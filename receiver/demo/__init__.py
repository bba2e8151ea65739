"""A broker, senders and bridges on this machine, to watch what becomes of messages as processes are killed.

| file | what is in it |
|---|---|
| `artemis.py` | a real ActiveMQ Artemis on loopback: fetched, started, stopped, killed |
"""
