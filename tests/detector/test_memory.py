"""Memory is bounded by what is remembered, not by what has passed through."""

import gc

import pytest

from receiver import TwoTierDetector

SLACK = 64  # so many items may wait for a sweep


def kept(detector):
    """The number of items in all containers that the detector reaches: deques, dicts, lists, and its own objects'
    ones."""
    seen, items, todo = set(), 0, [detector]
    while todo:
        each = todo.pop()
        if id(each) in seen or isinstance(each, type):
            continue
        seen.add(id(each))
        if hasattr(each, "__len__") and not isinstance(each, str):
            items += len(each)
        todo += gc.get_referents(each)
    return items


@pytest.mark.thinned(2)
@pytest.mark.parametrize(("window", "expiry_secs"), [(2, 10), (5, 10), (5, 0), (0, 10), (1, 0)])
@pytest.mark.parametrize("step_us", [0, 1])
def test_two_ids_for_ever(window, expiry_secs, step_us):
    detector = TwoTierDetector(window, expiry_secs)
    most = 0
    for number in range(25_000):
        for id_, source in (("a", None), ("b", "s")):
            detector.receive(id_, source, received_at_us=number * step_us)
        if number % 1_000 == 0:
            most = max(most, kept(detector))
    assert detector.remembered_ids == 2
    assert most < 4 * SLACK


@pytest.mark.slow
def test_a_million_receipts_of_two_ids():
    detector = TwoTierDetector(window=2_000, expiry_secs=120)
    for number in range(500_000):
        detector.receive("a", received_at_us=number)
        detector.receive("b", received_at_us=number)
    assert kept(detector) < 2 * SLACK


def test_sources_that_come_once_cost_nothing_without_a_window():
    detector = TwoTierDetector(window=0, expiry_secs=1)
    for number in range(20_000):
        detector.receive(f"{number}", f"source-{number}", received_at_us=number * 1_000_000)
    assert detector.remembered_ids == 2
    assert kept(detector) < SLACK


@pytest.mark.parametrize("expiry_secs", [0, 10])
def test_retired_sources_cost_nothing(expiry_secs):
    """Each restart of a sender makes another source. The earlier one is retired."""
    detector = TwoTierDetector(window=5, expiry_secs=expiry_secs)
    for number in range(20_000):
        detector.receive(f"{number}", f"sender-{number}", received_at_us=number * 1_000_000)
        detector.retire(f"sender-{number - 1}")
    assert detector.sources == 1
    assert detector.remembered_ids <= 1 + 11
    assert kept(detector) < 2 * SLACK


def test_expired_entries():
    detector = TwoTierDetector(window=10, expiry_secs=1)
    for number in range(20_000):
        detector.receive(f"{number}", "s", received_at_us=number * 100_000)
    assert detector.remembered_ids == 10 + 11
    assert kept(detector) < 8 * detector.remembered_ids + SLACK


@pytest.mark.parametrize("expiry_secs", [0, 1, 1_000_000])
def test_a_cycle_of_ids_behind_one_old_entry(expiry_secs):
    """The old entry is never replaced and never spills. Entries that are replaced behind it must go all the same."""
    detector = TwoTierDetector(window=6, expiry_secs=expiry_secs)
    detector.receive("old", "s", received_at_us=0)
    for number in range(20_000):
        detector.receive("abcde"[number % 5], "s", received_at_us=number)
    assert detector.remembered_ids == 6
    assert kept(detector) < 8 * 6 + SLACK


def test_ids_that_pass_through_every_source():
    """An id is in the queues of many sources, again and again. It leaves nothing in those that have pushed it out."""
    detector = TwoTierDetector(window=1, expiry_secs=1_000)
    sources = [f"source-{number}" for number in range(50)]
    for number in range(400):
        for source in sources:
            detector.receive(f"{number}", source, received_at_us=number)
    assert detector.remembered_ids == 400
    assert kept(detector) < 8 * 400 + 16 * len(sources) + SLACK


def test_quiet_sources_beside_a_busy_one():
    """Entries stay in their queues for longer than the expiry."""
    detector = TwoTierDetector(window=4, expiry_secs=1)
    for number in range(20_000):
        now_us = number * 10_000
        detector.receive(f"{number}", "busy", received_at_us=now_us)
        if number % 100 == 0:
            detector.receive(f"q-{number}", f"quiet-{number // 100 % 5}", received_at_us=now_us)
    assert detector.remembered_ids < 140
    assert kept(detector) < 8 * detector.remembered_ids + SLACK
