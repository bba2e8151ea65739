"""Each part of the kit is needed: without it, a wrong consumer of the gallery passes, or a right one fails."""

from collections import Counter
from dataclasses import replace

import pytest

from receiver.testing import checking, story, world
from receiver.testing.crash_points import Run
from receiver.testing.world import World
from tests.testing import gallery, test_crashes


def changed(name):
    """A patch that wraps a method of `World`."""

    def patch(wrap):
        original = getattr(World, name)
        return lambda monkeypatch: monkeypatch.setattr(World, name, wrap(original))

    return patch


def no_strike(kind, when="", call=""):
    """Faults of this kind don't strike such calls."""

    @changed("strike")
    def patch(strike):
        def without(self, name, is_database):
            struck = strike(self, name, is_database)
            is_such = struck and struck.kind == kind and struck.when.startswith(when) and name.startswith(call)
            return None if is_such else struck

        return without

    return patch


def no_flag(self, message):
    return self._delivered(replace(message, redelivered=False))


def always_flagged(self, message):
    return self._delivered(replace(message, redelivered=True))


def at_most(number):
    return changed("receive")(lambda receive: lambda self, most: receive(self, min(most, number)))


def no_batch_with_repeats(receive):
    def apart(self, most):
        self._fill()
        ahead = [message.unique_message_id for message in list(self._queue)[:most]]
        while max(Counter(ahead).values(), default=0) > 1:
            ahead.pop()
        return receive(self, max(1, len(ahead)))

    return apart


def no_move(kind):
    """The broker's moves of this kind have no effect."""

    @changed("_move")
    def patch(move):
        def without(self):
            if isinstance(self._moves[0], kind):
                self._moves.popleft()
                self._take_faults()
            else:
                move(self)

        return without

    return patch


def resends_by_the_same_process(send):
    def same(self, number, sender):
        self._processes[sender] = 1
        send(self, number, sender)

    return same


def never_behind(give_again):
    def before(self):
        self._story = replace(self._story, is_behind=False)
        give_again(self)

    return before


def senders(names):
    def patch(monkeypatch):
        monkeypatch.setattr(story, "SENDERS", names)
        monkeypatch.setattr(world, "SENDERS", names)
        monkeypatch.setattr(checking, "SHORT_STORIES", checking.SHORT_STORIES[1:])

    return patch


def once(monkeypatch):
    """Each crash point is tried once, and no connection is lost there."""
    no_strike("loss")(monkeypatch)
    monkeypatch.setattr(story, "_MOST_CRASHES", 1)


def nothing_drawn(monkeypatch):
    monkeypatch.setattr("receiver.testing.checking._Search.drawn", lambda *_: None)


MUTANTS = {
    "no crash after receive": (no_strike("crash", "after", "receive"), gallery.takes_the_flag_for_a_proof),
    "no crash after acknowledge": (no_strike("crash", "after", "ack"), gallery.acts_once_it_has_acknowledged),
    "no crash before a statement": (no_strike("crash", "before", "INSERT"), gallery.remembers_later_in_autocommit),
    "no crash after a statement": (no_strike("crash", "after", "INSERT"), gallery.remembers_first_in_autocommit),
    "no crash before COMMIT": (no_strike("crash", "before", "COMMIT"), gallery.acts_before_the_commit),
    "no crash after COMMIT": (no_strike("crash", "after", "COMMIT"), gallery.acts_after_the_commit),
    "one crash at a point": (once, gallery.gives_up_after_three_tries),
    "no lost connection": (no_strike("loss"), gallery.swallows_errors_and_acknowledges),
    "none before COMMIT": (
        no_strike("loss", "before", "COMMIT"),
        gallery.takes_a_commit_that_failed_for_one_that_was_not_answered,
    ),
    "none after COMMIT": (no_strike("loss", "after", "COMMIT"), gallery.commits_twice),
    "nothing acknowledged comes again": (
        no_move(world.Redelivers),
        gallery.forgets_once_it_has_acknowledged,
    ),
    "no flag": (lambda patch: patch.setattr(World, "_again", no_flag), gallery.takes_the_flag_for_a_proof),
    "always a flag": (lambda patch: patch.setattr(World, "_again", always_flagged), gallery.looks_only_if_flagged),
    "never behind": (changed("_give_again")(never_behind), gallery.expects_order),
    "no resends": (no_move(world.Resends), gallery.remembers_by_process),
    "resends by the same process": (changed("_send")(resends_by_the_same_process), gallery.remembers_by_process),
    "no pauses": (no_move(world.Pauses), gallery.cleans_up_after_an_hour),
    "one message at a time": (at_most(1), gallery.acknowledges_all_after_the_first),
    "no id twice in a batch": (changed("receive")(no_batch_with_repeats), gallery.looks_up_the_whole_batch_first),
    "one sender": (senders("A"), gallery.remembers_numbers_without_their_senders),
    "no ids that differ in case": (senders("ABC"), gallery.folds_ids),
    "nothing drawn": (nothing_drawn, gallery.expects_order),
}


@pytest.mark.costly
@pytest.mark.thinned(4)
@pytest.mark.filterwarnings("ignore::receiver.testing.NoDatabaseWarning")  # of those that write files
@pytest.mark.parametrize("mutant", MUTANTS)
def test_without_it_a_wrong_consumer_passes(checked_on_sqlite, monkeypatch, mutant):
    patch, consume = MUTANTS[mutant]
    assert consume in gallery.WRONG  # so `test_gallery.py` detects it with the whole kit
    patch(monkeypatch)
    checked_on_sqlite(consume, gallery.effects_of(consume))


def test_connections_that_are_not_cut_keep_locks(checked_on_sqlite, monkeypatch):
    monkeypatch.setattr(Run, "cut_connections", lambda _: None)
    with pytest.raises(AssertionError, match="database is locked"):
        checked_on_sqlite(test_crashes.by_an_open_transaction)


def test_cursors_that_are_not_closed_keep_locks(checked_on_sqlite, monkeypatch):
    monkeypatch.setattr("receiver.testing.crash_points._undo", lambda proxy: proxy.rollback())
    with pytest.raises(AssertionError, match="database is locked"):
        checked_on_sqlite(test_crashes.while_it_reads)


def test_frames_that_are_not_cleared_keep_locks(checked_on_sqlite, monkeypatch):
    monkeypatch.setattr("traceback.clear_frames", lambda _: None)
    with pytest.raises(AssertionError, match="database is locked"):
        checked_on_sqlite(test_crashes.while_its_driver_reads)
