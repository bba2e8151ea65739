"""Every figure of the analysis, compared with the naive model receipt by receipt."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_logs import Receipt, analysed, domains_of, judged, logs, repeats

from receiver.report.advice import price_setters
from receiver.simulate.figures import WORST_SOURCES
from tests.choosing import cases

WINDOWS = [0, 1, 2, 5]
EXPIRIES_US = [0, 1, 10, 60]
KEYS = st.sampled_from(["default", "destination", "connection", "receiver", "name:all"])


def figures(settings_):
    return [(s.window, s.expiry_us, s.caught, s.missed, s.peak_ids) for s in settings_]


@given(logs(), KEYS)
@cases(60)
def test_every_setting_has_the_figures_of_the_model(log, key):
    analysis = analysed(log, key, WINDOWS, EXPIRIES_US)
    duplicates = len(repeats(log, key))
    pairs = [(w, e) for w in WINDOWS for e in EXPIRIES_US if (w, e) != (0, 0)]
    expected = []
    for window, expiry_us in pairs:
        replay = judged(log, window, expiry_us, key)
        expected.append((window, expiry_us, replay.caught, duplicates - replay.caught, replay.peak_ids))
    assert figures(analysis.settings) == expected


@given(logs(), KEYS)
@cases(60)
def test_the_figures_of_each_domain(log, key):
    analysis = analysed(log, key, [2], [10])
    names = domains_of(log, key)
    assert [domain.domain for domain in analysis.domains] == sorted(set(names))
    for domain in analysis.domains:
        own = [receipt for receipt, name in zip(log, names, strict=True) if name == domain.domain]
        replay = judged(own, 2, 10, "name:own")
        assert domain.receipts == len(own)
        assert domain.sources == len({receipt.message_source_id for receipt in own})
        assert domain.duplicates == len(repeats(own, "name:own"))
        assert figures(domain.settings) == [(2, 10, replay.caught, domain.duplicates - replay.caught, replay.peak_ids)]


@given(logs(), KEYS)
@cases(60)
def test_the_figures_of_the_log(log, key):
    analysis = analysed(log, key, [1], [1])
    models = judged(log, 1, 1, key).models
    figures = analysis.log
    assert figures.receipts == len(log)
    assert figures.unchecked == sum(not receipt.unique_message_id for receipt in log)
    assert figures.duplicates == len(repeats(log, key))
    assert figures.domains == len(models) == len(analysis.domains)
    assert figures.sources == sum(domain.sources for domain in analysis.domains)
    assert figures.first_received_at_us == min(receipt.received_at_us for receipt in log)
    assert figures.last_received_at_us == max(receipt.received_at_us for receipt in log)
    assert figures.clock_clamped == sum(model.clock_clamped for model in models.values())
    assert figures.redelivered == sum(receipt.jms_redelivered for receipt in log)


def test_the_busiest_second_is_of_one_source():
    assert analysed([Receipt(1, "a", "s"), Receipt(2, "b", "t"), Receipt(3, "c", "t")]).peak_per_second == 2


def test_a_source_whose_duplicates_come_at_once_needs_some_expiry():
    analysis = analysed([Receipt(1, "a"), Receipt(1, "a")])
    assert [source.expiry_need_us for source in analysis.sources] == [analysis.evidence.expiry_need_us] == [1]
    assert "needs the longest expiry, 1 µs" in price_setters(analysis)


def test_the_next_longest_expiry_is_unsaid_if_a_source_that_is_not_listed_may_need_it():
    """The source `late` needs 98 s of E, but less of W than all that are listed."""
    late = [Receipt(1_000_000, "a", "late"), Receipt(99_000_000, "a", "late")]
    log = [Receipt(0, "a0", "s0"), Receipt(0, "b0", "s0"), *late, Receipt(100_000_000, "a0", "s0")]
    for number in range(1, WORST_SOURCES):
        log += [Receipt(100_000_000, f"{id_}{number}", f"s{number}") for id_ in "aba"]
    said = price_setters(analysed(log))
    assert "s0 needs the largest window, 2; the next needs 2. It also needs the longest expiry" in said
    assert "the next" not in said.partition("expiry")[2]


def test_the_longest_delivery_is_of_redelivered_receipts_alone_and_never_negative():
    def longest(*log):
        return analysed(log).log.max_delivery_secs

    assert longest(Receipt(5_000_000, "a", jms_redelivered=True, jms_timestamp_ms=3_500)) == 1.5
    assert longest(Receipt(5_000_000, "a", jms_redelivered=False, jms_timestamp_ms=3_500)) == 0.0
    assert longest(Receipt(5_000_000, "a", jms_redelivered=True, jms_timestamp_ms=0)) == 0.0
    assert longest(Receipt(5_000_000, "a", jms_redelivered=True, jms_timestamp_ms=9_000)) == 0.0


def test_the_longest_delivery_takes_the_time_as_read_not_the_clamped_one():
    log = [Receipt(9_000_000, "a"), Receipt(5_000_000, "b", jms_redelivered=True, jms_timestamp_ms=4_000)]
    assert analysed(log).log.max_delivery_secs == 1.0


def test_an_unchecked_receipt_counts_but_does_not_move_the_clock():
    log = [Receipt(5, "a"), Receipt(90, "", "s"), Receipt(6, "b"), Receipt(4, "c")]
    figures = analysed(log).log
    assert (figures.receipts, figures.unchecked, figures.sources) == (4, 1, 2)
    assert (figures.last_received_at_us, figures.clock_clamped) == (90, 1)


@pytest.mark.parametrize(
    "log", [[Receipt(1, "a")], [Receipt(1)], [Receipt(1), Receipt(2)], [Receipt(1, "a"), Receipt(2, "b")]]
)
def test_a_log_without_duplicates_gets_the_defaults(log):
    analysis = analysed(log)
    setting = analysis.recommendation.setting
    assert (setting.window, setting.expiry_us, setting.caught, setting.missed) == (2000, 120_000_000, 0, 0)
    assert setting.peak_ids == len({receipt.unique_message_id for receipt in log} - {""})
    said = {finding.id for finding in analysis.findings}
    assert ("no-duplicates" if setting.peak_ids else "ids-missing") in said
    assert (analysis.headroom.caught_by_source, analysis.headroom.caught_by_time) == (0, 0)
    assert analysis.sources == ()


@given(logs())
@cases(30)
def test_a_list_left_out_is_chosen_from_the_log(log):
    by_window = analysed(log, windows=[0, 3])
    assert sorted({setting.window for setting in by_window.settings}) == [0, 3]
    assert 120_000_000 in {setting.expiry_us for setting in by_window.settings}
    by_expiry = analysed(log, expiries_us=[5])
    assert {setting.expiry_us for setting in by_expiry.settings} == {5}
    assert 2000 in {setting.window for setting in by_expiry.settings}
    free = analysed(log)
    pairs = [(setting.window, setting.expiry_us) for setting in free.settings]
    assert pairs == sorted(set(pairs))
    assert (0, 0) not in pairs
    assert free.settings[-1].missed == 0
