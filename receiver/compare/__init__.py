"""The same log through the rules of several systems, side by side.

| file | what is in it |
|---|---|
| `compiled_policies.py` | the rules of `receiver.policies` once more, compiled, over a domain's columns |
| `id_forms.py` | sequence numbers and replication group message ids, read where the ids' bytes stand |
| `disputes.py` | why a policy misses a duplicate, and the receipts on which policies differ |
| `engine.py` | the comparison itself, and every receipt with all verdicts as rows for a table |
| `comparison.py` | what the comparison shows, as values |
"""
