"""A broker, senders and bridges on this machine, to watch what becomes of messages as processes are killed.

| file | what is in it |
|---|---|
| `supervisor.py` | which processes there are and when each is killed; starts and kills them, and counts the messages at the end |
| `process.py` | a process whose output is passed on; signals that end the demo without leaving a process behind |
| `sender.py` | a sender that crashes, and its journal of what it has sent |
| `artemis.py` | a real ActiveMQ Artemis on loopback |
| `server.py` | programs of others: brought into a cache, started, stopped, killed and started again |
"""
