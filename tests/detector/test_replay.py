"""A detector that is rebuilt from another's surviving entries, or follows the other, behaves exactly like it."""

from collections import deque

from hypothesis import example, given
from hypothesis import strategies as st

from receiver import TwoTierDetector
from receiver.detector import GONE, RETIRED, serial_of
from receiver.message import ReceiptRow, Verdict
from tests.detector.test_lockstep import RETIREMENTS, STEPS, WINDOWS_AND_EXPIRIES, receipts_of
from tests.model import Model

LAGS = st.lists(st.sampled_from([0, 0, 1, 3, 1000]), min_size=1, max_size=8)


def entry(serial, id_, source, received_at_us, policy_state=None):
    return ReceiptRow(serial, received_at_us, None, source, id_, policy_state=policy_state)


class Log:
    """A running detector, the rows that its store hasn't deleted yet, and a model beside them."""

    def __init__(self, window, expiry_us):
        self.settings = (window, expiry_us / 1_000_000)
        self.detector = TwoTierDetector(*self.settings)
        self.detector.forgotten = deque()
        self.model = Model(window, expiry_us)
        self.rows = {}
        self.retired = 0

    def retire(self, source):
        """Retire a source as a store does: every row that is left of the source is marked."""
        self.detector.retire(source)
        self.model.retire(source)
        self.retired += 1
        for serial, row in self.rows.items():
            if (row.message_source_id or None) == (source or None):
                self.rows[serial] = row._replace(policy_state=RETIRED)

    def receive(self, id_, source, received_at_us):
        decision = self.detector.receive(id_, source, received_at_us=received_at_us)
        assert decision.verdict == self.model.receive(id_, source, received_at_us)
        if decision.verdict is not Verdict.UNCHECKED:
            serial = self.detector.serial
            self.rows[serial] = entry(serial, id_, source, self.detector.latest_us)

    def trim(self, lag):
        """Delete forgotten rows, except the last `lag` of them and the newest row."""
        kept = []
        while len(self.detector.forgotten) > lag:
            stamp = self.detector.forgotten.popleft()
            if serial_of(stamp) == self.detector.serial:
                kept.append(stamp)
            else:
                del self.rows[serial_of(stamp)]
        self.detector.forgotten.extendleft(kept)

    def rebuilt(self):
        again = TwoTierDetector(*self.settings)
        again.replay(self.rows.values(), self.detector.time_queue_newest_us)
        return again


def same(one, other):
    assert one.entries() == other.entries()
    assert one.remembered_ids == other.remembered_ids
    assert one.time_queue_newest_us == other.time_queue_newest_us
    assert (one.serial, one.latest_us) == (other.serial, other.latest_us)
    assert (one.sources, one.sources_by_silence()) == (other.sources, other.sources_by_silence())


@given(WINDOWS_AND_EXPIRIES, STEPS, LAGS, RETIREMENTS)
def test_rebuilding_from_what_survives_is_never_having_stopped(chosen, steps, lags, retirements):
    log = Log(*chosen)
    for number, (id_, source, received_at_us, *_) in enumerate(receipts_of(steps, 0)):
        log.receive(id_, source, received_at_us)
        if number in retirements:
            log.retire(retirements[number])
        log.trim(lags[number % len(lags)])
        again = log.rebuilt()
        same(again, log.detector)
        again.forgotten = log.detector.forgotten
        log.detector = again  # it replaces the other


@given(WINDOWS_AND_EXPIRIES, STEPS, LAGS, st.integers(1, 40), RETIREMENTS)
def test_following_now_and_then_is_having_seen_it_all(chosen, steps, lags, every, retirements):
    log = Log(*chosen)
    follower, seen = TwoTierDetector(*log.settings), 0
    for number, (id_, source, received_at_us, *_) in enumerate(receipts_of(steps, 0)):
        log.receive(id_, source, received_at_us)
        if number in retirements:
            log.retire(retirements[number])
        log.trim(lags[number % len(lags)])
        if number % every == 0:
            if seen != log.retired:
                follower, seen = TwoTierDetector(*log.settings), log.retired
            missed = [row for row in log.rows.values() if row.seq > follower.serial]
            follower.replay(missed, log.detector.time_queue_newest_us)
            same(follower, log.detector)


def test_a_gone_entry_tells_the_latest_number_and_time_alone():
    detector = TwoTierDetector(window=2, expiry_secs=10)
    detector.forgotten = deque()
    gone = entry(7, "b", "s", 2_000_000, GONE)
    detector.replay([entry(3, "a", "s", 1_000_000), gone], None)
    assert (detector.serial, detector.latest_us, detector.remembered_ids) == (7, 2_000_000, 1)
    assert "b" not in detector
    assert detector.receive("b", "s", received_at_us=0).verdict is Verdict.NEW
    assert detector.latest_us == 2_000_000
    detector.replay([gone._replace(seq=9), entry(10, "c", "s", 3_000_000)], None)
    assert (detector.serial, detector.latest_us) == (10, 3_000_000)
    assert [serial_of(stamp) for stamp in detector.forgotten] == [7, 9]
    assert "c" in detector


def test_the_states_of_entries_are_those_that_stores_have():
    assert (RETIRED, GONE) == (1, 2)


def test_the_clock_never_goes_back():
    detector = TwoTierDetector(window=1, expiry_secs=0.5)
    entries = [entry(number, id_, "s", number * 1_000_000) for number, id_ in enumerate("abc", start=1)]
    detector.replay(entries, 1_000_000)
    assert detector.time_queue_newest_us == 2_000_000
    assert [id_ for id_ in "abc" if id_ in detector] == ["b", "c"]


@given(WINDOWS_AND_EXPIRIES, STEPS)
# Only the first entry of "a" is left, in the queue of "s".
@example((1, 10), [("a", "s", 0), ("a", "t", 1), ("b", "t", 50), ("c", "t", 1)])
def test_entries_are_what_can_matter(chosen, steps):
    log = Log(*chosen)
    for id_, source, received_at_us, *_ in receipts_of(steps, 0):
        log.receive(id_, source, received_at_us)
        queued = [entry for queue in log.model.queues.values() for entry in queue]
        newest = {}
        for entry in sorted(queued + log.model.time_queue, key=lambda entry: entry.received_at_us):
            newest[entry.id] = entry.received_at_us
        in_time = {(e.id, e.received_at_us) for e in log.model.time_queue if newest[e.id] == e.received_at_us}
        expected = {(e.id, e.received_at_us) for e in queued} | in_time
        assert {id_ for id_ in "abcdefgh" if id_ in log.detector} == log.model.remembered()
        rows = [log.rows[serial] for serial in log.detector.entries()]
        assert {(row.unique_message_id, row.received_at_us) for row in rows} == expected
        assert rows == sorted(rows)


@given(WINDOWS_AND_EXPIRIES, STEPS)
def test_whatever_leaves_is_named_forgotten_once(chosen, steps):
    log = Log(*chosen)
    for id_, source, received_at_us, *_ in receipts_of(steps, 0):
        log.receive(id_, source, received_at_us)
    gone = [serial_of(stamp) for stamp in log.detector.forgotten]
    assert len(set(gone)) == len(gone)
    log.trim(0)
    kept, entries = set(log.rows), set(log.detector.entries())
    # An id's newest entry may be too old. It keeps its name only with the id, which an older entry elsewhere may still
    # hold.
    newest = {row.unique_message_id: serial for serial, row in log.rows.items()}
    assert entries <= kept <= entries | {serial for id_, serial in newest.items() if id_ in log.detector}
