"""Replaying a log of receipts through the detector's rules, for every setting at once.

| file | what is in it |
|---|---|
| `ingest.py`, `numbering.py` | read a log into whole columns of numbers: ids, sources and channels are numbered |
| `domain_rows.py` | the receipts of a domain, with the links that every replay follows; what each duplicate needs |
| `kernel.py` | the sizing kernel: one replay of a domain for each window answers for every expiry |
| `compiled.py` | functions compiled to machine code, and the limits of their numbers |
| `shares.py`, `facts.py` | the counts of a domain or of a chunk of one; the facts of a log, which are their sums |
| `replays.py` | the interface of an engine; the replay of a domain or a chunk, and the sums over all of them |
| `whole.py` | a log that one process holds whole, domain by domain; the verdict on each receipt, as rows for a table |
| `question.py` | the question to a log, read from text |
| `analysis.py` | from a log and a question to the figures of the reports: chooses the settings to size and replay |
| `recommend.py`, `findings.py` | which of the sized settings to take; what stands out, in words |
| `figures.py` | the analysis as plain values, which reports format |
| `scenarios.py`, `synthetic.py` | synthetic logs: names of scenarios in which messages come twice, and a function for each |
"""
