"""Every finding: present, with its figures, if it is true of the log; absent otherwise."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_logs import SECOND_US, Receipt, analysed, batches, domains_of, findings_of, ingested, judged, logs

from receiver.domains import domain_key
from receiver.logs import StatusLine
from receiver.simulate.analysis import analyse
from receiver.simulate.findings import DOUBTS
from receiver.simulate.ingest import ingest
from receiver.simulate.question import Question
from receiver.simulate.whole import WholeLog
from tests.choosing import cases

HOUR_US = 3600 * SECOND_US
DAY_US = 24 * HOUR_US
NOW_US = 1_795_225_000 * SECOND_US + 1


def pair(first, second):
    return [Receipt(1, "a", **first), Receipt(2, "a", **second)]


def test_a_plain_log_says_nothing_but_that_it_is_short():
    assert set(findings_of(pair({}, {"jms_redelivered": True}))) == {"short-log", "few-bursts"}


def test_a_long_log_of_short_repeats_says_nothing():
    bursts = [
        Receipt(at_us + again, f"{at_us}", jms_redelivered=bool(again))
        for at_us in range(0, HOUR_US, HOUR_US // 40)
        for again in (0, 1)
    ]
    assert findings_of([*bursts, Receipt(HOUR_US + 1, "z")]) == {}


def test_no_duplicates():
    assert "of 2 checked receipts." in findings_of([Receipt(1, "a"), Receipt(2, "b"), Receipt(3)])["no-duplicates"]
    assert (
        "of 1 checked receipt. Is unique_message_id the sender's id, which a resend keeps? If the log is a table"
        in findings_of([Receipt(1, "a")])["no-duplicates"]
    )
    assert "no-duplicates" not in findings_of(pair({}, {}))
    assert "no-duplicates" not in findings_of([Receipt(1), Receipt(2)])
    marked = findings_of([Receipt(1, "a"), Receipt(2, "b", jms_redelivered=True)])["no-duplicates"]
    assert "But JMSRedelivered is set on 1, which came before" in marked


def times(count, ids):
    """So many receipts, a minute apart. Their ids come by turns."""
    return [Receipt(NOW_US + 60 * SECOND_US * at, f"{at % ids}") for at in range(count)]


@pytest.mark.parametrize(
    ("count", "ids", "said"),
    [
        (101, 1, "ids-alike"),
        (100, 1, "ids-repeated"),  # 99 repeats of an id
        (202, 2, "ids-alike"),
        (100, 50, "ids-repeated"),
        (100, 51, None),
        (99, 1, None),
    ],
)
def test_ids_that_are_nearly_alike_or_nearly_all_come_again(count, ids, said):
    findings = findings_of(times(count, ids))
    assert {id_ for id_ in findings if id_.startswith("ids-")} == ({said} - {None})
    if said:
        assert next(iter(findings)) == said
        assert "--map unique_message_id=FIELD" in findings[said]
    texts = {
        "ids-alike": f"{ids} id{'s' * (ids > 1)} for {count} checked",
        "ids-repeated": f"{count - ids} of {count} (",
    }
    assert said is None or texts[said] in findings[said]


DAY = times(300, 290)
"""A day's log with 10 repeats."""


