"""Every benchmark runs, small, and does the work it says. How fast is no matter for a test."""

import json
import shutil

import numpy as np
import pytest

from benchmarks.__main__ import BENCHMARKS, main
from benchmarks.detector import _cache_by_hand, _in_batches, _one_by_one
from benchmarks.pairing import Comparison, Goal, by_turns
from benchmarks.workload import SOURCES, receipts, trace


@pytest.mark.parametrize("name", BENCHMARKS)
def test_each_runs_small(name, capsys, monkeypatch, request):
    if name == "spark":
        if shutil.which("java") is None:
            pytest.skip("there is no Java")
        monkeypatch.setattr("benchmarks.spark._TURNS", 1)  # each takes six starts of Spark
    if name == "bridge":
        home = request.getfixturevalue("artemis_home")
        monkeypatch.setattr("benchmarks.bridge.fetch", lambda _cache: home)
    main([name, "--scale", "0.0001", "--json"])
    printed = json.loads(capsys.readouterr().out)
    assert printed["machine"]["cores"] >= 1
    for comparison in printed["benchmarks"]:
        # What a bridge adds is a difference, which may drown in the noise of a few messages.
        assert comparison["ours"] > 0 or comparison["name"] == "bridge-latency"
        assert comparison["anchor"] > 0
        assert comparison["ratio"] == pytest.approx(np.median(comparison["ratios"]))


def test_the_text_names_all_figures(capsys):
    main(["receive", "--scale", "0.0001"])
    printed = capsys.readouterr().out
    for word in ("cores", "ours", "anchor", "ratio", "goal", "at least 1.5", "receipts/s"):
        assert word in printed


@pytest.mark.parametrize("arguments", [["recieve"], ["--scale", "0"], ["--scale", "nan"], ["--scale", "2"]])
def test_what_cannot_be_meant_is_refused(arguments, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    assert "error" in capsys.readouterr().err


def test_ours_and_the_anchor_find_the_same_duplicates():
    """Else they wouldn't do the same work."""
    rows = receipts(20_000)
    duplicates = len(rows) - len({row[0] for row in rows})
    assert duplicates > 300
    assert _one_by_one(rows) == _in_batches([rows[:7_000], rows[7_000:]]) == _cache_by_hand(rows) == duplicates


def test_the_workload_is_what_it_says():
    made = trace(20_000)
    assert np.all(np.diff(made.received_at_us) >= 0)
    assert set(made.source.tolist()) == set(range(SOURCES))
    assert len(np.unique(made.message)) == made.message.max() + 1
    assert len(set(zip(made.message.tolist(), made.source.tolist(), strict=True))) == made.message.max() + 1
    assert 1 - len(np.unique(made.message)) / 20_000 == pytest.approx(0.02, abs=0.005)
    assert all(np.array_equal(a, b) for a, b in zip(made, trace(20_000), strict=True))


def test_turns_alternate_and_the_median_ratio_counts():
    order = []

    def measure(name, figures):
        figures = iter(figures)
        return lambda: order.append(name) or next(figures)

    compared = by_turns(
        measure("ours", [2, 9, 4]),
        measure("anchor", [1, 3, 4]),
        turns=3,
        name="n",
        work="w",
        unit="u",
        anchor_name="a",
        goal=Goal(1.5, aim=2),
    )
    assert order == ["ours", "anchor", "anchor", "ours", "ours", "anchor"]
    assert (compared.ratio, compared.ours, compared.anchor) == (2, 4, 3)


@pytest.mark.parametrize(("at_most", "reached"), [(False, [False, True, True]), (True, [True, True, False])])
def test_a_goal_is_reached_at_its_bound(at_most, reached):
    goal = Goal(1.5, aim=1.5, at_most=at_most)
    assert [goal.reached_by(ratio) for ratio in (1.4, 1.5, 1.6)] == reached
    assert Comparison("n", "w", "u", "a", 1, 1, (1.0,), goal).ratio == 1
