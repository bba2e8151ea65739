"""Needs by their definition: the smallest setting of one tier under which the model catches the duplicate."""

import numpy as np
from hypothesis import given, settings
from small_logs import SECOND_US, Receipt, ingested, judged, logs, repeats

from receiver.simulate.needs import needs_of
from receiver.simulate.replay import split_domains


def needs_by_row(log, key="default"):
    found = {}
    for domain in split_domains(ingested(log, key)):
        needs = needs_of(domain.rows)
        for row, window, expiry_us in zip(
            domain.log_rows[needs.row].tolist(), needs.window.tolist(), needs.expiry_us.tolist(), strict=True
        ):
            found[row] = window, expiry_us
    return found


@given(logs(most=25))
@settings(max_examples=60)
def test_needs_are_the_smallest_settings_that_catch(log):
    needs = needs_by_row(log)
    assert sorted(needs) == repeats(log)
    replays = {}

    def caught(row, window, expiry_us):
        if (window, expiry_us) not in replays:
            replays[window, expiry_us] = judged(log, window, expiry_us).verdicts
        return replays[window, expiry_us][row] == "duplicate"

    for row, (window, expiry_us) in needs.items():
        assert caught(row, window, 0)
        assert not caught(row, window - 1, 0)
        assert caught(row, 0, max(1, expiry_us))
        assert not caught(row, 0, expiry_us - 1) if expiry_us else True


def test_an_id_of_several_sources_needs_the_window_of_the_nearest():
    log = [Receipt(1, "x", "far"), *(Receipt(2, f"{n}", "far") for n in range(5)), Receipt(3, "x", "near")]
    again = Receipt(4, "x", "third")
    assert needs_by_row([*log, again]) == {6: (6, 1), 7: (1, 0)}


def test_long_distances_are_counted_by_blocks():
    """More ids than a block of the count holds, some of them coming again in between."""
    rng = np.random.default_rng(11)
    fill = [f"{number}" for number in rng.integers(0, 9_000, 20_000).tolist()]
    log = [Receipt(0, "x"), *(Receipt(SECOND_US, id_) for id_ in fill), Receipt(2 * SECOND_US, "x")]
    assert needs_by_row(log)[len(log) - 1] == (len(set(fill)) + 1, SECOND_US)
