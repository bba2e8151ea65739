"""Each wrong consumer is detected soon, by a short story. No right one is."""

import re

import pytest

from tests.choosing import slow
from tests.testing import gallery
from tests.testing.shop import report_of

pytestmark = pytest.mark.costly

MOST_STEPS, MOST_STORIES = 10, 100
STORIES = {"quick": 10, "small": 1_000, "long": 10_000}
FOUND_LATE = (gallery.acknowledges_all_after_the_first, gallery.expects_order)
"""Drawn stories detect these, and are then shortened."""


def found(check, *arguments, **options):
    """The report on a consumer that must be wrong."""
    said = report_of(check, *arguments, **options)
    assert said.startswith("the effect of message "), said
    assert 1 <= len(re.findall(r"^ *\d+\. ", said, re.MULTILINE)) <= MOST_STEPS, said
    assert int(re.search(r"Found as story (\d+) ", said)[1]) <= MOST_STORIES, said
    return said


@pytest.mark.parametrize("consume", [slow(each) if each in FOUND_LATE else each for each in gallery.WRONG])
@pytest.mark.filterwarnings("ignore::receiver.testing.NoDatabaseWarning")  # of those that write files
def test_a_wrong_consumer_is_found(checked, consume):
    found(checked, consume, gallery.effects_of(consume))


@pytest.mark.scaled
@pytest.mark.parametrize("consume", gallery.RIGHT)
def test_a_right_consumer_passes(checked_on_sqlite, consume, request):
    checked_on_sqlite(consume, max_examples=STORIES[request.config.getoption("--campaign")])


@pytest.mark.slow
@pytest.mark.parametrize("consume", gallery.RIGHT)
def test_a_right_consumer_passes_on_a_server(checked_on_postgresql, consume):
    checked_on_postgresql(consume, max_examples=10)


@pytest.mark.parametrize("consume", [gallery.with_an_inbox, gallery.remembers_in_memory_only])
def test_an_effect_may_stand_twice_if_that_is_all_right(checked_on_sqlite, consume):
    checked_on_sqlite(consume, at_least_once=True, max_examples=20)


def test_an_effect_may_not_be_missing_even_then(checked_on_sqlite):
    said = found(checked_on_sqlite, gallery.acknowledges_before_the_commit, at_least_once=True)
    assert said.startswith("the effect of message 1 of sender A is missing\n")
