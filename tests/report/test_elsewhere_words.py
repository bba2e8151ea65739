"""What is said of other systems: their defaults and limits, whether these would do, and what to set."""

import io
import json
import re
from dataclasses import replace
from itertools import pairwise

import pytest
from pages import comparison_page, text_of
from rich.cells import cell_len
from rich.console import Console

from receiver.compare.engine import compare_policies
from receiver.policies.names import sized_systems
from receiver.report.comparing import comparison_document, standing_out
from receiver.report.elsewhere import Enough, contents, systems_of
from receiver.report.json_object import comparison_json
from receiver.report.sizing import analysis_document
from receiver.report.terminal import print_contents, print_document
from receiver.simulate.figures import Elsewhere
from tests.simulate.small_logs import Receipt, analysed, ingested

SECOND_US, DAY_US = 1_000_000, 86_400_000_000
LOG = [Receipt(1, "a", "s"), Receipt(2, "b", "s"), Receipt(3 * SECOND_US, "a", "s")]
NATS_TOO = "The stream's max_age has to be as long at least, and so has the server's limit, if it has one."


def needing(ids, ttl_us, **settings):
    """The systems by their names."""
    analysis = replace(analysed(LOG, **settings), elsewhere=Elsewhere(ids, ttl_us))
    return {system.system: system for system in systems_of(analysis)}


def printed(report, width=80):
    """The lines of a document, or of what stands in it."""
    out = io.StringIO()
    print_ = print_contents if isinstance(report, list) else print_document
    print_(report, Console(file=out, width=width, force_terminal=False, color_system=None))
    return [line.rstrip() for line in out.getvalue().splitlines()]


def test_vendors_defaults_and_limits():
    assert {system.name: (system.default, system.setting.least, system.setting.most) for system in sized_systems()} == {
        "ActiveMQ Artemis": (20_000, 0, None),
        "TDMQ CMQ": (None, 0, None),
        "SQS FIFO": (300 * SECOND_US, 0, None),
        "Azure Service Bus": (600 * SECOND_US, 20 * SECOND_US, 7 * DAY_US),
        "NATS JetStream": (120 * SECOND_US, 100_000, None),
        "Spark's dropDuplicatesWithinWatermark": (None, 0, None),
    }
    assert all(system.setting.source.startswith("https://") for system in sized_systems())


@pytest.mark.parametrize(
    ("system", "ids", "ttl_us", "enough", "sentence"),
    [
        (
            "ActiveMQ Artemis", 30_321, 1, Enough.NO,
            ("ActiveMQ Artemis' default of 20,000 ids is not enough here: this log needs 30,321 ids, with the margin 61,000. "
            "Set id-cache-size to 61,000."),
        ),
        (
            "ActiveMQ Artemis", 20_000, 1, Enough.BARELY,
            ("ActiveMQ Artemis' default of 20,000 ids is enough only without a margin here: this log needs 20,000 ids, with the "
            "margin 40,000. Set id-cache-size to 40,000."),
        ),
        (
            "ActiveMQ Artemis", 1, 1, Enough.YES,
            "ActiveMQ Artemis' default of 20,000 ids is enough here: this log needs 1 id, with the margin 2.",
        ),
        (
            "SQS FIFO", 1, 20_494_116, Enough.YES,
            "SQS FIFO's 5 min are enough here: this log needs 20.5 s, with the margin 41 s.",
        ),
        (
            "SQS FIFO", 1, 200 * SECOND_US, Enough.BARELY,
            "SQS FIFO's 5 min are enough only without a margin here: this log needs 3 min 20 s, with the margin 400 s.",
        ),
        (
            "SQS FIFO", 1, 299_999_999, Enough.BARELY,
            "SQS FIFO's 5 min are enough only without a margin here: this log needs 299.999999 s, with the margin 600 s.",
        ),
        (
            "SQS FIFO", 1, 300 * SECOND_US, Enough.NO,
            "SQS FIFO's 5 min are not enough here: this log needs more than 5 min, with the margin 600 s.",
        ),
        (
            "NATS JetStream", 1, 200 * SECOND_US, Enough.NO,
            ("NATS JetStream's default of 2 min is not enough here: this log needs 3 min 20 s, with the margin 400 s. "
            f"Set duplicate_window to 400 s. {NATS_TOO}"),
        ),
        (
            "Azure Service Bus", 1, 4 * DAY_US, Enough.NO,
            ("Azure Service Bus' default of 10 min is not enough here: this log needs 4 d, with the margin 700,000 s. The most "
            "that duplicateDetectionHistoryTimeWindow can be, 7 d, leaves less than the margin."),
        ),
        (
            "Azure Service Bus", 1, 7 * DAY_US, Enough.NO,
            ("Azure Service Bus' default of 10 min is not enough here: this log needs 7 d, with the margin 1,300,000 s. The most "
            "that duplicateDetectionHistoryTimeWindow can be, 7 d, is too short."),
        ),
        (
            "TDMQ CMQ", 1, 20_494_116, Enough.UNSTATED,
            "TDMQ CMQ has no default: this log needs 20.5 s, with the margin 41 s. Set retention + retry + network to 41 s.",
        ),
        (
            "Spark's dropDuplicatesWithinWatermark", 1, 0, Enough.UNSTATED,
            ("Spark's dropDuplicatesWithinWatermark has no default: this log needs 0 s, with the margin 1 s. Set "
            "withWatermark's delay to 1 s. Spark goes by event time, and drops what comes later than the delay, even if it is "
            "new."),
        ),
    ],
)  # fmt: skip
def test_whether_what_a_vendor_states_is_enough(system, ids, ttl_us, enough, sentence):
    said = needing(ids, ttl_us)[system]
    assert (said.enough, said.sentence) == (enough, sentence)


