"""The words on other systems: their defaults and limits, whether these are enough, and what to set."""

import io
import json
import re
from dataclasses import replace
from itertools import groupby, pairwise

import pytest
from pages import comparison_page, text_of
from rich.cells import cell_len
from rich.console import Console

from receiver.compare.engine import compare_policies
from receiver.policies.interface import FOR_EVER, Limit
from receiver.report.comparing import comparison_document, standing_out
from receiver.report.elsewhere import Enough, by_domain, contents, sized_systems, systems_of
from receiver.report.html import page_text
from receiver.report.json_object import comparison_object, dumped
from receiver.report.sizing import analysis_document
from receiver.report.terminal import print_contents, print_document
from receiver.simulate.figures import Elsewhere
from tests.simulate.small_logs import Receipt, analysed, ingested

SECOND_US, DAY_US = 1_000_000, 86_400_000_000
LOG = [Receipt(1, "a", "s"), Receipt(2, "b", "s"), Receipt(3 * SECOND_US, "a", "s")]
SHORT = {Enough.NO, Enough.BARELY}
NATS_TOO = "The stream's max_age has to be as long at least, and so has the server's limit, if it has one."


def needing(ids, ttl_us, **settings):
    """The systems by name, for a log with these needs."""
    analysis = replace(analysed(LOG, **settings), elsewhere=Elsewhere(ids, ids, ttl_us, ids))
    return {system.system: system for system in systems_of(analysis)}


def printed(report, width=80):
    """The lines of a document, or of its contents."""
    out = io.StringIO()
    print_ = print_contents if isinstance(report, list) else print_document
    print_(report, Console(file=out, width=width, force_terminal=False, color_system=None))
    return [line.rstrip() for line in out.getvalue().splitlines()]


def test_vendors_defaults_and_limits():
    systems = {system.name: (system.default, system.setting.least, system.setting.most) for system in sized_systems()}
    assert systems == {
        "ActiveMQ Artemis": (20_000, 0, None),
        "Camel's memory repository": (1_000, 0, None),
        "Vector's dedupe": (5_000, 0, None),
        "TDMQ CMQ": (None, 0, None),
        "SQS FIFO": (300 * SECOND_US, 0, None),
        "Azure Service Bus": (600 * SECOND_US, 20 * SECOND_US, 7 * DAY_US),
        "NATS JetStream": (120 * SECOND_US, 100_000, None),
        "MassTransit's inbox": (1_800 * SECOND_US, 0, None),
        "NServiceBus' outbox": (7 * DAY_US, 0, None),
        "Wolverine's inbox": (300 * SECOND_US, 0, None),
        "AWS Powertools": (3_600 * SECOND_US, 0, None),
        "RabbitMQ's deduplication plugin": (None, 0, None),
        "Redis' SET NX EX": (None, 0, None),
        "Kafka Streams' window store": (None, 0, None),
        "Spark's dropDuplicatesWithinWatermark": (None, 0, None),
        "Flink's deduplication": (FOR_EVER, 0, None),
        "Spring Integration's metadata store": (FOR_EVER, 0, None),
        "Brighter's inbox": (FOR_EVER, 0, None),
        "Pulsar": (10_000, 0, None),
    }
    assert all(system.setting.source.startswith("https://") for system in sized_systems())


def test_systems_stand_by_what_they_remember():
    limits = [system.limit for system in sized_systems()]
    assert [limit for limit, _ in groupby(limits)] == list(Limit)


