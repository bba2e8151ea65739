"""The comparison as printed to a pipe and to a terminal."""

from __future__ import annotations

import io
from dataclasses import replace

import comparisons
import pytest
from comparisons import agreeing, alone, comparison, dispute, hostile, without_duplicates
from rich.cells import cell_len
from rich.console import Console

from receiver.compare import Cause
from receiver.compare.engine import compare_policies
from receiver.report.comparing import comparison_document, sides, standing_out
from receiver.report.terminal import print_document
from tests.simulate.small_logs import Receipt, ingested


def printed(figures, width=80, *, terminal=False):
    out = io.StringIO()
    colors = "standard" if terminal else None
    print_document(
        comparison_document(figures), Console(file=out, width=width, force_terminal=terminal, color_system=colors)
    )
    return [line.rstrip() for line in out.getvalue().splitlines()]


def test_the_policies_side_by_side():
    lines = printed(comparison())
    head = lines.index("        policy                      caught   missed   false       kept    memory")
    assert lines[head + 2 : head + 16] == [
        "    1   apama                          941        0       0    104,598   21.4 MB",
        "    2   artemis                        941        0       0     20,000    4.1 MB",
        "    3   artemis:id_cache_size=100      904       37       0        200     41 kB",
        "    4   solace-lookup                  941        0       0    214,340   43.9 MB",
        "    5   cmq:retention=345600,          941        0       0    214,340   43.9 MB",
        "        retry=43200,network=60",
        "    6   ttl:expiry=2                   540      401       0      5,120   1.05 MB",
        "    7   sequence                       941        0   1,204         15   3.08 kB",
        ">*  8   apama:window=200,expiry=5      941        0       0      6,500   1.33 MB",
        "    9   perfect                        941        0       0    214,340   43.9 MB",
        "missed: let through; false: new messages dropped; memory: this package's",
        "> never wrong, with the fewest ids",
        "* the two-tier setting recommended for this log",
        "7: Pulsar, RabbitMQ streams; 9: solace-lookup, forgets nothing, the yardstick",
    ]


def test_what_stands_out_in_words():
    text = " ".join(" ".join(printed(comparison())).split())
    for sentence in (
        "6 of 9 policies catch every duplicate and take no new message for one.",
        "Of these, apama:window=200,expiry=5 keeps the fewest ids: 6,500.",
        "- artemis:id_cache_size=100 misses 37 of 941 duplicates (3.93 %): 25 not refreshed, 12 evicted.",
        "- sequence takes 1,204 new messages for duplicates, which loses them: 1,204 sequence gap.",
        "evicted: newer ids pushed it out",
        "Receipts that are new in their domain, but whose id came before in another one: 475.",
        "solace-last is left out: receipt 0: 'a' isn't a replication group message id",
    ):
        assert sentence in text
    assert "other origin" not in text


def test_the_answer_is_doubted_where_it_stands():
    lines = printed(comparison())
    doubted = lines.index("- The times begin at 1970-01-01T00:00:00.000000Z.")
    assert lines[doubted - 1].endswith("keeps the fewest ids: 6,500.")


def test_receipts_that_policies_disagree_on():
    lines = printed(comparison())
    assert "The policies disagree on 1,642 receipts, of which these 10 show how." in lines
    rows = [line.split(maxsplit=2) for line in lines]
    said = {row: rest.split("  ") for row, id_, rest in (row for row in rows if len(row) == 3) if "…" in id_}
    parts = {row: [part.strip() for part in rest if part.strip()] for row, rest in said.items()}
    assert len(parts) == 10
    assert parts["1234"] == ["2.10 s", "1-2, 4-9", "3 not refreshed"]
    assert parts["1300"] == ["2.21 s", "1-2, 4-5, 7-9", "3 evicted, 6 expired"]
    assert parts["215000"] == ["-", "7 sequence gap", "1-6, 8-9"]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({}, ("1-9", "")),
        ({0: Cause.EVICTED, 1: Cause.EXPIRED, 2: Cause.EXPIRED, 8: Cause.EXPIRED}, ("4-8", "1 evicted, 2-3 expired, 9 expired")),
        (dict.fromkeys(range(9), Cause.EVICTED), ("", "1-9 evicted")),
    ],
)  # fmt: skip
def test_policies_by_what_they_say(wrong, said):
    assert sides(dispute(1, wrong, is_duplicate=True)) == said
    assert sides(dispute(1, wrong, is_duplicate=False)) == said[::-1]