@pytest.mark.parametrize(
    ("log", "copies"),
    [
        (DAY, None),
        (sorted([*DAY, *DAY[:9]]), None),  # less than half of its duplicates
        (sorted([*DAY, *DAY[:10]]), 10),
        (sorted([*DAY, *DAY[:100]]), 100),  # another file has the first third, too
        (sorted([*DAY, *DAY]), 300),
        (sorted([*times(300, 300), *times(3, 3)]), None),  # less than a hundredth of its receipts
        (sorted([*times(300, 300), *times(4, 4)]), 4),
        (sorted([*times(50, 50), *times(49, 49)]), None),  # a short log
        ([*DAY, *DAY], None),  # not in order, which is another finding
        ([each._replace(received_at_us=each.received_at_us // DAY_US * DAY_US) for each in [*DAY, *DAY]], None),
    ],
)
def test_rows_that_are_there_twice(log, copies):
    findings = findings_of(log)
    assert ("rows-copied" in findings) is (copies is not None)
    if copies is not None:
        duplicates = len(log) - len({each.unique_message_id for each in log})
        assert f"{copies} of {duplicates} (" in findings["rows-copied"]
        assert "ids-repeated" not in findings  # whose question this answers


@given(logs())
def test_duplicates_at_the_time_of_the_receipt_before(log):
    clock_us, last_us, same_time = {}, {}, 0
    for domain, receipt in zip(domains_of(log), log, strict=True):
        if id_ := receipt.unique_message_id:
            clock_us[domain] = max(clock_us.get(domain, 0), receipt.received_at_us)
            same_time += last_us.get((domain, id_)) == clock_us[domain]
            last_us[domain, id_] = clock_us[domain]
    assert WholeLog(ingested(log)).facts.same_time_duplicates == same_time


@pytest.mark.parametrize(("last_us", "count", "is_said"), [(999_999, 99, True), (SECOND_US, 99, False), (0, 98, False)])
def test_times_that_all_fall_into_one_second(last_us, count, is_said):
    log = [Receipt(NOW_US, f"{number}") for number in range(count)] + [Receipt(NOW_US + last_us, "last")]
    findings = findings_of(log)
    assert ("one-second" in findings) is is_said
    if is_said:
        assert "All 100 receipts have times within one second (1.00 s)" in findings["one-second"]
        assert list(findings)[:2] == ["one-second", "no-duplicates"]


def at(times_us):
    """A receipt at each of these times. The first one's id comes again at the last time."""
    return [*(Receipt(time_us, f"{n}") for n, time_us in enumerate(times_us)), Receipt(times_us[-1], "0")]


SECONDS = [NOW_US + SECOND_US * n for n in range(200)]
EARLY = [Receipt(time_us, f"early {time_us}") for time_us in SECONDS[:2]]
SHARED = [Receipt(NOW_US + n, "NULL" if n % 3 == 0 else f"{n}") for n in range(330)]
RARELY = [Receipt(NOW_US + n, f"{n % 10_205}") for n in range(20_303)] + [Receipt(NOW_US + 20_303, "0")] * 100
"""It has 10,198 duplicates. Just a hundredth of them are of one id."""
ANEW = [Receipt(NOW_US + n, f"{n % 200}", "s") for n in range(300)]


@pytest.mark.parametrize(
    ("id_", "log", "said", "others"),
    [
        ("one-id", SHARED, "One id alone makes 109 of 109 (100 %) duplicates", [SHARED[:300], times(300, 200)]),
        ("one-id", RARELY, "One id alone makes 101 of 10,198 (0.99 %) duplicates", [[*RARELY, *RARELY[1:3]]]),
        (
            "ids-anew",
            ANEW,
            "'s' in 'c:queue://q' sends 100 ids again, from its",
            [ANEW[:299], [*SHARED[1:2], *ANEW[1:]]],
        ),
        (
            "ids-missing",
            [Receipt(1)] * 50 + times(50, 50),
            "no uniqueMessageId: 50 of 100 (50 %)",
            [[Receipt(1)] * 50 + times(51, 51), [Receipt(1)] * 98 + times(1, 1)],
        ),
        (
            "sources-unlike",
            [Receipt(NOW_US, f"{n}", f"{min(n, 89)}") for n in range(100)],
            "of its own: 90 sources for 100 ids.",
            [[Receipt(NOW_US, f"{n}", f"{min(n, 88)}") for n in range(100)], times(99, 99)],
        ),
        (
            "old-times",
            [Receipt(time_us // 1000, f"{time_us}") for time_us in SECONDS],
            "The times begin at 1970-01-21T18:40:25.000000Z.",
            [at(SECONDS)],
        ),
        (
            "old-times",
            [Receipt(20_261_121_013_700_000 + 1000 * number, f"{number}") for number in range(100)],
            "unit (--time-unit)? Are they a date's digits",
            [[Receipt(4_102_444_799 * SECOND_US, f"{number}") for number in range(100)]],
        ),
        ("whole-minutes", at([t - t % (60 * SECOND_US) for t in SECONDS]), "to whole minutes", [at(SECONDS)]),
        ("whole-minutes", at([t - t % (24 * HOUR_US) for t in SECONDS]), "to whole days", [times(200, 200)]),
        (
            "out-of-order",
            at(SECONDS[::-1]),
            "200 of 201 (99.5 %) of those checked have a time before the latest one of their domain, by up to 3 min 19 s.",
            [at(SECONDS[:61][::-1] * 2), at(SECONDS)],
        ),
        (
            "out-of-order",
            [*at(SECONDS[:197]), *EARLY],
            "2 of 200 (1 %) of those checked have a time before",
            [[*at(SECONDS[:198]), *EARLY]],
        ),
    ],
)
def test_what_makes_it_doubtful_that_this_is_the_log_that_was_meant(id_, log, said, others):
    findings = findings_of(log)
    assert id_ in DOUBTS
    assert said in findings[id_]
    assert not {"clock-backwards", "unchecked"} & set(findings)  # one finding says it, so others don't
    for other in others:
        assert id_ not in findings_of(other)


@pytest.mark.parametrize(
    ("counts", "said"),
    [
        (
            [(0, 0), (3, 2)],
            "rx rose by 3, and the log has 2 receipts; rDupsDet rose by 2, and the log has 1 duplicate.",
        ),
        ([(9, 3), (11, 5)], "more: rDupsDet rose by 2, and the log has 1 duplicate."),
        ([(9, 9), (11, 10)], None),
        ([(9, 9), (0, 0), (99, 99)], None),
        ([(99, 99)], None),
    ],
)
def test_a_receiver_that_counted_more_than_its_log_has(counts, said):
    first = next(log := batches(pair({}, {})))
    first.status_lines += [
        StatusLine(at, {"rx": float(rx), "rDupsDet": float(dups)}) for at, (rx, dups) in enumerate(counts)
    ]
    log = type(log)([first], log.columns_present)
    analysis = analyse(WholeLog(ingest(log, domain_key("default"))), Question("default"))
    text = {finding.id: finding.text for finding in analysis.findings}.get("counts-lacking")
    assert said in text if said else text is None


@pytest.mark.parametrize(("skipped", "said"), [(0, None), (1, None), (2, "be read: 2 of 202 (0.99 %)")])
def test_rows_that_were_left_out(skipped, said):
    first = next(log := batches(at(SECONDS[:199]), rows=200))
    first.skipped = skipped
    analysis = analyse(
        WholeLog(ingest(type(log)([first], log.columns_present), domain_key("default"))), Question("default")
    )
    text = {finding.id: finding.text for finding in analysis.findings}.get("rows-skipped")
    assert said in text if said else text is None


def test_what_makes_a_log_doubtful_comes_first():
    log = [*times(101, 1), Receipt(1, "a", connection_id="c2"), Receipt(2)]
    findings = list(findings_of(log, "destination"))
    doubtful = [id_ in DOUBTS for id_ in findings]
    assert doubtful == sorted(doubtful, reverse=True)
    assert doubtful[0]


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["queue://ORDERS", "orders"], "2, such as 'c:queue://ORDERS' and 'c:queue://orders'."),
        (
            ["/queue/o", "z", "o", "o ", "jms.queue.O", "Z"],
            "6, such as 'c:queue:///queue/o' and 'c:queue://jms.queue.O'.",
        ),
        (["orders", "queue://orders", "topic://orders", "orders2", "queue://"], None),
    ],
)
def test_a_queue_that_stands_under_several_names(names, said):
    text = findings_of([Receipt(1, "a", destination=name) for name in names]).get("domains-alike")
    assert said in text if said else text is None


@pytest.mark.parametrize("key", ["default", "connection", "receiver"])
def test_duplicates_that_cross_connections(key):
    log = [
        Receipt(1, "a", connection_id="b1"),
        Receipt(2, "a", connection_id="b2"),
        Receipt(3, "a", connection_id="b2"),
        Receipt(4, "x", connection_id="b1"),
        Receipt(5, "x", connection_id="b3"),
        Receipt(6, "y", connection_id="b1"),
        Receipt(7, "y", connection_id="b3"),
    ]
    text = findings_of(log, key)["crosses-connections"]
    assert "over another connection or receiver: 3." in text
    assert "the 1 duplicate counted" in text
    assert "'b1', then over 'b3': 2" in text
    assert "--domain destination" in text


def test_of_crossings_that_are_as_many_the_last_by_name_is_named():
    """Otherwise engines that count them in another order would differ."""
    log = [Receipt(1, id_, connection_id=over) for id_, over in zip("xyxy", ("b1", "b2", "b3", "b4"), strict=True)]
    for crossed in (log, [log[1], log[0], log[3], log[2]]):
        assert "'b2', then over 'b4': 1" in findings_of(crossed)["crosses-connections"]


def test_a_crossing_within_a_connection_names_none():
    log = [Receipt(1, "a", receiver_id="r1"), Receipt(2, "a", receiver_id="r2")]
    assert "counted here. If these" in findings_of(log, "receiver")["crosses-connections"]


@pytest.mark.parametrize("key", ["destination", "name:all"])
def test_a_domain_of_its_queue_is_crossed_by_nothing(key):
    assert "crosses-connections" not in findings_of(pair({"connection_id": "b1"}, {"connection_id": "b2"}), key)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"connection_id": "b1"}, {"connection_id": "b1"}),
        ({"destination": "queue://q"}, {"destination": "queue://p"}),
        ({"destination": "topic://t", "connection_id": "b1"}, {"destination": "topic://t", "connection_id": "b2"}),
        ({"destination": "topic://t", "receiver_id": "r1"}, {"destination": "topic://t", "receiver_id": "r2"}),
    ],
)
def test_another_queue_or_another_subscription_is_no_crossing(first, second):
    assert "crosses-connections" not in findings_of(pair(first, second))


