"""Replaying a log of receipts through the detector's rules, for every setting at once.

| file | what is in it |
|---|---|
| `ingest.py`, `numbering.py` | batches of a log become whole columns of numbers: ids, sources and channels are numbered |
| `domain_rows.py` | the receipts domain by domain, with the links that every replay needs |
| `kernel.py` | the sizing kernel: one replay of a domain for each window answers for every expiry |
| `compiled.py` | functions compiled to machine code, and the limits of their numbers |
| `distances.py` | what each duplicate needs: its reuse distance |
| `replays.py` | what an analysis gets to know of a log |
| `shares.py`, `headroom.py` | what is counted of a domain or a chunk, and of its replay, and what that adds up to |
| `whole.py` | a log held whole, domain by domain |
| `grid.py` | the settings to try |
| `analysis.py`, `recommend.py`, `findings.py` | all that the reports show: an analysis, the settings to choose from, the findings in words |
| `figures.py` | the same as plain values, which reports format |
| `verdict_rows.py` | the verdict on every receipt, as rows for a table |
| `scenarios.py`, `synthetic.py` | synthetic logs: the ways in which messages come twice, and how each is made |
"""