@pytest.mark.parametrize(
    ("system", "need", "enough", "said"),
    [
        ("ActiveMQ Artemis", 30_321, Enough.NO,
         ("20,000 ids by default is not enough here. This log needs 30,321 ids, with the margin 61,000. Set id-cache-size to "
          "61,000.")),
        ("ActiveMQ Artemis", 20_000, Enough.BARELY,
         ("20,000 ids by default is enough only without a margin here. This log needs 20,000 ids, with the margin 40,000. Set "
          "id-cache-size to 40,000.")),
        ("ActiveMQ Artemis", 1, Enough.YES, ""),
        ("Camel's memory repository", 1_001, Enough.NO,
         ("1,000 ids by default is not enough here. This log needs 1,001 ids, with the margin 2,100. Set cacheSize to 2,100.")),
        ("Vector's dedupe", 2_600, Enough.BARELY,
         ("5,000 ids by default is enough only without a margin here. This log needs 2,600 ids, with the margin 5,200. Set "
          "cache.num_events to 5,200.")),
        ("Pulsar", 10_001, Enough.NO,
         ("10,000 producers by default is not enough here. This log needs 10,001 producers, with the margin 21,000. Set "
          "brokerDeduplicationMaxNumberOfProducers to 21,000. Pulsar also forgets a producer that has gone for 6 hours, unless "
          "it is set otherwise.")),
        ("SQS FIFO", 20_494_116, Enough.YES, ""),
        ("SQS FIFO", 200 * SECOND_US, Enough.BARELY,
         "5 min is enough only without a margin here. This log needs 3 min 20 s, with the margin 400 s."),
        ("SQS FIFO", 299_999_999, Enough.BARELY,
         "5 min is enough only without a margin here. This log needs 299.999999 s, with the margin 600 s."),
        ("SQS FIFO", 300 * SECOND_US, Enough.NO,
         "5 min is not enough here. This log needs more than 5 min, with the margin 600 s."),
        ("NATS JetStream", 200 * SECOND_US, Enough.NO,
         ("2 min by default is not enough here. This log needs 3 min 20 s, with the margin 400 s. Set duplicate_window to "
          f"400 s. {NATS_TOO}")),
        ("Azure Service Bus", 4 * DAY_US, Enough.NO,
         ("10 min by default is not enough here. This log needs 4 d, with the margin 700,000 s. The most that "
          "duplicateDetectionHistoryTimeWindow can be, 7 d, leaves less than the margin.")),
        ("Azure Service Bus", 7 * DAY_US, Enough.NO,
         ("10 min by default is not enough here. This log needs 7 d, with the margin 1,300,000 s. The most that "
          "duplicateDetectionHistoryTimeWindow can be, 7 d, is too short.")),
        ("TDMQ CMQ", 20_494_116, Enough.UNSTATED, ""),
        ("Flink's deduplication", 9 * DAY_US, Enough.YES, ""),
    ],
)  # fmt: skip
def test_whether_what_a_vendor_states_is_enough(system, need, enough, said):
    its = needing(need, need)[system]
    assert (its.enough, its.shortfall) == (enough, said and f"{system}: {said}")


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
def test_the_table_fits_and_names_each_system_once(width):
    analysis = replace(analysed(LOG), elsewhere=Elsewhere(30_321, 2_600, 300 * SECOND_US, 3))
    lines = printed(contents(analysis), width)
    assert max(map(cell_len, lines)) <= width
    text = " ".join(" ".join(lines).split())
    systems = systems_of(analysis)
    assert {each.enough for each in systems} == set(Enough)
    assert all((each.shortfall in text) and bool(each.shortfall) == (each.enough in SHORT) for each in systems)
    (table, _) = contents(analysis)
    named = ", ".join(row[-1] for row in table.rows)
    assert [named.count(f"{each.system} (") for each in systems] == [1] * len(systems)
    assert [tuple(row[:4]) for row in table.rows] == [
        ("latest new ids", "30,321", "61,000", "no"),
        ("ids used last", "2,600", "5,200", "barely"),
        ("ids for a time", "5 min", "10 min", "yes"),
        ("ids for a time", "5 min", "10 min", "no"),
        ("ids for a time", "5 min", "10 min", "-"),
        ("producers' numbers", "3", "6", "yes"),
    ]


def test_it_stands_behind_the_sources():
    lines = printed(analysis_document(analysed(LOG)))
    headings = [line for line, below in pairwise(lines) if line.startswith(("Sources that", "What other systems"))]
    assert headings == [
        "Sources that need most, and the W or E that would do for each alone",
        "What other systems would need",
    ]


def test_a_page_has_what_each_domain_needs():
    other = [receipt._replace(destination="r") for receipt in LOG[::2]]
    analysis = analysed(sorted([*LOG, *other, Receipt(9, "a", destination="once")]), "destination")
    table = by_domain(analysis)
    assert table is not None
    assert [list(row) for row in table.rows] == [
        ["queue://q", "2 ids", "2 ids", "3.00 s", "1 producer"],
        ["queue://r", "1 id", "1 id", "3.00 s", "1 producer"],
    ]
    document = analysis_document(analysis)
    shown = text_of(page_text(document))
    assert all(cell in shown for row in table.rows for cell in row)
    assert table.title not in " ".join(printed(document))
    assert by_domain(analysed(LOG)) is None


@pytest.fixture(scope="module")
def fitted():
    return compare_policies(ingested(LOG), "default").comparison


def test_rows_that_are_fitted_say_so_in_json(fitted):
    rows = json.loads(dumped(comparison_object(fitted)))["policies"]
    assert {row["policy"]: row["fitted"] for row in rows if "fitted" in row} == {
        "artemis:id_cache_size=4": True,
        "lru:size=4": True,
        "ttl:expiry=6": True,
        "apama:window=4,expiry=1": True,
    }


def test_rows_that_are_fitted_are_marked_on_a_terminal(fitted):
    lines = printed(comparison_document(fitted), 100)
    marked = [line.split()[2] for line in lines if "+" in line[:2] and ":" in line.split()[2]]
    assert marked == ["artemis:id_cache_size=4", "lru:size=4", "ttl:expiry=6", "apama:window=4,expiry=1"]
    assert lines.count("+ fitted to this log: 2 times the least that misses nothing, rounded up") == 1


def test_rows_that_are_fitted_are_marked_on_the_page(fitted):
    text = text_of(comparison_page(fitted))
    for policy in ("artemis:id_cache_size=4", "lru:size=4", "ttl:expiry=6", "apama:window=4,expiry=1"):
        assert re.search(rf"\+ \d+ {policy} ", text)
    assert "+ fitted to this log: 2 times the least that misses nothing, rounded up" in text


def test_what_is_fitted_is_no_limit_that_this_log_never_reached(fitted):
    (untried,) = [text for text in standing_out(fitted) if "never had to forget" in text]
    assert "artemis:id_cache_size=20000" in untried
    assert "artemis:id_cache_size=4" not in untried


def test_nothing_is_marked_where_policies_were_named():
    comparison = compare_policies(ingested(LOG), "default", ["ttl:expiry=6"]).comparison
    assert "fitted" not in dumped(comparison_object(comparison))
    assert "fitted" not in comparison_page(comparison)
    assert not [line for line in printed(comparison_document(comparison)) if "fitted" in line]
