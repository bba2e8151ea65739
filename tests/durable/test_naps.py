"""Who has just had a domain lets others go on while it naps and reads ahead; whatever they do then, verdicts are right."""

import threading
from contextlib import suppress

import pytest
from sqlalchemy import NullPool, create_engine, text

from receiver.durable import transaction
from receiver.durable.retiring_by_hand import retire_sources
from receiver.durable.turns import Turns
from tests.durable.checks import assert_sound
from tests.durable.opened import DUPLICATE, LONG_SECS, NEW, UndoError, held_elsewhere, opened, send, sizes, undone

MS = 1_000_000
ASKED = ["later", "napped", "held", "before", "mine", "new"]
"""Newest first, for they push each other out."""


@pytest.mark.parametrize(
    ("took_ms", "pause_ms", "nap_ms"),
    [
        (1, 0.5, 12),  # back at once: twelve batches like its own
        (1, 1.5, 0),  # it has paused, so others have had room
        (50, 1, 20),  # however long its batches are
        (50, 51, 0),
    ],
)
def test_how_long_it_naps(took_ms, pause_ms, nap_ms):
    turns = Turns()
    began_ns = 1_000 * MS
    ended_ns = began_ns + int(took_ms * MS)
    assert turns.nap_secs(began_ns) == 0, "it never had the domain"
    turns.note(began_ns, ended_ns)
    assert turns.nap_secs(ended_ns + int(pause_ms * MS)) == nap_ms / 1_000


def elsewhere(work):
    """Do it in another thread, as another process would."""
    thread = threading.Thread(target=work)
    thread.start()
    thread.join(LONG_SECS)
    assert not thread.is_alive()


class Nap:
    """The next batch naps if it finds the domain taken: what is done meanwhile, and once it has read ahead."""

    def __init__(self, monkeypatch, receiver, during, afterwards=lambda: None):
        self.seqs_ahead = []
        self._session = receiver._session
        self._read_ahead, self._during, self._afterwards = self._session.read_ahead, during, afterwards
        monkeypatch.setattr(Turns, "nap_secs", lambda _turns, _now_ns: 1)
        monkeypatch.setattr(transaction, "sleep", self._sleep)
        monkeypatch.setattr(self._session, "read_ahead", self._reading_ahead)

    def _sleep(self, _secs):
        assert not self._session.log.in_transaction
        elsewhere(self._during)

    def _reading_ahead(self):
        self._read_ahead()
        assert not self._session.log.in_transaction
        self.seqs_ahead.append(self._session.cache.policy.serial)
        elsewhere(self._afterwards)


def end_connection(url, receiver):
    pid = receiver._session.log.dbapi.info.backend_pid
    engine = create_engine(url, poolclass=NullPool)
    with engine.begin() as connection:
        connection.execute(text("SELECT pg_terminate_backend(:pid, 10000)"), {"pid": pid})


WHILE_IT_NAPS = {
    "others go on": lambda _url, other, _napping: send(other, "napped"),
    "nothing happens": lambda _url, _other, _napping: None,
    "resized": lambda url, _other, _napping: opened(url, settings=sizes(2, 0)).close(),
    "a source retired": lambda url, _other, _napping: retire_sources(url, sources=[""]),
    "the connection lost": lambda url, _other, napping: end_connection(url, napping),
}


@pytest.mark.parametrize("happening", WHILE_IT_NAPS)
def test_whatever_happens_while_it_naps(fresh_postgres_url, monkeypatch, happening):
    """It judges as a receiver that reads the log anew."""
    url, expected = fresh_postgres_url, []
    with opened(url, settings=sizes(10, 0)) as napping, opened(url) as other:
        send(napping, "mine")
        send(other, "before")

        def during():
            may_end.set()
            undone(other, "x")  # waits for what was held
            WHILE_IT_NAPS[happening](url, other, napping)

        def afterwards():
            send(other, "later")
            with opened(url) as anew:
                expected.extend(undone(anew, *ASKED))

        with held_elsewhere(other) as may_end:
            nap = Nap(monkeypatch, napping, during, afterwards)
            assert send(napping, *ASKED) == expected
        assert nap.seqs_ahead == [4 if happening == "others go on" else 3], "all that was there was read ahead"
        assert DUPLICATE in expected
        assert NEW in expected
    assert_sound(url)


def test_a_connection_that_is_lost_as_it_asks_is_replaced(fresh_postgres_url, monkeypatch):
    with opened(fresh_postgres_url) as asking, opened(fresh_postgres_url) as other:
        send(asking, "mine")
        log = asking._session.log
        lost, commit = log.dbapi, log.commit

        def lose_and_commit():
            monkeypatch.setattr(log, "commit", commit)
            end_connection(fresh_postgres_url, asking)
            commit()

        with held_elsewhere(other):
            monkeypatch.setattr(log, "commit", lose_and_commit)
            assert log.begin_if_free() is None
            assert not log.in_transaction
            assert log.dbapi is not lost


def test_what_may_have_been_rolled_back_is_looked_up_before_anything_is_read(fresh_postgres_url, monkeypatch):
    """Else the rows of others would follow those that are gone."""
    url = fresh_postgres_url
    engine = create_engine(url, poolclass=NullPool)
    with opened(url, settings=sizes(100, 0)) as napping, opened(url) as other:
        with suppress(UndoError), engine.begin() as connection:
            send(napping, "undone", "undone too", connection=connection)
            raise UndoError
        send(other, "a", "b", "c")
        with held_elsewhere(other) as may_end:
            nap = Nap(monkeypatch, napping, may_end.set)
            assert send(napping, "a", "c", "held", "undone", "undone too") == [DUPLICATE] * 3 + [NEW] * 2
        assert nap.seqs_ahead == [2], "it must know what became of its own batch first"
    assert_sound(url)


def test_who_finds_the_domain_free_does_not_nap(store_url, monkeypatch):
    with opened(store_url) as orders:
        Nap(monkeypatch, orders, lambda: pytest.fail("it naps"))
        assert send(orders, "a") == [NEW]
        assert send(orders, "a") == [DUPLICATE]
