"""Comparisons to report on: a plausible one, a hostile one, one where all policies agree, one of a log without
duplicates."""

from __future__ import annotations

from dataclasses import replace

from analyses import HOSTILE_TEXTS, realistic, sized

from receiver.compare import Cause, ComparedDomain, Comparison, Dispute, PolicyFigures
from receiver.simulate.figures import Finding, Kind, Recommendation, SettingFigures

NAMES = (
    "apama",
    "artemis",
    "artemis:id_cache_size=100",
    "solace-lookup",
    "cmq:retention=345600,retry=43200,network=60",
    "ttl:expiry=2",
    "sequence",
    "apama:window=200,expiry=5",
    "perfect",
)
DUPLICATES = 941
MISSED = {
    2: {Cause.EVICTED: 12, Cause.NOT_REFRESHED: 25},
    5: {Cause.EXPIRED: 400, Cause.NOT_REFRESHED: 1},
}
FALSE = {6: {Cause.SEQUENCE_GAP: 1_204}}
PEAKS = (104_598, 20_000, 200, 214_340, 214_340, 5_120, 15, 6_500, 214_340)


def policy_of(index: int) -> PolicyFigures:
    missed, false = MISSED.get(index, {}), FALSE.get(index, {})
    return PolicyFigures(
        policy=NAMES[index],
        caught=DUPLICATES - sum(missed.values()),
        missed=sum(missed.values()),
        false_duplicates=sum(false.values()),
        peak_ids=PEAKS[index],
        memory_bytes=PEAKS[index] * 205,
        missed_causes=missed,
        false_causes=false,
    )


def dispute(row: int, wrong: dict[int, Cause], *, is_duplicate: bool) -> Dispute:
    return Dispute(
        row=row,
        domain="queue://orders",
        unique_message_id=f"{row}:gateway-{row % 7}.eu:51001:S0{row % 7}",
        message_source_id=f"gateway-{row % 7}.eu:51001:S0{row % 7}",
        received_at_us=1_767_225_600_000_000 + row * 1_400,
        is_duplicate=is_duplicate,
        earlier_row=row - 1_000 if is_duplicate else None,
        age_us=row * 1_700 if is_duplicate else None,
        duplicate_by=tuple(is_duplicate != (index in wrong) for index in range(len(NAMES))),
        causes=tuple(wrong.get(index) for index in range(len(NAMES))),
    )


def domain_of(name: str) -> ComparedDomain:
    every = range(len(NAMES))
    return ComparedDomain(name, 100, 9, tuple(9 - index for index in every), tuple(every), tuple(PEAKS))


def comparison() -> Comparison:
    """Nine policies on the log of the realistic analysis."""
    setting = SettingFigures(200, 5_000_000, DUPLICATES, 0, 6_500)
    missed = {2: Cause.EVICTED, 5: Cause.EXPIRED}
    return Comparison(
        key="default",
        log=replace(realistic().log, duplicates=DUPLICATES),
        policies=tuple(map(policy_of, range(len(NAMES)))),
        domains=tuple(map(domain_of, ("queue://orders", "queue://payments"))),
        disputed=1_642,
        disputes=(
            dispute(1_234, {2: Cause.NOT_REFRESHED}, is_duplicate=True),
            *(dispute(1_300 + number, missed, is_duplicate=True) for number in range(6)),
            *(dispute(215_000 + number, {6: Cause.SEQUENCE_GAP}, is_duplicate=False) for number in range(3)),
        ),
        crossed_domains=475,
        left_out=(("solace-last", "receipt 0: 'a' isn't a replication group message id"),),
        recommendation=Recommendation(sized(Kind.BOTH, setting), (2_000, 120_000_000), 2.0, "This log needed W = 97."),
        doubts=(Finding("old-times", "The times begin at 1970-01-01T00:00:00.000000Z."),),
    )


def hostile() -> Comparison:
    """A comparison with hostile texts, which do harm if they aren't escaped. A policy's text may have spaces and
    line breaks."""
    plain = comparison()
    texts = [f"artemis:id_cache_size=\n{text}" for text in HOSTILE_TEXTS[: len(NAMES)]]
    return replace(
        plain,
        key="name:" + HOSTILE_TEXTS[0],
        policies=tuple(replace(figures, policy=text) for figures, text in zip(plain.policies, texts, strict=True)),
        disputes=tuple(
            replace(plain.disputes[0], domain=text, unique_message_id=text, message_source_id=text)
            for text in HOSTILE_TEXTS
        ),
        left_out=tuple((text, text) for text in HOSTILE_TEXTS),
        doubts=tuple(Finding("id-reuse", text) for text in HOSTILE_TEXTS),
    )


def agreeing() -> Comparison:
    """A comparison of policies that are never wrong."""
    plain = comparison()
    return replace(
        plain,
        policies=tuple(plain.policies[index] for index in (0, 3, 8)),
        domains=(),
        disputed=0,
        disputes=(),
        crossed_domains=0,
        left_out=(),
        recommendation=None,
        doubts=(),
    )


def alone() -> Comparison:
    """A comparison with a single policy, which is wrong in both ways."""
    plain = comparison()
    both = replace(plain.policies[6], caught=900, missed=41, missed_causes={Cause.EVICTED: 41}, false_causes=FALSE[6])
    return replace(agreeing(), policies=(both,))


def without_duplicates() -> Comparison:
    """A comparison on a log that repeats no id."""
    plain = agreeing()
    return replace(
        plain,
        log=replace(plain.log, duplicates=0),
        policies=tuple(replace(figures, caught=0, missed=0) for figures in plain.policies),
    )


ALL = (comparison, hostile, agreeing, alone, without_duplicates)