def test_a_crossing_counts_what_the_key_destination_would_add():
    log = [
        Receipt(time, "abc"[time * 7 % 3], connection_id=f"b{time * 5 % 4}", destination=f"queue://q{time % 2}")
        for time in range(30)
    ]
    seen_alone, seen_together = set(), set()
    alone = together = 0
    for receipt in log:
        queue = receipt.destination, receipt.unique_message_id
        alone += (receipt.connection_id, *queue) in seen_alone
        together += queue in seen_together
        seen_alone.add((receipt.connection_id, *queue))
        seen_together.add(queue)
    assert findings_of(log)["crosses-connections"].count(f"receiver: {together - alone}. ") == 1


LACKING = {"connection_id": "", "destination": "queue://", "receiver_id": ""}


@pytest.mark.parametrize(
    ("key", "parts"),
    [
        ("default", ["connection_id", "destination"]),
        ("destination", ["destination"]),
        ("connection", ["connection_id"]),
        ("receiver", ["connection_id", "receiver_id"]),
        ("name:all", []),
    ],
)
def test_receipts_that_lack_what_the_key_tells_domains_by(key, parts):
    log = [Receipt(1, "a", receiver_id="r"), Receipt(2, **LACKING), Receipt(3, "b", **LACKING)]
    text = findings_of(log, key).get("missing-parts", "")
    assert [part for part in LACKING if f"without {part}: 2 of 3 (66.7 %)" in text] == parts
    assert "missing-parts" not in findings_of(log[:1], key)


