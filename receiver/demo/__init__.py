"""A broker, senders and bridges on this machine, to watch what becomes of messages as processes are killed.

| file | what is in it |
|---|---|
| `supervisor.py` | starts the processes, kills them by the plan, and counts the messages at the end |
| `plan.py` | which processes there are, when each is killed, the files they leave, the outcome |
| `process.py` | a process whose output is passed on; signals that end the demo without leaving a process behind |
| `sender.py` | a sender that crashes, and its journal of what it has sent |
| `artemis.py` | a real ActiveMQ Artemis on loopback |
| `server.py` | a program that serves: started, stopped, killed and started again |
| `fetching.py` | programs of others in a cache, each whole or not there |
"""
