"""Logs of receipts: a module for each format, behind one small interface. Begin with `read_logs`.

| file | what is in it |
|---|---|
| `batches.py` | `read_logs`: a whole log's batches in order, several files merged by their times; its columns and counts so far |
| `options.py` | the options for reading any format; the fields that hold the columns |
| `files.py`, `remote.py` | find the files of a log; at URLs, by fsspec |
| `opening.py` | opens a file, decompresses it, and chooses the reader by its content |
| `source.py` | the bytes of one log for its reader: in pieces, or in blocks of whole lines |
| `csv_log.py`, `jsonl.py`, `parquet.py`, `correlator.py` | a reader for each format, which gives raw columns |
| `query.py` | the rows of a database query, as they stream |
| `compacted.py` | a log with a folder for each domain and day: its manifest, and its files in order |
| `rows.py`, `times.py` | check raw columns and times of any format |
| `columns.py` | the columns, each declared once; `LogBatch`, which is what every reader hands on |
| `writer.py` | tables written in each format: logs, verdicts |
| `packing.py` | packs a batch of receipts that waits to be recorded into bytes, and unpacks it into rows of a log |
| `rotating.py` | the log that receivers record: files that are made one after the other |
| `journal.py` | the journals that receivers of earlier versions recorded to |
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
