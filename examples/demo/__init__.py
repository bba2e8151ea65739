"""A broker, senders and bridges on this machine, to watch what becomes of messages as processes are killed.

`sh bin/demo` starts it. Tests and benchmarks start their brokers by `processes.py` and `artemis.py` too.

| file | what is in it |
|---|---|
| `__main__.py` | its options, and what it prints |
| `supervisor.py` | which processes there are and when each is killed; starts and kills them, and counts the messages at the end |
| `sender.py` | a sender that crashes, and its journal of what it has sent |
| `processes.py` | processes: started, stopped, killed and started again; programs of others, brought into a cache; signals |
| `artemis.py` | a real ActiveMQ Artemis on loopback |
"""
