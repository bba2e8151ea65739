"""Replaying a log of receipts through the detector's rules, for every setting at once.

| file | what is in it |
|---|---|
| `ingest.py`, `numbering.py` | batches of a log become whole columns of numbers: ids, sources and channels are numbered |
| `rows.py` | the receipts domain by domain, with the links that every replay needs |
| `kernel.py` | the sizing kernel: one replay of a domain for each window answers for every expiry |
| `compiled.py` | functions compiled to machine code, and the limits of their numbers |
| `headroom.py`, `repeats.py` | what duplicates need, and how close they came to being missed; bursts, and how busy sources are |
| `replays.py`, `whole.py` | what an analysis asks of a log, and a log held whole that answers it |
| `grid.py` | the settings to try |
| `analysis.py`, `recommend.py`, `findings.py` | all that the reports show: an analysis, the settings to choose from, the findings in words |
| `figures.py` | the same as plain values, which reports format |
| `verdict_rows.py` | the verdict on every receipt, as rows for a table |
| `scenarios.py`, `synthetic.py` | synthetic logs: the ways in which messages come twice, and how each is made |
"""
