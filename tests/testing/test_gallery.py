"""Each wrong consumer is found soon, and by a short story; no right one is."""

import re

import pytest

from tests.testing import gallery

MOST_STEPS, MOST_STORIES = 8, 100


def found(check, *arguments, **options):
    """What is told of a consumer that must be wrong."""
    with pytest.raises(AssertionError) as raised:
        check(*arguments, **options)
    told = str(raised.value)
    assert told.startswith("the effect of message "), told
    assert 1 <= len(re.findall(r"^ *\d+\. ", told, re.MULTILINE)) <= MOST_STEPS, told
    assert int(re.search(r"Story (\d+) ", told)[1]) <= MOST_STORIES, told
    return told


@pytest.mark.parametrize("consume", gallery.WRONG_IN_A_DATABASE)
def test_a_wrong_consumer_is_found(checked, consume):
    found(checked, consume)


@pytest.mark.parametrize("consume", gallery.WRONG_IN_A_FILE)
def test_a_wrong_consumer_with_effects_in_a_file_is_found(checked, consume):
    found(checked, consume, effects=lambda shop: shop.file("orders"))


@pytest.mark.parametrize("consume", gallery.RIGHT)
def test_a_right_consumer_passes(checked, consume):
    checked(consume, max_examples=20)
