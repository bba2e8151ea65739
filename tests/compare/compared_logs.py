"""Logs whose ids every policy can judge, and the verdicts of the readable policies on them."""

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from hypothesis import strategies as st

from receiver.policies import policy
from tests.simulate.small_logs import Receipt, domains_of

PLAIN = ["a", "b", "c", "d", "e", "f", "é", "a "]
SEQUENCE = [
    *["1:a", "2:a", "3:a", "02:a", "10:a", "1:b", "2:b", "0:", "5:", "1:x:y", "2:x:y", "0:a"],
    *["18446744073709551615:a", "18446744073709551616:a", "9" * 1000 + ":a", "1" + "0" * 999 + ":a", "0" * 999 + "4:a"],
]
RGMID = [
    f"rmid1:{origin}-00000000-{number}"
    for origin in ("0d77c-b0b2e66aece", "0d77c-b0b2e66aecf")
    for number in ("00000001", "00000002", "0000000a", "0000000A")
] + ["rmid1:0d77c-b0b2e66aece-ffffffff-ffffffff", "rmid1:0D77C-B0B2E66AECE-00000000-00000002"]
SIZES = [0, 1, 2, 3, 5, 10**12]
SECS = ["0", "0.000001", "0.000007", "0.00001", "0.00005", "1000000000000"]

sizes, secs = st.sampled_from(SIZES), st.sampled_from(SECS)
by_id = st.one_of(
    st.builds("apama:window={},expiry={}".format, sizes, secs).filter(lambda text: text != "apama:window=0,expiry=0"),
    st.builds("artemis:id_cache_size={}".format, sizes),
    st.builds("lru:size={}".format, sizes.filter(bool)),
    st.builds("ttl:expiry={}".format, secs),
    st.builds("cmq:retention={},retry={},network={}".format, secs, secs, secs),
    st.sampled_from(["perfect", "solace-lookup"]),
)
"""Texts of policies that take any id."""


@st.composite
def logs(draw, ids: Sequence[str], *, most: int = 40) -> list[Receipt]:
    """Logs with many repeats, and with ties, pauses, clocks that step back, receipts without id, and several
    domains."""
    steps = draw(st.lists(st.sampled_from([0, 0, 1, 3, 10, 40, -7]), min_size=1, max_size=most))
    times_us = np.maximum(0, 20 + np.cumsum(steps)).tolist()
    parts = {
        "unique_message_id": st.sampled_from([*ids, ""]),
        "message_source_id": st.sampled_from(["", "s", "t"]),
        "destination": st.sampled_from(["queue://q", "topic://t"]),
    }
    return [Receipt(time_us, **draw(st.fixed_dictionaries(parts))) for time_us in times_us]


class Judged(NamedTuple):
    verdicts: list[str]
    peak_ids: int


def judged(log: Sequence[Receipt], text: str, key: str = "default") -> Judged:
    """The verdicts of the readable policy, with one policy for each domain."""
    policies = defaultdict(lambda: policy(text))
    verdicts = [
        policies[domain].receive(
            receipt.unique_message_id, receipt.message_source_id, received_at_us=receipt.received_at_us
        )
        for domain, receipt in zip(domains_of(log, key), log, strict=True)
    ]
    peak_ids = sum(one.peak_ids for one in policies.values())
    return Judged([str(decision.verdict) for decision in verdicts], peak_ids)
