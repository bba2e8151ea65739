"""A comparison's figures for a log, against plain counts of the readable policies' verdicts."""

from dataclasses import replace

import pytest
from compared_logs import PLAIN, RGMID, SEQUENCE, by_id, judged, logs
from hypothesis import example, given
from hypothesis import strategies as st

from receiver.compare import Cause, Dispute
from receiver.compare.engine import compare_policies
from receiver.errors import IdFormatError, SettingsError
from receiver.policies import POLICIES, policy
from receiver.policies.names import compared_by_default, stated_policies
from receiver.settings import CompareSettings
from receiver.simulate.findings import DOUBTS
from tests.choosing import cases
from tests.simulate.small_logs import Receipt, analysed, domains_of, ingested

CASES = st.one_of(
    st.tuples(logs(PLAIN), st.lists(by_id, min_size=1, max_size=4, unique=True)),
    st.tuples(logs(SEQUENCE), st.just(["perfect", "sequence", "artemis:id_cache_size=2"])),
    st.tuples(logs(RGMID), st.just(["solace-last", "ttl:expiry=0.00001"])),
)
SEVERAL = st.sampled_from(["default", "name:x"])


def compared(log, texts=(), key="default"):
    return compare_policies(ingested(log, key), key, texts).comparison


def ids_of(text_of_ids, **columns):
    """A log of these ids, one microsecond apart."""
    return [Receipt(row, id_, **columns) for row, id_ in enumerate(text_of_ids.split())]


class Plain:
    """A log's receipts, and the facts about each that need no policy."""

    def __init__(self, log, key):
        self.log, self.domains = log, domains_of(log, key)
        self.earlier, newest, latest_us, self.times = [], {}, {}, []
        for row, (domain, receipt) in enumerate(zip(self.domains, log, strict=True)):
            id_ = receipt.unique_message_id
            self.earlier.append(newest.get((domain, id_)) if id_ else None)
            if id_:
                newest[domain, id_] = row
                latest_us[domain] = max(receipt.received_at_us, latest_us.get(domain, 0))
            self.times.append(latest_us.get(domain, 0))

    def cause(self, text, verdicts, row):
        """Why the policy is wrong about a receipt; None if it is right."""
        rule, earlier = policy(text), self.earlier[row]
        if (verdicts[row] == "duplicate") == (earlier is not None):
            return None
        if earlier is None:
            return Cause.SEQUENCE_GAP
        size, limit_us = rule.sizes
        if rule.name in {"apama", "lru"}:
            return Cause.EXPIRED if limit_us else Cause.EVICTED
        if rule.name == "solace-last":
            return Cause.OTHER_ORIGIN
        if rule.name == "artemis":
            between = [r for r in range(earlier + 1, row) if self.domains[r] == self.domains[row]]
            accepted = sum(verdicts[r] == "new" for r in between)
            return Cause.NOT_REFRESHED if accepted < size else Cause.EVICTED
        age_us = self.times[row] - self.times[earlier]
        return Cause.NOT_REFRESHED if age_us <= limit_us else Cause.EXPIRED


