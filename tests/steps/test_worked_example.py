"""The example in the docstring of `steps.log` goes through all steps, and says what they do."""

import re

import numpy as np
import pytest
from cut_logs import Cutting, File, assemble, written

from receiver.steps import chunks
from receiver.steps import log as module
from receiver.steps.link import link
from receiver.steps.log import cut_log
from receiver.steps.measuring import earlier_receipts
from receiver.steps.replaying import behind_tails
from receiver.steps.schemas import EarlierReceipts, Piece
from tests.logs.reading import Row

SECOND_US = 1_000_000
TEXT = " ".join((module.__doc__ or "").split())
CHUNKS = [
    [(id_, int(second)) for id_, second in re.findall(r"(\w) at (\d) s", chunk)]
    for chunk in re.findall(r"chunk \d: ((?:\w at \d s,? ?)+)", TEXT)
]


@pytest.fixture(name="made")
def _made():
    rows = [Row(second * SECOND_US, id_, "s") for chunk in CHUNKS for id_, second in chunk]
    with written([File("csv", rows)]) as paths:
        made = assemble(paths, Cutting(rows_per_unit=1000, piece_rows=50, chunks_per_domain=2))
    assert [len(chunk) for chunk in CHUNKS] == [2, 3] == [len(chunk.source) for chunk in made.chunks()]
    return made


@pytest.fixture(name="log")
def _log(made):
    return cut_log(made.pieces, made.reports, made.plan)


def says(text: str) -> bool:
    return text in TEXT


def test_link(made):
    links = [row.value for row in link(made.pieces.only(Piece), made.plan)[0].rows]
    refs = [
        (each.chunk, int(each.unit_row[at]), to)
        for each in links
        for at, to in zip(each.ref_at, each.ref_to.tolist(), strict=True)
    ]
    assert sorted(refs) == [(0, 0, 1), (0, 1, 1)]
    assert says("So chunk 1 refers to rows 0 and 1 of chunk 0")


def test_chunks(log):
    firsts, lasts = (np.diff(sums, prepend=0).tolist() for sums in (log.totals.firsts, log.totals.lasts))
    assert says(f"{firsts[0]} come first in chunk 0 (a, b) and {firsts[1]} in chunk 1 (c)")
    assert says(f"{lasts[0]} come last in chunk 0 and {lasts[1]} in chunk 1 (b, c, a)")


def test_measuring(made, log):
    pieces = made.pieces.only(Piece)
    links = link(pieces, made.plan)[0]
    assembled, _, _ = chunks.assemble(pieces, links, made.plan, np.full(2, -1))
    (earlier,) = [row.value for row in earlier_receipts(assembled, made.plan, log.totals).only(EarlierReceipts).rows]
    newer_ids = dict(zip(earlier.row.tolist(), earlier.newer_ids.tolist(), strict=True))
    assert says(f"2 - 0 - 1 = {newer_ids[0]} id:")
    assert says(f"2 - 0 - 2 = {newer_ids[1]} ids.")
    facts = log.facts
    assert says(f"so a needs W = {facts.whole.windows.most}.")
    assert says(f"It needs E = {facts.most_expiry_need_us // SECOND_US} s, from its time to the clock at 4 s")


def test_tails(made, log):
    behind = behind_tails(log.measured, made.plan, log.totals, window=2, expiry_us=0)
    earlier = [row.value for row in behind.only(EarlierReceipts).rows]
    (tail,) = [each for each in earlier if not len(each.newer_ids)]
    assert tail.row.tolist() == [0, 1]
    assert says("for windows up to 2, chunk 0 hands on rows 0 and 1")


@pytest.mark.parametrize(
    ("window", "expiry_us", "caught"), [(3, 0, 2), (2, 0, 1), (2, SECOND_US - 1, 1), (2, SECOND_US, 2)]
)
def test_replaying(log, window, expiry_us, caught):
    assert log.replay([window], [expiry_us], [(window, expiry_us)]).pairs[window, expiry_us].caught == caught
    assert says(
        "catches b and a with W = 3. With W = 2 it misses a, which c pushes out of the queue, unless E is at least 1 s"
    )
