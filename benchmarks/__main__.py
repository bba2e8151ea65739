"""Run benchmarks by name, or all of them. Prints our figure, the anchor's, their ratio and the goal."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict

from benchmarks.bridge import bridge
from benchmarks.compare import compare
from benchmarks.concurrent import concurrent
from benchmarks.correlator import correlator
from benchmarks.detector import receive, receive_many
from benchmarks.durable import durable
from benchmarks.imports import imports
from benchmarks.kernel import kernel
from benchmarks.memory import memory
from benchmarks.pairing import Comparison
from benchmarks.peers import peers
from benchmarks.simulate import simulate
from benchmarks.spark import spark
from benchmarks.way import way

BENCHMARKS: dict[str, Callable[[float], Iterable[Comparison]]] = {
    "receive": receive,
    "receive_many": receive_many,
    "memory": memory,
    "kernel": kernel,
    "simulate": simulate,
    "compare": compare,
    "correlator": correlator,
    "spark": spark,
    "durable": durable,
    "concurrent": concurrent,
    "bridge": bridge,
    "way": way,
    "peers": peers,
    "imports": imports,
}


def machine() -> dict[str, str | int | float]:
    return {
        "cores": os.cpu_count() or 1,
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
    }


def as_json(comparison: Comparison) -> dict[str, object]:
    derived = ("ours", "anchor", "ratios", "ratio", "is_reached")
    return asdict(comparison) | {name.removeprefix("is_"): getattr(comparison, name) for name in derived}


def as_text(comparison: Comparison) -> str:
    def figure(value: float) -> str:
        return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"  # noqa: PLR2004 - digits enough either way

    least, most = min(comparison.ratios), max(comparison.ratios)
    lines = [
        f"{comparison.name}: {comparison.work}",
        f"  ours    {figure(comparison.ours)} {comparison.unit}",
        f"  anchor  {figure(comparison.anchor)} {comparison.unit} ({comparison.anchor_name})",
        f"  ratio   {comparison.ratio:.2f} ({least:.2f} to {most:.2f} in {len(comparison.ratios)} turns)",
    ]
    goal = comparison.goal
    if goal:
        bound = f"{'at most' if goal.at_most else 'at least'} {goal.ratio:g}, better {goal.aim:g}"
        enough = "" if goal.enough is None else f", or {figure(goal.enough)} {comparison.unit}"
        lines.append(f"  goal    {bound}{enough}: {'reached' if comparison.is_reached else 'MISSED'}")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(BENCHMARKS)}; all by default")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--scale", type=float, default=1.0, metavar="F", help="share of the full sizes, such as 0.1")
    chosen = parser.parse_args(arguments)
    unknown = [name for name in chosen.names if name not in BENCHMARKS]
    if unknown:
        parser.error(f"no benchmark is named {unknown[0]!r}; there are {', '.join(BENCHMARKS)}")
    if not 0 < chosen.scale <= 1:
        parser.error(f"the scale is above 0 and at most 1, not {chosen.scale}")

    comparisons = []
    if not chosen.json:
        print(" · ".join(f"{name.replace('_', ' ')} {value}" for name, value in machine().items()))
    for name in chosen.names or BENCHMARKS:
        for comparison in BENCHMARKS[name](chosen.scale):
            comparisons.append(comparison)
            if not chosen.json:
                print(f"\n{as_text(comparison)}", flush=True)
    if chosen.json:
        json.dump({"machine": machine(), "benchmarks": [as_json(each) for each in comparisons]}, sys.stdout, indent=2)
        print()


if __name__ == "__main__":
    main()
