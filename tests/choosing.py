"""Which tests run: by default the quick ones, with `--slow` the others, with `--all` every test once.

Of the quick tests, the `COSTLY` ones are left out unless files are named; `--costly` runs only those. A test's own mark
counts before the mark of its class, and that before the mark of its file. A `scaled` test is in both runs: small in the
quick one, at full size in the other. An unmarked test is quick. But if it has cases for several databases or drivers,
only one of these cases is quick.

A test that is `thinned(n)` is quick on each n-th diagonal of its cells, and slow on the other diagonals. Without
parameters it is quick. If it has fewer than n diagonals, it may have no quick cell at all.
"""

import shlex
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from hypothesis import settings

SIZES = ("quick", "small", "long")
"""How much a campaign does: in the quick run, with `--slow`, and in a run of hours."""
MARKS = ("quick", "scaled", "slow")
"""If a test itself has several marks, the first one counts."""
COSTLY = {"costly", "artemis", "broker", "browser", "java", "spark"}
"""Marks and fixtures of the tests that take most of the time, because they start a broker, a browser or Java."""
FEWER = 8
"""The quick run tries this fraction of a property's cases."""
ALIKE = ({"sqlite", "postgresql"}, {"aiosqlite", "psycopg", "asyncpg"})
"""Databases, and drivers for an event loop. A test with a case for each is quick on only one of them."""
_LEFT_OUT = pytest.StashKey[int]()
_chosen = {"full": False}


def add_options(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="run what is marked `slow` or `scaled`, and nothing else")
    parser.addoption("--costly", action="store_true", help="run those of the quick tests that are costly, and no other")
    parser.addoption("--all", action="store_true", help="run every test, at the sizes of --slow")
    parser.addoption(
        "--campaign",
        choices=SIZES,
        help="how much campaigns do: `quick`, `small` with --slow or --all, or `long`, which implies --slow",
    )


def choose_size(config: pytest.Config) -> None:
    """Set the options that follow from others."""
    option = config.option
    names_files = config.args_source == pytest.Config.ArgsSource.ARGS
    option.leaves_costly = not (names_files or option.costly or option.campaign)
    option.slow = not option.all and (option.slow or option.campaign == "long")
    _chosen["full"] = option.all or option.slow
    option.campaign = option.campaign or ("small" if _chosen["full"] else "quick")


def leave_out_others(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests that aren't chosen. A test that is named by its id runs in any case."""
    option = config.option
    left_out = "quick" if option.slow else "slow"
    cells = _Cells(items)
    kept, others = [], []
    for item in items:
        is_in = _run_of(item, cells) != left_out
        if not option.slow and (option.costly or option.leaves_costly):
            is_in = is_in and _is_costly(item) == option.costly
        is_in = is_in or option.all or _is_named(item, config.args)
        (kept if is_in else others).append(item)
    config.stash[_LEFT_OUT] = len(others)
    if others:
        config.hook.pytest_deselected(items=others)
        items[:] = kept


class _Cells:
    """The cells of parametrized tests: which values a test's parameters have, in order."""

    def __init__(self, items: list[Any]) -> None:
        self._seen: defaultdict[Any, dict[str, int]] = defaultdict(dict)
        for item in items:
            for parameter, id_ in self._ids(item):
                seen = self._seen[item.parent.nodeid, item.originalname, parameter]
                seen.setdefault(id_, len(seen))

    def is_one_in(self, number: int, item: Any) -> bool:
        """Whether the case is on a chosen diagonal: one in `number`. So each value of each parameter is chosen at
        times. The test's name decides which diagonal comes first."""
        begin = crc32(item.originalname.encode())
        return not hasattr(item, "callspec") or (begin + self._diagonal(item)) % number == 0

    def has_a_twin_in_turn(self, item: Any) -> bool:
        """Whether another case of the test, for another database or driver of `ALIKE`, is the quick one."""
        for parameter, id_ in self._ids(item):
            for kinds in ALIKE:
                if id_ in kinds and self._seen[item.parent.nodeid, item.originalname, parameter].keys() >= kinds:
                    return not self.is_one_in(len(kinds), item)
        return False

    def _ids(self, item: Any) -> Iterable[tuple[int, str]]:
        return enumerate(item.callspec._idlist) if hasattr(item, "callspec") else ()

    def _diagonal(self, item: Any) -> int:
        return sum(
            self._seen[item.parent.nodeid, item.originalname, parameter][id_] for parameter, id_ in self._ids(item)
        )


def _run_of(item: pytest.Item, cells: _Cells) -> str:
    for node in reversed(item.listchain()):
        own = {mark.name: mark for mark in node.own_markers}
        if "thinned" in own and not cells.is_one_in(*own["thinned"].args, item):
            return "slow"
        if run := next((mark for mark in MARKS if mark in own), "quick" if "thinned" in own else None):
            return run
    return "slow" if cells.has_a_twin_in_turn(item) else "quick"


def _is_costly(item: pytest.Item) -> bool:
    marks = (mark.name for mark in item.iter_markers())
    return not COSTLY.isdisjoint([*marks, *getattr(item, "fixturenames", ())])


def _is_named(item: pytest.Item, arguments: list[str]) -> bool:
    own = item.nodeid.partition("::")[2]
    for argument in arguments:
        file, _, name = argument.partition("::")
        if name and item.path == Path(file).resolve() and (own == name or own.startswith((f"{name}[", f"{name}::"))):
            return True
    return False


def what_was_left_out(config: pytest.Config) -> str:
    """A line on which tests were left out; empty if none were. Tests that other processes leave out aren't known."""
    if config.option.all or config.stash.get(_LEFT_OUT, 1) == 0:
        return ""
    if config.option.slow:
        return "these were the tests marked `slow` or `scaled`: all others run without --slow"
    if config.option.costly:
        return "these were the costly ones of the quick tests: the others run without --costly"
    costly = ", costly ones with --costly" if config.option.leaves_costly else ""
    return f"tests marked `slow` were left out: they run with --slow{costly}"


def repeated_by(item: pytest.Item) -> str:
    """The command that runs a test again in the same way."""
    option, seed = item.config.option, getattr(item, "funcargs", {}).get("seed")
    words = ["sh", "bin/test", item.nodeid]
    if option.campaign == "long":
        words.append("--campaign=long")
    elif _chosen["full"]:
        words.append("--slow")
    if seed is not None:
        words.append(f"--seed={seed}")
    return shlex.join(words)


def examples(full: int | None = None) -> int:
    """How many examples a property tries: `full`, or as many as its profile gives; fewer in the quick run."""
    full = full or settings.default.max_examples
    return full if _chosen["full"] else max(1, full // FEWER)


def cases(full: int | None = None, **more: Any) -> Callable[[Any], Any]:
    """Mark a property `scaled`, and have it try so many `examples`. `more` goes to Hypothesis' settings."""
    return lambda test: pytest.mark.scaled(settings(max_examples=examples(full), **more)(test))


def quick(*values: Any) -> Any:
    """A case that is in the quick run, even if its test or file is slow."""
    return pytest.param(*values, marks=pytest.mark.quick)


def scaled(*values: Any) -> Any:
    """A case that is in both runs."""
    return pytest.param(*values, marks=pytest.mark.scaled)


def slow(*values: Any) -> Any:
    """A case that is only in the run with `--slow`."""
    return pytest.param(*values, marks=pytest.mark.slow)