def test_nobody_disagrees():
    lines = printed(agreeing())
    assert "All 3 policies say the same of every receipt." in lines
    assert not any("is left out" in line or "keeps these apart" in line for line in lines)


def test_equal_policies_share_the_mark():
    policies = tuple(replace(figures, peak_ids=7) for figures in agreeing().policies)
    lines = printed(replace(agreeing(), policies=policies))
    assert sum(line.startswith(">  ") for line in lines) == 3
    assert "Of these, apama, solace-lookup and perfect keep the fewest ids: 7." in " ".join(" ".join(lines).split())


def test_only_one_policy_is_never_wrong():
    policies = comparison().policies
    text = " ".join(
        " ".join(printed(replace(comparison(), policies=(*policies[1:3], *policies[5:7]), disputes=()))).split()
    )
    assert "Only artemis catches every duplicate and takes no new message for one. It keeps at most 20,000 ids." in text


def test_one_policy_alone_that_is_never_wrong():
    policies = comparison().policies
    text = " ".join(" ".join(printed(replace(comparison(), policies=policies[1:2], disputes=()))).split())
    assert "artemis catches every duplicate and takes no new message for one. It keeps at most 20,000 ids." in text


def test_a_limit_that_was_never_reached_is_no_praise():
    log = replace(comparison().log, receipts=3_000, unchecked=10, duplicates=941)
    sizes = {
        "artemis": 2_049,
        "ttl:expiry=300": 2_049,
        "ttl:expiry=120": 2_048,
        "perfect": 2_049,
        "solace-lookup": 2_049,
    }
    policies = tuple(replace(comparison().policies[0], policy=name, peak_ids=ids) for name, ids in sizes.items())
    text = " ".join(" ".join(printed(replace(comparison(), log=log, policies=policies))).split())
    assert (
        "- artemis and ttl:expiry=300 never had to forget an id here, so this log can't tell what they would miss."
        in text
    )
    text = " ".join(" ".join(printed(replace(comparison(), log=log, policies=policies[1:4]))).split())
    assert "- ttl:expiry=300 never had to forget an id here, so this log can't tell what it would miss." in text
    text = " ".join(" ".join(printed(replace(comparison(), log=log, policies=policies[2:]))).split())
    assert "never had to forget" not in text


def test_a_policy_that_misses_has_forgotten():
    later = [Receipt(us, "a") for us in (0, 1, 10)]  # all ids were kept at once
    comparison = compare_policies(ingested(later), "default", ["ttl:expiry=0.000005"]).comparison
    assert standing_out(comparison)[1:] == ["ttl:expiry=0.000005 misses 1 of 2 duplicates (50 %): 1 expired."]


def test_one_policy_has_nobody_to_disagree_with():
    text = " ".join(" ".join(printed(alone())).split())
    assert "No policy catches every duplicate without taking a new message for one." in text
    assert (
        "- sequence misses 41 of 941 duplicates (4.36 %): 41 evicted; it takes 1,204 new messages for duplicates, which "
        "loses them: 1,204 sequence gap." in text
    )
    assert "disagree" not in text
    assert "say the same" not in text


def test_a_log_without_duplicates_praises_nobody():
    lines = printed(without_duplicates())
    assert "The log holds no duplicate, so it can't tell what a policy would miss." in lines
    assert not any(line.startswith(">") for line in lines)


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("build", comparisons.ALL, ids=lambda build: build.__name__)
def test_a_pipe_gets_plain_lines_that_fit(build, width):
    lines = printed(build(), width)
    assert all(line.isprintable() for line in lines)
    assert max(map(cell_len, lines)) <= width


def test_hostile_text_is_shown_as_text():
    text = "\n".join(printed(hostile(), width=200, terminal=True))
    assert "\x1b[31mred" not in text
    assert "\\x1b[31mred" in text
    assert "[bold red]markup[/]" in text
    assert "evil.example\x1b\\" not in text
