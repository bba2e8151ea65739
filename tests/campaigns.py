"""Results of campaigns: a line for each campaign that passed. So a long run can go on after a stop, and its results can
be summed up.

A campaign gives its figures to `survived` at its end. They are kept in `.campaigns.jsonl`, in the checkout. `--go-on`
leaves out campaigns that have a line of the same commit and size. `python -m tests.campaigns` prints the sums.
"""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Generator, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILE = ROOT / ".campaigns.jsonl"
PROPERTY = "campaign"
_faults: Counter[str] = Counter()
"""The faults of the test under way."""
_figures: Counter[str] = Counter()


@dataclass(frozen=True)
class Line:
    """A campaign that passed."""

    test: str
    commit: str
    size: str
    secs: float
    faults: dict[str, int]
    """The number of faults of each kind."""
    effects: int
    """Messages whose effects were counted."""
    lost: int
    twice: int


def survived(faults: Mapping[str, int], effects: int, *, lost: int = 0, twice: int = 0) -> None:
    """Add to the faults and figures of the test under way. `twice` is for tests that promise each message once."""
    _faults.update(faults)
    _figures.update(effects=effects, lost=lost, twice=twice)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--go-on", action="store_true", help=f"leave out campaigns that have passed at this commit, by {FILE.name}"
    )


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # this process gets the reports of all tests
        config.pluginmanager.register(_Keeper(config))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    try:
        yield
    finally:
        if _figures:
            item.user_properties.append((PROPERTY, {"faults": dict(+_faults), **_figures}))
        _faults.clear()
        _figures.clear()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.option.go_on:
        return
    here = (_commit(), config.option.campaign)
    done = {line.test for line in read(FILE) if (line.commit, line.size) == here}
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid in done])
    items[:] = [item for item in items if item.nodeid not in done]


class _Keeper:
    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "call" or not report.passed:
            return
        for name, said in report.user_properties:
            if name == PROPERTY:
                values = {"commit": _commit(), "size": self._config.option.campaign, "secs": round(report.duration, 1)}
                with FILE.open("a", encoding="utf-8") as lines:
                    lines.write(json.dumps({"test": report.nodeid, **values, **said}) + "\n")  # type: ignore[dict-item]


def read(file: Path) -> list[Line]:
    """All lines of the file. Lines of equal tests all count, since each run draws other moments. A last line that a
    kill cut off is left out."""
    lines = []
    for text in file.read_text(encoding="utf-8").splitlines() if file.exists() else ():
        with suppress(ValueError):
            lines.append(Line(**json.loads(text)))
    return lines


def table(lines: Iterable[Line]) -> str:
    """The sums by file, in Markdown."""
    by_file: dict[str, list[Line]] = {}
    for line in lines:
        by_file.setdefault(line.test.partition("::")[0], []).append(line)
    rows = [_row(f"`{file}`", of_file) for file, of_file in sorted(by_file.items())]
    rows.append(_row("all", [line for of_file in by_file.values() for line in of_file], of_which=False))
    return "\n".join(["| campaigns | runs | faults | effects | lost | twice |", "|---|---|---|---|---|---|", *rows])


def _row(name: str, lines: list[Line], *, of_which: bool = True) -> str:
    faults = sum((Counter(line.faults) for line in lines), Counter())
    kinds = ", ".join(f"{number:,} {what}" for what, number in faults.most_common())
    sums = [sum(getattr(line, figure) for line in lines) for figure in ("effects", "lost", "twice")]
    cells = [name, f"{len(lines)}", kinds if of_which else f"{faults.total():,}", *(f"{number:,}" for number in sums)]
    return f"| {' | '.join(cells)} |"


def _commit() -> str:
    """The checkout's commit; empty without git or outside of a clone."""
    command = ["git", "rev-parse", "--short", "HEAD"]
    try:
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
    except FileNotFoundError:
        return ""


if __name__ == "__main__":
    sys.stdout.write(table(read(Path(sys.argv[1]) if sys.argv[1:] else FILE)) + "\n")