@pytest.mark.parametrize(
    ("first", "second", "reused"),
    [("x", "y", True), ("x", "x", False), ("", "y", False), ("x", "", False), ("", "", False)],
)
def test_an_id_used_again_for_another_body(first, second, reused):
    findings = findings_of(pair({"body_digest": first}, {"body_digest": second}))
    assert ("id-reuse" in findings) is reused
    if reused:
        assert "1 of 1 (100 %)" in findings["id-reuse"]


def test_without_digests_nothing_is_said_of_bodies():
    assert "id-reuse" not in findings_of(pair({"body_digest": "x"}, {"body_digest": "y"}), lacking={"body_digest"})


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        (False, True, None),
        (False, False, "here: it is missing on 1 of 1 (100 %) duplicates."),
        (True, True, "here: it is set on 1 first receipt, which came before"),
        (True, False, "missing on 1 of 1 (100 %) duplicates, and set on 1"),
    ],
)
def test_the_flag_of_the_broker_against_the_ids(first, second, said):
    log = pair({"jms_redelivered": first}, {"jms_redelivered": second})
    findings = findings_of(log)
    assert said in findings["redelivered-flag"] if said else "redelivered-flag" not in findings
    assert "redelivered-flag" not in findings_of(log, lacking={"jms_redelivered"})


def marked_receipts(firsts, repeats):
    """So many redeliveries of what isn't in the log, and so many of what is."""
    ids = [f"{number}" for number in range(repeats)]
    anew = [f"anew-{number}" for number in range(firsts)]
    return [
        *(Receipt(at, id_) for at, id_ in enumerate(ids)),
        *(Receipt(repeats + at, id_, jms_redelivered=True) for at, id_ in enumerate([*anew, *ids])),
    ]