@given(CASES, SEVERAL)
@cases(200)
def test_counts_and_causes_are_those_of_the_verdicts(case, key):
    log, texts = case
    plain = Plain(log, key)
    duplicates = sum(earlier is not None for earlier in plain.earlier)
    comparison = compared(log, texts, key)
    for figures, text in zip(comparison.policies, texts, strict=True):
        verdicts = judged(log, text, key).verdicts
        causes = [plain.cause(text, verdicts, row) for row in range(len(log))]
        missed = [cause for row, cause in enumerate(causes) if cause and plain.earlier[row] is not None]
        false = [cause for row, cause in enumerate(causes) if cause and plain.earlier[row] is None]
        assert figures.policy == text
        assert (figures.caught, figures.missed) == (duplicates - len(missed), len(missed))
        assert figures.false_duplicates == len(false)
        assert figures.missed_causes == {cause: missed.count(cause) for cause in set(missed)}
        assert figures.false_causes == {cause: false.count(cause) for cause in set(false)}
        assert figures.memory_bytes == figures.peak_ids * CompareSettings().memory_bytes_per_id[policy(text).name]
    assert comparison.log.duplicates == duplicates
    assert comparison.log == analysed(log, key).log
    assert [domain.domain for domain in comparison.domains] == sorted(set(plain.domains))
    for domain in comparison.domains:
        rows = [row for row, name in enumerate(plain.domains) if name == domain.domain]
        repeats = [row for row in rows if plain.earlier[row] is not None]
        assert (domain.receipts, domain.duplicates) == (len(rows), len(repeats))
        for index, text in enumerate(texts):
            called = {row for row in rows if judged(log, text, key).verdicts[row] == "duplicate"}
            assert domain.caught[index] == len(called & set(repeats))
            assert domain.false_duplicates[index] == len(called - set(repeats))
    for index, figures in enumerate(comparison.policies):
        assert figures.peak_ids == sum(domain.peak_ids[index] for domain in comparison.domains)


MANY_WAYS = [
    *[Receipt(9), Receipt(9, "first")],
    *(
        Receipt(0, id_)
        for number, between in enumerate([1] * 11 + list(range(2, 13)))
        for id_ in (f"{number}", *(f"{number}.{other}" for other in range(between)), f"{number}")
    ),
]
"""A log on which rings of 1 to 13 slots differ in twelve ways; in the first way eleven times. Its clock was set
back, and not every receipt has an id."""


@given(CASES, SEVERAL)
@example((MANY_WAYS, [f"artemis:id_cache_size={size}" for size in range(1, 14)]), "default")
@cases(200)
def test_disputes_are_the_receipts_on_which_policies_differ(case, key):
    log, texts = case
    plain = Plain(log, key)
    verdicts = [judged(log, text, key).verdicts for text in texts]
    disputed = [row for row in range(len(log)) if len({each[row] for each in verdicts}) > 1]
    ways = {tuple(each[row] for each in verdicts): row for row in reversed(disputed)}
    chosen = sorted(ways.values())[:10]
    chosen = [*chosen, *(row for row in disputed if row not in chosen)][:10]
    for each in verdicts:
        missed = [row for row in disputed if plain.earlier[row] is not None and each[row] == "new"]
        chosen += missed if len(missed) <= 10 else []
    chosen = sorted(set(chosen))
    comparison = compared(log, texts, key)
    assert comparison.disputed == len(disputed)
    assert comparison.disputes == tuple(
        Dispute(
            row=row,
            domain=plain.domains[row],
            unique_message_id=log[row].unique_message_id,
            message_source_id=log[row].message_source_id,
            received_at_us=log[row].received_at_us,
            is_duplicate=plain.earlier[row] is not None,
            earlier_row=plain.earlier[row],
            age_us=None if plain.earlier[row] is None else plain.times[row] - plain.times[plain.earlier[row]],
            duplicate_by=tuple(each[row] == "duplicate" for each in verdicts),
            causes=tuple(plain.cause(text, each, row) for text, each in zip(texts, verdicts, strict=True)),
        )
        for row in chosen
    )


@cases()
@given(logs(PLAIN), SEVERAL)
def test_an_id_that_is_new_in_a_second_domain_has_crossed(log, key):
    seen, crossed = {}, 0
    for domain, receipt in zip(domains_of(log, key), log, strict=True):
        domains = seen.setdefault(receipt.unique_message_id, set())
        crossed += bool(receipt.unique_message_id and domains and domain not in domains)
        domains.add(domain)
    assert compared(log, ["perfect"], key).crossed_domains == crossed


