"""How the lines of a correlator log are written: declared once, for the parser of lines and for that of whole blocks."""

from __future__ import annotations

import re

from receiver.logs.columns import COLUMNS

__all__ = [
    "BODY",
    "FIELD",
    "FIELDS",
    "FIGURE",
    "INDENT",
    "LOG_LINE",
    "NOTHING",
    "RECEIVED",
    "RECEIVER",
    "STATUS",
    "TIME",
]

LOG_LINE = re.compile(r"(?P<time>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[.,]\d{3}) +\S+ +\[")
"""How every entry of the log begins."""
RECEIVED = re.compile(r".*?\] - '(?P<receiver>.*?)' has received JMS message:(?: (?P<first>.*))?", re.DOTALL)
STATUS = re.compile(r"[^\]]*\] - JMS Status: (?P<figures>.*)", re.DOTALL)
FIGURE = re.compile(r"(\w+)=(-?\d[\d,]*(?:\.\d+)?)(?=\s|$)", re.ASCII)
INDENT = "   "
FIELD = re.compile(r"(?P<property>Property\.)?(?P<name>(?(property)[^=]+|[A-Za-z]\w*))=(?P<value>.*)", re.DOTALL)
BODY = "Body"
"""The field that ends a message; a property may be named so too."""

TIME, RECEIVER, NOTHING = "header: time", "header: receiver", "header: nothing"
"""Stand for what the header line says. It comes first, and the first of a name wins, whatever a property is named."""
_OF_HEADER = {"received_at": TIME, "connection_id": NOTHING, "receiver_id": RECEIVER}
FIELDS = {name: name_here for name, column in COLUMNS.items() if (name_here := _OF_HEADER.get(name, column.jms_name))}
"""Column -> the field that it is read from. Columns that JMS has no name for aren't in such a log."""