@pytest.mark.parametrize(("firsts", "repeats", "doubted"), [(6, 5, True), (6, 6, False), (8, 1, False), (10, 0, False)])
def test_redeliveries_whose_first_receipts_are_missing(firsts, repeats, doubted):
    findings = findings_of(marked_receipts(firsts, repeats))
    assert ("firsts-missing" in findings) is doubted
    if doubted:
        assert "set on 11 receipts, and 6 of them repeat no earlier receipt." in findings["firsts-missing"]


def test_firsts_that_came_over_another_connection_are_not_missing():
    firsts = [Receipt(1, f"{at}", connection_id="c1", destination="queue://q") for at in range(20)]
    again = [each._replace(received_at_us=2, connection_id="c2", jms_redelivered=True) for each in firsts]
    findings = findings_of([*firsts, *again, again[0]])
    assert "crosses-connections" in findings
    assert "firsts-missing" not in findings


def repeat_after(distance, source, time_us):
    ids = [f"{source}-{number}" for number in range(distance)]
    return [Receipt(time_us, id_, source) for id_ in [*ids, ids[0]]]


def test_sources_whose_need_is_far_above_the_rest():
    usual = [row for number in range(4) for row in repeat_after(2, f"s{number}", number)]
    assert "The worst is '(anonymous)'" in findings_of([*usual, *repeat_after(101, "", 9)])["demanding-sources"]
    assert "demanding-sources" not in findings_of([*usual, *repeat_after(100, "cheap-all-the-same", 9)])
    text = findings_of([*usual, *repeat_after(101, "worse", 9)])["demanding-sources"]
    assert "over 100: 1 of 5" in text
    assert "'worse'" in text
    assert "with 101" in text


def test_ten_times_the_median_source_where_that_is_more_than_a_hundred():
    usual = [row for number in range(4) for row in repeat_after(20, f"s{number}", number)]
    assert "demanding-sources" not in findings_of([*usual, *repeat_after(200, "ten-times", 9)])
    assert "median one needs 20" in findings_of([*usual, *repeat_after(201, "worse", 9)])["demanding-sources"]


def tail(time_us):
    """The last receipt of a log, without id, so that its source doesn't count."""
    return Receipt(time_us, "", "unchecked")


def ended(number, of, window, kept, peak):
    return (
        f"Sources that sent no id in the second half of the log: {number} of {of}. Of the ids remembered at the peak with "
        f"W = {window}, such sources keep up to {kept} of {peak} "
    )


@pytest.mark.parametrize(
    ("first_us", "last_us", "sent_us", "has_ended"),
    [(0, 10, 4, True), (0, 10, 5, False), (0, 11, 4, True), (0, 11, 5, False), (1, 4, 1, True), (1, 4, 2, False)],
)
def test_a_source_has_ended_if_its_last_id_came_before_the_middle(first_us, last_us, sent_us, has_ended):
    log = [Receipt(first_us, "", "unchecked"), Receipt(sent_us, "a", "old"), Receipt(last_us, "b", "new")]
    findings = findings_of(log)
    assert ("ended-sources" in findings) is has_ended
    if has_ended:
        assert ended(1, 2, "2,000", 1, 2) + "(50 %). A durable receiver retires" in findings["ended-sources"]


def test_a_log_of_one_moment_has_no_first_half():
    assert "ended-sources" not in findings_of([Receipt(7, "a", "old"), Receipt(7, "b", "new")])


def test_receipts_without_id_make_no_source_but_are_of_the_log():
    assert ended(1, 1, "2,000", 1, 1) in findings_of([Receipt(1, "a", "old"), tail(9)])["ended-sources"]
    late = [Receipt(1, "a", "old"), Receipt(9, "", "old")]
    assert ended(1, 1, "2,000", 1, 1) in findings_of(late)["ended-sources"]


def test_a_source_ends_at_the_clamped_time_of_its_domain():
    log = [Receipt(100, "a", "new"), Receipt(10, "b", "stepped-back")]
    assert "ended-sources" not in findings_of(log)
    apart = [log[0], log[1]._replace(destination="queue://p")]
    assert ended(1, 2, "2,000", 1, 2) in findings_of(apart)["ended-sources"]


