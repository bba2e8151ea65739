"""The whole command `receiver simulate` on ten million rows, against DuckDB merely counting their distinct ids.

Both read the same Parquet file, each in a process of its own, from its start to its end.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks.pairing import Comparison, Goal, by_turns
from benchmarks.processes import Process
from benchmarks.workload import SOURCES, Trace, source_text, trace

__all__ = ["GRID", "receiver_simulate", "simulate", "write_log"]

GRID = ["--domain", "destination", "--window", "100:20000:8", "--expiry", "1:600:8"]
"""The settings that whole commands are measured with."""

_TURNS = 3
_ROWS_PER_GROUP = 1_000_000
_MOST_GB = 3.0
_COUNT_DISTINCT = """\
import duckdb, sys
duckdb.execute("set enable_progress_bar = false")  # it would go to standard output
print(duckdb.read_parquet(sys.argv[1]).aggregate("count(distinct unique_message_id)").fetchall()[0][0])
"""


def _table(rows: Trace) -> pa.Table:
    """Some of the receipts, all off one queue, two connections competing for it."""
    sources = pa.array([source_text(source) for source in range(SOURCES)])
    source = pa.DictionaryArray.from_arrays(rows.source, sources)
    message_source_id = pc.cast(source, pa.string())
    count = len(rows.source)
    connection = pa.DictionaryArray.from_arrays((np.arange(count) % 2).astype(np.int32), ["bridge-1", "bridge-2"])
    return pa.table(
        {
            "received_at": rows.received_at_us,
            "unique_message_id": pc.binary_join_element_wise(
                pc.cast(pa.array(rows.message), pa.string()), message_source_id, ":"
            ),
            "message_source_id": message_source_id,
            "connection_id": connection,
            "destination": pa.DictionaryArray.from_arrays(np.zeros(count, np.int32), ["queue://orders"]),
        }
    )


def write_log(receipts: Trace, file: Path) -> None:
    writer = None
    for start in range(0, len(receipts.source), _ROWS_PER_GROUP):
        rows = slice(start, start + _ROWS_PER_GROUP)
        table = _table(Trace(receipts.received_at_us[rows], receipts.source[rows], receipts.message[rows]))
        writer = writer or pq.ParquetWriter(file, table.schema, compression="zstd")
        writer.write_table(table)
    if writer:
        writer.close()


def receiver_simulate(file: Path) -> list[str]:
    return [sys.executable, "-m", "receiver", "simulate", str(file), *GRID, "--json"]


def simulate(scale: float) -> list[Comparison]:
    count = max(1_000, round(10_000_000 * scale))
    work = f"receiver simulate, whole process: {count:,} rows Parquet, 8 windows x 8 expiries"
    with tempfile.TemporaryDirectory() as folder:
        warm_up = Path(folder) / "small.parquet"
        write_log(trace(1_000), warm_up)
        Process(receiver_simulate(warm_up)).seconds()  # compiles

        log = Path(folder) / "log.parquet"
        write_log(trace(count), log)
        ours = Process(receiver_simulate(log))
        duckdb = Process([sys.executable, "-c", _COUNT_DISTINCT, str(log)])
        speed = by_turns(
            ours.seconds,
            duckdb.seconds,
            turns=_TURNS,
            name="simulate",
            work=work,
            unit="s",
            anchor_name="DuckDB, count(distinct unique_message_id)",
            goal=Goal(8, aim=5, at_most=True),
        )
    found = json.loads(ours.printed)["log"]
    if found["receipts"] != count or found["receipts"] - found["duplicates"] != int(duckdb.printed):
        raise AssertionError(f"ours found {found} in {count} receipts, DuckDB {duckdb.printed.strip()} distinct ids")
    memory = Comparison(
        name="simulate-memory",
        work=work + ", peak memory",
        unit="GB",
        anchor_name="the limit",
        ours=median(ours.peaks_gb),
        anchor=_MOST_GB,
        ratios=tuple(peak / _MOST_GB for peak in ours.peaks_gb),
        goal=Goal(1, aim=1, at_most=True),
    )
    return [speed, memory]
