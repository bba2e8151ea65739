"""Every benchmark runs, small, and does the work that it says. A test doesn't care how fast."""

import json
import shutil
from datetime import UTC, datetime

import numpy as np
import pytest

from benchmarks import bridge, peers
from benchmarks.__main__ import BENCHMARKS, as_text, main
from benchmarks.detector import _cache_by_hand, _in_batches, _one_by_one
from benchmarks.logs import check_read, write_log
from benchmarks.memory import _detector
from benchmarks.pairing import Comparison, Goal, by_turns
from benchmarks.peers_inbox import resent
from benchmarks.workload import BEGIN_US, RECEIPTS_PER_SEC, SOURCES, receipts, source_text, trace
from receiver import cli
from receiver.logs import ReadOptions, read_logs

NAMES = {
    "bridge": {"amqp", "stomp", "consumers", "latency", "memory"}
    | {"classic-amqp", "classic-stomp", "kafka-sqlite", "kafka-postgresql", "kafka-once"},
    "peers": {"inbox-batch", "inbox-batch-by-hand", "inbox-1", "queue-sqlite", "queue-postgresql"}
    | {f"camel-{way}-{consumers}" for way in ("message", "batch", "consumers") for consumers in (1, 4, 16)},
}
"""For the benchmarks with a broker, the least that is measured."""


@pytest.mark.slow
@pytest.mark.parametrize("name", BENCHMARKS)
def test_each_runs_small(name, capsys, monkeypatch, request):
    if name == "spark":
        if shutil.which("java") is None:
            pytest.skip("there is no Java")
        monkeypatch.setattr("benchmarks.spark._TURNS", 1)  # each takes six starts of Spark
        monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1")  # its best compiler never pays here
    if name == "peers" and request.config.getoption("--campaign") != "long":
        pytest.skip("Camel and its library take minutes: --campaign=long")
    if name == "memory":  # its least window takes as long at each rate
        monkeypatch.setattr("benchmarks.memory._RATES_PER_SEC", (500,))
        monkeypatch.setattr("benchmarks.memory._IDS", (25_000,))
    if name in NAMES:
        home = request.getfixturevalue("artemis_home")
        monkeypatch.setattr("benchmarks.bridge.fetch", lambda _cache: home)
        monkeypatch.setattr("benchmarks.peers.artemis.fetch", lambda _cache: home)
        if request.config.getoption("--campaign") != "long":  # each broker takes seconds to start
            monkeypatch.setattr("benchmarks.bridge._PRODUCTS", {"classic": bridge._PRODUCTS["classic"]})
    main([name, "--scale", "0.0001", "--json"])
    out, said = capsys.readouterr()
    printed = json.loads(out)
    assert printed["machine"]["cores"] >= 1
    for comparison in printed["benchmarks"]:
        # What a bridge adds is a difference, which may drown in the noise of a few messages.
        assert comparison["ours"] > 0 or comparison["name"].startswith(("bridge-latency", "bridge-way"))
        assert comparison["anchor"] > 0
        assert comparison["ratio"] == pytest.approx(np.median(comparison["ratios"]))
    if "skipped" in said:
        pytest.skip(said.strip())
    names = {comparison["name"].removeprefix(f"{name}-") for comparison in printed["benchmarks"]}
    assert names >= NAMES.get(name, set())


@pytest.mark.slow
def test_peers_without_java_are_skipped_aloud(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr("benchmarks.peers.user_cache_path", lambda _name: tmp_path)
    names = [comparison.name for comparison in peers.peers(0.0001)]
    assert all(name.startswith("peers-inbox") for name in names)
    said = capsys.readouterr().err
    assert said.startswith("peers on Artemis: skipped, " if names else "peers: skipped, ")


@pytest.mark.parametrize("count", [1, 50, 20_000])
def test_one_message_in_fifty_is_sent_twice(count):
    ids = resent(count)
    assert (len(set(ids)), len(ids)) == (count, count + count // 50)


def test_a_product_that_can_not_be_had_is_skipped_aloud(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr("benchmarks.bridge.user_cache_path", lambda _name: tmp_path)
    monkeypatch.setattr("tests.brokers.cached.user_cache_path", lambda _name, **_: tmp_path)
    try:
        assert list(bridge.bridge(0.0001)) == []
    except pytest.skip.Exception:
        pytest.fail("the first that is missing ends all")
    said = [line.partition(": skipped, ")[::2] for line in capsys.readouterr().err.splitlines()]
    assert [who for who, _ in said] == ["bridge on Artemis", *[f"bridge-{p}" for p in (*bridge._PRODUCTS, "kafka")]]
    assert all(why for _, why in said)


@pytest.mark.slow
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
    """Otherwise they wouldn't do the same work."""
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


def test_a_log_reads_as_the_receipts_it_was_written_from(tmp_path):
    """A reader without a unit reads it rightly too. It once took the times for seconds, so nearly all that spilled
    expired."""
    file, count = tmp_path / "log.parquet", 20_000
    made = trace(count)
    write_log(made, file)
    batches = list(read_logs([str(file)], ReadOptions()))
    read = {
        name: np.concatenate([getattr(batch, name) for batch in batches])
        for name in ("received_at_us", "unique_message_id", "message_source_id")
    }
    assert np.array_equal(read["received_at_us"], made.received_at_us)
    assert list(zip(*read.values(), strict=True)) == [(us, id_, source) for id_, source, us in receipts(count)]
    assert set(read["message_source_id"]) == {source_text(source) for source in range(SOURCES)}
    begin_us, end_us = read["received_at_us"][[0, -1]].tolist()
    assert datetime.fromtimestamp(begin_us / 1e6, UTC).isoformat(timespec="minutes") == "2024-02-29T00:00+00:00"
    assert count / (end_us - begin_us) * 1e6 == pytest.approx(RECEIPTS_PER_SEC, rel=0.05)


def test_a_command_that_reads_other_times_is_found_out(tmp_path, capsys, monkeypatch):
    file, made = tmp_path / "log.parquet", trace(1_000)
    command = ["receiver", "simulate", str(file), "--domain", "destination", "--window", "9", "--expiry", "9", "--json"]
    monkeypatch.setattr("sys.argv", command)

    def log_read(written):
        write_log(written, file)
        assert cli.run() == 0
        return json.loads(capsys.readouterr().out)["log"]

    check_read(log_read(made), made)
    from_zero = made._replace(received_at_us=made.received_at_us - BEGIN_US)
    with pytest.raises(AssertionError, match="is read as"):
        check_read(log_read(from_zero), from_zero)


def test_times_in_memory_are_as_large_as_real_ones():
    """A small number would need less room, on both sides."""
    assert min(received_at_us for _, _, received_at_us in receipts(100)) >= BEGIN_US
    assert _detector(500, 20).latest_us >= BEGIN_US


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
    assert Comparison("n", "w", "u", "a", [2], [2], goal).ratio == 1


@pytest.mark.parametrize(
    ("ours", "anchor", "reached"), [(14_999, 50_001, False), (14_999, 49_996, True), (15_000, 150_000, True)]
)
def test_a_goal_may_be_reached_by_our_own_figure_too(ours, anchor, reached):
    compared = Comparison("n", "w", "messages/s", "a", [ours], [anchor], Goal(0.3, aim=0.5, enough=15_000))
    assert compared.is_reached is reached
    verdict = "reached" if reached else "MISSED"
    assert as_text(compared).endswith(f"at least 0.3, better 0.5, or 15,000 messages/s: {verdict}")