def test_a_source_is_one_of_its_domain():
    log = [Receipt(time, f"{time}", "s", destination=f"queue://{time % 2}") for time in range(6)]
    assert ended(2, 2, "2,000", 6, 6) in findings_of([*log, tail(20)])["ended-sources"]
    goes_on = Receipt(20, "z", "s", destination="queue://0")
    assert ended(1, 2, "2,000", 3, 7) in findings_of([*log, goes_on])["ended-sources"]
    assert "ended-sources" not in findings_of([*log, goes_on], "name:all")


def test_an_ended_source_keeps_no_more_than_the_window():
    old = [Receipt(number, f"old-{number}", "old") for number in range(10)]
    new = [Receipt(time * SECOND_US, id_, "new") for time, id_ in [(200, "x"), (250, "y"), (300, "x")]]
    assert ended(1, 2, 4, 4, 6) + "(66.7 %)" in findings_of([*old, *new], lean=True)["ended-sources"]


def test_ended_sources_keep_no_more_than_the_peak():
    """An id in ten sources' queues counts once."""
    shared = [Receipt(100 * number * SECOND_US, "shared", f"s{number}") for number in range(10)]
    busy = [Receipt(number * SECOND_US, f"busy-{number}", "busy") for number in range(900)]
    log = [*sorted(shared + busy), tail(9000 * SECOND_US)]
    assert ended(11, 11, 2, 3, 3) + "(100 %)" in findings_of(log, lean=True)["ended-sources"]


def test_without_a_window_nothing_is_kept_by_source():
    log = [Receipt(0, "a", "old"), Receipt(1, "a", "old"), Receipt(HOUR_US, "z", "new")]
    assert analysed(log, budget_bytes=1).recommendation.setting.window == 0
    assert "ended-sources" not in findings_of(log, lean=True)


def test_ended_sources_of_less_than_a_percent_are_not_worth_a_word():
    old, new = Receipt(0, "a", "old"), [Receipt(9, f"{number}", "new") for number in range(100)]
    assert "(1 %)" in findings_of([old, *new[:99]])["ended-sources"]
    assert "ended-sources" not in findings_of([old, *new])


def test_ended_sources_come_behind_demanding_ones():
    usual = [row for number in range(4) for row in repeat_after(2, f"s{number}", number)]
    worse = [Receipt(9, f"once-{number}", "worse") for number in range(300)] + repeat_after(101, "worse", 9)
    worse[-1] = worse[-1]._replace(received_at_us=HOUR_US)  # so that a window is cheaper than an expiry
    kinds = list(findings_of([*usual, *worse]))
    assert kinds[kinds.index("demanding-sources") + 1] == "ended-sources"


@given(logs(), st.sampled_from(["default", "destination", "connection", "receiver", "name:all"]))
@cases(100)
def test_the_ids_of_ended_sources_are_those_of_the_model(log, key):
    analysis = analysed(log, key)
    setting = analysis.recommendation.setting
    replay = judged(log, setting.window, setting.expiry_us, key)
    clocks, counts, last_us = Counter(), Counter(), {}
    for domain, receipt in zip(domains_of(log, key), log, strict=True):
        if receipt.unique_message_id:
            clocks[domain] = max(clocks[domain], receipt.received_at_us)
            counts[domain, receipt.message_source_id] += 1
            last_us[domain, receipt.message_source_id] = clocks[domain]
    times_us = [receipt.received_at_us for receipt in log]
    middle_us = min(times_us) + (max(times_us) - min(times_us)) // 2
    gone = [source for source, at_us in last_us.items() if at_us < middle_us]
    kept = min(replay.peak_ids, sum(min(setting.window, counts[source]) for source in gone))
    queues = [replay.models[domain].queues.get(source, []) for domain, source in gone]
    assert kept >= len({(domain, entry.id) for (domain, _), queue in zip(gone, queues, strict=True) for entry in queue})
    texts = {finding.id: finding.text for finding in analysis.findings}
    assert ("ended-sources" in texts) is (kept > 0)  # in so small a log one id is over a percent
    if kept:
        assert ended(len(gone), len(counts), f"{setting.window:,}", kept, replay.peak_ids) in texts["ended-sources"]


