"""A setting that one half of a log supports also holds on the other half: on a recorded log, and on every synthetic
scenario.

Each half is sized as a log of its own, which knows nothing of the other. Then the whole log is replayed with the chosen
setting. The count is of the other half's duplicates that it misses.
"""

import gzip
from pathlib import Path

import numpy as np
import pytest

from receiver.domains import domain_key
from receiver.logs import ReadOptions, read_logs
from receiver.logs.writer import open_table
from receiver.simulate.analysis import analyse
from receiver.simulate.figures import Kind, Pair
from receiver.simulate.ingest import Receipts, ingest
from receiver.simulate.question import Question
from receiver.simulate.scenarios import SCENARIOS, ScenarioPlan
from receiver.simulate.synthetic import SYNTHETIC_SCHEMA, batches
from receiver.simulate.whole import WholeLog

SAMPLE = Path(__file__).resolve().parents[2] / "examples" / "artemis-receipts.csv.gz"
KEY = "destination"
GRID = [[1], [1]]
RECEIPTS = 20_000


def by_rows(receipts: Receipts) -> int:
    """The row at which the second half begins, if the log is cut by rows."""
    return len(receipts.received_at_us) // 2


def by_time(receipts: Receipts) -> int:
    times = receipts.received_at_us
    return int(np.searchsorted(times, (times[0] + times[-1]) // 2))


def ingested(path: Path) -> Receipts:
    return ingest(read_logs([str(path)], ReadOptions()), domain_key(KEY))


def advised(path: Path) -> dict[str, Pair]:
    """W and E in microseconds: the setting that the log supports, and the recommended one if only W is relied on
    today."""
    analysis = analyse(WholeLog(ingested(path)), Question(KEY, *GRID, present=(2_000, 1)))
    assert analysis.recommendation.sized.kind is Kind.KEEP
    return {"supported": analysis.of(Kind.BOTH).setting.pair, "recommended": analysis.recommendation.setting.pair}


def missed_unseen(lines: list[str], folder: Path) -> dict[tuple[str, str, str], tuple[Pair, int]]:
    """For each way to cut the log, half that was sized and kind: the setting, and how many duplicates of the other
    half it misses."""
    header, *rows = lines
    (folder / "whole.csv").write_text("".join(lines), encoding="utf-8")
    whole = ingested(folder / "whole.csv")
    assert (np.diff(whole.received_at_us) >= 0).all()
    is_duplicate, log = duplicates(whole), WholeLog(whole)
    missed = {}
    for cut_at in (by_rows, by_time):
        cut = cut_at(whole)
        halves = {"first": slice(None, cut), "second": slice(cut, None)}
        for sized, other in (("first", "second"), ("second", "first")):
            half = folder / f"{sized}.csv"
            half.write_text("".join([header, *rows[halves[sized]]]), encoding="utf-8")
            assert is_duplicate[halves[other]].any()
            for what, setting in advised(half).items():
                is_missed = is_duplicate & ~log.duplicates_by(*setting)
                missed[cut_at.__name__, sized, what] = setting, int(is_missed[halves[other]].sum())
    return missed


def duplicates(receipts: Receipts) -> np.ndarray:
    """For each receipt, whether its id came before in its domain."""
    pairs = np.stack([receipts.domain_of_channel[receipts.channel_number], receipts.id_number])
    first = np.unique(pairs, axis=1, return_index=True)[1]
    came_before = np.ones(len(receipts.id_number), bool)
    came_before[first] = False
    return came_before & (receipts.id_number != 0)


def test_on_the_recorded_log(tmp_path):
    with gzip.open(SAMPLE, "rt", encoding="utf-8", newline="") as log:
        missed = missed_unseen(log.readlines(), tmp_path)
    assert [count for _, count in missed.values()] == [0] * 8, missed


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_on_synthetic_logs(scenario, tmp_path, request):
    broken = {}
    for seed in range(20 if request.config.getoption("--campaign") == "long" else 3):
        with open_table(tmp_path / "log.csv", SYNTHETIC_SCHEMA) as write:
            for batch in batches(ScenarioPlan(scenario=scenario, receipts=RECEIPTS, seed=seed)):
                write(batch)
        missed = missed_unseen((tmp_path / "log.csv").read_text(encoding="utf-8").splitlines(keepends=True), tmp_path)
        if any(count for _, count in missed.values()):
            broken[seed] = missed
    assert not broken
