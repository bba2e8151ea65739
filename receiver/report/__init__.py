"""The output for people and programs: the terminal table, the JSON object, the HTML report.

| file | what is in it |
|---|---|
| `document.py` | a report as a list of texts, lists, tables and charts |
| `sizing.py`, `advice.py`, `elsewhere.py` | the report of an analysis: its blocks, the advice in words, what other systems would need |
| `comparing.py` | the report of a comparison |
| `terminal.py` | reports on a terminal; the lines that all commands print there |
| `html.py`, `charts.py` | reports as HTML pages, and their charts |
| `json_object.py` | an analysis or a comparison as one JSON object |
| `store.py`, `probing.py` | the content of a store; the results of a probe of a broker |
| `words.py` | figures, times and hostile text, written for people |
"""