def test_a_log_too_short_to_judge_an_expiry():
    """It should span ten times its longest repeat, and at least an hour."""
    log = [Receipt(0, "a"), Receipt(2000 * SECOND_US, "x"), Receipt(2001 * SECOND_US, "a")]
    text = findings_of([*log, Receipt(19_999 * SECOND_US, "z")])["short-log"]
    assert "spans 5 h 33 min, and its longest repeat needs 33 min 20 s" in text
    assert "short-log" not in findings_of([*log, Receipt(20_000 * SECOND_US, "z")])
    assert "spans only 1 h." in findings_of([Receipt(0, "a"), Receipt(HOUR_US - 1, "b")])["short-log"]
    assert text.endswith("Replay days that hold an outage to learn more.")
    assert "an outage before you lower what is set today." in findings_of(log, lean=True)["short-log"]


def disturbances(number, gap_us):
    return [Receipt(gap_us * n + again, f"{n}") for n in range(number) for again in (0, 1)]


def test_bursts_too_few_to_know_the_largest():
    assert (
        "in 1 burst. If bursts are alike, the next one exceeds this one with a chance of 1 in 2;"
        in (findings_of(disturbances(1, 1))["few-bursts"])
    )
    text = findings_of(disturbances(29, 2 * SECOND_US))["few-bursts"]
    assert (
        "in 29 bursts. If bursts are alike, the next one exceeds the largest of these 29 with a chance of 1 in 30"
        in text
    )
    assert "few-bursts" not in findings_of(disturbances(30, 2 * SECOND_US))
    assert "few-bursts" not in findings_of([Receipt(1, "a")])


def test_halves_that_disagree():
    near = disturbances(3, SECOND_US)
    far = [Receipt(HOUR_US + n * 20 * SECOND_US, f"far-{n}") for n in range(99)] + [Receipt(2 * HOUR_US, "far-0")]
    text = findings_of([*near, *far])["halves-disagree"]
    assert "misses 1 of 4 (25 %) in the other" in text
    assert text.endswith("replay more days to learn more.")
    assert "before you lower what is set today." in findings_of([*near, *far], lean=True)["halves-disagree"]
    assert "first half needs W = 1, the second W = 99" in text
    assert "halves-disagree" not in findings_of(near)


