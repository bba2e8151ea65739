"""Every compiled policy gives each verdict and every peak of the readable one."""

import random

import pytest
from compared_logs import PLAIN, RGMID, SEQUENCE, by_id, judged, logs
from hypothesis import given
from hypothesis import strategies as st

from receiver.compare.engine import compare_policies, verdict_batches
from receiver.policies import POLICIES
from receiver.simulate.whole import verdict_schema
from tests.choosing import cases
from tests.simulate.small_logs import Receipt, domains_of, ingested

TEXTS = ["apama", "artemis", "solace-lookup", "solace-last", "cmq:retention=0.00001,retry=0,network=0.000002"]
TEXTS += ["ttl:expiry=0.00002", "sequence", "perfect"]
NAMED = {text.partition(":")[0] for text in TEXTS}
# A policy that isn't named above is tried too.
TEXTS += [
    ":".join(filter(None, (kind.name, ",".join(f"{p.name}={'0.00002' if p.is_time else 20}" for p in kind.parameters))))
    for kind in POLICIES
    if kind.declaration.compiled_policy is not None and kind.name not in NAMED
]
long_numbers = st.lists(st.builds("{}{}:a".format, st.sampled_from(["", "00"]), st.integers(0, 10**40)), min_size=1)
CASES = st.one_of(
    st.tuples(long_numbers.flatmap(logs), st.just(["sequence"])),
    st.tuples(logs(PLAIN), st.lists(by_id, min_size=1, max_size=4, unique=True)),
    st.tuples(logs(SEQUENCE), st.just(["sequence"])),
    st.tuples(logs(RGMID), st.just(["solace-last"])),
    st.tuples(
        logs(RGMID[:2] + RGMID[4:6]), st.lists(by_id, max_size=3, unique=True).map(lambda t: ["solace-last", *t])
    ),
    st.tuples(logs(SEQUENCE[:8]), st.lists(by_id, max_size=3, unique=True).map(lambda t: [*t, "sequence"])),
)


def rows_of(log, texts, key):
    receipts = ingested(log, key)
    compared = compare_policies(receipts, key, texts, with_verdicts=True)
    batches = list(verdict_batches(receipts, compared))
    assert all(batch.schema == verdict_schema(texts) for batch in batches)
    return compared.comparison, [row for batch in batches for row in batch.to_pylist()]


def check(log, texts, key):
    comparison, rows = rows_of(log, texts, key)
    by_policy = {text: judged(log, text, key) for text in texts}
    expected = zip(domains_of(log, key), log, strict=True)
    assert rows == [
        {
            "row": number,
            "domain": domain,
            "unique_message_id": receipt.unique_message_id,
            "message_source_id": receipt.message_source_id,
        }
        | {text: by_policy[text].verdicts[number] for text in texts}
        for number, (domain, receipt) in enumerate(expected)
    ]
    assert {figures.policy: figures.peak_ids for figures in comparison.policies} == {
        text: one.peak_ids for text, one in by_policy.items()
    }


@given(CASES, st.sampled_from(["default", "name:x"]))
@cases(300)
def test_a_compiled_policy_judges_as_the_readable_policy_does(case, key):
    check(*case, key)


def test_every_policy_is_tried():
    names = {text.partition(":")[0] for text in TEXTS}
    assert names == {kind.name for kind in POLICIES if kind.declaration.compiled_policy is not None}


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("form", ["{1}:{0}", "rmid1:0000{0}-00000000000-00000000-{1:08x}"])
def test_large_domains_are_judged_by_several_threads_alike(seed, form):
    """The domain is so large that its policies are spread over the processors."""
    draw = random.Random(seed)
    log, now_us = [], 0
    for row in range(30_000):
        now_us += draw.choice([0, 1, 1, 5, -3])
        id_ = form.format(draw.randrange(3), max(0, row // 3 - draw.choice([0, 0, 0, 2, 40])))
        log.append(Receipt(max(0, now_us), id_, destination=draw.choice(["q"] * 9 + ["r"])))
    fit = [text for text in TEXTS if text != ("solace-last" if form.startswith("{") else "sequence")]
    check(log, [*fit, "apama:window=20,expiry=0.00002", "artemis:id_cache_size=30"], "default")
