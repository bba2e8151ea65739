"""A log recorded from a real broker, fed through an SQLite receiver that is killed on the way: verdicts are as in
`simulate`."""

import csv
import random
import sys
from unittest.mock import patch

import pytest

from receiver import ReceiverSettings, cli
from tests.durable import real_log
from tests.durable.checks import assert_sound
from tests.durable.opened import sizes
from tests.durable.worker import PATIENCE_SECS, PROCESSES

BATCHES = 431
"""The least number of batches in the log."""


def simulated(tmp_path, settings):
    file = tmp_path / "verdicts.csv"
    window, expiry_us = settings.sizes
    sized = ["--window", str(window), "--expiry", str(expiry_us / 1_000_000)]
    with patch.object(sys, "argv", ["receiver", "simulate", str(real_log.LOG), *sized, "--domain", "destination", "--verdicts", str(file)]):  # fmt: skip
        assert cli.run() == 0
    with file.open(encoding="utf-8", newline="") as lines:
        return [row["verdict"][0] for row in csv.DictReader(lines)]


def feed(url, settings, *, hold_in_batch=None, kill_after=None):
    """Have a process feed the log. It is killed inside a batch, or a while after so many commits, or it gets done."""
    ours, theirs = PROCESSES.Pipe(duplex=False)
    process = PROCESSES.Process(target=real_log.feed, args=(url, settings, hold_in_batch, theirs))
    process.start()
    theirs.close()
    heard = []
    while not heard or heard[-1] not in {"inside", "done"}:
        if kill_after is not None and len(heard) >= kill_after:
            break
        assert ours.poll(PATIENCE_SECS), heard[-1:]
        heard.append(ours.recv())
    if heard[-1] != "done":
        process.kill()
    process.join()
    ours.close()
    assert (process.exitcode == 0) == (heard[-1] == "done")
    return heard.count("committed")


@pytest.mark.costly
@pytest.mark.thinned(2)
@pytest.mark.parametrize(
    ("settings", "killed"),
    [(sizes(100, 5_000_000), "hold_in_batch"), (ReceiverSettings(), "kill_after")],
    ids=["100-5s-inside-a-batch", "defaults-anywhere"],
)
def test_killed_on_the_way(sqlite_url, tmp_path, seed, settings, killed):
    real_log.make(sqlite_url)
    committed = feed(sqlite_url, settings, **{killed: random.Random(seed).randrange(1, BATCHES - 30)})
    assert_sound(sqlite_url)
    assert 0 < committed < BATCHES
    feed(sqlite_url, settings)
    assert_sound(sqlite_url)
    assert real_log.verdicts_committed(sqlite_url) == simulated(tmp_path, settings)