def test_nothing_is_advised_that_a_vendor_refuses():
    systems = needing(1, 1, margin=1.0)
    assert systems["Azure Service Bus"].with_margin == "20 s"
    assert systems["NATS JetStream"].with_margin == "1 s"


def test_the_margin_is_that_of_the_advice():
    assert needing(100, 60 * SECOND_US, margin=3.0)["NATS JetStream"].with_margin == "180 s"
    assert needing(100, 60 * SECOND_US, margin=1.0)["NATS JetStream"].with_margin == "61 s"


def test_a_log_without_duplicates_says_nothing():
    analysis = analysed(LOG[:2])
    assert systems_of(analysis) == ()
    assert printed(contents(analysis)) == []


@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_table_fits_and_sentences_are_of_what_is_not_enough(width):
    analysis = replace(analysed(LOG), elsewhere=Elsewhere(30_321, 300 * SECOND_US))
    lines = printed(contents(analysis), width)
    assert max(map(cell_len, lines)) <= width
    text = " ".join(" ".join(lines).split())
    systems = systems_of(analysis)
    assert {each.enough for each in systems} == {Enough.NO, Enough.YES, Enough.UNSTATED}
    assert [each.sentence in text for each in systems] == [each.enough is not Enough.YES for each in systems]


def test_it_stands_behind_the_sources():
    lines = printed(analysis_document(analysed(LOG)))
    headings = [line for line, below in pairwise(lines) if line.startswith(("Sources that", "What other systems"))]
    assert headings == [
        "Sources that need most, and the W or E that would do for each alone",
        "What other systems would need",
    ]
    assert ["ActiveMQ", "Artemis", "2", "ids", "4", "20,000", "yes"] in [line.split() for line in lines]


@pytest.fixture(scope="module")
def fitted():
    return compare_policies(ingested(LOG), "default").comparison


def test_rows_that_are_fitted_say_so_in_json(fitted):
    rows = json.loads(comparison_json(fitted))["policies"]
    assert {row["policy"]: row["fitted"] for row in rows if "fitted" in row} == {
        "artemis:id_cache_size=4": True,
        "ttl:expiry=6": True,
        "apama:window=4,expiry=1": True,
    }


def test_rows_that_are_fitted_are_marked_on_a_terminal(fitted):
    lines = printed(comparison_document(fitted), 100)
    marked = [line.split()[2] for line in lines if "+" in line[:2] and ":" in line.split()[2]]
    assert marked == ["artemis:id_cache_size=4", "ttl:expiry=6", "apama:window=4,expiry=1"]
    assert lines.count("+ fitted to this log: 2 times the least that misses nothing, rounded up") == 1


def test_rows_that_are_fitted_are_marked_on_the_page(fitted):
    text = text_of(comparison_page(fitted))
    for policy in ("artemis:id_cache_size=4", "ttl:expiry=6", "apama:window=4,expiry=1"):
        assert re.search(rf"\+ \d+ {policy} ", text)
    assert "+ fitted to this log: 2 times the least that misses nothing, rounded up" in text


def test_what_is_fitted_is_no_limit_that_this_log_never_reached(fitted):
    (untried,) = [text for text in standing_out(fitted) if "never had to forget" in text]
    assert "artemis:id_cache_size=20000" in untried
    assert "artemis:id_cache_size=4" not in untried


def test_nothing_is_marked_where_policies_were_named():
    comparison = compare_policies(ingested(LOG), "default", ["ttl:expiry=6"]).comparison
    assert "fitted" not in comparison_json(comparison)
    assert "fitted" not in comparison_page(comparison)
    assert not [line for line in printed(comparison_document(comparison)) if "fitted" in line]