def test_each_cause_by_hand():
    """Rows 0 a, 1 b, 2 a, 3 c, 4 a. At the end a ring of 2 holds b and c, although a came again just before c."""
    ring, window = compared(ids_of("a b a c a"), ["artemis:id_cache_size=2", "ttl:expiry=0.000003"]).policies
    assert (ring.missed_causes, window.missed_causes) == ({Cause.NOT_REFRESHED: 1}, {Cause.NOT_REFRESHED: 1})
    ring, window = compared(ids_of("a b c d a"), ["artemis:id_cache_size=2", "ttl:expiry=0.000003"]).policies
    assert (ring.missed_causes, window.missed_causes) == ({Cause.EVICTED: 1}, {Cause.EXPIRED: 1})
    tiers = ["apama:window=1,expiry=0", "apama:window=1,expiry=0.000001"]
    assert [figures.missed_causes for figures in compared(ids_of("a b c d e a"), tiers).policies] == [
        {Cause.EVICTED: 1},
        {Cause.EXPIRED: 1},
    ]
    (last,) = compared(ids_of(f"{RGMID[0]} {RGMID[4]} {RGMID[0]}"), ["solace-last"]).policies
    assert last.missed_causes == {Cause.OTHER_ORIGIN: 1}
    (highest,) = compared(ids_of("1:a 3:a 2:a"), ["sequence"]).policies
    assert (highest.false_causes, highest.missed_causes, highest.peak_ids) == ({Cause.SEQUENCE_GAP: 1}, {}, 1)


def test_without_names_all_that_can_judge_are_compared_and_the_recommended_setting():
    log = ids_of("1:s 2:s 1:s 3:s 4:s 1:s")
    comparison = compared(log)
    recommended = analysed(log).recommendation
    assert comparison.recommendation == recommended
    window, secs = recommended.setting.window, recommended.setting.expiry_us // 1_000_000
    texts = [figures.policy for figures in comparison.policies]
    recommended_text = f"apama:window={window},expiry={secs}"
    fitted = ["artemis:id_cache_size=8", "lru:size=6", "ttl:expiry=1", "apama:window=6,expiry=1"]
    assert set(texts) == set(compared_by_default()) - {"solace-last"} | {*fitted, recommended_text}
    written = [
        *["apama:window=2000,expiry=120", "artemis:id_cache_size=20000"],
        "cmq:retention=43200,retry=0,network=0",
        *["ttl:expiry=300", "ttl:expiry=600", "ttl:expiry=120", "sequence", "perfect"],
        *fitted,
        recommended_text,
    ]
    # Apama's defaults are kept, and each policy is tried only once.
    assert [text for text in texts if text in written] == list(dict.fromkeys(written))
    ((left_out, reason),) = comparison.left_out
    assert left_out == "solace-last"
    assert "row 0" in reason
    assert "1:s" in reason
    assert compared(log, texts).policies == tuple(replace(each, is_fitted=False) for each in comparison.policies)


def test_without_names_the_log_is_doubted_as_by_simulate():
    log = ids_of(" ".join(f"{number % 40}:s" for number in range(100)))
    doubted = [finding for finding in analysed(log).findings if finding.id in DOUBTS]
    assert {"ids-repeated", "old-times"} <= {finding.id for finding in doubted}
    assert compared(log).doubts == tuple(doubted)
    assert compared(log, ["perfect"]).doubts == ()


def test_a_recommendation_that_is_there_already_stands_once():
    """A log without duplicates gives no advice, so the defaults are recommended."""
    comparison = compared(ids_of("a b c"))
    texts = [figures.policy for figures in comparison.policies]
    assert len(texts) == len(set(texts))
    assert [text for text in texts if text.startswith("apama")] == ["apama:window=2000,expiry=120"]
    assert [text for text, _ in comparison.left_out] == ["solace-last", "sequence"]


def test_solace_last_judges_its_own_ids_by_default():
    comparison = compared(ids_of(" ".join(RGMID)))
    assert [text for text, _ in comparison.left_out] == ["sequence"]


def test_a_log_without_ids_can_be_compared():
    comparison = compared([Receipt(0), Receipt(1)])
    assert all(figures.peak_ids == figures.caught == figures.missed == 0 for figures in comparison.policies)
    assert comparison.left_out == ()
    assert comparison.crossed_domains == 0


