"""What the broker of a story delivers, move by move."""

import importlib
from contextlib import suppress
from random import Random

import hypothesis
import pytest
from hypothesis.errors import NoSuchExample

from receiver.testing.story import Crashes, Pauses, Redelivers, Resends, Sends, Story, stories
from receiver.testing.world import RECEIVE, World


def world(*moves, **how):
    return World(Story(moves, **how), 30, str.encode)


def given(world, most=9):
    return [(message.unique_message_id, message.redelivered) for message in world.receive(most)]


def acknowledged(world, most=9):
    world.acknowledge([message.delivery for message in world.receive(most)])


@pytest.mark.parametrize(("is_behind", "again"), [(False, ["1:A", "1:B"]), (True, ["1:B", "1:A"])])
def test_what_was_not_acknowledged_comes_again_before_newer_messages_or_behind_them(is_behind, again):
    broker = world(Sends("A"), Sends("B"), is_behind=is_behind)
    assert given(broker) == [("1:A", False)]
    broker.begin_run()
    assert given(broker, 1) + given(broker, 1) == [(id_, id_ == "1:A") for id_ in again]


@pytest.mark.parametrize(("last", "again"), [(1, "3:A"), (2, "2:A"), (3, "1:A"), (7, "1:A")])
def test_an_older_message_is_redelivered_too(last, again):
    broker = world(Sends("A", 3), Redelivers(last))
    acknowledged(broker)
    assert given(broker) == [(again, True)]


def test_a_sender_that_begins_again_is_another_process():
    broker = world(Sends("A", 3), Resends(2))
    acknowledged(broker)
    assert [(message.unique_message_id, message.message_source_id) for message in broker.receive(9)] == [
        ("2:A", "A-2"),
        ("3:A", "A-2"),
    ]


def test_a_pause_is_nothing_to_give_for_a_while():
    broker = world(Sends("A"), Pauses(60), Sends("A"))
    acknowledged(broker)
    begun_ms = broker.now_ms()
    assert given(broker) == []
    assert broker.now_ms() == begun_ms + 60_000
    assert given(broker) == [("2:A", False)]


def test_what_a_later_run_does_before_it_asks_for_messages_does_not_count():
    broker = world(Sends("A"), Crashes(3))
    assert [broker.strike("SELECT", True) for _ in range(4)] == [None] * 4
    assert broker.strike(RECEIVE, False) is None
    broker.receive(1)
    broker.begin_run()
    assert [broker.strike("SELECT", True) for _ in range(4)] == [None] * 4
    assert broker.strike(RECEIVE, False).when == "before"


def test_equal_seeds_draw_equal_stories_whatever_is_imported(tmp_path, monkeypatch):
    """Hypothesis draws numbers in the source of the user's modules, too."""

    def drawn():
        seen = []
        settings = hypothesis.settings(
            max_examples=200, database=None, deadline=None, phases=[hypothesis.Phase.generate]
        )
        with suppress(NoSuchExample):  # none is what it looks for, for `append` returns None
            hypothesis.find(stories(30, 9, 9), seen.append, settings=settings, random=Random(1))  # noqa: S311 - equal each time
        return seen

    before = drawn()
    (tmp_path / "module_of_a_user.py").write_text(f"NUMBERS = {list(range(101, 700_000, 997))}\n")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("module_of_a_user")
    assert drawn() == before
    assert len(before) == 200
