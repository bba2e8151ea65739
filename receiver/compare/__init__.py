"""The same log through the rules of several systems, side by side.

| file | what is in it |
|---|---|
| `policies.py` | which policies can be compared, which are when none is named, and what an id costs each |
| `twins.py` | the rules of `receiver.policies` once more, compiled, over a domain's columns |
| `id_forms.py` | sequence numbers and replication group message ids, read where the ids' bytes stand |
| `causes.py` | why a policy misses a duplicate |
| `disputes.py` | the receipts on which policies differ |
| `engine.py` | the comparison itself |
| `figures.py` | what it finds, as values |
| `verdicts.py` | every receipt with all verdicts, as rows for a table |
"""
