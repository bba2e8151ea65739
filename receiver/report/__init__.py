"""What people and programs look at: the terminal table, the JSON object, the HTML report.

| file | what is in it |
|---|---|
| `tables.py`, `terminal.py` | both reports on a terminal; the lines that all commands print there |
| `pages.py`, `html.py`, `charts.py` | both reports as pages: what stands on them, the file that holds one, its charts |
| `json_object.py` | an analysis or a comparison as one JSON object |
| `sizing.py`, `advice.py`, `elsewhere.py` | what table and page share of an analysis: grid and sentences, the advice, what other systems would need |
| `comparing.py` | what table and page share of a comparison |
| `store.py`, `probing.py` | what is in a store, and what a probe has seen of a broker |
| `words.py` | figures, times and hostile text as a person reads them |
"""
