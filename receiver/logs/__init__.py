"""Logs of receipts: one file per format behind one small interface. `read_logs` is the way in.

| file | what is in it |
|---|---|
| `batches.py` | `read_logs`: a whole log's batches in order, and what is known of it so far |
| `options.py` | how to read, whatever the format, and which fields hold the columns |
| `files.py`, `remote.py` | logs looked for and opened, by what they hold; at URLs, by fsspec |
| `merging.py` | several files merged by their times |
| `source.py` | the bytes of one log, as a reader is given them: in blocks of whole lines |
| `csv_log.py`, `jsonl.py`, `parquet.py` | a reader for each format, which gives raw columns |
| `correlator.py`, `correlator_blocks.py` | a correlator's own log: its reader, line by line; how its lines are written, and plain messages by the block |
| `compacted.py` | a log with a folder for each domain and day: its manifest, and its files in order |
| `rows.py`, `times.py` | raw columns and times checked, whatever the format |
| `columns.py` | the columns, each declared once; `LogBatch`, which is what every reader hands on |
| `writer.py` | tables written in each format: logs, verdicts |
| `packing.py` | a batch of receipts as bytes, as it waits to be recorded, and as rows of a log |
| `rotating.py` | the log that receivers record: files that are made one after the other |
| `journal.py` | what receivers of earlier versions recorded to |
"""

from receiver.logs.batches import LogBatches, no_receipt, read_logs
from receiver.logs.columns import BATCH_ROWS, COLUMNS, LogBatch, StatusLine, optional_columns
from receiver.logs.files import LogReader
from receiver.logs.merging import Waiting, merge
from receiver.logs.options import OnError, ReadOptions, checked_options
from receiver.logs.source import LogSource

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
