"""Logs of receipts: one file per format behind one small interface. `read_logs` is the way in.

| file | what is in it |
|---|---|
| `batches.py` | `read_logs`: a whole log's batches in order, several files merged by their times; what is known of it so far |
| `options.py` | how to read, whatever the format, and which fields hold the columns |
| `files.py`, `remote.py` | logs looked for; at URLs, by fsspec |
| `opening.py` | a file opened, decompressed, and read by the reader of what it holds |
| `source.py` | the bytes of one log, as its reader is given them: in pieces, or in blocks of whole lines |
| `csv_log.py`, `jsonl.py`, `parquet.py`, `correlator.py` | a reader for each format, which gives raw columns |
| `query.py` | what a query of a database gives, as it streams |
| `compacted.py` | a log with a folder for each domain and day: its manifest, and its files in order |
| `rows.py`, `times.py` | raw columns and times checked, whatever the format |
| `columns.py` | the columns, each declared once; `LogBatch`, which is what every reader hands on |
| `writer.py` | tables written in each format: logs, verdicts |
| `packing.py` | a batch of receipts as bytes, as it waits to be recorded, and as rows of a log |
| `rotating.py` | the log that receivers record: files that are made one after the other |
| `journal.py` | what receivers of earlier versions recorded to |
"""

from receiver.logs.batches import LogBatches, no_receipt, read_logs
from receiver.logs.columns import COLUMNS, LogBatch, StatusLine, optional_columns
from receiver.logs.options import ReadOptions
from receiver.logs.source import LogSource

__all__ = [
    "COLUMNS",
    "LogBatch",
    "LogBatches",
    "LogSource",
    "ReadOptions",
    "StatusLine",
    "no_receipt",
    "optional_columns",
    "read_logs",
]
