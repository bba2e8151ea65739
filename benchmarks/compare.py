"""The whole command `receiver compare` with six policies, against `receiver simulate` with 8 x 8 settings.

Both read the same Parquet file. Each is a process of its own, timed from its start to its end.

Where the time goes (2 cores, 25 GB; docs/performance.md has the results):

`compare` mostly reads and numbers ids. Of 2 M rows, `sequence` takes 0.4 s of processor time, since it reads each id's
text. The other five policies take 0.1 s together.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from benchmarks.logs import check_read, write_log
from benchmarks.pairing import Comparison, Goal, by_turns
from benchmarks.processes import Process
from benchmarks.simulate import receiver_simulate
from benchmarks.workload import trace

_POLICIES = (
    "apama:window=2000,expiry=120",
    "artemis:id_cache_size=20000",
    "cmq:retention=43200,retry=0,network=0",
    "ttl:expiry=300",
    "sequence",
    "perfect",
)
_TURNS = 3


def _receiver_compare(file: Path) -> list[str]:
    policies = [argument for text in _POLICIES for argument in ("--policy", text)]
    return [sys.executable, "-m", "receiver", "compare", str(file), "--domain", "destination", *policies, "--json"]


def compare(scale: float) -> list[Comparison]:
    count = max(1_000, round(10_000_000 * scale))
    work = f"receiver compare, whole process: {count:,} rows Parquet, {len(_POLICIES)} policies"
    with tempfile.TemporaryDirectory() as folder:
        warm_up = Path(folder) / "small.parquet"
        write_log(trace(1_000), warm_up)
        for command in (_receiver_compare(warm_up), receiver_simulate(warm_up)):
            Process(command).seconds()  # so that nothing is compiled later

        log = Path(folder) / "log.parquet"
        receipts = trace(count)
        write_log(receipts, log)
        ours, anchor = Process(_receiver_compare(log)), Process(receiver_simulate(log))
        anchor_name = "receiver simulate, 8 windows x 8 expiries"
        speed = by_turns(
            ours.seconds,
            anchor.seconds,
            turns=_TURNS,
            name="compare",
            work=work,
            unit="s",
            anchor_name=anchor_name,
            goal=Goal(8, aim=3, at_most=True),
        )
    compared, expected = json.loads(ours.printed), json.loads(anchor.printed)["log"]
    for read in (compared["log"], expected):
        check_read(read, receipts)
    perfect = compared["policies"][-1]
    if perfect["caught"] != expected["duplicates"]:
        raise AssertionError(f"the perfect policy caught {perfect['caught']} of {expected['duplicates']} duplicates")
    memory = Comparison(
        name="compare-memory",
        work=work + ", peak memory",
        unit="GB",
        anchor_name=anchor_name,
        our_figures=ours.peaks_gb,
        anchor_figures=anchor.peaks_gb,
        goal=Goal(1.1, aim=1, at_most=True),
    )
    return [speed, memory]
