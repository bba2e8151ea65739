"""A broker, senders and bridges on this machine, to watch what becomes of messages as processes are killed.

| file | what is in it |
|---|---|
| `director.py`, `plan.py` | the play: who is started, who is killed when, and what all of it came to |
| `actor.py` | one process on the stage, whose lines are passed on |
| `sender.py`, `journal.py` | a sender that crashes, and what it remembers of what it has sent |
| `effects.py` | the messages in a target, counted |
| `artemis.py` | a real ActiveMQ Artemis on loopback: fetched, started, stopped, killed |
| `ending.py` | what ends a program from outside, and that it leaves no process behind |
"""