def test_a_window_that_a_redelivery_outlasts_at_the_peak():
    log = [Receipt(SECOND_US + n, f"{n}") for n in range(600)]
    again = Receipt(11 * SECOND_US, "599", jms_redelivered=True, jms_timestamp_ms=1_000)
    text = findings_of([*log, again], lean=False)["short-window"]
    assert "sends 2,000 ids in 3.33 s, and the longest redelivery took 10 s" in text
    assert "W alone may miss a redelivery at the peak. E covers it: keep E at 10 s or more." in text
    tight = findings_of([*log, again], lean=True)["short-window"]
    assert "E is less than that too, so a redelivery at the peak may be missed: a larger --budget" in tight
    calm = [receipt._replace(received_at_us=receipt.received_at_us * 5 // 4) for receipt in log[:200]]
    assert "short-window" not in findings_of([*calm, again._replace(unique_message_id="1")])


@pytest.mark.parametrize(("receipts", "is_short"), [(400, False), (401, True)])
def test_a_window_that_a_redelivery_just_doesnt_outlast(receipts, is_short):
    log = [Receipt(SECOND_US + n, f"{n}") for n in range(receipts)]
    again = Receipt(6 * SECOND_US, "0", jms_redelivered=True, jms_timestamp_ms=1_000)
    assert ("short-window" in findings_of([*log, again])) is is_short


def test_a_sender_that_took_over():
    log = [Receipt(1, "a", "old"), Receipt(2, "b", "old"), Receipt(3, "a", "new"), Receipt(4, "a", "new")]
    assert "from another source: 1 of 2 (50 %)" in (text := findings_of(log)["other-sources"])
    assert "If each source counts by itself, they are new messages" in text
    assert "other-sources" not in findings_of([receipt._replace(message_source_id="s") for receipt in log])


def test_senders_that_dont_say_who_they_are():
    """Three senders send by turns, and each resends its 40th id before. Together they need three times as much."""

    def log(says):
        sent = [(sender, n) for n in range(60) for sender in "abc"]
        again = [(sender, n - 40) for sender, n in sent if n >= 40]
        order = [*sent[:120], *(each for pair in zip(sent[120:], again, strict=True) for each in pair)]
        return [
            Receipt(at, f"{sender}{n}", message_source_id=sender if says else "")
            for at, (sender, n) in enumerate(order)
        ]

    assert "together they need W = 180" in findings_of(log(says=False))["shared-window"]
    assert "shared-window" not in findings_of(log(says=True))
    assert ["shared-window" in findings_of(times(ids + 1, ids)) for ids in (100, 101)] == [False, True]
    both = findings_of(
        [*log(says=False), *(each._replace(unique_message_id=f"x{each.unique_message_id}") for each in log(says=True))]
    )
    assert "none needs more than 60 by itself" in both["shared-window"]


def test_time_that_ran_backwards():
    log = [Receipt(9 * SECOND_US, "a"), Receipt(7_500_000, "b"), Receipt(8 * SECOND_US, "c")]
    assert "of their domain: 2, by up to 1.5 s" in (text := findings_of(log)["clock-backwards"])
    assert "a repeat may need so much more of E than it seems to" in text
    assert "clock-backwards" not in findings_of(sorted(log))


def test_the_rule_of_thumb_beside_what_the_log_says():
    def delivered_after(secs):
        return [
            Receipt(0, "a"),
            Receipt(10 * SECOND_US, "b"),
            Receipt(10 * SECOND_US, "a", jms_redelivered=True, jms_timestamp_ms=10_000 - secs * 1000),
        ]

    assert "10 s to 15 s" in findings_of(delivered_after(5))["rule-of-thumb"]
    assert "It covers this log" in findings_of(delivered_after(5))["rule-of-thumb"]
    assert "does not cover this log" in findings_of(delivered_after(4))["rule-of-thumb"]
    assert "rule-of-thumb" not in findings_of(delivered_after(0))
    assert "this log" not in findings_of(delivered_after(5)[1:])["rule-of-thumb"]  # without a duplicate


@pytest.mark.parametrize(
    ("secs", "present_us", "is_why"),
    [(9, 26_000_000, True), (9, 27_000_000, False), (6, 19_000_000, False), (3, 19_000_000, False)],
)
def test_the_rule_of_thumb_says_where_it_raises_e(secs, present_us, is_why):
    """Twice the need is 20 s here, however long the redelivery took."""
    log = [
        Receipt(0, "a"),
        Receipt(10 * SECOND_US, "b"),
        Receipt(10 * SECOND_US, "a", jms_redelivered=True, jms_timestamp_ms=10_000 - secs * 1000),
    ]
    analysis = analyse(WholeLog(ingested(log)), Question("default", present=(2000, present_us)))
    (text,) = [finding.text for finding in analysis.findings if finding.id == "rule-of-thumb"]
    assert ("The rule is why E is raised." in text) is is_why
    assert (analysis.recommendation.expiry_move == "raise") is (is_why or secs < 9)


def test_receipts_without_id():
    assert "1 of 3 (33.3 %)" in findings_of([*pair({}, {}), Receipt(3)])["unchecked"]
    assert "unchecked" not in findings_of(pair({}, {}))


def test_status_lines_of_the_receiver_itself():
    log = batches(pair({}, {}))
    first = next(log)
    first.status_lines += [StatusLine(2, {"rDupIds": 40.0}), StatusLine(1, {"rDupIds": 1500.0, "rDupsDet": 3.0})]
    log = type(log)([first], log.columns_present)
    analysis = analyse(WholeLog(ingest(log, domain_key("default"))), Question("default"))
    text = next(finding.text for finding in analysis.findings if finding.id == "status-lines")
    assert "in 2 JMS Status lines" in text
    assert "at last rDupIds=40;" in text
    assert "at most 1,500 ids" in text
    assert "status-lines" not in findings_of(pair({}, {}))


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"rDupIds": 7.0}, "in 1 JMS Status line: at last rDupIds=7; at most 7 ids remembered."),
        ({"rRedel": 12_345_678.0}, "in 1 JMS Status line: at last rRedel=12,345,678."),
        ({"rx": 5.0}, "in 1 JMS Status line: no duplicates."),
    ],
)
def test_a_status_line_that_lacks_figures(values, said):
    first = next(log := batches(pair({}, {})))
    first.status_lines.append(StatusLine(1, values))
    analysis = analyse(
        WholeLog(ingest(type(log)([first], log.columns_present), domain_key("default"))), Question("default")
    )
    assert said in next(finding.text for finding in analysis.findings if finding.id == "status-lines")
