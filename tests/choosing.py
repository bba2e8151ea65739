"""Which tests run: by default those that are quick, with `--slow` the others; each is in one of the two runs.

What is marked `scaled` is in both: small in the quick run, with `--slow` at its full size. In continuous integration, which
has both runs, it is in the second alone. Of a test's own marks and those of its class and file the nearest counts, and what
has none is quick. A test marked `thinned(n)` is slow but for one in n of its cells.
"""

import os
import shlex
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

SIZES = ("quick", "small", "long")
"""How much campaigns do: in the quick run, with `--slow`, and by the hour."""
MARKS = ("quick", "scaled", "slow")
"""Where a test itself has several, the first counts."""
FEWER = 4
"""By which the cases of a property are divided in the quick run."""
_LEFT_OUT = pytest.StashKey[int]()
_chosen = {"slow": False}


def add_options(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="run what is marked `slow` or `scaled`, and nothing else")
    parser.addoption(
        "--campaign",
        choices=SIZES,
        help="how much campaigns do: `quick`, `small` with --slow, or `long`, which implies --slow",
    )


def choose_size(config: pytest.Config) -> None:
    """Afterwards both options are as they were meant."""
    option = config.option
    option.slow = option.slow or option.campaign == "long"
    option.campaign = option.campaign or ("small" if option.slow else "quick")
    _chosen["slow"] = option.slow


def leave_out_others(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What is named by its id runs anyway."""
    cells = _Cells()
    kept, others = [], []
    for item in items:
        is_in = _is_in(config.option.slow, _run_of(item, cells))
        (kept if is_in or _is_named(item, config.args) else others).append(item)
    config.stash[_LEFT_OUT] = len(others)
    if others:
        config.hook.pytest_deselected(items=others)
        items[:] = kept


class _Cells:
    """Where the cases of parametrized tests stand among the others of their test."""

    def __init__(self) -> None:
        self._seen: defaultdict[Any, dict[str, int]] = defaultdict(dict)

    def is_one_in(self, number: int, item: Any) -> bool:
        """Those on a diagonal, so that each value of each parameter has its turn."""
        diagonal = 0
        for parameter, id_ in enumerate(item.callspec._idlist):
            seen = self._seen[item.parent.nodeid, item.originalname, parameter]
            diagonal += seen.setdefault(id_, len(seen))
        return diagonal % number == 0


def _is_in(slow: bool, run: str) -> bool:
    if run == "scaled":
        return slow or not os.environ.get("CI")
    return slow == (run == "slow")


def _run_of(item: pytest.Item, cells: _Cells) -> str:
    thinned = item.get_closest_marker("thinned")
    if thinned and not cells.is_one_in(*thinned.args, item):
        return "slow"
    for node in reversed(item.listchain()):
        own = {mark.name for mark in node.own_markers}
        if run := next((mark for mark in MARKS if mark in own), "quick" if "thinned" in own else None):
            return run
    return "quick"


def _is_named(item: pytest.Item, arguments: list[str]) -> bool:
    own = item.nodeid.partition("::")[2]
    for argument in arguments:
        file, _, name = argument.partition("::")
        if name and item.path == Path(file).resolve() and (own == name or own.startswith((f"{name}[", f"{name}::"))):
            return True
    return False


def what_was_left_out(config: pytest.Config) -> str:
    """In words, and nothing where it was nothing; what other processes leave out isn't known."""
    if config.stash.get(_LEFT_OUT, 1) == 0:
        return ""
    if config.option.slow:
        return "these were the tests marked `slow` or `scaled`: all others run without --slow"
    return "tests marked `slow` were left out: they run with --slow"


def repeated_by(item: pytest.Item) -> str:
    """The command that runs it again as it ran."""
    option, seed = item.config.option, getattr(item, "funcargs", {}).get("seed")
    words = ["sh", "bin/test", item.nodeid]
    if option.campaign == "long":
        words.append("--campaign=long")
    elif option.slow:
        words.append("--slow")
    if seed is not None:
        words.append(f"--seed={seed}")
    return shlex.join(words)


def examples(full: int | None = None) -> int:
    """How many a property tries: `full`, or as many as its profile says, and fewer in the quick run."""
    full = full or settings.default.max_examples
    return full if _chosen["slow"] else max(1, full // FEWER)


def cases(full: int | None = None, **more: Any) -> Callable[[Any], Any]:
    """Marks a property `scaled`, to try so many `examples`; `more` goes to Hypothesis' settings."""
    return lambda test: pytest.mark.scaled(settings(max_examples=examples(full), **more)(test))


def quick(*values: Any) -> Any:
    """A case of a test, in the quick run though its test or file is slow."""
    return pytest.param(*values, marks=pytest.mark.quick)


def scaled(*values: Any) -> Any:
    """A case of a test, in both runs."""
    return pytest.param(*values, marks=pytest.mark.scaled)


def slow(*values: Any) -> Any:
    """A case of a test, in the run with `--slow` alone."""
    return pytest.param(*values, marks=pytest.mark.slow)
