#!/bin/sh
# Windows sized from what came: sh sizing.sh [FROM], by default amqp://localhost/queue/orders, a queue that is empty.
# It needs the extras bridge and simulate, and writes into the current folder. Run it in an empty one.
set -eu
from=${1:-amqp://localhost/queue/orders}
here=$(dirname "$0")

# 1. Orders, of which the senders repeat some, and a bridge with Apama's windows: 2,000 ids per source and 120 s.
#    It catches all 160 duplicates, keeps 4,000 ids, and records its receipts in files receipts-TIME-PID.jsonl.zst.
python "$here/send.py" "$from" 1 2000
receiver bridge "$from" file:orders.jsonl --store sqlite:///receiver.db --record receipts.jsonl.zst --stop-when-idle 2

# 2. What do these receipts need? The advice is to keep the windows, because ids are cheap and a few seconds of traffic are
#    weak evidence. The row `lean` says what this log alone asks for: no expiry, and W = 80, twice its need of 40.
receiver simulate receipts.jsonl.zst

# 3. The same bridge with those windows, to see what changes. The domain is resized, and forgets nothing that still fits.
#    The bridge says that it makes its batches smaller: one that comes again must fit into the window.
#    It catches as many duplicates, with 160 ids.
python "$here/send.py" "$from" 2001 4000
receiver bridge "$from" file:orders.jsonl --store sqlite:///receiver.db --window 80 --expiry 0 --stop-when-idle 2

wc -l orders.jsonl # 8,000: a line for each order
