"""A process of the version without retiring, beside one that retires sources: both record receipts of one domain.

The older process never remembers less, so it lets no duplicate through that the other would catch. All that it
remembers was really received, so it drops no new message. And it deletes no row that the other needs.
"""

import random
from collections import deque

import pytest

from receiver.detector import RETIRED, TwoTierDetector, serial_of
from receiver.message import ReceiptRow
from tests.choosing import examples

RUNS = 300
IDS = [str(number) for number in range(14)]
SOURCES = [f"source-{number}" for number in range(4)]
PAUSES_US = [0, 1, 100_000, 1_000_000, 5_000_000]


def new_detector(window, expiry_secs):
    detector = TwoTierDetector(window, expiry_secs)
    detector.forgotten = deque()
    return detector


def taken(detector):
    """The numbers of the rows that may be deleted: by the process that received last. A follower leaves them to that
    process."""
    numbers = {serial_of(stamp) for stamp in detector.forgotten}
    detector.forgotten.clear()
    return numbers


def remembered(detector):
    return {id_ for id_ in IDS if id_ in detector}


class Domain:
    """A domain's rows, and two processes that have it open."""

    def __init__(self, draw):
        window, expiry_secs = draw.choice([(0, 1), (0, 10), (1, 0), (1, 3), (2, 0), (2, 10), (3, 1), (5, 3)])
        self.sizes = window, expiry_secs
        self.before, self.now = new_detector(*self.sizes), new_detector(*self.sizes)
        self.rows = {}
        self.seen = set()

    def retire(self, source):
        """Retire a source in the newer process. The source's rows that are left are marked."""
        self.now.retire(source)
        self.delete(taken(self.now))
        for serial, row in self.rows.items():
            if row.message_source_id == source:
                self.rows[serial] = row._replace(policy_state=RETIRED)
        self.follow(self.before, (), self.now)

    def receive(self, by, id_, source, received_at_us):
        other = self.before if by is self.now else self.now
        is_known_to_now = id_ in self.now
        decision = by.receive(id_, source, received_at_us=received_at_us)
        row = self.rows[by.serial] = ReceiptRow(by.serial, received_at_us, None, source, id_)
        self.delete(taken(by))
        self.follow(other, [row], by)
        assert id_ in self.seen or decision.deliver
        assert not (is_known_to_now and decision.deliver)
        self.seen.add(id_)

    def follow(self, follower, rows, leader):
        if follower is self.before:
            rows = [row._replace(policy_state=None) for row in rows]
        follower.replay(rows, leader.time_queue_newest_us)
        taken(follower)

    def delete(self, numbers):
        for number in numbers - {self.now.serial, self.before.serial}:
            self.rows.pop(number, None)

    def reopened(self, *, knows_retiring):
        detector = new_detector(*self.sizes)
        rows = [self.rows[number] for number in sorted(self.rows)]
        rows = rows if knows_retiring else [row._replace(policy_state=None) for row in rows]
        detector.replay(rows, self.now.time_queue_newest_us)
        return detector

    def check(self):
        needed = set(self.now.entries())
        assert remembered(self.before) >= remembered(self.now)
        assert needed <= self.rows.keys()
        assert remembered(self.reopened(knows_retiring=True)) == remembered(self.now)
        again = self.reopened(knows_retiring=False)
        assert remembered(again) >= remembered(self.now)
        assert not taken(again) & (needed - {self.now.serial})
        return again


@pytest.mark.scaled
def test_who_knows_no_retiring_remembers_no_less(seed):
    runs, kept_longer = examples(RUNS), 0
    for run in range(runs):
        draw = random.Random(f"{seed} {run}")
        domain, now_us = Domain(draw), 0
        for _ in range(draw.randrange(5, 60)):
            now_us += draw.choice(PAUSES_US)
            if draw.random() < 0.12:
                domain.retire(draw.choice(SOURCES))
            else:
                by = draw.choice([domain.before, domain.now])
                domain.receive(by, draw.choice(IDS), draw.choice(SOURCES), now_us)
            again = domain.check()
            kept_longer += remembered(domain.before) > remembered(domain.now)
            if draw.random() < 0.1:
                domain.before = again
    assert kept_longer > runs  # otherwise nothing was tried
