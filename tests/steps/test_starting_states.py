"""What a chunk gets of earlier ones is its true starting state: a detector that has seen only this goes on like one
that has seen everything."""

from typing import NamedTuple

import numpy as np
import pytest
from cut_logs import Cutting, File, assemble, written
from hypothesis import example, given
from hypothesis import strategies as st
from test_chunked import hot_domains

from receiver import TwoTierDetector
from receiver.steps.arrow_rows import by_chunk
from receiver.steps.log import cut_log
from receiver.steps.replaying import behind_tails, section_of
from receiver.steps.schemas import ChunkReceipts, EarlierReceipts
from tests.choosing import cases
from tests.logs.reading import Row


def _told(detector: TwoTierDetector, receipts):
    return [
        (decision.verdict, detector.remembered_ids)
        for decision in (detector.receive(id_, source, received_at_us=time) for id_, source, time in receipts)
    ]


class Setting(NamedTuple):
    """A window and an expiry, and how much wider the others of the same replay are."""

    window: int
    expiry_us: int
    wider: int
    longer_us: int


SETTINGS = st.builds(
    Setting,
    window=st.integers(0, 6),
    expiry_us=st.sampled_from([0, 1, 3, 10, 40, 1000]),
    wider=st.integers(0, 3),
    longer_us=st.sampled_from([0, 5, 100]),
).filter(lambda each: each.window or each.expiry_us)


IN_THE_TIME_QUEUE_ALONE = [(0, "z", "s"), (1, "a", "s"), (10, "b", "s"), (10, "u", "t"), (11, "c", "s"), (11, "d", "s")]
"""The last of three chunks begins with W = 1 and E = 5 us, and remembers z. Its clock is a's time."""
JUST_AS_OLD_AS_E = [
    (0, "a", "s"),
    (0, "b", "s"),
    (9, "c", "s"),
    (9, "c", "s"),
    *((9, source, source) for source in "tuvw"),
]
"""The second of two chunks begins with W = 1 and E = 9 us, and remembers a. Its clock is the time of the c that was
replaced."""


@given(hot_domains(), st.sampled_from([2, 7, 64]), SETTINGS)
@cases(30)
@example([Row(*row) for row in IN_THE_TIME_QUEUE_ALONE], 3, Setting(1, 5, 0, 0))
@example([Row(*row) for row in JUST_AS_OLD_AS_E], 2, Setting(1, 9, 0, 0))
def test_a_detector_that_saw_the_tails_goes_on_as_one_that_saw_all(rows, chunks, setting):
    window, expiry_us = setting.window, setting.expiry_us
    with written([File("csv", rows)]) as paths:
        made = assemble(paths, Cutting(rows_per_unit=1000, piece_rows=50, chunks_per_domain=chunks))
    log = cut_log(made.pieces, made.reports, made.plan)
    longest_us = expiry_us + setting.longer_us if expiry_us else 0
    behind = behind_tails(log.measured, made.plan, log.totals, window + setting.wider, longest_us)
    chunks = {row.value.chunk: row.value for row in behind.only(ChunkReceipts).rows}
    earlier_of = by_chunk(row.value for row in behind.only(EarlierReceipts).rows)
    detector = TwoTierDetector(window, expiry_us / 1_000_000)
    receipts = [(row.unique_message_id, row.message_source_id, row.received_at) for row in rows]
    at = 0
    for number, chunk in sorted(chunks.items()):
        section = section_of(made.plan, chunk, earlier_of[number])
        label = []
        for row, before in enumerate(section.rows.earlier.tolist()):
            label.append(row if before < 0 else label[before])
        given_ = [
            (str(label[row]), str(section.rows.source[row]), int(section.rows.received_at_us[row]))
            for row in range(len(label))
        ]
        fresh = TwoTierDetector(window, expiry_us / 1_000_000)
        _told(fresh, given_[: section.counted_from])
        here = receipts[at : at + len(chunk.source)]
        assert fresh.remembered_ids == detector.remembered_ids
        assert _told(fresh, given_[section.counted_from :]) == _told(detector, here)
        at += len(here)
    assert at == len(receipts)


class _Sums:
    """The sums for a log of one domain, at its cuts."""

    def __init__(self, paths, chunks: int) -> None:
        made = assemble(paths, Cutting(rows_per_unit=1000, piece_rows=50, chunks_per_domain=chunks))
        self.begins = [0, *made.plan.cut_row[1:].tolist()]
        self._totals = cut_log(made.pieces, made.reports, made.plan).totals

    def before(self, source: str, chunk: int) -> tuple[int, int]:
        series = np.array([self._totals.series[0, source]], np.int64)
        firsts, lasts = (self._totals.before(sums, series, chunk) for sums in (self._totals.firsts, self._totals.lasts))
        return int(firsts[0]), int(lasts[0])


@given(hot_domains(), st.sampled_from([2, 3, 5]))
@cases(20)
def test_combining_is_associative(rows, few):
    """The sums at a cut, added up from the chunks before, don't depend on how else those were cut."""
    with written([File("csv", rows)]) as paths:
        coarse, fine = _Sums(paths, few), _Sums(paths, len(rows))
    for chunk, begin in enumerate(coarse.begins):
        for source in {row.message_source_id for row in rows}:
            assert coarse.before(source, chunk) == fine.before(source, fine.begins.index(begin))


@pytest.mark.parametrize("passes", [1, 2])
def test_a_chunk_is_given_what_a_queue_holds_and_little_more(passes):
    """That holds even if all ids are sent again later, so that no id of the first pass was sent for the last time."""
    rows = [Row(number, f"id{number % (200 // passes)}", "s") for number in range(200)]
    with written([File("csv", rows)]) as paths:
        made = assemble(paths, Cutting(rows_per_unit=1000, piece_rows=50, chunks_per_domain=10))
    log = cut_log(made.pieces, made.reports, made.plan)
    behind = behind_tails(log.measured, made.plan, log.totals, window=5, expiry_us=0).only(EarlierReceipts)
    tails_of = by_chunk(row.value for row in behind.rows if not len(row.value.newer_ids))
    for chunk in range(1, 10):
        of_each_chunk_the_newest_replaced = chunk if passes == 2 else 0
        assert 6 <= sum(len(tail.row) for tail in tails_of[chunk]) <= 6 + of_each_chunk_the_newest_replaced