@pytest.mark.parametrize(
    ("texts", "named"),
    [
        (["perfect", "perfect"], "twice"),
        (["cmq:retry=1,network=2"], "advance"),
        (["artemsi"], "did you mean artemis"),
        (["ttl"], "lacks expiry="),
    ],
)
def test_what_cannot_be_compared_is_refused_before_the_log_is_read(texts, named):
    for refuse in (stated_policies, lambda texts: compared(ids_of("a b"), texts)):
        with pytest.raises(SettingsError, match=named):
            refuse(texts)


def test_equal_policies_under_two_texts_are_fine():
    first, second = compared(ids_of("a b a"), ["artemis", "artemis:id_cache_size=20000"]).policies
    assert (first.policy, second.policy) == ("artemis", "artemis:id_cache_size=20000")
    assert first.caught == second.caught == 1


@pytest.mark.parametrize("text", ["sequence", "solace-last"])
def test_a_policy_asked_for_that_cannot_judge_an_id_names_it(text):
    good = {"sequence": "1:s", "solace-last": RGMID[0]}[text]
    log = [Receipt(0), *ids_of(f"{good} bad worse"), Receipt(9, "bad")]
    with pytest.raises(IdFormatError, match=f"policy '{text}' can't judge this log: in row 2, 'bad'"):
        compared(log, ["perfect", text])


def test_progress_is_told_of_each_domain():
    log = [Receipt(0, "a"), Receipt(1, "a", destination="r"), Receipt(2, destination="s")]
    for texts in ((), ["perfect"]):
        reported = []
        receipts = ingested(log)
        compare_policies(receipts, "default", texts, advance=reported.append)
        assert reported == [1] * len(receipts.domains)


def test_the_vendors_defaults_name_each_rule_there_is():
    names = {stated.name for stated in stated_policies(list(compared_by_default()))}
    assert names == {
        kind.name
        for kind in POLICIES
        if kind.declaration.compiled_policy is not None and kind.declaration.same_rule_as is None
    }
    assert names | {"solace-lookup"} >= set(CompareSettings().memory_bytes_per_id)


def test_one_rule_has_one_row_unless_both_of_its_names_are_asked_for():
    log = ids_of("1:s 2:s 1:s")
    assert [f.policy for f in compared(log).policies if f.policy in {"perfect", "solace-lookup"}] == ["perfect"]
    one, other = compared(log, ["solace-lookup", "perfect"]).policies
    assert (one.policy, other.policy) == ("solace-lookup", "perfect")
    assert (one.caught, one.peak_ids, one.memory_bytes) == (other.caught, other.peak_ids, other.memory_bytes)


@pytest.mark.parametrize("sizes", [None, {"perfect": 0}, {"perfect": "x"}])
def test_bytes_that_cannot_be_meant_are_refused(sizes):
    with pytest.raises(SettingsError, match="memory_bytes_per_id"):
        CompareSettings(memory_bytes_per_id=sizes)


def test_a_settings_file_that_lacks_a_policy_is_refused():
    with pytest.raises(SettingsError, match="lacks ttl"):
        CompareSettings(memory_bytes_per_id={"perfect": 1}).memory_bytes("ttl", 1)


@pytest.mark.parametrize(("late", "shown"), [(3, 3), (10, 10), (11, 1)])
def test_every_miss_of_a_policy_that_misses_few_is_shown(late, shown):
    soon = [Receipt(at * 1_000_000, f"{at // 4}", "s") for at in range(200) if at % 4 in {0, 2}]
    firsts = [Receipt(300_000_000 + number, f"late {number}", "s") for number in range(late)]
    again = [first._replace(received_at_us=first.received_at_us + 10_000_000) for first in firsts]
    comparison = compared([*soon, *firsts, *again], ["ttl:expiry=1", "ttl:expiry=5", "perfect"], "destination")
    assert [figures.missed for figures in comparison.policies] == [50 + late, late, 0]
    rows = [dispute.row for dispute in comparison.disputes if not dispute.duplicate_by[1]]
    assert rows == list(range(100 + late, 100 + late + shown))
    assert [dispute.row for dispute in comparison.disputes] == sorted({dispute.row for dispute in comparison.disputes})
