"""The whole command `receiver simulate` on ten million rows, against DuckDB, which only counts their distinct ids.

Both read the same Parquet file. Each is a process of its own, timed from its start to its end.

Where the time goes (2 cores, 25 GB; docs/performance.md has the results):

`simulate` spends its processor time so, on 10 M rows:

    replays, on both cores: 8 windows of the grid, 9 for the advice, and 7 to choose expiries for it: 0.3
    reading and checking Parquet, and numbering ids meanwhile on the other core: 0.3
    memory that the system gives as it is first written to: 0.2
    Python, the libraries and the compiled code, loaded: 0.15

A table numbers the ids. Half of an id's hash stands in the table, so a look-up misses the cache once; with the hashes
beside the table it missed twice. A log of one domain is replayed from its own columns, without a copy in the order of
domains. These two changes save a fifth of the memory and, with the kernel's gain, a quarter of the processor time.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from benchmarks.logs import check_read, write_log
from benchmarks.pairing import Comparison, Goal, by_turns
from benchmarks.processes import Process
from benchmarks.workload import trace

GRID = ["--domain", "destination", "--window", "100:20000:8", "--expiry", "1:600:8"]
"""The settings with which whole commands are measured."""

_TURNS = 3
_MOST_GB = 3.0
_COUNT_DISTINCT = """\
import duckdb, sys
duckdb.execute("set enable_progress_bar = false")  # it would go to standard output
print(duckdb.read_parquet(sys.argv[1]).aggregate("count(distinct unique_message_id)").fetchall()[0][0])
"""


def receiver_simulate(file: Path) -> list[str]:
    return [sys.executable, "-m", "receiver", "simulate", str(file), *GRID, "--json"]


def simulate(scale: float) -> list[Comparison]:
    count = max(1_000, round(10_000_000 * scale))
    work = f"receiver simulate, whole process: {count:,} rows Parquet, 8 windows x 8 expiries"
    with tempfile.TemporaryDirectory() as folder:
        warm_up = Path(folder) / "small.parquet"
        write_log(trace(1_000), warm_up)
        Process(receiver_simulate(warm_up)).seconds()  # so that nothing is compiled later

        log = Path(folder) / "log.parquet"
        receipts = trace(count)
        write_log(receipts, log)
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
            goal=Goal(5, aim=4, at_most=True),
        )
    log_figures = json.loads(ours.printed)["log"]
    check_read(log_figures, receipts)
    if log_figures["receipts"] - log_figures["duplicates"] != int(duckdb.printed):
        raise AssertionError(f"ours counts {log_figures}, DuckDB {duckdb.printed.strip()} distinct ids")
    memory = Comparison(
        name="simulate-memory",
        work=work + ", peak memory",
        unit="GB",
        anchor_name="the limit",
        our_figures=ours.peaks_gb,
        anchor_figures=[_MOST_GB] * len(ours.peaks_gb),
        goal=Goal(1, aim=1, at_most=True),
    )
    return [speed, memory]
