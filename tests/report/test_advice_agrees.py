"""The decision and the findings agree. Both are read as a person would read them, on logs of every kind.

If a sentence advises to raise, lower, set or keep W or E, the decision does so too.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from receiver.domains import domain_key
from receiver.logs import ReadOptions, read_logs
from receiver.logs.writer import open_table
from receiver.report.advice import decision
from receiver.report.document import Items, Text
from receiver.report.sizing import analysis_document
from receiver.settings import ReceiverSettings, SimulateSettings
from receiver.simulate.analysis import analyse
from receiver.simulate.figures import Analysis
from receiver.simulate.ingest import Receipts, ingest
from receiver.simulate.question import Question
from receiver.simulate.scenarios import SCENARIOS, ScenarioPlan
from receiver.simulate.synthetic import SYNTHETIC_SCHEMA, batches
from receiver.simulate.whole import WholeLog
from tests.choosing import cases
from tests.simulate.small_logs import SECOND_US, ingested, logs

SAMPLE = Path(__file__).parents[2] / "examples" / "artemis-receipts.csv.gz"
DEFAULT = ReceiverSettings().sizes
SMALL, LARGE = (3, 100_000), (50_000, 7_200 * SECOND_US)


class Read(NamedTuple):
    """A decision, read from its words."""

    verb: dict[str, str]
    """What the decision does to W, and to E."""
    size: dict[str, float]
    """W, and E in seconds."""
    by_memory: bool = False
    """Whether memory decided, rather than the present setting and the log."""


def read(said: str) -> Read:
    begins = re.match(
        r"(Keep|Raise|Lower)(?: the defaults,)? W (?:= |from ([\d,]+) to )([\d,]+) ids? per source "
        r"and (?:(keep|raise|lower) )?E (?:= |from ([\d,.]+) s to )([\d,.]+) s\.",
        said,
    )
    assert begins, said
    verb, old_window, window, other, old_expiry, expiry = begins.groups()
    verbs = {"W": verb.lower(), "E": other or verb.lower()}
    olds, sizes = {"W": old_window, "E": old_expiry}, {"W": number(window), "E": number(expiry)}
    for tier, old in olds.items():
        assert (old is None) is (verbs[tier] == "keep")
        assert old is None or (verbs[tier] == "raise") is (sizes[tier] > number(old))
    return Read(verbs, sizes)


def number(text: str) -> float:
    return float(text.replace(",", ""))


UNITS = {"µs": 1e-6, "ms": 1e-3, "s": 1, "min": 60, "h": 3_600, "d": 86_400}
NUMBER = r"\d(?:[\d,]*\d)?(?:\.\d+)?"
SIZE = rf"(?:= |to |at |least )*((?:{NUMBER} ?(?:µs|ms|s|min|h|d)?\b ?)*)"
TOLD = re.compile(rf"\b(keep|raise|lower|increase|reduce|set) (?:(w|e|the window|the expiry)\b ?{SIZE})?")
TIERS = {"w": "W", "the window": "W", "e": "E", "the expiry": "E"}
MEANT = {"increase": "raise", "reduce": "lower"}


def secs_or_ids(text: str) -> float:
    parts = re.findall(rf"({NUMBER}) ?(µs|ms|s|min|h|d)?\b", text)
    return sum(number(amount) * UNITS.get(unit, 1) for amount, unit in parts)


def contradictions(sentence: str, advised: Read) -> list[str]:
    """The advice of a sentence that the decision doesn't follow, and the sentence's wrong claims on the advised
    setting."""
    found = []
    for verb, what, size in TOLD.findall(sentence.lower()):
        tier, least = TIERS.get(what), secs_or_ids(size)
        if MEANT.get(verb, verb) == "lower":
            is_done = "lower" in advised.verb.values()
        elif tier is None:
            is_done = True
        elif least:  # so much, or more
            is_done = advised.size[tier] >= 0.999 * least
        else:
            is_done = advised.verb[tier] == MEANT.get(verb, verb)
        found += [] if is_done else [f"{verb} {what} {size}".strip()]
    if "may be missed" in sentence and not advised.by_memory:
        found.append("may be missed")
    if "asks for nothing" in sentence and "raise" in advised.verb.values():
        found.append("asks for nothing")
    return found + [size for size in re.findall(f"with W = ({NUMBER})", sentence) if number(size) != advised.size["W"]]


def check(analysis: Analysis) -> Read:
    said, setting = decision(analysis), analysis.recommendation.setting
    advised = read(said)._replace(by_memory=analysis.recommendation.risk.startswith("Memory decides"))
    assert advised.size == {"W": setting.window, "E": setting.expiry_us / 1_000_000}
    texts = [finding.text for finding in analysis.findings]
    for block in analysis_document(analysis).blocks:
        if block.section == "systems":  # they have other settings
            continue
        match block.content:
            case Items(texts=items):
                texts += items
            case Text(text) if not text.startswith("The log itself supports"):  # it tells what lowering would save
                texts.append(text)
    sentences = [sentence for text in texts for sentence in re.split(r"(?<=[.?]) ", text)]
    assert len(sentences) > 8
    assert {sentence: found for sentence in sentences if (found := contradictions(sentence, advised))} == {}
    return advised


def check_all(receipts: Receipts, key: str) -> set[str]:
    """Check a log with several present settings, and with no memory to spare. Returns what became of W and of E."""
    log, verbs = WholeLog(receipts), set()
    for present, budget_bytes in ((DEFAULT, 10**9), (SMALL, 10**9), (LARGE, 10**12), (DEFAULT, 1), (SMALL, 1)):
        settings = SimulateSettings(budget_bytes=budget_bytes)
        analysis = analyse(log, Question(key, [1], [1], settings, present))
        advised = check(analysis)
        assert ("lower" in advised.verb.values()) <= (budget_bytes == 1)
        verbs |= set(advised.verb.values())
    return verbs


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_on_generated_logs(scenario, seed, tmp_path):
    plan = ScenarioPlan(scenario=scenario, receipts=3_000, seed=seed, duplicates=0.02 + 0.1 * seed)
    with open_table(tmp_path / "log.parquet", SYNTHETIC_SCHEMA) as write:
        for batch in batches(plan):
            write(batch)
    key = ("default", "destination")[seed % 2]
    receipts = ingest(read_logs([str(tmp_path / "log.parquet")], ReadOptions()), domain_key(key))
    assert check_all(receipts, key) == {"keep", "raise", "lower"}


@cache
def sample(key: str) -> Receipts:
    return ingest(read_logs([str(SAMPLE)], ReadOptions()), domain_key(key))


@pytest.mark.slow
@pytest.mark.parametrize("key", ["default", "destination"])
def test_on_the_recorded_log(key):
    assert check_all(sample(key), key) == {"keep", "raise", "lower"}


LOGS = logs(most=30).map(
    lambda log: [
        receipt._replace(
            received_at_us=receipt.received_at_us * SECOND_US,
            jms_timestamp_ms=1_000 * max(1, receipt.received_at_us - 9 * n),
        )
        for n, receipt in enumerate(log)
    ]
)


@given(LOGS, st.sampled_from(["default", "destination", "name:x"]))
@cases(120)
def test_on_logs_of_any_kind(log, key):
    check_all(ingested(log, key), key)


@pytest.mark.parametrize(
    ("sentence", "found"),
    [
        ("Before you lower E, raise W to at least 4,689.", ["lower e", "raise w 4,689"]),
        ("Raise E to at least 10 s, or W to at least 6,000.", []),
        ("Raise E to at least 2 min 1 s.", ["raise e 2 min 1 s"]),
        ("Replay days that hold an outage before you lower a setting.", ["lower"]),
        ("So raise W.", ["raise w"]),
        ("Keep E at 7.29 s or more.", []),
        ("So a redelivery at the peak may be missed.", ["may be missed"]),
        ("Of the ids remembered at the peak with W = 360, such sources keep up to 3.", ["360"]),
    ],
)
def test_this_reader_sees_a_contradiction(sentence, found):
    advised = read("Keep the defaults, W = 2,000 ids per source and E = 120 s.")
    assert contradictions(sentence, advised) == found
