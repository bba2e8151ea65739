"""Logs of receipts: one file per format behind one small interface. `read_logs` is the way in.

| file | what is in it |
|---|---|
| `batches.py` | `read_logs`: a whole log's batches in order, and what is known of it so far |
| `merging.py` | several files merged by their times |
| `columns.py` | the columns, each declared once; `LogBatch`, which is what every reader hands on |
| `source.py` | what a reader is given: how to read, and a log's bytes in blocks of whole lines |
| `files.py`, `remote.py` | logs looked for and opened, by what they hold; at URLs, by fsspec |
| `csv_log.py`, `jsonl.py`, `parquet.py` | a reader for each format, which gives raw columns |
| `correlator.py`, `correlator_blocks.py`, `correlator_grammar.py` | a correlator's own log: its reader, the same by the block, and how its lines are written |
| `compacted.py` | a log with a folder for each domain and day: its manifest, and its files in order |
| `rows.py`, `times.py` | raw columns and times checked, whatever the format |
| `writer.py` | tables written in each format: logs, verdicts |
| `rotating.py`, `journal.py` | the log that receivers record: files that are finished one after the other, and the one that isn't |
"""

from receiver.logs.batches import LogBatches, checked_options, no_receipt, read_logs
from receiver.logs.columns import BATCH_ROWS, COLUMNS, LogBatch, StatusLine, optional_columns
from receiver.logs.files import LogReader
from receiver.logs.merging import Waiting, merge
from receiver.logs.source import LogSource, OnError, ReadOptions

__all__ = [
    "BATCH_ROWS",
    "COLUMNS",
    "LogBatch",
    "LogBatches",
    "LogReader",
    "LogSource",
    "OnError",
    "ReadOptions",
    "StatusLine",
    "Waiting",
    "checked_options",
    "merge",
    "no_receipt",
    "optional_columns",
    "read_logs",
]
