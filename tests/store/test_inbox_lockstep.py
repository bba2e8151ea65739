"""An inbox does what a list of messages would: batches and turns are committed and rolled back, messages parked and
retried."""

from contextlib import suppress
from itertools import count

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from receiver.durable.audit import audit
from receiver.store.upkeep import drop_parked, drop_waiting, move_waiting, parked_rows, retry_parked, target_rows
from tests.choosing import examples
from tests.durable.opened import UndoError, opened
from tests.store.waiting import add, as_retried, inbox_of, message, unpack_all, waiting_in
from tests.stores import engine_of

NAMES = ("file:a", "python:b:\ud800")
TARGETS = st.sampled_from(NAMES)
SOURCES = st.sampled_from([None, "", "a", "b", "gateway:1\0\ud800"])
BODIES = st.sampled_from([b"", b"\0", bytes(range(256)), b"\xff" * 5_000])
DELIVERED = st.sampled_from([True, True, True, False])
ENDS = st.sampled_from(["commit", "commit", "undo"])
INDICES = st.lists(st.integers(0, 23), max_size=6, unique=True) | st.just(range(24))
"""The indices of chosen messages. Those beyond the last message don't count."""


def chosen(indices, there):
    return [there[index] for index in indices if index < len(there)]


class InboxMachine(RuleBasedStateMachine):
    """Two targets of one domain. The model has each target's rows, and the parked messages by number."""

    url: str
    names = count()

    @initialize()
    def open(self):
        self.receiver = opened(self.url, domain=f"name:{next(self.names)}")
        self.inboxes = {target: inbox_of(self.receiver, self.url, target) for target in NAMES}
        self.waiting = {target: [] for target in self.inboxes}
        self.parked = {}
        self.files = dict.fromkeys(self.inboxes, (None, None))
        self.seen = {}
        self.next_sequence = 0
        self.others_parked = {row.parked_id for row in parked_rows(self.url)}

    @rule(name=TARGETS, bodies=st.lists(st.tuples(SOURCES, BODIES, DELIVERED), max_size=16), end=ENDS)
    def receive(self, name, bodies, end):
        with suppress(UndoError), self.receiver.batch() as batch:
            first = batch.transaction.first_sequence
            assert first == self.next_sequence
            rows = []
            for index, (source, body, delivered) in enumerate(bodies):
                batch.receive(None, received_at_us=0)
                if delivered:
                    rows.append(message(first + index, source, body, is_text=len(body) < 2))
            add(self.inboxes[name], batch.connection, rows)
            if end == "undo":
                raise UndoError
            self.next_sequence += len(bodies)
            self.waiting[name] += rows

    @rule(
        name=TARGETS,
        confirmed=INDICES,
        failed=INDICES,
        parked=INDICES,
        length=st.none() | st.integers(0, 2**60),
        at_most=st.integers(0, 12) | st.just(40),
        but_of=st.lists(SOURCES, max_size=3),
        end=ENDS,
    )
    def take_turn(self, name, *, confirmed, failed, parked, length, at_most, but_of, end):
        rows, file = {row.sequence: row for row in self.waiting[name]}, self.files[name]
        reported = []
        with suppress(UndoError), self.inboxes[name].lease() as lease:
            assert (lease.target.confirmed_bytes, lease.target.tail_digest) == file
            skipped = {source or "" for source in but_of}
            eligible = [number for number, row in rows.items() if (row.message_source_id or "") not in skipped]
            numbers = lease.sequence_numbers(at_most, but_of=but_of)
            assert numbers == eligible[:at_most]
            assert lease.messages(numbers) == [rows[number] for number in numbers]
            tried = chosen(failed, numbers)
            rows |= {number: rows[number]._replace(tries=rows[number].tries + 1) for number in tried}
            assert lease.tries_failed(tried) == {number: rows[number].tries for number in tried}
            for number in chosen(parked, numbers):
                reported.append(rows.pop(number))
                lease.park(reported[-1], f"refused {number}")
            gone = chosen(confirmed, numbers)
            lease.confirm(gone)
            rows = {number: row for number, row in rows.items() if number not in gone}
            if length is not None:
                file = length, str(length).encode()
                lease.save_file(*file)
            if end == "undo":
                raise UndoError
            self.waiting[name], self.files[name] = list(rows.values()), file
            for row in reported:
                self.parked[row.sequence] = (name, row)

    @rule(name=TARGETS, end=ENDS)
    def park_what_never_waited(self, name, end):
        with suppress(UndoError), self.receiver.batch() as batch:
            row = message(batch.transaction.first_sequence)
            batch.receive(None, received_at_us=0)
            self.inboxes[name].park(batch.connection, row, "no id")
            if end == "undo":
                raise UndoError
            self.parked[row.sequence] = (name, row)
            self.next_sequence += 1

    def parked_now(self):
        return [row for row in parked_rows(self.url) if row.parked_id not in self.others_parked]

    def number_of(self, row):
        """The row's number, which its id shows."""
        return int(row.unique_message_id.partition(":")[0])

    @precondition(lambda self: self.parked)
    @rule(indices=INDICES, retried=st.booleans())
    def take_out(self, indices, retried):
        rows = chosen(indices, self.parked_now())
        assert (retry_parked if retried else drop_parked)(self.url, [row.parked_id for row in rows]) == len(rows)
        for row in rows:
            target, known = self.parked.pop(self.number_of(row))
            if retried:
                self.waiting[target] = sorted([*self.waiting[target], as_retried(known)])

    def row_of(self, name):
        return next(row for row in target_rows(self.url) if row.number == self.inboxes[name].target_id)

    @rule()
    def move(self):
        to, from_ = NAMES
        row, moved = self.row_of(from_), self.waiting[from_]
        assert move_waiting(self.url, row, to) == len(moved)
        self.waiting[from_] = []
        self.waiting[to] = sorted([*self.waiting[to], *(row._replace(tries=0) for row in moved)])

    @rule(name=TARGETS)
    def look(self, name):
        self.seen[name] = self.row_of(name)

    @rule(name=TARGETS)
    def drop(self, name):
        """Drop what had come by the last look. Later messages stay."""
        row = self.seen.get(name) or self.row_of(name)
        left = [waiting for waiting in self.waiting[name] if waiting.sequence > row.newest_sequence]
        assert drop_waiting(self.url, row) == len(self.waiting[name]) - len(left)
        self.waiting[name] = left

    @rule(name=TARGETS)
    def open_again(self, name):
        self.inboxes[name].close()
        self.inboxes[name] = inbox_of(self.receiver, self.url, name)

    @rule()
    def have_them_as_older_processes_leave_them(self):
        with engine_of(self.url).begin() as connection:
            unpack_all(connection)

    @rule(name=TARGETS)
    def give_back_space(self, name):
        self.inboxes[name].give_back_space()

    @invariant()
    def same(self):
        """Messages that wait are read last, because a lease packs them."""
        for target, inbox in self.inboxes.items():
            assert inbox.waiting() == len(self.waiting[target])
            assert inbox.has_waiting() == bool(self.waiting[target])
            listed, rows = self.row_of(target), self.waiting[target]
            assert (listed.waiting, listed.body_bytes) == (len(rows), sum(len(row.message.body) for row in rows))
            assert listed.newest_sequence == max((row.sequence for row in rows), default=-1)
            assert listed.oldest_us == min((row.received_at_us for row in rows), default=None)
            others = {other: len(rows) for other, rows in self.waiting.items() if other != target and rows}
            assert inbox.elsewhere() == others
        for target, inbox in self.inboxes.items():
            assert waiting_in(inbox) == self.waiting[target]
        by_number = {self.number_of(row): row for row in self.parked_now()}
        assert by_number.keys() == self.parked.keys()
        for number, (target, row) in self.parked.items():
            shown = by_number[number]
            assert (shown.target, shown.tries, shown.body_bytes) == (target, row.tries, len(row.message.body))
            assert (shown.unique_message_id, shown.message_source_id) == (row.unique_message_id, row.message_source_id)

    def teardown(self):
        for inbox in self.inboxes.values():
            inbox.close()
        self.receiver.close()
        assert audit(self.url).findings == ()


@pytest.mark.costly
@pytest.mark.scaled
def test_as_a_list_of_messages(store_url):
    class Machine(InboxMachine):
        url = store_url

    run_state_machine_as_test(Machine, settings=settings(max_examples=examples() // 10, stateful_step_count=20))
